//! The one thread that calls MPI.
//!
//! It posts requests that do not block, and tests them until they are done, so that any number of
//! collectives are under way while nothing waits. MPI moves data only inside its calls: the thread
//! has to keep testing, but must not take a core from the computation that communication hides
//! behind. So it tests at once while something happens, and sleeps longer and longer while nothing
//! does.

use super::MpiError;
use super::library::{Handle, Library};
use super::workers::Workers;
use std::collections::VecDeque;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Tests without a sleep after something happened.
const EAGER_TESTS: u32 = 32;
/// A round of tests that takes longer has moved data.
const BUSY_TEST: Duration = Duration::from_micros(20);
const SHORTEST_SLEEP: Duration = Duration::from_micros(10);
const LONGEST_SLEEP: Duration = Duration::from_micros(160);

/// A request to MPI.
pub(super) struct Task {
    /// The function and what it is called for, in messages.
    pub(super) call: String,
    /// Posts the request.
    pub(super) post: Post,
    /// Called with the outcome, on a thread of its own.
    pub(super) done: Done,
    /// The time that it takes at least.
    pub(super) delay: Duration,
}

type Post = Box<dyn FnOnce(&Library) -> Result<Handle, MpiError> + Send>;
type Done = Box<dyn FnOnce(Result<(), MpiError>) + Send>;
type Order = Box<dyn FnOnce(&mut Thread) + Send>;

/// The queue of the thread.
pub(super) struct Speaker {
    shared: Arc<Shared>,
    turn: Mutex<()>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    orders: VecDeque<Order>,
    ended: bool,
}

/// A request under way.
struct Posted {
    call: String,
    request: Handle,
    done: Done,
    /// It is done no earlier.
    due: Instant,
}

impl Speaker {
    /// Starts the thread.
    pub(super) fn start(library: &'static Library) -> Result<Speaker, MpiError> {
        let shared = Arc::<Shared>::default();
        let thread = Thread {
            library,
            shared: Arc::clone(&shared),
            posted: Vec::new(),
            workers: Workers::new()?,
        };
        let builder = thread::Builder::new().name("mpi".into());
        builder.spawn(move || thread.run()).map_err(MpiError::Thread)?;
        Ok(Speaker { shared, turn: Mutex::default() })
    }

    /// Held by operations on all processes, which are in the same order everywhere.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request.
    pub(super) fn post(&self, task: Task) -> Result<(), MpiError> {
        self.order(Box::new(move |thread| match (task.post)(thread.library) {
            Ok(request) => thread.posted.push(Posted {
                call: task.call,
                request,
                done: task.done,
                due: Instant::now() + task.delay,
            }),
            Err(error) => thread.complete(task.done, Err(error)),
        }))
    }

    /// Posts a request and waits until it is done.
    pub(super) fn wait(
        &self,
        call: &str,
        post: impl FnOnce(&Library) -> Result<Handle, MpiError> + Send + 'static,
    ) -> Result<(), MpiError> {
        let (sender, receiver) = sync_channel(1);
        self.post(Task {
            call: call.to_owned(),
            post: Box::new(post),
            done: Box::new(move |outcome| drop(sender.send(outcome))),
            delay: Duration::ZERO,
        })?;
        receiver.recv().unwrap_or(Err(MpiError::Ended))
    }

    /// Runs a function on the thread, given the number of requests under way.
    pub(super) fn run<T: Send + 'static>(
        &self,
        function: impl FnOnce(&Library, usize) -> Result<T, MpiError> + Send + 'static,
    ) -> Result<T, MpiError> {
        let (sender, receiver) = sync_channel(1);
        self.order(Box::new(move |thread| {
            let _ = sender.send(function(thread.library, thread.posted.len()));
        }))?;
        receiver.recv().unwrap_or(Err(MpiError::Ended))
    }

    /// Accepts no more orders, and drops those that wait.
    pub(super) fn end(&self) {
        self.shared.lock().ended = true;
        self.shared.arrived.notify_one();
    }

    fn order(&self, order: Order) -> Result<(), MpiError> {
        let mut queue = self.shared.lock();
        if queue.ended {
            return Err(MpiError::Ended);
        }
        queue.orders.push_back(order);
        drop(queue);
        self.shared.arrived.notify_one();
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Thread {
    library: &'static Library,
    shared: Arc<Shared>,
    posted: Vec<Posted>,
    workers: Workers,
}

impl Thread {
    fn run(mut self) {
        let mut quiet_tests = 0;
        loop {
            let Some(orders) = self.take(sleep_after(quiet_tests)) else { return };
            let has_orders = !orders.is_empty();
            for order in orders {
                if self.shared.lock().ended {
                    return;
                }
                order(&mut self);
            }
            let start = Instant::now();
            let was_busy = self.test() || start.elapsed() > BUSY_TEST;
            quiet_tests = if has_orders || was_busy { 0 } else { quiet_tests + 1 };
        }
    }

    /// The new orders: waits for one while nothing is under way, else for as long as given. None
    /// at the end.
    fn take(&self, sleep: Duration) -> Option<VecDeque<Order>> {
        let mut queue = self.shared.lock();
        let is_empty = |queue: &mut Queue| queue.orders.is_empty() && !queue.ended;
        if self.posted.is_empty() {
            let waited = self.shared.arrived.wait_while(queue, is_empty);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        } else if sleep.is_zero() {
            drop(queue);
            thread::yield_now();
            queue = self.shared.lock();
        } else {
            let waited = self.shared.arrived.wait_timeout_while(queue, sleep, is_empty);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        (!queue.ended).then(|| std::mem::take(&mut queue.orders))
    }

    /// Tests every request, and completes those that are done. Returns whether there were any.
    fn test(&mut self) -> bool {
        let now = Instant::now();
        let before = self.posted.len();
        let mut index = 0;
        while let Some(posted) = self.posted.get_mut(index) {
            match self.library.test(&mut posted.request, || posted.call.clone()) {
                Ok(false) => index += 1,
                // A request that is done is null, which tests as done again.
                Ok(true) if posted.due > now => index += 1,
                outcome => {
                    let posted = self.posted.remove(index);
                    self.complete(posted.done, outcome.map(drop));
                }
            }
        }
        self.posted.len() < before
    }

    fn complete(&self, done: Done, outcome: Result<(), MpiError>) {
        self.workers.run(Box::new(move || done(outcome)));
    }
}

/// The sleep after a number of tests in which nothing happened.
fn sleep_after(quiet_tests: u32) -> Duration {
    match quiet_tests.checked_sub(EAGER_TESTS) {
        None => Duration::ZERO,
        Some(late) => (SHORTEST_SLEEP * (1 << (late / 8).min(4))).min(LONGEST_SLEEP),
    }
}
