//! Waits for the processes of a job: passes signals on, and ends the others when one has failed.

use super::start::{Processes, report};
use fullshard::{Error, Result};
use fullshard_cluster::{Coordinator, Failure};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals as Receiver;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// The time between two looks at the processes.
const PERIOD: Duration = Duration::from_millis(20);

/// After a failure: how long the others have to end by themselves, and then after SIGTERM.
const NOTICE: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_secs(2);

/// The signals that are forwarded: to stop, and to save a checkpoint.
pub struct Signals(Receiver);

impl Signals {
    pub fn watch() -> Result<Signals> {
        let signals = [SIGINT, SIGTERM, SIGHUP, SIGUSR1];
        let fail = |error| Error::Usage(format!("cannot watch for signals: {error}"));
        Receiver::new(signals).map(Signals).map_err(fail)
    }

    /// Waits, unless a signal to stop comes first: returns whether one did.
    pub fn stop_within(&mut self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            if self.0.pending().any(|signal| signal != SIGUSR1) {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(PERIOD));
        }
    }
}

/// How a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The exit code: that of the first process that failed.
    pub code: u8,
    /// Whether it was stopped by a signal.
    pub stopped: bool,
    /// Why it failed, as far as the processes knew.
    pub failure: Option<Failure>,
    /// When that was noticed.
    pub failed_at: Option<Instant>,
    /// The step that it would go on from.
    pub progress: u64,
}

/// How far a job is from its end.
#[derive(Default)]
struct Ending {
    /// The exit codes of those that have ended, in that order.
    codes: Vec<(usize, u8)>,
    /// The signal that stops the job: processes that end by it have not failed.
    stopped_by: Option<i32>,
    /// When the first failure was seen, and how often the others were signalled since.
    failed: Option<Instant>,
    signalled: u32,
}

/// Waits until all have ended.
pub fn supervise(processes: &mut Processes, job: &Coordinator, signals: &mut Signals) -> Ended {
    let mut ending = Ending::default();
    loop {
        for signal in signals.0.pending() {
            processes.forward(signal);
            if signal != SIGUSR1 {
                ending.stopped_by = Some(signal);
            }
        }
        processes.collect(&mut ending);
        if processes.children.iter().all(|started| started.code.is_some()) {
            return Ended {
                code: ending.code(job),
                stopped: ending.stopped_by.is_some(),
                failure: job.failure(),
                failed_at: ending.failed,
                progress: job.progress(),
            };
        }
        if ending.failed.is_none() && (ending.has_failed() || job.failure().is_some()) {
            ending.failed = Some(Instant::now());
        }
        ending.end_others(processes);
        std::thread::sleep(PERIOD);
    }
}

impl Ending {
    fn has_failed(&self) -> bool {
        let stopped = self.stopped_by.map(|signal| 128 + signal);
        self.codes.iter().any(|(_, code)| *code != 0 && Some(i32::from(*code)) != stopped)
    }

    /// Ends the others after a failure: first by SIGTERM, later by SIGKILL.
    fn end_others(&mut self, processes: &Processes) {
        let Some(since) = self.failed.map(|failed| failed.elapsed()) else { return };
        if self.signalled == 0 && since > NOTICE {
            processes.signal(Signal::TERM);
            self.signalled = 1;
        } else if self.signalled == 1 && since > NOTICE + GRACE {
            processes.signal(Signal::KILL);
            self.signalled = 2;
        }
    }

    /// The code of the process that failed first, as the job itself saw it, or as it was seen here.
    fn code(&self, job: &Coordinator) -> u8 {
        let failed = job.failure().and_then(|failure| failure.process);
        let code_of =
            |process| self.codes.iter().find(|(other, code)| Some(*other) == process && *code != 0);
        let first = code_of(failed).or_else(|| self.codes.iter().find(|(_, code)| *code != 0));
        first.map_or(0, |(_, code)| *code)
    }
}

impl Processes {
    /// Notes who has ended.
    fn collect(&mut self, ending: &mut Ending) {
        for (process, started) in self.children.iter_mut().enumerate() {
            if started.code.is_some() {
                continue;
            }
            let Ok(Some(status)) = started.child.try_wait() else { continue };
            let code = code(status);
            report(&started.name, status);
            started.code = Some(code);
            ending.codes.push((process, code));
        }
    }

    /// Passes a signal on. `mpiexec` ends at SIGHUP without a word to its processes.
    fn forward(&self, signal: i32) {
        let is_mpiexec = self.children.iter().any(|started| started.name == "mpiexec");
        self.signal(match signal {
            SIGINT => Signal::INT,
            SIGUSR1 => Signal::USR1,
            SIGHUP if !is_mpiexec => Signal::HUP,
            _ => Signal::TERM,
        });
    }

    fn signal(&self, signal: Signal) {
        for started in self.children.iter().filter(|started| started.code.is_none()) {
            let _ = kill_process(Pid::from_child(&started.child), signal);
        }
    }
}

/// An exit code, as a shell gives it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
