//! Records losses, times and TensorBoard logs of a run, and what a checkpoint needs to go on with
//! them.

use super::accounts::Accounts;
use super::{Run, resume};
use crate::config::FILE_NAME;
use crate::error::{Error as RunError, Result};
use fullshard_checkpoint::sharded::Checkpoint;
use fullshard_checkpoint::{WeightDtype, write_file};
use fullshard_train::report::{Curve, EventWriter, Values};
use fullshard_train::{
    Callback, Error, Evaluated, Metrics, SaveResult, Saved, Spent, Spike, SpikeOutcome, StartUp,
};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, Instant};

/// The file of recorded losses in a checkpoint.
const RECORDED: &str = "losses.json";

/// Records losses, writes TensorBoard files and calls the next callback.
pub(super) struct Recorder<'a> {
    run: &'a Run,
    next: &'a mut dyn Callback,
    events: Option<EventWriter>,
    recorded: Recorded,
    /// When training began, until its first step is done; then the time of the start-up.
    begun: Instant,
    start_up: StartUp,
    /// On the first process.
    accounts: Option<Accounts>,
}

/// What is recorded of a run so far.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Recorded {
    /// Steps and losses.
    losses: Vec<(f64, f64)>,
    /// Steps and evaluation losses.
    evaluations: Vec<(f64, f64)>,
    /// The name of the folder of TensorBoard's files.
    tensorboard: String,
}

impl<'a> Recorder<'a> {
    /// A recorder of a run that starts, or goes on from a checkpoint.
    pub fn new(
        run: &'a Run,
        next: &'a mut dyn Callback,
        resumed: Option<&Checkpoint>,
    ) -> Result<Recorder<'a>> {
        let mut recorded = match resumed {
            Some(checkpoint) => serde_json::from_slice(&checkpoint.read_file(RECORDED)?)
                .map_err(|error| RunError::file(checkpoint.folder().join(RECORDED), error))?,
            None => Recorded::default(),
        };
        let events = match run.mode.tensorboard && run.membership.job().is_first() {
            true => Some(events(run, resumed, &mut recorded)?),
            false => None,
        };
        let (begun, start_up) = (Instant::now(), StartUp::default());
        Ok(Recorder { run, next, events, recorded, begun, start_up, accounts: None })
    }

    /// States the time that the run took to start, given that of compiling and of weights.
    pub fn started_in(mut self, compile: Duration, weights: Duration) -> Recorder<'a> {
        let (rendezvous, data) = (self.run.membership.rendezvous, self.run.data_time.get());
        self.start_up = StartUp { rendezvous, data, compile, weights, ..StartUp::default() };
        self
    }

    /// Keeps the journal of the run, if this is its first process.
    pub fn with_journal(mut self, run: String, resumed: Option<&Checkpoint>) -> Recorder<'a> {
        let first = self.run.membership.job().is_first();
        self.accounts = first.then(|| Accounts::begin(self.run, run, resumed, &self.start_up));
        self
    }

    /// The accounts of the run, which training has no more to add to.
    pub fn take_accounts(&mut self) -> Option<Accounts> {
        self.accounts.take()
    }

    /// The time that the run took to start.
    pub fn start_up(&self) -> StartUp {
        self.start_up
    }

    /// Writes values such as the results.
    pub fn write(&mut self, step: u64, values: &Values) {
        let Some(events) = &mut self.events else { return };
        if let Err(error) = events.log(step, values) {
            // A run is worth more than its logs.
            tracing::warn!("{error}: no more logs for TensorBoard are written");
            self.events = None;
        }
    }

    /// The loss curve.
    pub fn curve(self, title: String) -> Curve {
        let Recorded { losses, evaluations, .. } = self.recorded;
        Curve { title, losses, evaluations, floor: None }
    }
}

/// The event file of a run: in a new folder, or beside those of the run that is resumed.
fn events(run: &Run, resumed: Option<&Checkpoint>, recorded: &mut Recorded) -> Result<EventWriter> {
    let output = run.output.folder();
    let before = resume::tensorboard_folder(output, &recorded.tensorboard);
    let writer = match (before, resumed) {
        (Some(folder), Some(checkpoint)) => {
            EventWriter::resume(&folder, checkpoint.manifest().progress.step)?
        }
        _ => EventWriter::create(output)?,
    };
    let folder = writer.path().parent().and_then(Path::file_name);
    recorded.tensorboard = folder.unwrap_or_default().to_string_lossy().into_owned();
    Ok(writer)
}

impl Callback for Recorder<'_> {
    fn on_step(&mut self, step: u64, metrics: Metrics) -> Result<(), Error> {
        self.recorded.losses.push((step as f64, f64::from(metrics.loss)));
        if self.start_up.total.is_zero() {
            self.start_up.first_step = self.begun.elapsed();
            self.start_up.total = self.run.membership.launched.elapsed();
            self.next.on_start_up(&self.start_up)?;
        }
        self.next.on_step(step, metrics)
    }

    fn on_spike(&mut self, spike: &Spike) -> Result<(), Error> {
        tracing::warn!("{spike}");
        if let SpikeOutcome::RolledBack { to, .. } = spike.outcome {
            let Recorded { losses, evaluations, .. } = &mut self.recorded;
            losses.retain(|(step, _)| *step <= to as f64);
            evaluations.retain(|(step, _)| *step <= to as f64);
        }
        self.next.on_spike(spike)
    }

    fn on_log(&mut self, step: u64, values: &Values) -> Result<(), Error> {
        self.next.on_log(step, values)?;
        let mut values = values.clone();
        if let Some(share) = self.accounts.as_ref().and_then(Accounts::share) {
            values.insert("goodput".to_owned(), share.into());
        }
        self.write(step, &values);
        Ok(())
    }

    fn on_spent(&mut self, on: Spent, time: Duration) -> Result<(), Error> {
        if let Some(accounts) = &mut self.accounts {
            accounts.spent(on, time);
        }
        self.next.on_spent(on, time)
    }

    fn on_evaluate(&mut self, step: u64, evaluated: &Evaluated) -> Result<(), Error> {
        self.recorded.evaluations.push((step as f64, evaluated.loss));
        self.next.on_evaluate(step, evaluated)?;
        self.write(step, &evaluated.values());
        Ok(())
    }

    fn on_save(&mut self, step: u64, folder: &Path) -> Result<(), Error> {
        let run = self.run;
        let other = |error: Box<dyn std::error::Error + Send + Sync>| Error::Other(error);
        let losses = serde_json::to_vec(&self.recorded).map_err(|error| other(error.into()))?;
        write_file(folder.join(RECORDED), losses)?;
        let config = run.config.to_toml().map_err(|error| other(error.into()))?;
        write_file(folder.join(FILE_NAME), config)?;
        run.write_model_files(folder, WeightDtype::F32).map_err(|error| other(error.into()))?;
        self.next.on_save(step, folder)
    }

    fn on_saved(&mut self, saved: &SaveResult) -> Result<(), Error> {
        if let Some(accounts) = &self.accounts {
            accounts.saved(saved);
        }
        match saved {
            Err(error) => tracing::warn!(
                "no checkpoint was saved: {error}. Training goes on, and older checkpoints are as \
                 they were"
            ),
            Ok(Saved { not_removed: Some(reason), .. }) => {
                tracing::warn!("an old checkpoint is not removed: {reason}");
            }
            Ok(_) => {}
        }
        if let (Ok(saved), true) = (saved, self.run.membership.job().is_first()) {
            self.run.membership.progress(saved.step);
        }
        self.next.on_saved(saved)
    }

    fn on_copied(&mut self, copied: &SaveResult) -> Result<(), Error> {
        match copied {
            Err(error) => tracing::warn!("the state was not copied to memory: {error}"),
            Ok(copied) if self.run.membership.job().is_first() => {
                self.run.membership.progress(copied.step);
            }
            Ok(_) => {}
        }
        self.next.on_copied(copied)
    }

    fn on_profile(&mut self, path: &Path) -> Result<(), Error> {
        self.next.on_profile(path)
    }
}
