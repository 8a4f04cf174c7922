//! What happens to a run: a line of its journal each.
//!
//! Versions read one another's journals: fields that are missing have defaults, and other fields
//! and events are ignored.

use serde::{Deserialize, Serialize};

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When it happened, or ended, in seconds since 1970.
    pub time: f64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// Something that happened. Process 0 of each generation records what it spends time on; whoever
/// restarts it records failures and restarts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A generation was started, and will train.
    Start {
        /// The name of the run, which stays the same when it is resumed.
        run: String,
        /// Its number, if a supervisor counts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<u64>,
        /// The number of processes.
        #[serde(default)]
        processes: usize,
        /// The number of devices of all processes.
        #[serde(default)]
        devices: usize,
        /// Whether it was to resume, but there was no checkpoint: it goes on with the run before
        /// from its first step.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        starts_over: bool,
    },
    /// The state is that of a checkpoint.
    Resumed {
        /// The step of the checkpoint.
        step: u64,
        /// How long it took to load, which is part of the start-up.
        #[serde(default)]
        seconds: f64,
        /// Where it was.
        #[serde(default)]
        from: Source,
    },
    /// Training begins, after these seconds since the start and what is between.
    StartUp {
        /// Until all processes were there.
        #[serde(default)]
        rendezvous: f64,
        /// Finding files and tokenizing text.
        #[serde(default)]
        data: f64,
        /// Compiling programs, or loading them.
        #[serde(default)]
        compile: f64,
        /// Initializing weights, or loading them.
        #[serde(default)]
        weights: f64,
    },
    /// Steps were trained, and their metrics read. The first launch of a generation has a record
    /// of its own.
    Steps {
        /// The first of them.
        from: u64,
        /// The last of them.
        to: u64,
        /// The time of all.
        seconds: f64,
    },
    /// Training paused to save a checkpoint.
    Save {
        /// The step.
        step: u64,
        /// How long it paused.
        pause_s: f64,
    },
    /// A checkpoint is complete.
    Saved {
        /// The step.
        step: u64,
        /// The time of writing, while training goes on.
        #[serde(default)]
        seconds: f64,
    },
    /// A checkpoint could not be saved.
    SaveFailed {
        /// Why.
        #[serde(default)]
        reason: String,
    },
    /// The model was evaluated.
    Evaluation {
        /// The time of it.
        seconds: f64,
    },
    /// A program was compiled after training had begun.
    Compile {
        /// The time of it.
        seconds: f64,
    },
    /// The model and the results were written, after the last checkpoint was complete.
    Export {
        /// The time of it.
        seconds: f64,
    },
    /// The job failed, as its supervisor learned at this time.
    Failure {
        /// The process that failed first, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<usize>,
        /// Its host, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// Why.
        #[serde(default)]
        reason: String,
        /// The time since the last sign of progress, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        silent_s: Option<f64>,
    },
    /// The supervisor starts the next generation.
    Restart {
        /// Its number.
        #[serde(default)]
        generation: u64,
        /// The number of processes.
        #[serde(default)]
        processes: usize,
        /// How long it waited before.
        #[serde(default)]
        delay_s: f64,
    },
    /// A generation ended by itself.
    End {
        /// How.
        how: Ended,
        /// Why, if it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// An event of another version.
    #[serde(other)]
    Unknown,
}

/// Where a state was loaded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A checkpoint on disk.
    #[default]
    Disk,
    /// The memory of a host.
    Memory,
}

/// How a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// After its last step.
    Done,
    /// By a signal, with a checkpoint of its last step.
    Stopped,
    /// By an error.
    Failed,
}
