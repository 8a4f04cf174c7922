//! The training loop: loads batches, launches steps and reads metrics.
//!
//! On accelerators the host launches ahead of the metrics it reads, so that devices never wait for
//! it. A step that is not finite is then detected one launch late, which is harmless: the steps
//! themselves skip all updates from there on.
//!
//! A launch is one step, or the loop of several that the spec has. It ends where the run evaluates,
//! saves or ends: steps before that which do not fill a loop are launched one by one.

use crate::callback::Callback;
use crate::checkpoint::{SaveOptions, Saver};
use crate::error::{Error, NotFinite};
use crate::evaluation::{Evaluated, Evaluation};
use crate::guard::{Checker, Guards, Spikes, Watchdog};
use crate::launch::{Metrics, Pending};
use crate::meter::{DeviceMemory, Meter};
use crate::report::{TrainerState, Values};
use crate::runner::Runner;
use crate::saving::Saving;
use crate::schedule::TrainSchedule;
use crate::source::{BatchSource, HostBatch};
use crate::spent::Spent;
use fullshard_checkpoint::sharded::Progress;
use fullshard_optim::Schedule;
use fullshard_pjrt::Profile;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A training run.
pub struct Training<'a> {
    /// Its length, and when it logs and evaluates.
    pub schedule: TrainSchedule,
    /// The learning rate schedule.
    pub lr_schedule: Schedule,
    /// The learning rate that the schedule scales.
    pub learning_rate: f64,
    /// Training data.
    pub batches: Arc<dyn BatchSource>,
    /// Evaluation data, if any.
    pub evaluation: Option<Evaluation>,
    /// The folder for a profile of a few steps, if any.
    pub profile: Option<PathBuf>,
    /// Whether to stop after the current launch.
    pub stop: &'a dyn Fn() -> bool,
    /// When and how checkpoints are saved, if at all.
    pub saving: Option<Saving<'a>>,
    /// Where to go on, if the runner's state is of a checkpoint.
    pub resumed: Option<Resumed>,
    /// What watches over the run.
    pub guards: Guards,
}

/// The progress of a run that is resumed.
#[derive(Debug, Clone, PartialEq)]
pub struct Resumed {
    /// The trainer state with all logs.
    pub state: TrainerState,
    /// The progress of the checkpoint.
    pub progress: Progress,
}

impl Resumed {
    /// The same with a number of batches passed over.
    pub fn passing_over(mut self, batches: u64) -> Resumed {
        self.progress.passed_over = batches;
        self
    }
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// Whether it was stopped early.
    pub stopped: bool,
    /// The step whose loss or gradient was not finite, if training ended there. The state is that
    /// of the step before.
    pub not_finite: Option<NotFinite>,
    /// The step of the best checkpoint, if its parameters were loaded at the end.
    pub loaded_best: Option<u64>,
    /// Why the best checkpoint could not be loaded, if so. The parameters are those of the last
    /// step.
    pub best_error: Option<String>,
    /// Its metrics by the names that Trainer uses.
    pub values: Values,
    /// The last evaluation, if it was after the last step.
    pub evaluated: Option<Evaluated>,
    /// The trainer state with all logs.
    pub state: TrainerState,
}

/// A launch in flight.
pub(crate) struct Launched {
    pending: Pending,
    steps: Vec<LaunchedStep>,
}

/// A launched step.
struct LaunchedStep {
    /// Its number, counted from 1.
    step: u64,
    rate: f64,
    examples: u64,
    waited: Duration,
    /// What its loss should not exceed.
    limit: f32,
}

/// A run in progress.
pub(crate) struct Run<'r, 'a, 'c> {
    pub training: &'r Training<'r>,
    pub runner: &'r mut Runner<'a>,
    pub callback: &'c mut dyn Callback,
    pub state: TrainerState,
    pub meter: Meter,
    pub in_flight: Option<Launched>,
    pub profile: Option<Profile>,
    pub loss: f64,
    pub samples: u64,
    pub evaluated: Option<Evaluated>,
    pub saver: Option<Saver>,
    /// The saver of copies in the memory of hosts.
    pub copier: Option<Saver>,
    /// The step of the last checkpoint.
    pub saved: Option<u64>,
    /// Pauses to save since the last launch was done.
    pub paused: Duration,
    pub watchdog: Watchdog,
    pub checker: Option<Checker>,
    pub spikes: Spikes,
    /// Batches that were passed over: data is that number of steps further on.
    pub passed_over: u64,
}

impl Training<'_> {
    /// Runs training.
    pub fn run(
        &self,
        runner: &mut Runner<'_>,
        callback: &mut dyn Callback,
    ) -> Result<Trained, Error> {
        if let Some(evaluation) = &self.evaluation {
            runner.prepare_evaluation(evaluation)?;
        }
        self.guards.check(runner.spec())?;
        let every = self.guards.check_replicas;
        let checker = (every > 0).then(|| Checker::new(runner, every));
        let watchdog = Watchdog::new(self.guards.deadline.as_ref())?;
        let save = |options: &SaveOptions| {
            let saver = Saver::new(runner, options.clone())?;
            Ok::<_, Error>(saver.watched_by(watchdog.watch()))
        };
        let saver = self.saving.as_ref().map(|saving| save(&saving.options));
        let copies = self.saving.as_ref().and_then(|saving| saving.copies.as_ref());
        let copier = copies.map(|copies| save(&copies.options));
        let mut run = Run {
            training: self,
            state: self.initial_state(runner),
            meter: Meter::new(runner),
            saver: saver.transpose()?,
            copier: copier.transpose()?,
            runner,
            callback,
            in_flight: None,
            profile: None,
            loss: 0.0,
            samples: 0,
            evaluated: None,
            saved: None,
            paused: Duration::ZERO,
            watchdog,
            checker: checker.transpose()?,
            spikes: Spikes::new(self.guards.loss_spikes),
            passed_over: 0,
        };
        if let Some(Resumed { state, progress }) = &self.resumed {
            run.go_on(state, progress);
        }
        run.run()
    }

    fn initial_state(&self, runner: &Runner<'_>) -> TrainerState {
        let spec = runner.spec();
        let per_device = spec.batch.sequences / spec.placement.batch_shards();
        TrainerState {
            max_steps: self.schedule.steps,
            logging_steps: self.schedule.logging_steps,
            eval_steps: self.schedule.evaluation_steps,
            save_steps: self.schedule.saving_steps,
            train_batch_size: Some(per_device as u64),
            num_train_epochs: self.schedule.epochs,
            ..TrainerState::default()
        }
    }
}

impl Run<'_, '_, '_> {
    fn run(mut self) -> Result<Trained, Error> {
        let start = Instant::now();
        let mut stopped = false;
        let not_finite = match self.steps_with_rollbacks(&mut stopped) {
            Ok(()) => None,
            Err(Error::NotFinite(not_finite)) => {
                // The steps launched after it are not finite either.
                self.in_flight = None;
                Some(not_finite)
            }
            Err(error) => return Err(error),
        };
        self.save_at_end(stopped || not_finite.is_some())?;
        let best = if stopped { Ok(None) } else { self.load_best() };
        self.finish(start.elapsed().as_secs_f64(), stopped, not_finite, best)
    }

    /// The steps until the end, a signal, or a loss that is not finite.
    pub fn steps(&mut self, stopped: &mut bool) -> Result<(), Error> {
        let Training { schedule, batches, .. } = self.training;
        let first = self.state.global_step.min(schedule.steps);
        if self.missed_evaluation() {
            let best = self.evaluate()?;
            self.save_if_due(first, best)?;
        }
        let passed_over = self.passed_over;
        let batches = batches.batches(first + passed_over..schedule.steps + passed_over)?;
        let mut batches = batches.map(|batch| batch.map(|batch| batch.of_step(passed_over)));
        let mut step = first;
        while step < schedule.steps {
            if self.stops()? {
                *stopped = true;
                break;
            }
            let timed = self.watchdog.time("waiting for data", step + 1);
            let launched = batches.by_ref().take(self.launch_length(step));
            let launched = launched.collect::<Result<Vec<HostBatch>, Error>>()?;
            drop(timed);
            if launched.is_empty() {
                break;
            }
            self.begin_profile(step)?;
            self.launch(&launched)?;
            step += launched.len() as u64;
            self.end_profile(step)?;
            self.check_devices(&launched, step)?;
            let mut best = false;
            if schedule.evaluates_after(step) {
                self.catch_up()?;
                best = self.evaluate()?;
            }
            self.save_if_due(step, best)?;
            self.copy_if_due(step)?;
        }
        self.catch_up()
    }

    /// Whether all processes stop before the next launch.
    fn stops(&mut self) -> Result<bool, Error> {
        let _timed = self.watchdog.time("agreeing with the other processes", self.next_step());
        let Training { stop, saving, .. } = self.training;
        let agreement = self.runner.agreement()?;
        // One process alone looks after its launch.
        let saving = saving.as_ref().filter(|_| !agreement.is_alone());
        agreement.stops(stop(), saving.is_some_and(|saving| (saving.requested)()))
    }

    /// The first step that is not done, counted from 1.
    fn next_step(&self) -> u64 {
        self.state.global_step + 1
    }

    /// The number of steps of the launch after `done` steps: a loop if nothing happens within it.
    fn launch_length(&self, done: u64) -> usize {
        let Training { schedule, evaluation, saving, .. } = self.training;
        let iterations = self.runner.spec().iterations_per_loop;
        let ends = |step: u64| {
            step == schedule.steps
                || (evaluation.is_some() && schedule.evaluates_after(step))
                || (saving.is_some() && schedule.saves_after(step))
                || saving.as_ref().is_some_and(|saving| saving.copies_after(step))
        };
        let within = done + 1..done + iterations as u64;
        if within.into_iter().any(ends) { 1 } else { iterations }
    }

    fn launch(&mut self, batches: &[HostBatch]) -> Result<(), Error> {
        self.prepare(batches.len())?;
        let limit = self.spikes.limit();
        self.runner.set_loss_limit(limit);
        let launched = |batch: &HostBatch| {
            let (rate, HostBatch { step, examples, waited, .. }) = (self.rate(batch), batch);
            LaunchedStep { step: step + 1, rate, examples: *examples, waited: *waited, limit }
        };
        let steps: Vec<LaunchedStep> = batches.iter().map(launched).collect();
        let rates: Vec<f64> = steps.iter().map(|step| step.rate).collect();
        let tensors: Vec<&[_]> = batches.iter().map(|batch| &batch.tensors[..]).collect();
        let timed = self.watchdog.time("launching a step", self.next_step());
        let pending = self.runner.launch(&tensors, &rates)?;
        drop(timed);
        let launched = Launched { pending, steps };
        let ahead = self.runner.launches_ahead();
        let done = if ahead { self.in_flight.replace(launched) } else { Some(launched) };
        done.map_or(Ok(()), |done| self.read(done))
    }

    /// The learning rate of a batch's step.
    pub fn rate(&self, batch: &HostBatch) -> f64 {
        let Training { schedule, lr_schedule, learning_rate, .. } = self.training;
        learning_rate * lr_schedule.factor(batch.step, schedule.warmup, schedule.steps)
    }

    /// Compiles the program of a launch when it is first needed, which is not the time of steps.
    fn prepare(&mut self, steps: usize) -> Result<(), Error> {
        if self.runner.is_prepared(steps) {
            return Ok(());
        }
        self.catch_up()?;
        let start = Instant::now();
        self.runner.prepare(steps)?;
        self.watchdog.excuse();
        self.spent_apart(Spent::Compile, start.elapsed())
    }

    /// Waits for the launch in flight.
    pub fn catch_up(&mut self) -> Result<(), Error> {
        self.in_flight.take().map_or(Ok(()), |done| self.read(done))
    }

    /// Waits for a launch and records the metrics of its steps.
    fn read(&mut self, launched: Launched) -> Result<(), Error> {
        let timed = self.watchdog.time("waiting for the devices", self.next_step());
        let metrics = launched.pending.wait_all()?;
        drop(timed);
        let time = self.meter.launch_time();
        if let (Some(first), Some(last)) = (launched.steps.first(), launched.steps.last()) {
            self.spent_on_steps(first.step, last.step, time)?;
        }
        let time = time / launched.steps.len().max(1) as u32;
        self.watchdog.measured(time * self.runner.spec().iterations_per_loop as u32);
        let mut steps = launched.steps.into_iter().zip(metrics);
        steps.try_for_each(|(step, metrics)| self.record(step, metrics, time))
    }

    fn record(&mut self, of: LaunchedStep, metrics: Metrics, time: Duration) -> Result<(), Error> {
        let LaunchedStep { step, rate, examples, waited, limit } = of;
        let (metrics, counts) = self.judge(step, metrics, limit)?;
        let tokens = self.runner.spec().tokens_per_step() as u64;
        self.state.global_step = step;
        self.state.epoch = self.training.schedule.epoch(step);
        self.state.num_input_tokens_seen = step * tokens;
        self.loss += f64::from(metrics.loss);
        self.samples += if counts { examples } else { 0 };
        self.evaluated = None;
        self.meter.add(metrics, time, waited);
        if counts {
            self.callback.on_step(step, metrics)?;
        }
        if self.training.schedule.logs_after(step) {
            let values = self.meter.log(metrics, rate, DeviceMemory::of(self.runner));
            self.callback.on_log(step, &values)?;
            self.state.log(values);
        }
        Ok(())
    }

    fn finish(
        mut self,
        runtime: f64,
        stopped: bool,
        not_finite: Option<NotFinite>,
        best: Result<Option<u64>, Error>,
    ) -> Result<Trained, Error> {
        let steps = self.state.global_step;
        let before = self.training.resumed.as_ref().map(|resumed| &resumed.progress);
        let done = steps - before.map_or(0, |progress| progress.step).min(steps);
        let samples = self.samples - before.map_or(0, |progress| progress.samples);
        let flops = 6.0 * self.state.num_input_tokens_seen as f64;
        self.state.total_flos = flops * self.runner.spec().non_embedding_count() as f64;
        let mut values = Values::from([
            ("train_loss".to_owned(), (self.loss / steps.max(1) as f64).into()),
            ("train_runtime".to_owned(), runtime.into()),
            ("train_samples_per_second".to_owned(), (samples as f64 / runtime).into()),
            ("train_steps_per_second".to_owned(), (done as f64 / runtime).into()),
            ("total_flos".to_owned(), self.state.total_flos.into()),
        ]);
        self.state.log(values.clone());
        values.insert("epoch".to_owned(), self.state.epoch.into());
        let (loaded_best, best_error) = match best {
            Ok(loaded) => (loaded, None),
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(Trained {
            stopped,
            not_finite,
            loaded_best,
            best_error,
            values,
            evaluated: self.evaluated.filter(|_| loaded_best.is_none()),
            state: self.state,
        })
    }
}
