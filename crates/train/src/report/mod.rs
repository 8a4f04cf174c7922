//! The outputs of a run, as Hugging Face's Trainer writes them: the trainer state with all logs,
//! results as files and as printed, TensorBoard event files, a plot of the loss, and one of the
//! time.
//!
//! This module is independent of the training loop: everything is made from the values passed.

mod curve;
mod metrics;
mod scale;
mod state;
mod svg;
mod tensorboard;
mod timeline;
mod values;

pub use curve::{Curve, Floor, TerminalStyle};
pub use fullshard_checkpoint::{Error, Result};
pub use metrics::{metrics_block, save_metrics};
pub use state::TrainerState;
pub use tensorboard::EventWriter;
pub use timeline::{Timeline, TimelineKind, TimelineSpan};
pub use values::{Number, Values};
