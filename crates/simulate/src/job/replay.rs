//! One replay of a job.
//!
//! The job is always in one [`Phase`]. Equal steps up to the next save, copy or slow step are one
//! event, so that months of training are thousands of events. Hosts fail independently at constant
//! rates, so the time to the next failure of any of them is drawn as one number.

use super::results::{Parts, Replay};
use super::{Job, Length};
use crate::engine::Engine;
use fullshard_core::random::Random;

/// Failures in a row without anything stored after which a replay is given up.
pub(super) const PATIENCE: u64 = 1000;

/// What the random numbers of a replay are for.
const PURPOSE: u64 = 0x6a6f_6273;

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A host fails, unless the number of running hosts has changed since.
    Failure { clock: u64 },
    /// A host fails at a stated time.
    Stated,
    /// A host is repaired.
    Repaired,
    /// A phase is over, unless it was interrupted.
    Over { phase: u64 },
    /// The checkpoint of a step is written, unless there was a failure since.
    Written { step: u64, life: u64 },
    /// The time of the job has passed.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Restarting,
    Loading,
    /// Some steps, and how many times as long as usual each takes for a slow host.
    Steps(u64, f64),
    /// A checkpoint; whether its write is waited for, since hosts that are back join after it.
    Saving(bool),
    Copying,
    /// The last checkpoint is being written.
    Finishing,
    Detecting,
    Waiting,
    Ended,
}

struct Running<'a> {
    job: &'a Job,
    engine: Engine<Event>,
    random: Random,
    phase: Phase,
    /// The number of the phase.
    phases: u64,
    /// When the phase began, or was last accounted.
    since: f64,
    /// Number of interruptions.
    life: u64,
    /// The number of the drawn failure.
    clock: u64,
    active: usize,
    spares: usize,
    /// Hosts lost since the job last had all copies.
    lost: Vec<usize>,
    /// Steps done, and those of the last checkpoint and of the last copies.
    step: u64,
    committed: u64,
    copied: Option<u64>,
    /// The furthest step that was ever stored, and the failures since.
    furthest: u64,
    in_a_row: u64,
    /// Until when a checkpoint is being written.
    writing: f64,
    /// Steps until one has a slow host.
    until_slow: u64,
    /// The time so far, with all steps counted as redone.
    parts: Parts,
    failures: u64,
    stalled: bool,
}

/// Replays a job.
pub(super) fn replay(job: &Job, seed: u64) -> Replay {
    let mut running = Running {
        job,
        engine: Engine::default(),
        random: Random::new(seed, PURPOSE),
        phase: Phase::Restarting,
        phases: 0,
        since: 0.0,
        life: 0,
        clock: 0,
        active: job.hosts,
        spares: job.spares,
        lost: Vec::new(),
        step: 0,
        committed: 0,
        copied: None,
        furthest: 0,
        in_a_row: 0,
        writing: 0.0,
        until_slow: 0,
        parts: Parts::default(),
        failures: 0,
        stalled: false,
    };
    if let Length::Seconds(seconds) = job.length {
        running.engine.at(seconds, Event::End);
    }
    for &seconds in &job.fail_at {
        running.engine.at(seconds, Event::Stated);
    }
    running.enter(Phase::Restarting, job.restart);
    running.draw_failure();
    running.draw_slow();
    while running.phase != Phase::Ended {
        let Some(event) = running.engine.advance() else { break };
        running.handle(event);
    }
    let mut parts = running.parts;
    parts.steps = running.step as f64 * job.step;
    parts.redone = (parts.redone - parts.steps).max(0.0);
    let (steps, failures, stalled) = (running.step, running.failures, running.stalled);
    Replay { parts, steps, failures, stalled }
}

impl Running<'_> {
    fn handle(&mut self, event: Event) {
        match event {
            Event::Over { phase } if phase == self.phases => {
                self.account();
                self.over();
            }
            Event::Failure { clock } if clock == self.clock => self.fail(),
            Event::Stated if self.active > 0 => self.fail(),
            Event::Repaired => {
                self.spares += 1;
                if self.phase == Phase::Waiting {
                    self.restart();
                }
            }
            Event::Written { step, life } if life == self.life => {
                self.committed = step;
                self.stored(step);
            }
            Event::End => self.enter(Phase::Ended, f64::INFINITY),
            // Of something that was interrupted, or is not there.
            Event::Over { .. } | Event::Failure { .. } | Event::Written { .. } | Event::Stated => {}
        }
    }

    /// Goes on after a phase that ended by itself.
    fn over(&mut self) {
        match self.phase {
            // A job that has stored nothing starts from scratch.
            Phase::Restarting if self.step > 0 => {
                let copies = self.job.copies.filter(|_| self.copied == Some(self.step));
                self.enter(Phase::Loading, copies.map_or(self.job.load, |copies| copies.load));
            }
            Phase::Restarting | Phase::Loading => {
                self.lost.clear();
                self.steps();
            }
            Phase::Steps(..) => self.save_or(Running::copy_or_steps),
            Phase::Saving(true) => {
                self.committed = self.step;
                self.stored(self.step);
                self.restart();
            }
            Phase::Saving(false) => {
                let write = self.job.saves.map_or(0.0, |saves| saves.write);
                let (step, life) = (self.step, self.life);
                self.writing = self.engine.now() + write;
                self.engine.after(write, Event::Written { step, life });
                self.copy_or_steps();
            }
            Phase::Copying => {
                self.copied = Some(self.step);
                self.stored(self.step);
                if self.has_returned() { self.restart() } else { self.steps() }
            }
            Phase::Detecting => self.restart(),
            Phase::Finishing => self.enter(Phase::Ended, f64::INFINITY),
            Phase::Waiting | Phase::Ended => {}
        }
    }

    /// Saves, if a checkpoint is due, or does something else.
    fn save_or(&mut self, otherwise: impl FnOnce(&mut Self)) {
        match self.job.saves.filter(|saves| self.step.is_multiple_of(saves.every)) {
            Some(saves) => {
                let earlier = (self.writing - self.engine.now()).max(0.0);
                // Copies take less time to load.
                let rejoins = self.job.copies.is_none() && self.has_returned();
                let write = if rejoins { saves.write } else { 0.0 };
                self.enter(Phase::Saving(rejoins), earlier + saves.pause + write);
            }
            None => otherwise(self),
        }
    }

    fn copy_or_steps(&mut self) {
        match self.job.copies.filter(|copies| self.step.is_multiple_of(copies.every)) {
            Some(copies) => self.enter(Phase::Copying, copies.pause),
            None => self.steps(),
        }
    }

    /// Steps until something else is due.
    fn steps(&mut self) {
        let mut count = match self.job.length {
            Length::Steps(all) if self.step >= all => {
                let left = (self.writing - self.engine.now()).max(0.0);
                return self.enter(Phase::Finishing, left);
            }
            Length::Steps(all) => all - self.step,
            Length::Seconds(_) => u64::MAX,
        };
        let saves = self.job.saves.map(|saves| saves.every);
        let copies = self.job.copies.map(|copies| copies.every);
        for every in saves.into_iter().chain(copies) {
            count = count.min(every - self.step % every);
        }
        let slow = self.until_slow == 0;
        if slow {
            self.draw_slow();
            count = 1;
        } else {
            count = count.min(self.until_slow);
            self.until_slow -= count;
        }
        let phase = Phase::Steps(count, if slow { self.job.stragglers.factor } else { 1.0 });
        self.enter(phase, count as f64 * self.step_seconds(phase));
    }

    /// A host fails.
    fn fail(&mut self) {
        self.account();
        self.failures += 1;
        self.in_a_row += 1;
        self.active -= 1;
        let repair = self.random.exponential(self.job.repair);
        self.engine.after(repair, Event::Repaired);
        self.draw_failure();
        self.lose_copy();
        let copied = self.copied.filter(|&step| step >= self.committed);
        self.step = copied.unwrap_or(self.committed);
        if self.in_a_row >= PATIENCE {
            self.stalled = true;
            return self.enter(Phase::Ended, f64::INFINITY);
        }
        // What fails before the job restarts is found with the first.
        if !matches!(self.phase, Phase::Detecting | Phase::Waiting) {
            self.interrupt();
            self.enter(Phase::Detecting, self.job.detection);
        }
    }

    /// Whatever was being written is lost, and the steps that were drawn are not done.
    fn interrupt(&mut self) {
        self.life += 1;
        self.writing = 0.0;
        self.draw_slow();
    }

    /// Restarts on the hosts that there are, or waits for more.
    fn restart(&mut self) {
        self.interrupt();
        let joining = self.spares.min(self.job.hosts - self.active);
        if joining > 0 {
            self.spares -= joining;
            self.active += joining;
            self.draw_failure();
        }
        match self.active >= self.job.min_hosts {
            true => self.enter(Phase::Restarting, self.job.restart),
            false => self.enter(Phase::Waiting, f64::INFINITY),
        }
    }

    /// Whether hosts are back that the job has been running without.
    fn has_returned(&self) -> bool {
        self.spares > 0 && self.active < self.job.hosts
    }

    /// Enters a phase; one that takes forever is left by another event.
    fn enter(&mut self, phase: Phase, seconds: f64) {
        self.account();
        self.phase = phase;
        self.phases += 1;
        if seconds.is_finite() {
            self.engine.after(seconds, Event::Over { phase: self.phases });
        }
    }

    /// Counts the time of the current phase until now, and its steps.
    fn account(&mut self) {
        let spent = self.engine.now() - self.since;
        self.since = self.engine.now();
        let share = self.active_share();
        let parts = &mut self.parts;
        match self.phase {
            Phase::Restarting => parts.restart += spent,
            Phase::Loading => parts.load += spent,
            Phase::Saving(_) | Phase::Copying | Phase::Finishing => parts.saving += spent,
            Phase::Detecting => parts.detection += spent,
            Phase::Waiting => parts.repair += spent,
            Phase::Ended => {}
            Phase::Steps(count, slow) => {
                let on_all = share * spent / slow;
                parts.redone += on_all;
                parts.fewer_hosts += spent / slow - on_all;
                parts.stragglers += spent - spent / slow;
                // Sums of times are not exact.
                let done = spent / self.step_seconds(self.phase) + 1e-3;
                self.step += (done as u64).min(count);
            }
        }
    }

    fn step_seconds(&self, phase: Phase) -> f64 {
        let slow = if let Phase::Steps(_, slow) = phase { slow } else { 1.0 };
        slow * self.job.step / self.active_share()
    }

    fn active_share(&self) -> f64 {
        self.active as f64 / self.job.hosts as f64
    }

    /// Draws the next failure of any host; a drawn one no longer counts.
    fn draw_failure(&mut self) {
        self.clock += 1;
        let mtbf = self.job.host_mtbf / self.active as f64;
        if mtbf.is_finite() {
            let wait = self.random.exponential(mtbf);
            self.engine.after(wait, Event::Failure { clock: self.clock });
        }
    }

    /// Draws the number of steps until one has a slow host.
    fn draw_slow(&mut self) {
        let usual = (1.0 - self.job.stragglers.probability).powf(self.active as f64);
        self.until_slow = match usual {
            usual if usual >= 1.0 => u64::MAX,
            usual if usual <= 0.0 => 0,
            // The cast ends at the largest number.
            usual => ((1.0 - self.random.unit()).ln() / usual.ln()) as u64,
        };
    }

    /// A host is lost with the copy that it has of the host before, so both must not be.
    fn lose_copy(&mut self) {
        let Some(_) = self.job.copies else { return };
        let hosts = self.job.hosts;
        let host = loop {
            let host = (self.random.unit() * hosts as f64) as usize;
            if !self.lost.contains(&host) || self.lost.len() >= hosts {
                break host;
            }
        };
        let next_to = |other: &usize| (host + 1) % hosts == *other || (other + 1) % hosts == host;
        if hosts == 1 || self.lost.iter().any(next_to) {
            self.copied = None;
        }
        self.lost.push(host);
    }

    /// Something was stored.
    fn stored(&mut self, step: u64) {
        if step > self.furthest {
            self.furthest = step;
            self.in_a_row = 0;
        }
    }
}
