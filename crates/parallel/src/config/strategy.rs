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
    /// Gradients, optimizer state and its update; forward and backward passes run on replicated
    /// parameters, all-gathered once per step (weight-update sharding).
    WeightUpdate,
    /// As `FullShard` over the mesh axis `fsdp`, with replicas over the others.
    HybridShard,
    /// As `ShardGradOp` over the mesh axis `fsdp`, with replicas over the others.
    HybridShardZero2,
    /// Nothing: every device holds everything (plain data parallelism).
    NoShard,
}

const EXPECTED: &str = "full_shard, shard_grad_op, weight_update, hybrid_shard, \
                        hybrid_shard_zero2 or no_shard, optionally with auto_wrap";

impl Strategy {
    /// Every strategy, from the least memory to the most.
    pub const ALL: [Strategy; 6] = [
        Strategy::FullShard,
        Strategy::HybridShard,
        Strategy::ShardGradOp,
        Strategy::HybridShardZero2,
        Strategy::WeightUpdate,
        Strategy::NoShard,
    ];

    /// Whether it has replicas over the mesh axes other than `fsdp`.
    pub fn is_hybrid(self) -> bool {
        matches!(self, Strategy::HybridShard | Strategy::HybridShardZero2)
    }

    /// Whether parameters are resharded after the forward pass unless settings state otherwise.
    pub fn reshards(self) -> bool {
        matches!(self, Strategy::FullShard | Strategy::HybridShard)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::FullShard => "full_shard",
            Strategy::ShardGradOp => "shard_grad_op",
            Strategy::WeightUpdate => "weight_update",
            Strategy::HybridShard => "hybrid_shard",
            Strategy::HybridShardZero2 => "hybrid_shard_zero2",
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
            let named = Strategy::ALL.into_iter().find(|strategy| strategy.name() == word);
            let strategy = match (word, named) {
                (_, Some(strategy)) => strategy,
                ("true" | "True", None) => Strategy::FullShard,
                ("auto_wrap", None) => {
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
        fix: "choose one of them",
    }
}
