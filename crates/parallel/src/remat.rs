//! What layers save for the backward pass: the values of `--remat`.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What a layer saves for the backward pass; the rest is recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remat {
    /// Everything: nothing is recomputed.
    #[default]
    None,
    /// The results of its matmuls and of attention.
    Dots,
    /// Nothing but its input.
    Full,
}

/// A name that is not a remat policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a remat policy; the policies are none, dots and full")]
pub struct UnknownRemat(pub String);

impl Remat {
    /// Every policy, from the most memory to the least.
    pub const ALL: [Remat; 3] = [Remat::None, Remat::Dots, Remat::Full];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Remat::None => "none",
            Remat::Dots => "dots",
            Remat::Full => "full",
        }
    }
}

impl std::fmt::Display for Remat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Remat {
    type Err = UnknownRemat;

    fn from_str(name: &str) -> Result<Remat, UnknownRemat> {
        let named = Remat::ALL.into_iter().find(|remat| remat.name() == name);
        named.ok_or_else(|| UnknownRemat(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Strategy;

    #[test]
    fn names_round_trip() {
        for remat in Remat::ALL {
            assert_eq!(remat.to_string().parse(), Ok(remat));
            assert_eq!(serde_json::to_value(remat).unwrap(), remat.name());
        }
        assert!("some".parse::<Remat>().is_err());
        for strategy in [Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard] {
            assert_eq!(serde_json::to_value(strategy).unwrap(), strategy.name());
        }
    }
}
