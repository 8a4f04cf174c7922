//! `trainer_state.json`: the progress of a run and its logs.

use super::values::Values;
use fullshard_checkpoint::{Result, write_json};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;

/// The state of a run, with the fields of `transformers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainerState {
    /// Epochs done, with a fraction of the current one.
    pub epoch: f64,
    /// Updates done.
    pub global_step: u64,
    /// Total number of updates.
    pub max_steps: u64,
    /// Updates between logs.
    pub logging_steps: u64,
    /// Updates between evaluations.
    pub eval_steps: u64,
    /// Updates between checkpoints.
    pub save_steps: u64,
    /// Sequences per device in a batch.
    pub train_batch_size: Option<u64>,
    /// Total number of epochs; the last may be partial.
    pub num_train_epochs: u64,
    /// Tokens trained on, if they are counted.
    pub num_input_tokens_seen: u64,
    /// Floating-point operations done.
    pub total_flos: f64,
    /// All logs, each with its epoch and step.
    pub log_history: Vec<Values>,
    /// The best value of the model selection metric.
    pub best_metric: Option<f64>,
    /// The step with the best metric.
    pub best_global_step: Option<u64>,
    /// The checkpoint with the best metric.
    pub best_model_checkpoint: Option<String>,
    /// Whether this process writes for its machine.
    pub is_local_process_zero: bool,
    /// Whether this process writes for all machines.
    pub is_world_process_zero: bool,
    /// Whether the run is part of a hyperparameter search; always false here.
    pub is_hyper_param_search: bool,
    /// The name of the trial.
    pub trial_name: Option<String>,
    /// The hyperparameters of the trial.
    pub trial_params: Option<Map<String, Value>>,
    /// The state of callbacks by class; always empty here.
    pub stateful_callbacks: Map<String, Value>,
}

impl Default for TrainerState {
    fn default() -> TrainerState {
        TrainerState {
            epoch: 0.0,
            global_step: 0,
            max_steps: 0,
            logging_steps: 500,
            eval_steps: 500,
            save_steps: 500,
            train_batch_size: None,
            num_train_epochs: 0,
            num_input_tokens_seen: 0,
            total_flos: 0.0,
            log_history: Vec::new(),
            best_metric: None,
            best_global_step: None,
            best_model_checkpoint: None,
            is_local_process_zero: true,
            is_world_process_zero: true,
            is_hyper_param_search: false,
            trial_name: None,
            trial_params: None,
            stateful_callbacks: Map::new(),
        }
    }
}

impl TrainerState {
    /// Adds a log, with the current epoch and step.
    pub fn log(&mut self, mut values: Values) {
        values.insert("epoch".to_owned(), self.epoch.into());
        values.insert("step".to_owned(), self.global_step.into());
        self.log_history.push(values);
    }

    /// Writes `trainer_state.json` into a folder.
    pub fn save(&self, dir: impl AsRef<Path>) -> Result<()> {
        write_json(dir.as_ref().join("trainer_state.json"), self, 2)
    }
}
