//! When a failed job starts again, and with how many processes.
//!
//! Training does, from its last checkpoint, unless the failure would repeat itself. Restarts that
//! follow one another without a new checkpoint come later and later, and then no more.

use super::hosts::Hosts;
use super::supervise::{Ended, Signals};
use super::{LaunchArgs, Started};
use crate::output::complain;
use fullshard::config::{RunConfig, SaveWhen};
use fullshard::goodput::{Event, Journal};
use fullshard::{Error, Result};
use fullshard_cluster::Generation;
use std::time::{Duration, Instant, SystemTime};

/// The longest pause before a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The time between two looks for hosts.
const LOOK: Duration = Duration::from_secs(5);

/// The exit code of an error that a process has explained itself.
const EXPLAINED: u8 = 1;

/// The restarts of a job.
pub struct Restarts<'a> {
    /// The run, if it can be restarted.
    config: Option<&'a RunConfig>,
    full: usize,
    least: usize,
    most: usize,
    host_timeout: Duration,
    number: usize,
    launched_at: usize,
    /// The processes of the generation before.
    count: usize,
    /// The step that it would have gone on from, and the restarts since that one.
    progress: u64,
    futile: usize,
    /// The process that failed in the generation before.
    failed: Option<usize>,
}

impl<'a> Restarts<'a> {
    /// Those of a launch.
    pub fn new(args: &LaunchArgs, config: Option<&'a RunConfig>) -> Result<Restarts<'a>> {
        let full = args.num_processes;
        let least = args.min_processes.unwrap_or(full);
        if least > full {
            return Err(Error::Usage(format!(
                "--min_processes is {least}, but there are {full} processes: lower it"
            )));
        }
        if args.min_processes.is_some() && config.is_none() {
            return Err(Error::Usage(
                "--min_processes is for training: other commands are not restarted".into(),
            ));
        }
        let saves = |config: &&RunConfig| {
            config.checkpoint.strategy != SaveWhen::No && !config.checkpoint.only_model
        };
        let launched_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Ok(Restarts {
            config: config.filter(saves),
            full,
            least,
            most: args.max_restarts,
            host_timeout: Duration::from_secs(args.host_timeout_s),
            number: 0,
            launched_at: launched_at.map_or(0, |time| time.as_secs() as usize),
            count: full,
            progress: 0,
            futile: 0,
            failed: None,
        })
    }

    /// The first generation.
    pub fn first(&self) -> Started {
        self.generation()
    }

    fn generation(&self) -> Started {
        let generation = Generation {
            number: self.number,
            full_processes: Some(self.full).filter(|full| *full != self.count),
            launched_at: self.launched_at,
        };
        Started { count: self.count, generation }
    }

    /// The generation after one that has ended, when it is time to start it. None if the job is done
    /// or has failed for good.
    pub fn after(
        &mut self,
        ended: &Ended,
        hosts: Option<&mut Hosts>,
        signals: &mut Signals,
    ) -> Result<Option<Started>> {
        let Some(config) = self.config.filter(|_| self.is_worth_it(ended)) else { return Ok(None) };
        let journal = Journal::open(&config.output.dir);
        let failed = ended.failed_at.unwrap_or_else(Instant::now);
        journal.record_at(failed, failure(ended));
        let process = ended.failure.as_ref().and_then(|failure| failure.process);
        let again = process.is_some() && process == self.failed && ended.progress <= self.progress;
        self.failed = process;
        if ended.progress > self.progress {
            (self.progress, self.futile) = (ended.progress, 0);
        }
        self.futile += 1;
        if self.futile > self.most {
            complain!("launch: not restarted: {} without progress", times(self.most));
            return Ok(None);
        }
        if signals.stop_within(self.pause()) {
            return Ok(None);
        }
        let fits = |now: &usize| config.fits_processes(self.full, *now);
        let choose = |most: usize| (self.least..=most.min(self.full)).rev().find(fits);
        let chosen = match hosts {
            Some(hosts) => self.wait_for_hosts(hosts, signals, choose),
            // What fails twice in the same place is left out.
            None => choose(if again { self.count.saturating_sub(1) } else { self.count })
                .or_else(|| choose(self.count)),
        };
        let Some(count) = chosen else { return Ok(None) };
        self.count = count;
        self.number += 1;
        journal.record(Event::Restart {
            generation: self.number as u64,
            processes: count,
            delay_s: failed.elapsed().as_secs_f64(),
        });
        complain!(
            "launch: restart {} with {}; {} was saved",
            self.number,
            processes(count),
            match self.progress {
                0 => "nothing".to_owned(),
                step => format!("step {step}"),
            }
        );
        Ok(Some(self.generation()))
    }

    /// Whether another start may end better.
    fn is_worth_it(&self, ended: &Ended) -> bool {
        let may_repeat = match &ended.failure {
            Some(failure) => failure.is_final,
            None => ended.code == EXPLAINED,
        };
        ended.code != 0 && !ended.stopped && !may_repeat && self.most > 0
    }

    /// None at first, then longer each time.
    fn pause(&self) -> Duration {
        match self.futile {
            0 | 1 => Duration::ZERO,
            n => Duration::from_secs(1 << (n - 2).min(10)).min(LONGEST_PAUSE),
        }
    }

    /// Waits until enough hosts answer, and returns the number of processes.
    fn wait_for_hosts(
        &self,
        hosts: &mut Hosts,
        signals: &mut Signals,
        choose: impl Fn(usize) -> Option<usize>,
    ) -> Option<usize> {
        let start = Instant::now();
        loop {
            let possible = hosts.look(self.full);
            if let Some(count) = choose(possible) {
                return Some(count);
            }
            if start.elapsed() > self.host_timeout {
                complain!(
                    "launch: not restarted: the hosts that answer can have {}, and at least {} are \
                     needed",
                    processes(possible),
                    self.least
                );
                return None;
            }
            if signals.stop_within(LOOK) {
                return None;
            }
        }
    }
}

/// The failure of a generation, for the journal of the run.
fn failure(ended: &Ended) -> Event {
    let (process, host, reason) = match &ended.failure {
        Some(failure) => (failure.process, Some(failure.host.clone()), failure.message.clone()),
        None => (None, None, format!("exit code {}", ended.code)),
    };
    Event::Failure { process, host, reason, silent_s: None }
}

fn processes(count: usize) -> String {
    format!("{count} process{}", if count == 1 { "" } else { "es" })
}

fn times(count: usize) -> String {
    fullshard::format::count(count, "restart")
}
