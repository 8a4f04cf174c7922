//! Trains and evaluates a prepared run, and writes its results.

use super::accounts::Accounts;
use super::recorder::Recorder;
use super::resume::go_on;
use super::saving::Control;
use super::{Corpora, Limit, Needed, Run};
use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::goodput::{Ended, Event, Goodput, Journal};
use crate::job::Membership;
use fullshard_checkpoint::sharded::{Checkpoint, DataPosition};
use fullshard_data::{BatchOrigin, Batches, Corpus, Order};
use fullshard_pjrt::Client;
use fullshard_train::report::{Curve, Values};
use fullshard_train::{
    Callback, Compiler, EvalRunner, Evaluated, Evaluation, Runner, TokenBatches, TrainSchedule,
    Trained, Training,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The training data and schedule.
pub struct TrainingSet {
    corpus: Arc<Corpus>,
    batches: Batches,
    /// The length of training, and when it logs and evaluates.
    pub schedule: TrainSchedule,
    /// Batches that the run that is resumed passed over, unless the order begins after them.
    passed_over: u64,
}

/// A compiled run with its state on the devices.
pub struct Started<'a> {
    /// The step and the state.
    pub runner: Runner<'a>,
    /// The checkpoint that the state is of, if the run is resumed.
    pub checkpoint: Option<&'a Checkpoint>,
    /// The time that compiling and loading took, in seconds.
    pub compile_time: f64,
}

/// The outcome of a run.
pub struct Outcome {
    /// The outcome of training, if any.
    pub trained: Option<Trained>,
    /// The final evaluation, if any.
    pub evaluated: Option<Evaluated>,
    /// What the time of training was spent on, since the run was first started; on the first
    /// process.
    pub goodput: Option<Goodput>,
}

/// The results of training, which are also written.
pub struct Finished {
    /// The outcome of training.
    pub trained: Trained,
    /// The values of the results file.
    pub results: Values,
    /// The loss curve.
    pub curve: Curve,
    /// The size of the model in bytes.
    pub model_bytes: u64,
    /// What the time of the run was spent on until its last step, since it was first started; on
    /// the first process.
    pub goodput: Option<Goodput>,
}

/// Trains and evaluates as configured. The callback observes the run.
pub fn train(config: &RunConfig, callback: &mut dyn Callback) -> Result<Outcome> {
    train_in(Arc::new(Membership::alone()), config, callback)
}

/// Trains and evaluates as configured, on every process of a job.
pub fn train_in(
    membership: Arc<Membership>,
    config: &RunConfig,
    callback: &mut dyn Callback,
) -> Result<Outcome> {
    let run = Run::prepare_in(membership, config, &mut ())?;
    let corpora = run.corpora(&mut ())?;
    let client = run.client()?;
    run.check(&client)?;
    let compiler = run.compiler(&client)?;
    let evaluation = run.evaluation(&corpora)?;
    let control = Control::default();
    let Some(set) = run.training_set(&corpora, run.resumes_from())? else {
        let Some(evaluation) = evaluation else {
            return Ok(Outcome { trained: None, evaluated: None, goodput: None });
        };
        let evaluated = run.eval_runner(&compiler)?.evaluate(&evaluation, control.stop)?;
        run.write_evaluation(evaluated.as_ref(), 0.0)?;
        return Ok(Outcome { trained: None, evaluated, goodput: None });
    };
    run.check_disk(&set.schedule)?;
    let mut started = run.start(&compiler)?;
    let set = run.training_set(&corpora, started.checkpoint)?.unwrap_or(set);
    let Finished { trained, goodput, .. } =
        run.train(&mut started, set, evaluation.clone(), &control, callback)?;
    let runner = &mut started.runner;
    let evaluated = run.evaluate_at_end(runner, &trained, evaluation.as_ref(), control.stop)?;
    Ok(Outcome { trained: Some(trained), evaluated, goodput })
}

impl Run {
    /// The client of the devices.
    pub fn client(&self) -> Result<Client> {
        let client = match self.client.take() {
            Some(client) => client,
            None => self.config.client(&self.membership)?,
        };
        if self.config.logging.profile.is_some() && !client.plugin().has_profiler() {
            return Err(Error::Usage(format!(
                "--profile is not supported: the plugin of {} has no profiler",
                client.platform_name()
            )));
        }
        Ok(client)
    }

    /// Rejects the run if it cannot fit on the devices.
    pub fn check(&self, client: &Client) -> Result<()> {
        match Limit::of(client, &self.config) {
            Some(limit) => self.needed()?.check(&self.spec, &self.config, &limit),
            None => Ok(()),
        }
    }

    /// The memory that the run needs per device.
    pub fn needed(&self) -> Result<Needed> {
        Needed::new(&self.spec, self.config.platform(), self.mode.train)
    }

    /// The compiler of the run's programs.
    pub fn compiler<'c>(&self, client: &'c Client) -> Result<Compiler<'c>> {
        let cache = self.config.device.compile_cache()?;
        let (options, job) = (self.compile_options.clone(), self.membership.job().clone());
        Ok(Compiler { client, cache, options, job })
    }

    /// Compiles the step, and initializes, loads or resumes the state.
    pub fn start<'a>(&'a self, compiler: &'a Compiler<'a>) -> Result<Started<'a>> {
        let (start, seed) = (Instant::now(), self.config.schedule.seed);
        let mut checkpoint = None;
        let runner = match &self.weights {
            _ if !self.checkpoints.is_empty() => {
                let (runner, index) =
                    Runner::resume(compiler, &self.spec, seed, &self.checkpoints, &mut |error| {
                        tracing::warn!("a checkpoint is not used: {error}")
                    })?;
                checkpoint = self.checkpoints.get(index);
                runner
            }
            Some(weights) => Runner::with_weights(compiler, &self.spec, seed, weights)?,
            None => Runner::new(compiler, &self.spec, seed)?,
        };
        if let Some(checkpoint) = checkpoint {
            self.warn_of_changes(checkpoint)?;
        }
        Ok(Started { runner, checkpoint, compile_time: start.elapsed().as_secs_f64() })
    }

    /// Compiles the evaluation, and initializes or loads the parameters.
    pub fn eval_runner<'a>(&'a self, compiler: &'a Compiler<'a>) -> Result<EvalRunner<'a>> {
        let (seed, sequences) = (self.config.schedule.seed, self.eval_sequences());
        Ok(match &self.weights {
            Some(weights) => EvalRunner::with_weights(compiler, &self.spec, sequences, weights)?,
            None => EvalRunner::new(compiler, &self.spec, seed, sequences)?,
        })
    }

    fn eval_sequences(&self) -> usize {
        self.config.evaluation.per_device_batch * self.spec.placement.batch_shards()
    }

    /// The evaluation data, if any.
    pub fn evaluation(&self, corpora: &Corpora) -> Result<Option<Evaluation>> {
        let Some(corpus) = corpora.evaluation.clone() else { return Ok(None) };
        let sequences = self.eval_sequences();
        let part = self.spec.process_sequences(sequences, self.membership.process())?;
        Ok(Some(Evaluation::on_part(corpus, sequences, part)))
    }

    /// The training data and schedule, if the run trains; with a checkpoint, where it goes on.
    pub fn training_set(
        &self,
        corpora: &Corpora,
        resumed: Option<&Checkpoint>,
    ) -> Result<Option<TrainingSet>> {
        let Some(corpus) = corpora.train.clone() else { return Ok(None) };
        let (config, batch) = (&self.config, self.spec.batch);
        let seed = config.data.seed.unwrap_or(config.schedule.seed);
        let mut batches = Batches {
            order: Order::shuffled(seed, corpus.blocks()),
            accumulation: batch.accumulation,
            sequences: batch.sequences,
            drop_last: config.data.drop_last,
            origin: BatchOrigin::default(),
        };
        if batches.steps_per_epoch() == 0 {
            return Err(Error::Usage(format!(
                "there are {} training blocks, but a step needs {}: leave out \
                 --dataloader_drop_last, lower --per_device_train_batch_size, or add data",
                corpus.blocks(),
                batches.rows()
            )));
        }
        let origin = match resumed {
            Some(checkpoint) => {
                let now = self.data_position(&corpus, &batches, 0);
                go_on(&mut batches, &now, checkpoint, config.checkpoint.ignore_data_skip)?
            }
            None => None,
        };
        let steps = batches.steps_per_epoch();
        let schedule = match origin {
            Some(origin) => TrainSchedule::resumed(self.schedule, steps, origin)?,
            None => TrainSchedule::new(self.schedule, steps)?,
        };
        let passed_over = match (origin, resumed) {
            (None, Some(checkpoint)) => checkpoint.manifest().progress.passed_over,
            _ => 0,
        };
        Ok(Some(TrainingSet { corpus, batches, schedule, passed_over }))
    }

    /// The position in the data after a step.
    fn data_position(&self, corpus: &Corpus, batches: &Batches, step: u64) -> DataPosition {
        let (epoch, example) = batches.position(step);
        DataPosition {
            epoch,
            example,
            examples: corpus.blocks(),
            batch: batches.rows(),
            seed: self.config.data.seed.unwrap_or(self.config.schedule.seed),
            checksum: Some(corpus.checksum().into()),
        }
    }

    /// Trains, and writes the model and the results.
    pub fn train(
        &self,
        started: &mut Started<'_>,
        set: TrainingSet,
        evaluation: Option<Evaluation>,
        control: &Control<'_>,
        callback: &mut dyn Callback,
    ) -> Result<Finished> {
        let Started { runner, checkpoint, compile_time } = started;
        let TrainingSet { corpus, batches, schedule, passed_over } = set;
        self.warn_of_short_launches(&schedule);
        let samples = corpus.blocks();
        let resumed = checkpoint.map(|checkpoint| self.resumed(checkpoint)).transpose()?;
        let resumed = resumed.map(|resumed| resumed.passing_over(passed_over));
        let position = |step| self.data_position(&corpus, &batches, step);
        let run = self.run_name(resumed.as_ref())?;
        let part = self.spec.process_sequences(batches.sequences, self.membership.process())?;
        let data = TokenBatches::training(Arc::clone(&corpus), batches).of_sequences(part);
        let training = Training {
            schedule,
            lr_schedule: self.lr_schedule,
            learning_rate: self.config.learning_rate(),
            batches: Arc::new(data.prefetch(self.spec.iterations_per_loop)),
            evaluation: evaluation.filter(|_| self.mode.evaluate_during),
            profile: self
                .config
                .logging
                .profile
                .clone()
                .filter(|_| self.membership.job().is_first()),
            stop: control.stop,
            saving: self.saving(control, &position, &run)?,
            resumed,
            guards: self.guards(control),
        };
        if self.membership.job().is_first() {
            self.output.clear()?;
        }
        let compile = Duration::try_from_secs_f64(*compile_time).unwrap_or_default();
        let weights = runner.weights_time();
        let recorder = Recorder::new(self, callback, *checkpoint)?;
        let recorder = recorder.started_in(compile.saturating_sub(weights), weights);
        let mut recorder = recorder.with_journal(run, *checkpoint);
        self.forget_resumed()?;
        let trained = training.run(runner, &mut recorder);
        let mut accounts = recorder.take_accounts();
        let trained = match trained {
            Ok(trained) => trained,
            Err(error) => {
                end(accounts, Ended::Failed, Some(error.to_string()));
                return Err(error.into());
            }
        };
        let goodput = accounts.as_mut().and_then(Accounts::report);
        let mut values = trained.values.clone();
        values.insert("train_samples".to_owned(), samples.into());
        values.insert("compile_time".to_owned(), (*compile_time).into());
        let start_up = recorder.start_up().total.as_secs_f64();
        values.insert("startup_time".to_owned(), start_up.into());
        if let Some(goodput) = &goodput {
            values.insert("goodput".to_owned(), goodput.share().into());
        }
        recorder.write(trained.state.global_step, &values);
        let curve = recorder.curve(format!("loss of {}", self.spec.model.class()));
        let curve = match &self.demo {
            Some(demo) => {
                let floor = demo.source().floor(self.block_size());
                curve.with_floor(floor, "entropy of the source")
            }
            None => curve,
        };
        let written = self.write_results(runner, &trained, &values, &curve);
        let folder = self.output.folder().to_owned();
        let written = written.and_then(|bytes| match (trained.not_finite, &trained.best_error) {
            (Some(reason), _) => Err(Error::NotFinite { folder, reason }),
            (_, Some(reason)) => Err(Error::NoBest { folder, reason: reason.clone() }),
            _ => Ok(bytes),
        });
        match &written {
            Ok(_) if trained.stopped => end(accounts, Ended::Stopped, None),
            Ok(_) => {
                self.remove_copies();
                end(accounts, Ended::Done, None);
            }
            Err(error) => end(accounts, Ended::Failed, Some(error.to_string())),
        }
        let model_bytes = written?;
        Ok(Finished { trained, results: values, curve, model_bytes, goodput })
    }

    /// Warns of loops that are longer than all stretches of steps that a launch may cover.
    fn warn_of_short_launches(&self, schedule: &TrainSchedule) {
        let iterations = self.spec.iterations_per_loop as u64;
        let intervals = [
            ("ends after", schedule.steps),
            ("evaluates every", schedule.evaluation_steps * u64::from(self.mode.evaluate_during)),
            ("saves every", schedule.saving_steps),
        ];
        let shortest = intervals.into_iter().filter(|(_, steps)| *steps > 0).min_by_key(|it| it.1);
        if let Some((what, steps)) = shortest.filter(|(_, steps)| *steps < iterations) {
            tracing::warn!(
                "--iterations_per_loop {iterations} has no effect: the run {what} {steps} steps, \
                 and a launch ends there. Lower it to a divisor of {steps}"
            );
        }
    }

    /// The final evaluation, if any: the last one during training if no step follows it.
    pub fn evaluate_at_end(
        &self,
        runner: &mut Runner<'_>,
        trained: &Trained,
        evaluation: Option<&Evaluation>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Evaluated>> {
        let Some(evaluation) = evaluation.filter(|_| self.mode.evaluate) else { return Ok(None) };
        let evaluated = match trained.evaluated {
            Some(evaluated) => Some(evaluated),
            None => {
                let start = Instant::now();
                let evaluated = runner.evaluate(evaluation, stop)?;
                if self.membership.job().is_first() {
                    let seconds = start.elapsed().as_secs_f64();
                    Journal::open(self.output.folder()).record(Event::Evaluation { seconds });
                }
                evaluated
            }
        };
        self.write_evaluation(evaluated.as_ref(), trained.state.epoch)?;
        Ok(evaluated)
    }

    /// Writes the results of an evaluation.
    pub fn write_evaluation(&self, evaluated: Option<&Evaluated>, epoch: f64) -> Result<()> {
        let Some(evaluated) = evaluated.filter(|_| self.membership.job().is_first()) else {
            return Ok(());
        };
        if !self.mode.train {
            self.output.config(&self.config)?;
        }
        self.output.evaluation(&self.evaluation_values(evaluated, epoch))
    }

    /// The values of an evaluation for the results file.
    pub fn evaluation_values(&self, evaluated: &Evaluated, epoch: f64) -> Values {
        let mut values = evaluated.values();
        values.insert("eval_samples".to_owned(), evaluated.samples.into());
        values.insert("perplexity".to_owned(), evaluated.perplexity().into());
        values.insert("epoch".to_owned(), epoch.into());
        values
    }
}

/// Records how training ended.
fn end(accounts: Option<Accounts>, how: Ended, reason: Option<String>) {
    if let Some(accounts) = accounts {
        accounts.end(how, reason);
    }
}
