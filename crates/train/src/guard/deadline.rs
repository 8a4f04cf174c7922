//! The deadline of a step. A collective whose other side is gone, a device that does not answer or
//! a file system that hangs would otherwise hold a job until somebody looks.
//!
//! A thread looks twice a second at what the training loop waits for, and since when. The loop says
//! so around what can hang: data, the agreement of processes, launches, their results, and copies
//! of a save. What takes as long as it takes is not timed: compilation, writing files, callbacks.

use crate::error::Error;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// If the thread itself was stopped for longer than this, so was the process, and nothing hung.
const STOPPED: Duration = Duration::from_secs(5);

/// The limit of the first wait, and of the first after something that was not timed: another process
/// may still be at it.
const START: Duration = Duration::from_secs(30 * 60);

/// The least limit that follows from measured steps.
const LEAST: Duration = Duration::from_secs(60);

/// The limit in measured launches.
const LAUNCHES: u32 = 20;

/// The number of launches whose median counts.
const RECENT: usize = 32;

/// The deadline of a step.
pub struct Deadline {
    /// The longest that the run may wait for anything; by default 20 times the median of recent
    /// launches, at least a minute, and half an hour for the first.
    pub limit: Option<Duration>,
    /// Called once when it passes, on a thread of its own. The thread that is stuck cannot be
    /// unwound, so this should end the process, after whatever is to be reported.
    pub on_expired: Arc<dyn Fn(&Stuck) + Send + Sync>,
}

/// A run that waits for longer than its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the run is stuck at step {step}: it has been {doing} for {} s, more than --step_timeout_s",
    limit.as_secs_f64()
)]
pub struct Stuck {
    /// The step, counted from 1.
    pub step: u64,
    /// What the run waits for.
    pub doing: &'static str,
    /// The deadline.
    pub limit: Duration,
}

/// The thread that looks, until this is dropped.
pub(crate) struct Watchdog {
    watch: Watch,
    thread: Option<JoinHandle<()>>,
    /// Whether the limit follows from measured launches, and those.
    measures: bool,
    recent: VecDeque<Duration>,
}

/// A handle for what is timed. Without a deadline it does nothing.
#[derive(Clone, Default)]
pub(crate) struct Watch(Option<Arc<Shared>>);

/// Something that is timed, until this is dropped.
pub(crate) struct Timed(Watch);

struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    limit: Duration,
    wait: Option<Wait>,
    ended: bool,
}

/// What is waited for.
struct Wait {
    doing: &'static str,
    step: u64,
    since: Instant,
    /// The least limit of this one.
    least: Duration,
}

impl Watchdog {
    /// Starts to watch for a deadline, if there is one.
    pub fn new(deadline: Option<&Deadline>) -> Result<Watchdog, Error> {
        let (recent, idle) = (VecDeque::new(), Watch::default());
        let Some(Deadline { limit, on_expired }) = deadline else {
            return Ok(Watchdog { watch: idle, thread: None, measures: false, recent });
        };
        let state = State { limit: limit.unwrap_or(START), wait: None, ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), ended: Condvar::new() });
        let (watched, expired) = (Arc::clone(&shared), Arc::clone(on_expired));
        let look = move || {
            if let Some(stuck) = watched.look() {
                expired(&stuck);
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(look);
        let thread = Some(thread.map_err(|error| Error::Other(error.into()))?);
        Ok(Watchdog { watch: Watch(Some(shared)), thread, measures: limit.is_none(), recent })
    }

    /// Times what the run does at a step, counted from 1, until the result is dropped.
    pub fn time(&self, doing: &'static str, step: u64) -> Timed {
        self.watch.time(doing, step, Duration::ZERO)
    }

    /// A handle for code that does not know the run.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Takes note of the time of a launch.
    pub fn measured(&mut self, launch: Duration) {
        if !self.measures {
            return;
        }
        self.recent.truncate(RECENT - 1);
        self.recent.push_front(launch);
        let mut sorted: Vec<Duration> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        self.set_limit(LEAST.max(LAUNCHES * sorted[sorted.len() / 2]));
    }

    /// Takes note that the run did something else, which other processes may still do.
    pub fn excuse(&self) {
        if self.measures {
            self.set_limit(START);
        }
    }

    fn set_limit(&self, limit: Duration) {
        if let Some(shared) = &self.watch.0 {
            shared.lock().limit = limit;
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(shared) = &self.watch.0 {
            shared.lock().ended = true;
            shared.ended.notify_all();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Watch {
    /// Times something for which at least this much time is fine.
    pub fn time(&self, doing: &'static str, step: u64, least: Duration) -> Timed {
        if let Some(shared) = &self.0 {
            shared.lock().wait = Some(Wait { doing, step, since: Instant::now(), least });
        }
        Timed(self.clone())
    }
}

impl Timed {
    /// Starts its time again, for the next of several.
    pub fn restart(&self) {
        if let Some(wait) = self.0.0.as_ref().map(|shared| shared.lock()).as_mut() {
            wait.restart();
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        if let Some(shared) = &self.0.0 {
            shared.lock().wait = None;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks until something takes too long, or the run ends.
    fn look(&self) -> Option<Stuck> {
        let mut state = self.lock();
        while !state.ended {
            let before = Instant::now();
            let looked = self.ended.wait_timeout(state, LOOK);
            state = looked.unwrap_or_else(PoisonError::into_inner).0;
            if before.elapsed() > LOOK + STOPPED {
                state.restart();
            }
            if let Some(stuck) = state.stuck() {
                return Some(stuck);
            }
        }
        None
    }
}

impl State {
    fn restart(&mut self) {
        if let Some(wait) = &mut self.wait {
            wait.since = Instant::now();
        }
    }

    fn stuck(&self) -> Option<Stuck> {
        let Wait { doing, step, since, least } = self.wait.as_ref()?;
        let limit = self.limit.max(*least);
        (since.elapsed() > limit).then_some(Stuck { step: *step, doing, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn watchdog(limit: Option<Duration>) -> (Watchdog, Receiver<Stuck>) {
        let (sender, receiver) = channel();
        let on_expired = Arc::new(move |stuck: &Stuck| {
            let _ = sender.send(*stuck);
        });
        (Watchdog::new(Some(&Deadline { limit, on_expired })).unwrap(), receiver)
    }

    #[test]
    fn what_takes_too_long_is_named() {
        let limit = Duration::from_millis(10);
        let (watchdog, stuck) = watchdog(Some(limit));
        drop(watchdog.time("launching", 6));
        let _timed = watchdog.time("waiting for data", 7);
        let stuck = stuck.recv().unwrap();
        assert_eq!(stuck, Stuck { step: 7, doing: "waiting for data", limit });
        assert!(stuck.to_string().contains("step 7: it has been waiting for data for 0.01 s"));
    }

    #[test]
    fn the_limit_follows_the_median_of_recent_launches() {
        let (mut watchdog, _stuck) = watchdog(None);
        let limit = |watchdog: &Watchdog| watchdog.watch.0.as_ref().unwrap().lock().limit;
        assert_eq!(limit(&watchdog), START);
        watchdog.measured(Duration::from_secs(100));
        assert_eq!(limit(&watchdog), Duration::from_secs(2000));
        for _ in 0..RECENT {
            watchdog.measured(Duration::from_millis(10));
        }
        assert_eq!(limit(&watchdog), LEAST);
        watchdog.excuse();
        assert_eq!(limit(&watchdog), START);
        watchdog.measured(Duration::from_secs(4));
        assert_eq!((limit(&watchdog), watchdog.recent.len()), (LEAST, RECENT));
    }

    #[test]
    fn a_fixed_limit_stays() {
        let (mut watchdog, _stuck) = watchdog(Some(LEAST));
        watchdog.measured(START);
        watchdog.excuse();
        assert_eq!(watchdog.watch.0.as_ref().unwrap().lock().limit, LEAST);
    }
}
