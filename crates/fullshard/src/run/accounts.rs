//! The journal of a run in progress, and its goodput so far.

use super::Run;
use crate::goodput::{self, Ended, Event, Goodput, Journal, Part, Source};
use fullshard_checkpoint::sharded::Checkpoint;
use fullshard_train::{SaveResult, Spent, StartUp};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The time after which steps are recorded. Those that a kill leaves unrecorded are not saved
/// either, since every save records them.
const PERIOD: Duration = Duration::from_secs(5);

/// Keeps the journal of a run, on its first process.
pub(super) struct Accounts {
    folder: PathBuf,
    journal: Journal,
    /// Steps that are not recorded yet: the first, the last, and their time.
    pending: Option<(u64, u64, Duration)>,
    /// When steps were last recorded.
    recorded: Instant,
    /// When training began, and until when its time is accounted for.
    begun: Instant,
    until: Instant,
    /// The wall time and that of useful steps when training began.
    before: (f64, f64),
    /// The number of steps and the time: of the first launch, and of all others.
    first: (u64, f64),
    others: (u64, f64),
}

impl Accounts {
    /// Records that a run trains from now on.
    pub fn begin(
        run: &Run,
        name: String,
        checkpoint: Option<&Checkpoint>,
        start_up: &StartUp,
    ) -> Accounts {
        let folder = run.output.folder().to_owned();
        let journal = Journal::open(&folder);
        let launched = run.membership.launched;
        let generation = run.membership.generation;
        let start = Event::Start {
            run: name,
            generation: generation.is_counted().then_some(generation.number as u64),
            processes: run.membership.process().count,
            devices: run.spec.placement.devices(),
            starts_over: checkpoint.is_none()
                && (run.config.checkpoint.resume.is_some() || generation.number > 0),
        };
        journal.record_at(launched, start);
        if let Some(checkpoint) = checkpoint {
            let step = checkpoint.manifest().progress.step;
            let seconds = start_up.weights.as_secs_f64();
            let from = if run.is_copy(checkpoint) { Source::Memory } else { Source::Disk };
            journal.record(Event::Resumed { step, seconds, from });
        }
        let begun = Instant::now();
        let [rendezvous, data, compile, weights] =
            [start_up.rendezvous, start_up.data, start_up.compile, start_up.weights]
                .map(|time| time.as_secs_f64());
        journal.record_at(begun, Event::StartUp { rendezvous, data, compile, weights });
        let before = goodput::of(&folder).ok().flatten();
        let before = before.map_or((launched.elapsed().as_secs_f64(), 0.0), |before| {
            (before.wall_s, before.seconds(Part::Useful))
        });
        Accounts {
            folder,
            journal,
            pending: None,
            recorded: begun,
            begun,
            until: begun,
            before,
            first: (0, 0.0),
            others: (0, 0.0),
        }
    }

    /// Time was spent, until now.
    pub fn spent(&mut self, on: Spent, time: Duration) {
        let seconds = time.as_secs_f64();
        let event = match on {
            Spent::Steps { first, last } => return self.add_steps(first, last, time),
            Spent::Saving { step } => Event::Save { step, pause_s: seconds },
            Spent::Evaluation => Event::Evaluation { seconds },
            Spent::Compile => Event::Compile { seconds },
        };
        self.record_steps();
        self.until = Instant::now();
        self.journal.record_at(self.until, event);
    }

    fn add_steps(&mut self, first: u64, last: u64, time: Duration) {
        self.until = Instant::now();
        let is_first = self.first.0 == 0;
        let sum = if is_first { &mut self.first } else { &mut self.others };
        *sum = (sum.0 + last + 1 - first, sum.1 + time.as_secs_f64());
        let (from, _, before) = self.pending.unwrap_or((first, last, Duration::ZERO));
        self.pending = Some((from, last, before + time));
        if is_first || self.recorded.elapsed() >= PERIOD {
            self.record_steps();
        }
    }

    /// A save has ended.
    pub fn saved(&self, saved: &SaveResult) {
        self.journal.record(match saved {
            Ok(saved) => Event::Saved { step: saved.step, seconds: saved.write.as_secs_f64() },
            Err(error) => Event::SaveFailed { reason: error.to_string() },
        });
    }

    fn record_steps(&mut self) {
        self.recorded = Instant::now();
        if let Some((from, to, time)) = self.pending.take() {
            let seconds = time.as_secs_f64();
            self.journal.record_at(self.until, Event::Steps { from, to, seconds });
        }
    }

    /// The goodput of the run so far, over all generations, without reading the journal again.
    pub fn share(&self) -> Option<f64> {
        let (wall, useful) = self.before;
        let wall = wall + self.until.saturating_duration_since(self.begun).as_secs_f64();
        let (steps, time) = self.others;
        // What the first launch takes longer than others is no use.
        let usual = if steps > 0 { time / steps as f64 } else { f64::INFINITY };
        let first = self.first.1.min(usual * self.first.0 as f64);
        (self.first.0 > 0 && wall > 0.0).then(|| (useful + first + time) / wall)
    }

    /// What the time of the run was spent on so far.
    pub fn report(&mut self) -> Option<Goodput> {
        self.record_steps();
        goodput::of(&self.folder).ok().flatten()
    }

    /// Records the end of training, after all was written.
    pub fn end(mut self, how: Ended, reason: Option<String>) {
        self.record_steps();
        if how != Ended::Failed {
            let seconds = self.until.elapsed().as_secs_f64();
            self.journal.record(Event::Export { seconds });
        }
        self.journal.record(Event::End { how, reason });
    }
}
