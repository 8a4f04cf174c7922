//! Checkpoints during a run: when they are saved, which is the best, and how a run goes on.

use crate::checkpoint::{SaveOptions, SaveResult};
use crate::error::Error;
use crate::report::{TrainerState, Values};
use crate::trainer::Run;
use fullshard_checkpoint::sharded::{DataPosition, Progress};
use fullshard_checkpoint::{Weights, checkpoint_name};
use std::path::Path;
use std::time::Instant;

/// When and how a run saves checkpoints.
pub struct Saving<'a> {
    /// How they are saved.
    pub options: SaveOptions,
    /// The name of the run, which stays the same when it is resumed.
    pub run: String,
    /// The seed of initialization and dropout.
    pub seed: u64,
    /// The position in the data after as many batches as those of a number of steps.
    pub position: &'a dyn Fn(u64) -> DataPosition,
    /// Whether a checkpoint is requested now, besides those of the schedule.
    pub requested: &'a dyn Fn() -> bool,
    /// The metric of the best checkpoint, if one is chosen.
    pub best: Option<BestMetric>,
    /// Whether to save whenever the metric is the best so far.
    pub on_best: bool,
    /// Whether to load the parameters of the best checkpoint at the end.
    pub load_best: bool,
    /// Copies of the state in the memory of hosts, if any.
    pub copies: Option<Copies>,
}

/// Copies of the state in the memory of hosts, between checkpoints.
pub struct Copies {
    /// How they are saved.
    pub options: SaveOptions,
    /// Steps between copies.
    pub every: u64,
}

impl Saving<'_> {
    /// Whether the state is copied after a step.
    pub(crate) fn copies_after(&self, step: u64) -> bool {
        self.copies.as_ref().is_some_and(|copies| step.is_multiple_of(copies.every))
    }

    fn progress(&self, run: &Run<'_, '_, '_>) -> Progress {
        let (step, (unlogged_steps, unlogged_loss)) = (run.state.global_step, run.meter.unlogged());
        Progress {
            run: self.run.clone(),
            step,
            seed: self.seed,
            data: (self.position)(step + run.passed_over),
            samples: run.samples,
            total_loss: run.loss,
            unlogged_steps,
            unlogged_loss,
            passed_over: run.passed_over,
            losses: run.spikes.statistics,
        }
    }
}

/// The metric that chooses the best checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BestMetric {
    /// Its name in the values of an evaluation, such as `eval_loss`.
    pub name: String,
    /// Whether a greater value is better.
    pub greater: bool,
}

impl Run<'_, '_, '_> {
    /// Goes on from a checkpoint: its logs, sums and best metric.
    pub fn go_on(&mut self, state: &TrainerState, progress: &Progress) {
        let new = std::mem::replace(&mut self.state, state.clone());
        self.state = TrainerState {
            global_step: progress.step,
            max_steps: new.max_steps,
            logging_steps: new.logging_steps,
            eval_steps: new.eval_steps,
            save_steps: new.save_steps,
            train_batch_size: new.train_batch_size,
            num_train_epochs: new.num_train_epochs,
            ..std::mem::take(&mut self.state)
        };
        self.find_best();
        (self.loss, self.samples) = (progress.total_loss, progress.samples);
        self.meter.resume(progress.unlogged_steps, progress.unlogged_loss);
        self.saved = Some(progress.step);
        (self.passed_over, self.spikes.statistics) = (progress.passed_over, progress.losses);
    }

    /// Names the best checkpoint as this run does, in case its folder was moved or is spelled in
    /// another way, so that it is kept and found.
    fn find_best(&mut self) {
        let folder = self.training.saving.as_ref().map(|saving| &saving.options.folder);
        let name =
            self.state.best_model_checkpoint.as_ref().map(Path::new).and_then(Path::file_name);
        let here = folder.zip(name).map(|(folder, name)| folder.join(name));
        if let Some(path) = here.filter(|path| path.is_dir()) {
            self.state.best_model_checkpoint = Some(path.display().to_string());
        }
    }

    /// Saves a checkpoint after a step if it is time, and reports those that are complete.
    pub fn save_if_due(&mut self, step: u64, best: bool) -> Result<(), Error> {
        let Some(saving) = &self.training.saving else { return Ok(()) };
        let (on_best, due) = (saving.on_best, self.training.schedule.saves_after(step));
        let agreement = self.runner.agreement()?;
        let requested = match agreement.is_alone() {
            true => (saving.requested)(),
            false => agreement.takes_save(),
        };
        if requested || due || (best && on_best) {
            self.save()?;
        }
        self.report_saved(false)
    }

    /// Copies the state to the memory of hosts after a step if it is time.
    pub fn copy_if_due(&mut self, step: u64) -> Result<(), Error> {
        while let Some(copied) = self.copier.as_mut().and_then(crate::Saver::poll) {
            self.callback.on_copied(&copied)?;
        }
        let Some(saving) = self.training.saving.as_ref().filter(|it| it.copies_after(step)) else {
            return Ok(());
        };
        self.catch_up()?;
        let progress = saving.progress(self);
        let Some(copier) = &mut self.copier else { return Ok(()) };
        let (callback, state, start) = (&mut *self.callback, &self.state, Instant::now());
        copier.start(self.runner, progress, None, &mut |folder| {
            state.save(folder)?;
            callback.on_save(step, folder)
        })?;
        self.spent_on_saving(step, start.elapsed())
    }

    /// Waits for all saves. A run that ends early saves its last step.
    pub fn save_at_end(&mut self, early: bool) -> Result<(), Error> {
        if early && self.training.saving.is_some() {
            self.save()?;
        }
        self.report_saved(true)
    }

    /// Starts to save the state of the last step, unless it was saved.
    fn save(&mut self) -> Result<(), Error> {
        self.catch_up()?;
        let step = self.state.global_step;
        let Some(saving) = &self.training.saving else { return Ok(()) };
        if self.state.best_global_step == Some(step) {
            let path = saving.options.folder.join(checkpoint_name(step));
            self.state.best_model_checkpoint = Some(path.display().to_string());
        }
        let progress = saving.progress(self);
        let Some(saver) = self.saver.as_mut().filter(|_| self.saved != Some(step)) else {
            return Ok(());
        };
        self.saved = Some(step);
        let best = self.state.best_model_checkpoint.as_ref().map(Into::into);
        let (callback, state, start) = (&mut *self.callback, &self.state, Instant::now());
        saver.start(self.runner, progress, best, &mut |folder| {
            state.save(folder)?;
            callback.on_save(step, folder)
        })?;
        self.watchdog.excuse();
        self.spent_on_saving(step, start.elapsed())
    }

    /// Passes the outcomes of saves on.
    pub fn report_saved(&mut self, wait: bool) -> Result<(), Error> {
        let Some(saver) = &mut self.saver else { return Ok(()) };
        let next = |wait: bool, saver: &mut crate::Saver| -> Option<SaveResult> {
            if wait { saver.wait() } else { saver.poll() }
        };
        while let Some(saved) = next(wait, saver) {
            self.callback.on_saved(&saved)?;
        }
        Ok(())
    }

    /// Notes the metric of an evaluation, and returns whether it is the best so far.
    pub fn note_best(&mut self, values: &Values) -> bool {
        let metric = self.training.saving.as_ref().and_then(|saving| saving.best.as_ref());
        let value = metric.and_then(|metric| values.get(&metric.name)).map(|value| value.as_f64());
        let (Some(metric), Some(value)) = (metric, value) else { return false };
        let better = match self.state.best_metric {
            Some(best) if metric.greater => value > best,
            Some(best) => value < best,
            None => !value.is_nan(),
        };
        if better {
            self.state.best_metric = Some(value);
            self.state.best_global_step = Some(self.state.global_step);
        }
        better
    }

    /// Loads the parameters of the best checkpoint, if requested, and returns its step.
    pub fn load_best(&mut self) -> Result<Option<u64>, Error> {
        let loads = self.training.saving.as_ref().is_some_and(|saving| saving.load_best);
        let path = self.state.best_model_checkpoint.as_ref().filter(|_| loads);
        let Some(path) = path else { return Ok(None) };
        if self.state.best_global_step != Some(self.state.global_step) {
            self.runner.load_weights(&Weights::open(path)?)?;
        }
        Ok(self.state.best_global_step)
    }
}
