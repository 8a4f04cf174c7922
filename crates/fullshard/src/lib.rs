//! tmp
#![forbid(unsafe_code)]
pub mod bench;
pub mod config;
pub mod device;
mod error;
pub mod format;
mod model;
pub mod plan;
pub mod run;
mod step;
pub mod units;
pub use error::{Error, Result};
