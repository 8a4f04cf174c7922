//! What a run leaves behind, as Hugging Face's Trainer leaves it: its state with all that was
//! logged, its results as files and as printed, TensorBoard's event files and a picture of the
//! loss.
//!
//! Nothing here knows of the loop: everything is made from the values that are given.

mod curve;
mod metrics;
mod state;
mod tensorboard;
mod values;

pub use curve::{Curve, Floor, TerminalStyle};
pub use fullshard_checkpoint::{Error, Result};
pub use metrics::{metrics_block, save_metrics};
pub use state::TrainerState;
pub use tensorboard::EventWriter;
pub use values::{Number, Values};
