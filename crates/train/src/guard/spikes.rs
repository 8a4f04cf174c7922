//! Loss spikes: steps whose loss is far above that of the steps before, or not finite.
//!
//! The losses of recent steps have a mean and a standard deviation, both moving averages over about
//! [`WINDOW`] steps. After as many steps, a loss is a spike if it exceeds the mean by more than
//! `factor` deviations. Losses of spikes are not averaged.
//!
//! All processes decide alike, since metrics are the same on all of them. What they decided is in a
//! checkpoint's progress, so that a resumed run decides as one that was not interrupted.

use crate::error::Error;
use crate::launch::Metrics;
use crate::runner::Runner;
use crate::trainer::Run;
use fullshard_checkpoint::list;
use fullshard_checkpoint::sharded::{Checkpoint, LossStatistics};
use serde_json::{from_slice, to_vec};
use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

/// The steps over which losses are averaged, and after which spikes are looked for.
const WINDOW: u64 = 50;

/// The least deviation, as a share of the mean: a loss that hardly moves has no spikes within it.
const LEAST_DEVIATION: f64 = 0.01;

/// The most spikes in a row that are skipped, and the most rollbacks to one checkpoint.
const MOST: u64 = 5;

/// When a loss is a spike, and what is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossSpikes {
    /// What is done.
    pub action: SpikeAction,
    /// By how many standard deviations a spike exceeds the mean of recent losses.
    pub factor: f64,
}

/// What is done about a loss spike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpikeAction {
    /// Its step updates nothing. The spec must have a
    /// [loss limit](fullshard_step::StepSpec::with_loss_limit).
    Skip,
    /// The run goes back to the last checkpoint, and from there on with the batch after the spike.
    Rollback,
}

/// A loss spike.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub struct Spike {
    /// Its step, counted from 1.
    pub step: u64,
    /// Its loss.
    pub loss: f32,
    /// What the loss should not exceed.
    pub limit: f32,
    /// What is done about it.
    pub outcome: SpikeOutcome,
}

/// What was done about a loss spike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpikeOutcome {
    /// Its step updated nothing.
    Skipped,
    /// The run goes back.
    RolledBack {
        /// The step of the checkpoint.
        to: u64,
        /// The number of batches that are passed over: those of the steps after the checkpoint, to
        /// the one of the spike.
        batches: u64,
    },
    /// Nothing: there is no checkpoint yet.
    Ignored,
    /// The run ends: it is one spike too many.
    Ends,
}

impl fmt::Display for Spike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spike { step, loss, limit, outcome } = self;
        write!(f, "the loss of step {step} is {loss}, above {limit}: ")?;
        match outcome {
            SpikeOutcome::Skipped => f.write_str("its update is skipped"),
            SpikeOutcome::RolledBack { to, batches } => write!(
                f,
                "the run goes back to step {to}, and passes over the {batches} batches since then"
            ),
            SpikeOutcome::Ignored => f.write_str(
                "the run goes on, since there is no checkpoint to go back to. Save earlier \
                 (--save_steps)",
            ),
            SpikeOutcome::Ends => write!(
                f,
                "after {MOST} spikes in a row neither the data nor chance explains it. Try a lower \
                 --learning_rate or a larger --loss_spike_factor, and check the data"
            ),
        }
    }
}

/// Looks for spikes in the losses of a run.
pub(crate) struct Spikes {
    options: Option<LossSpikes>,
    pub statistics: LossStatistics,
    /// Spikes since the last step that was none.
    in_a_row: u64,
    /// The rollbacks so far, and those to the same checkpoint, by its step.
    rollbacks: u64,
    to: (u64, u64),
}

/// What to do with a step.
pub(crate) enum Verdict {
    /// It counts.
    Good,
    /// It was a spike, and the run goes on.
    Spike(Spike),
}

impl Spikes {
    pub fn new(options: Option<LossSpikes>) -> Spikes {
        let statistics = LossStatistics::default();
        Spikes { options, statistics, in_a_row: 0, rollbacks: 0, to: (0, 0) }
    }

    /// What losses should not exceed from now on. The steps compare `f32`s, and so does this.
    pub fn limit(&self) -> f32 {
        let LossStatistics { steps, mean, variance } = self.statistics;
        match self.options {
            Some(LossSpikes { factor, .. }) if steps >= WINDOW => {
                let deviation = variance.sqrt().max(LEAST_DEVIATION * mean.abs());
                (mean + factor * deviation) as f32
            }
            _ => f32::INFINITY,
        }
    }

    /// Judges a step, given the limit that it had. Without a checkpoint there is no rollback.
    fn judge(
        &mut self,
        step: u64,
        metrics: Metrics,
        limit: f32,
        saved: bool,
    ) -> Result<Verdict, Error> {
        let Metrics { loss, gradient_norm, .. } = metrics;
        let finite = loss.is_finite() && gradient_norm.is_finite();
        if finite && loss <= limit {
            self.add(loss);
            self.in_a_row = 0;
            return Ok(Verdict::Good);
        }
        let not_finite = crate::NotFinite { step, loss, gradient_norm };
        let Some(LossSpikes { action, .. }) = self.options else {
            return Err(Error::NotFinite(not_finite));
        };
        self.in_a_row += 1;
        let spike = |outcome| Spike { step, loss, limit, outcome };
        match action {
            SpikeAction::Skip if self.in_a_row > MOST => {
                Err(Error::Spike(spike(SpikeOutcome::Ends)))
            }
            SpikeAction::Skip => Ok(Verdict::Spike(spike(SpikeOutcome::Skipped))),
            SpikeAction::Rollback if saved => {
                Err(Error::Spike(spike(SpikeOutcome::RolledBack { to: 0, batches: 0 })))
            }
            SpikeAction::Rollback if !finite => Err(Error::NotFinite(not_finite)),
            SpikeAction::Rollback => {
                self.add(loss);
                Ok(Verdict::Spike(spike(SpikeOutcome::Ignored)))
            }
        }
    }

    fn add(&mut self, loss: f32) {
        let LossStatistics { steps, mean, variance } = &mut self.statistics;
        *steps += 1;
        let share = 1.0 / (*steps).min(WINDOW) as f64;
        let off = f64::from(loss) - *mean;
        *mean += share * off;
        *variance = (1.0 - share) * (*variance + share * off * off);
    }

    /// Takes note of a rollback to a step, and returns whether it is one too many.
    fn goes_back(&mut self, to: u64) -> bool {
        self.to = if self.to.0 == to { (to, self.to.1 + 1) } else { (to, 1) };
        self.to.1 > MOST
    }
}

impl Run<'_, '_, '_> {
    /// Judges a step; a spike that the run goes on after is reported. Returns the metrics that
    /// count: the mean stands for the loss of a step that was skipped.
    pub fn judge(
        &mut self,
        step: u64,
        metrics: Metrics,
        limit: f32,
    ) -> Result<(Metrics, bool), Error> {
        match self.spikes.judge(step, metrics, limit, self.saved.is_some())? {
            Verdict::Good => Ok((metrics, true)),
            Verdict::Spike(spike) => {
                self.callback.on_spike(&spike)?;
                let is_skipped = spike.outcome == SpikeOutcome::Skipped;
                let (loss, norm) = (self.spikes.statistics.mean as f32, metrics.gradient_norm);
                let gradient_norm = if norm.is_finite() { norm } else { 0.0 };
                let stand_in = Metrics { loss, gradient_norm, ..metrics };
                Ok(if is_skipped { (stand_in, false) } else { (metrics, true) })
            }
        }
    }

    /// All steps until the end, a signal, or a loss that ends the run; goes back after spikes.
    pub fn steps_with_rollbacks(&mut self, stopped: &mut bool) -> Result<(), Error> {
        loop {
            match self.steps(stopped) {
                Err(Error::Spike(spike)) if spike.outcome != SpikeOutcome::Ends => {
                    self.roll_back(spike)?;
                }
                ended => return ended,
            }
        }
    }

    /// Goes back to the last checkpoint, and passes over all batches since then: those of the steps
    /// after it, to the one of the spike.
    fn roll_back(&mut self, spike: Spike) -> Result<(), Error> {
        let start = Instant::now();
        self.in_flight = None;
        self.report_saved(true)?;
        let checkpoint = self.load_last_checkpoint(spike.step)?;
        let progress = &checkpoint.manifest().progress;
        let (to, passed_over) = (progress.step, self.passed_over);
        let name = "trainer_state.json";
        let state = from_slice(&checkpoint.read_file(name)?)
            .map_err(|error| Error::Other(format!("{name} of a checkpoint: {error}").into()))?;
        self.go_on(&state, progress);
        let batches = spike.step - to;
        self.passed_over = passed_over + batches;
        if self.spikes.goes_back(to) {
            return Err(Error::Spike(Spike { outcome: SpikeOutcome::Ends, ..spike }));
        }
        let outcome = SpikeOutcome::RolledBack { to, batches };
        self.callback.on_spike(&Spike { outcome, ..spike })?;
        self.meter.exclude(start.elapsed());
        self.watchdog.excuse();
        Ok(())
    }

    /// Loads the last checkpoint of this run before a step, or one before if it is damaged.
    fn load_last_checkpoint(&mut self, step: u64) -> Result<Checkpoint, Error> {
        let Some(saving) = &self.training.saving else { return Err(no_checkpoint(step)) };
        self.spikes.rollbacks += 1;
        let name = format!("rollback/{}", self.spikes.rollbacks);
        let job = self.runner.compiler().job.clone();
        let folders = job.first_says(&name, || {
            let mut listed = list(&saving.options.folder)?;
            listed.retain(|found| {
                let run = found.manifest.as_ref().map(|manifest| &manifest.progress.run);
                found.step < step && run.is_ok_and(|run| *run == saving.run)
            });
            listed.sort_by_key(|found| std::cmp::Reverse(found.step));
            let folders: Vec<PathBuf> = listed.into_iter().map(|found| found.path).collect();
            to_vec(&folders).map_err(|error| Error::Other(error.into()))
        })?;
        let folders: Vec<PathBuf> =
            from_slice(&folders).map_err(|error| Error::Other(error.into()))?;
        for (index, folder) in folders.iter().enumerate() {
            let loaded = load(self.runner, folder.clone());
            match job.agree(&format!("{name}/{index}"), loaded) {
                Ok(checkpoint) => return Ok(checkpoint),
                Err(Error::Files(_) | Error::OtherProcess { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(no_checkpoint(step))
    }
}

fn load(runner: &mut Runner<'_>, folder: PathBuf) -> Result<Checkpoint, Error> {
    let checkpoint = Checkpoint::open(folder)?;
    runner.load_checkpoint(&checkpoint)?;
    Ok(checkpoint)
}

fn no_checkpoint(step: u64) -> Error {
    Error::Other(
        format!(
            "the loss of step {step} is a spike (--on_loss_spike rollback), but there is no intact \
             checkpoint of this run in the output folder to go back to"
        )
        .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(loss: f32) -> Metrics {
        Metrics { loss, gradient_norm: 1.0, labels: 1.0 }
    }

    fn spikes(action: SpikeAction) -> Spikes {
        let options = LossSpikes { action, factor: 6.0 };
        let mut spikes = Spikes::new(Some(options));
        for step in 1..=WINDOW {
            assert_eq!(spikes.limit(), f32::INFINITY);
            let loss = 3.0 + if step % 2 == 0 { 0.1 } else { -0.1 };
            assert!(spikes.judge(step, metrics(loss), f32::INFINITY, true).is_ok());
        }
        spikes
    }

    #[test]
    fn the_limit_is_deviations_above_the_mean() {
        let mut spikes = spikes(SpikeAction::Skip);
        assert!((spikes.limit() - 3.6).abs() < 0.05, "{}", spikes.limit());
        let before = spikes.statistics;
        let limit = spikes.limit();
        let verdict = spikes.judge(51, metrics(3.7), limit, true).unwrap();
        assert!(matches!(verdict, Verdict::Spike(spike) if spike.step == 51));
        assert_eq!(spikes.statistics, before);
        assert!(matches!(spikes.judge(52, metrics(3.5), limit, true), Ok(Verdict::Good)));
    }

    #[test]
    fn a_loss_that_hardly_moves_has_a_least_deviation() {
        let options = LossSpikes { action: SpikeAction::Skip, factor: 6.0 };
        let mut spikes = Spikes::new(Some(options));
        (0..200).for_each(|_| spikes.add(2.0));
        assert!((spikes.limit() - 2.12).abs() < 1e-4, "{}", spikes.limit());
    }

    #[test]
    fn too_many_spikes_in_a_row_end_the_run() {
        let mut spikes = spikes(SpikeAction::Skip);
        for step in 51..51 + MOST {
            let verdict = spikes.judge(step, metrics(f32::NAN), 3.6, true).unwrap();
            assert!(matches!(verdict, Verdict::Spike(_)));
        }
        let error = spikes.judge(60, metrics(9.0), 3.6, true).err().unwrap().to_string();
        assert!(error.contains("the loss of step 60 is 9, above 3.6: after 5 spikes"), "{error}");
    }

    #[test]
    fn without_a_checkpoint_a_finite_spike_is_ignored() {
        let mut spikes = spikes(SpikeAction::Rollback);
        let verdict = spikes.judge(51, metrics(9.0), 3.6, false).unwrap();
        let ignored = |spike: Spike| spike.outcome == SpikeOutcome::Ignored;
        assert!(matches!(verdict, Verdict::Spike(spike) if ignored(spike)));
        let error = spikes.judge(52, metrics(f32::NAN), 3.6, false).err().unwrap();
        assert!(matches!(error, Error::NotFinite(_)), "{error}");
        let error = spikes.judge(53, metrics(9.0), 3.6, true).err().unwrap();
        assert!(matches!(error, Error::Spike(_)), "{error}");
    }
}
