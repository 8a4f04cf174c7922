//! What of the training state is sharded: the values of `--fsdp`.

use super::error::FsdpConfigError;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What is sharded over the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Parameters, gradients and optimizer state (ZeRO-3).
    #[default]
    FullShard,
    /// The same, but parameters gathered for the forward pass stay unsharded until the end of the
    /// backward pass (ZeRO-2).
    ShardGradOp,
    /// Nothing: every device holds everything (plain data parallelism).
    NoShard,
}

const EXPECTED: &str = "full_shard, shard_grad_op or no_shard, optionally with auto_wrap";

impl Strategy {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::FullShard => "full_shard",
            Strategy::ShardGradOp => "shard_grad_op",
            Strategy::NoShard => "no_shard",
        }
    }
}

impl std::fmt::Display for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads words separated by spaces or commas. `auto_wrap` asks for the default policy,
/// [`WrapPolicy::Blocks`](super::WrapPolicy); alone it is `full_shard`, as is `true`, which a bare
/// `--fsdp` is elsewhere.
impl FromStr for Strategy {
    type Err = FsdpConfigError;

    fn from_str(words: &str) -> Result<Strategy, FsdpConfigError> {
        let mut chosen: Option<Strategy> = None;
        let mut auto_wrap = false;
        for word in words.split([' ', ',']).filter(|word| !word.is_empty()) {
            let strategy = match word {
                "full_shard" | "true" | "True" => Strategy::FullShard,
                "shard_grad_op" => Strategy::ShardGradOp,
                "no_shard" => Strategy::NoShard,
                "auto_wrap" => {
                    auto_wrap = true;
                    continue;
                }
                _ => return Err(not_a_strategy(word)),
            };
            match chosen {
                Some(other) if other != strategy => return Err(two_strategies(other, strategy)),
                _ => chosen = Some(strategy),
            }
        }
        match chosen {
            None if !auto_wrap => Err(bad_value(words)),
            _ => Ok(chosen.unwrap_or_default()),
        }
    }
}

fn not_a_strategy(word: &str) -> FsdpConfigError {
    let unsupported = |reason| FsdpConfigError::Unsupported {
        key: "--fsdp".to_owned(),
        found: word.to_owned(),
        reason,
    };
    match word {
        "offload" => unsupported(
            "shards stay in device memory. Leave it out; more devices or gradient \
             checkpointing make room",
        ),
        "hybrid_shard" | "hybrid_shard_zero2" => unsupported(
            "all devices shard together, without replicas. Write full_shard or shard_grad_op",
        ),
        _ => bad_value(word),
    }
}

fn bad_value(found: &str) -> FsdpConfigError {
    let found = if found.trim().is_empty() { "empty".to_owned() } else { format!("`{found}`") };
    FsdpConfigError::BadValue { key: "--fsdp".to_owned(), found, expected: EXPECTED }
}

fn two_strategies(first: Strategy, second: Strategy) -> FsdpConfigError {
    FsdpConfigError::Contradiction {
        first: format!("`--fsdp {first}`"),
        second: format!("`{second}`"),
        fix: "choose one of full_shard, shard_grad_op and no_shard",
    }
}
