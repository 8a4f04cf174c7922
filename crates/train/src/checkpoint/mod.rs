//! Checkpoints of a run: saved while it trains, and resumed on any mesh.
//!
//! A [`Saver`] copies every device's shards to the host between two steps and writes them on other
//! threads while training goes on; nothing is gathered. If the copies would need more memory than
//! allowed, shards are written one after another while training waits.

mod plan;
mod restore;
mod save;
mod saver;
#[cfg(test)]
mod tests;
mod write;

pub use restore::check_checkpoint;
pub(crate) use restore::{read_checkpoint, read_weights, saved_tensors};
pub use save::copies_of;
pub use saver::{SaveOptions, SaveResult, Saved, Saver};
