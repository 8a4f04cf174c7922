//! Threads that complete collectives.
//!
//! Completing a future may run the rest of the program on the thread that completes it, and that
//! may wait for the other devices of this process. So every completion gets an idle thread, and
//! there are as many threads as completions were ever running at once.

use super::MpiError;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

pub(super) type Completion = Box<dyn FnOnce() + Send>;

/// A growing pool of threads.
pub(super) struct Workers {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    completions: VecDeque<Completion>,
    idle: usize,
}

impl Workers {
    /// A pool with one thread, so that completions run even if no other can be started.
    pub(super) fn new() -> Result<Workers, MpiError> {
        let workers = Workers { shared: Arc::default() };
        workers.add().map_err(MpiError::Thread)?;
        Ok(workers)
    }

    /// Runs a completion on an idle thread.
    pub(super) fn run(&self, completion: Completion) {
        let mut state = self.shared.lock();
        state.completions.push_back(completion);
        if state.completions.len() > state.idle
            && let Err(error) = self.add()
        {
            tracing::debug!("cannot start a thread for a completion: {error}");
        }
        drop(state);
        self.shared.arrived.notify_one();
    }

    fn add(&self) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        thread::Builder::new().name("mpi-complete".into()).spawn(move || shared.work()).map(drop)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut state = self.lock();
            state.idle += 1;
            let mut state = self
                .arrived
                .wait_while(state, |state| state.completions.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            let completion = state.completions.pop_front();
            drop(state);
            if let Some(completion) = completion {
                completion();
            }
        }
    }
}
