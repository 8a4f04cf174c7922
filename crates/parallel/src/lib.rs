//! To come.
#![forbid(unsafe_code)]

pub mod config;
pub mod wrap;

pub use config::{FsdpConfig, FsdpConfigError, Settings, Strategy, WrapPolicy};
pub use wrap::{Unit, WrapError, WrapPlan, frozen, units};
