//! Train models too big for one device: parameters, gradients and optimizer state sharded over
//! many XLA devices, from Rust.
//!
//! A [`RunConfig`] describes a run; flags, a TOML or JSON file and Rust code all produce one.
//! [`train`] runs it, [`plan()`] predicts its memory and speed on a machine without access to it,
//! and [`bench()`] measures its step:
//!
//! ```no_run
//! use fullshard::prelude::*;
//!
//! # fn main() -> fullshard::Result<()> {
//! let mut config = RunConfig::default();
//! config.model.config = Some("examples/configs/gpt2_124m.json".into());
//! config.data.train_file = vec!["train.txt".into()];
//! config.mesh.devices = Some(4);
//! config.precision.compute = Some(Compute::Bfloat16);
//!
//! let report = plan(&config, "cpu:4", PlanOptions::default())?;
//! println!("{} bytes per device", report.memory.total);
//! let outcome = train(&config, &mut ())?;
//! println!("{:?}", outcome.evaluated);
//! # Ok(()) }
//! ```
//!
//! A custom model implements [`Model`](fullshard_models::Model) and is
//! [registered](fullshard_models::register); configs can then name it like any other, and
//! everything here supports it. Optimizers are [registered](fullshard_optim::register) in the same
//! way. `examples/own_model.rs` is a custom model in sixty lines.
//!
//! [`run`] has the individual stages of a run, [`goodput`] what its time was spent on.
#![forbid(unsafe_code)]

mod ahead;
pub mod bench;
pub mod config;
pub mod device;
mod elastic;
mod error;
pub mod format;
pub mod goodput;
mod hub;
mod job;
mod mesh;
mod model;
pub mod plan;
pub mod prelude;
pub mod run;
mod step;
pub mod units;

pub use bench::bench;
pub use config::RunConfig;
pub use error::{Error, Result};
pub use fullshard_simulate as simulate;
pub use job::Membership;
pub use model::ChosenModel;
pub use plan::plan;
pub use run::train;
