//! Named numbers: logs and results.

use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// Named numbers, sorted by name as in Hugging Face's files.
pub type Values = BTreeMap<String, Number>;

/// A number that is written without a decimal point if it counts something.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// A count.
    Count(i64),
    /// A measurement. JSON has no non-finite numbers; they are written as null and read as NaN.
    Measure(#[serde(deserialize_with = "nan_if_null")] f64),
}

fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

impl Number {
    /// Its value.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Count(count) => count as f64,
            Number::Measure(measure) => measure,
        }
    }
}

impl From<f64> for Number {
    fn from(measure: f64) -> Number {
        Number::Measure(measure)
    }
}

impl From<i64> for Number {
    fn from(count: i64) -> Number {
        Number::Count(count)
    }
}

impl From<u64> for Number {
    fn from(count: u64) -> Number {
        Number::Count(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Number {
    fn from(count: usize) -> Number {
        Number::from(count as u64)
    }
}
