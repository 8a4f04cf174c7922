//! Optimizers traced on shards, gradient clipping and learning-rate schedules.
//!
//! An [`Optimizer`] updates the local shards of parameters and state from those of gradients,
//! inside a manual region of a mesh. Statistics over a full parameter are summed over the devices
//! that it is sharded over and divided by its unpadded size, so that a run computes the same
//! numbers on one device as on many, whatever the sharding.
//!
//! ```
//! use fullshard_graph::{Argument, DType, Program, TensorType};
//! use fullshard_optim::{AdamW, Optimizer, Shard, Update};
//!
//! # fn main() -> fullshard_graph::Result<()> {
//! let optimizer = AdamW { weight_decay: 0.01, ..AdamW::default() };
//! let argument = |dims: &[usize]| Argument::new(TensorType::new(DType::F32, dims));
//! let scalars = argument(&[optimizer.scalar_count()]);
//! let matrix = argument(&[7, 5]);
//! // The parameter, its gradient and the two optimizer states.
//! let arguments = [scalars, matrix.clone(), matrix.clone(), matrix.clone(), matrix];
//! let program = Program::trace("step", &arguments, |mut tensors| {
//!     let update = Update {
//!         shard: Shard::replicated(&[7, 5], None),
//!         slots: tensors.split_off(3),
//!         gradient: tensors.remove(2),
//!         parameter: tensors.remove(1),
//!         decays: true,
//!         scalars: tensors.remove(0),
//!     };
//!     let updated = optimizer.update(vec![update])?.remove(0);
//!     Ok([updated.parameter].into_iter().chain(updated.slots).collect())
//! })?;
//! assert!(program.to_text().contains("stablehlo.sqrt"));
//! // The scalars of a step, counted from 1.
//! assert_eq!(optimizer.scalars(1, 1e-3).len(), optimizer.scalar_count());
//! # Ok(()) }
//! ```
//!
//! - [`AdamW`], [`Adafactor`] and [`Sgd`] are the optimizers; [`from_name`] builds one by its name
//!   in Hugging Face's Trainer, and [`register`] adds one of another crate.
//! - [`global_norm`] and [`clip_factor`] clip gradients.
//! - [`decays`] tells which parameters weight decay applies to.
//! - [`Schedule`] is a learning-rate schedule; [`ScheduleOptions`] builds one by its name.
#![forbid(unsafe_code)]

mod adafactor;
mod adamw;
mod arguments;
mod blocks;
mod clip;
mod decay;
mod error;
mod factors;
mod matrices;
mod named;
mod optimizer;
mod schedule;
mod schedule_options;
mod sgd;
mod shard;
mod sums;

pub use adafactor::{Adafactor, StepSize};
pub use adamw::AdamW;
pub use arguments::Arguments;
pub use clip::{clip_factor, global_norm};
pub use decay::decays;
pub use error::Error;
pub use fullshard_core::Layout;
pub use named::{OptimizerKind, OptimizerOptions, from_name, optimizers, register};
pub use optimizer::{Optimizer, Slot, SlotKind, Update, Updated};
pub use schedule::{SCHEDULES, Schedule, Shape, StableDecay};
pub use schedule_options::ScheduleOptions;
pub use sgd::Sgd;
pub use shard::{Shard, TensorSlice};
