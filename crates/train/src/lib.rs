//! The training loop around a step's programs.
//!
//! A [`Runner`] owns the training state and the compiled step that updates it, an [`EvalRunner`]
//! only parameters; an [`Evaluator`] borrows parameters from either. A [`Training`] is the loop
//! around a runner: batches of a [`BatchSource`], learning rates, logs and evaluations, with a
//! [`Callback`] to observe them.
#![forbid(unsafe_code)]

mod agreement;
mod bench;
mod budget;
mod callback;
mod checkpoint;
mod compiler;
mod error;
mod eval_runner;
mod evaluation;
mod evaluator;
mod export;
mod guard;
mod job;
mod launch;
mod meter;
mod parameters;
mod profiling;
pub mod report;
mod runner;
mod saving;
mod schedule;
mod source;
mod spent;
mod start_up;
mod state;
mod trainer;
mod weights;

pub use bench::{Bench, Measured, Spread};
pub use callback::Callback;
pub use checkpoint::{SaveOptions, SaveResult, Saved, Saver, check_checkpoint, copies_of};
pub use compiler::{Compiled, Compiler};
pub use error::{Error, NotFinite};
pub use eval_runner::EvalRunner;
pub use evaluation::{Evaluated, Evaluation};
pub use evaluator::{Evaluator, PendingLoss};
pub use guard::{
    CheckedBy, Corrupt, Deadline, DevicePlace, Guards, LossSpikes, Spike, SpikeAction,
    SpikeOutcome, Stuck,
};
pub use job::{Job, Peers, PeersError};
pub use launch::{Metrics, Pending};
pub use meter::DeviceMemory;
pub use parameters::Parameters;
pub use runner::Runner;
pub use saving::{BestMetric, Copies, Saving};
pub use schedule::{Every, Origin, TrainSchedule, TrainScheduleOptions};
pub use source::{BatchSource, HostBatch, HostBatches, TokenBatches};
pub use spent::Spent;
pub use start_up::StartUp;
pub use state::initial_state;
pub use trainer::{Resumed, Trained, Training};
pub use weights::model_tensors;
