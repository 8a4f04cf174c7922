//! What the coordinator knows: who is there, values, open gathers, and the job's failure.

use crate::error::name_processes;
use crate::messages::{Event, Failed, Hello, MAX_VALUE};
use crate::{Failure, Heartbeat};
use prost::Message;
use prost::bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tonic::{Code, Status};

/// Process 0 often ends at the notice of a failure, and the coordinator with it: the others get
/// theirs this much earlier.
const HEAD_START: Duration = Duration::from_millis(50);

/// How many addresses of strangers are logged.
const MOST_LOGGED: usize = 100;

/// The state of a job.
pub(crate) struct State {
    pub count: usize,
    pub secret: String,
    pub version: String,
    pub heartbeat: Heartbeat,
    inner: Mutex<Inner>,
    pub presence: watch::Sender<Presence>,
    /// The step that the job would go on from, as it reports.
    pub progress: AtomicU64,
    failure: watch::Sender<Option<Failure>>,
}

/// How many have come and gone.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Presence {
    pub joined: usize,
    pub left: usize,
}

struct Inner {
    seats: Vec<Seat>,
    values: HashMap<String, watch::Sender<Option<Bytes>>>,
    gathers: HashMap<String, Gather>,
    strangers: HashSet<IpAddr>,
}

#[derive(Clone)]
enum Seat {
    Empty,
    Joined(String),
    Left,
}

/// The values of those that have come, and the news for those that wait.
struct Gather {
    values: Vec<Option<Bytes>>,
    arrived: usize,
    bytes: usize,
    done: watch::Sender<Option<Outcome>>,
}

/// The values of all, or why it cannot be.
type Outcome = Result<Arc<Vec<Bytes>>, String>;

impl State {
    pub fn new(count: usize, secret: String, version: String, heartbeat: Heartbeat) -> State {
        let inner = Inner {
            seats: vec![Seat::Empty; count],
            values: HashMap::new(),
            gathers: HashMap::new(),
            strangers: HashSet::new(),
        };
        State {
            count,
            secret,
            version,
            heartbeat,
            inner: Mutex::new(inner),
            presence: watch::Sender::new(Presence::default()),
            progress: AtomicU64::new(0),
            failure: watch::Sender::new(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a member that has proved itself its place. One that does not fit ends the job, if
    /// that has not started: nobody else can take its place.
    pub fn join(&self, hello: &Hello) -> Result<usize, Status> {
        let Hello { process, count, version, host, .. } = hello;
        let fits = if *version != self.version {
            Err(format!("is fullshard {version}, but process 0 is {}", self.version))
        } else if *count != self.count as u64 {
            Err(format!("is one of {count} processes, but process 0 is one of {}", self.count))
        } else {
            self.take_seat(*process, host)
        };
        fits.map_err(|reason| {
            let message = format!("process {process} on host {host} {reason}");
            if self.presence.borrow().joined < self.count {
                let (host, message) = (host.clone(), message.clone());
                self.fail(Failure { process: None, host, message, is_final: true });
            }
            Status::failed_precondition(message)
        })
    }

    fn take_seat(&self, process: u64, host: &str) -> Result<usize, String> {
        let mut inner = self.lock();
        let position = process as usize;
        match inner.seats.get_mut(position) {
            Some(seat @ Seat::Empty) => *seat = Seat::Joined(host.to_owned()),
            Some(Seat::Joined(first)) => {
                return Err(format!("has the number of another one, on host {first}"));
            }
            Some(Seat::Left) => return Err("comes back, although it had left".to_owned()),
            None => return Err(format!("is none of {} processes", self.count)),
        }
        drop(inner);
        self.presence.send_modify(|presence| presence.joined += 1);
        Ok(position)
    }

    /// A member that ends as it should. Gathers that wait for it cannot be completed.
    pub fn leave(&self, process: usize) {
        let mut inner = self.lock();
        let Some(seat @ Seat::Joined(_)) = inner.seats.get_mut(process) else { return };
        *seat = Seat::Left;
        inner.gathers.retain(|_, gather| {
            let waits = gather.values[process].is_none();
            if waits {
                gather.done.send_replace(Some(Err(left(&[process]))));
            }
            !waits
        });
        drop(inner);
        self.presence.send_modify(|presence| presence.left += 1);
    }

    /// A member's connection has ended.
    pub fn closed(&self, process: usize, silence: Duration) {
        let Some(host) = self.host(process) else { return };
        let message = if silence >= self.heartbeat.timeout {
            format!("no sign of life for {:.1} s", silence.as_secs_f64())
        } else {
            "its connection closed: it crashed, was killed or ended early".to_owned()
        };
        self.fail(Failure { process: Some(process), host, message, is_final: false });
    }

    /// The host of a member that has joined and not left.
    fn host(&self, process: usize) -> Option<String> {
        match &self.lock().seats[process] {
            Seat::Joined(host) => Some(host.clone()),
            _ => None,
        }
    }

    /// A stranger has gone. Each is logged once.
    pub fn stranger(&self, address: IpAddr) {
        let mut inner = self.lock();
        if inner.strangers.len() < MOST_LOGGED && inner.strangers.insert(address) {
            tracing::warn!(
                "{address} connected to the coordinator but did not join the job: a port scanner, or \
                 a process with another secret; it is ignored, and not reported again"
            );
        }
    }

    /// A member reports its own failure.
    pub fn reported(&self, process: usize, message: String, is_final: bool) {
        if let Some(host) = self.host(process) {
            self.fail(Failure { process: Some(process), host, message, is_final });
        }
    }

    /// The first failure is the job's.
    fn fail(&self, failure: Failure) {
        self.failure.send_if_modified(|first| {
            let is_first = first.is_none();
            if is_first {
                *first = Some(failure);
            }
            is_first
        });
    }

    pub fn failure(&self) -> Option<Failure> {
        self.failure.borrow().clone()
    }

    /// Waits for the job's failure, on behalf of a process.
    pub async fn failed(&self, process: usize) -> Failure {
        let mut failure = self.failure.subscribe();
        let first = match failure.wait_for(Option::is_some).await {
            Ok(failure) => failure.clone(),
            Err(_) => None,
        };
        let Some(first) = first else { return std::future::pending().await };
        if process == 0 {
            tokio::time::sleep(HEAD_START).await;
        }
        first
    }

    /// Who has joined and not left.
    pub fn present(&self) -> Vec<usize> {
        positions(&self.lock().seats, |seat| matches!(seat, Seat::Joined(_)))
    }

    /// Who is missing, or the hosts of all.
    pub fn progress(&self) -> Event {
        let inner = self.lock();
        let missing = positions(&inner.seats, |seat| matches!(seat, Seat::Empty));
        let hosts = inner.seats.iter().filter_map(|seat| match seat {
            Seat::Joined(host) => Some(host.clone()),
            Seat::Empty | Seat::Left => None,
        });
        Event {
            hosts: if missing.is_empty() { hosts.collect() } else { Vec::new() },
            missing: missing.into_iter().map(|process| process as u64).collect(),
            failure: None,
        }
    }

    pub fn put(&self, key: String, value: Bytes) -> Result<(), Status> {
        let mut inner = self.lock();
        let slot = inner.values.entry(key).or_insert_with(|| watch::Sender::new(None));
        let is_new = slot.send_if_modified(|slot| {
            let is_new = slot.is_none();
            if is_new {
                *slot = Some(value);
            }
            is_new
        });
        if is_new { Ok(()) } else { Err(Status::already_exists("")) }
    }

    /// A value, or nothing if it does not come in time.
    pub async fn get(
        &self,
        process: usize,
        key: String,
        timeout: Duration,
    ) -> Result<Option<Bytes>, Status> {
        let slot = {
            let mut inner = self.lock();
            if timeout.is_zero() {
                return Ok(inner.values.get(&key).and_then(|slot| slot.borrow().clone()));
            }
            inner.values.entry(key).or_insert_with(|| watch::Sender::new(None)).subscribe()
        };
        self.wait(process, slot, timeout).await
    }

    /// The values of all processes under a name, or who is missing.
    pub async fn gather(
        &self,
        process: usize,
        name: &str,
        value: Bytes,
        timeout: Duration,
    ) -> Result<Arc<Vec<Bytes>>, Status> {
        let done = self.arrive(process, name, value)?;
        match self.wait(process, done.subscribe(), timeout).await? {
            Some(outcome) => outcome.map_err(Status::failed_precondition),
            None => Err(Status::deadline_exceeded(self.withdraw(process, name))),
        }
    }

    fn arrive(
        &self,
        process: usize,
        name: &str,
        value: Bytes,
    ) -> Result<watch::Sender<Option<Outcome>>, Status> {
        let mut inner = self.lock();
        let gone = positions(&inner.seats, |seat| matches!(seat, Seat::Left));
        if !gone.is_empty() {
            return Err(Status::failed_precondition(left(&gone)));
        }
        let gather = inner.gathers.entry(name.to_owned()).or_insert_with(|| Gather {
            values: vec![None; self.count],
            arrived: 0,
            bytes: 0,
            done: watch::Sender::new(None),
        });
        if gather.values[process].is_some() {
            let message = format!("process {process} is there already, from another thread");
            return Err(Status::failed_precondition(message));
        }
        gather.bytes += value.len();
        gather.values[process] = Some(value);
        gather.arrived += 1;
        let done = gather.done.clone();
        if gather.arrived == self.count
            && let Some(gather) = inner.gathers.remove(name)
        {
            let outcome = if gather.bytes > MAX_VALUE {
                Err(format!("{} bytes of all processes, at most {MAX_VALUE}", gather.bytes))
            } else {
                Ok(Arc::new(gather.values.into_iter().flatten().collect()))
            };
            done.send_replace(Some(outcome));
        }
        Ok(done)
    }

    /// Takes back the value of a process that waits no longer, and names who is missing.
    fn withdraw(&self, process: usize, name: &str) -> String {
        let mut inner = self.lock();
        let Some(gather) = inner.gathers.get_mut(name) else { return name_processes(&[]) };
        let missing = positions(&gather.values, Option::is_none);
        if let Some(value) = gather.values[process].take() {
            gather.bytes -= value.len();
            gather.arrived -= 1;
        }
        if gather.arrived == 0 {
            inner.gathers.remove(name);
        }
        name_processes(&missing)
    }

    /// Waits for a value. The job's failure ends it with that, the time-out with nothing.
    async fn wait<T: Clone>(
        &self,
        process: usize,
        mut slot: watch::Receiver<Option<T>>,
        timeout: Duration,
    ) -> Result<Option<T>, Status> {
        let value = async {
            tokio::select! {
                value = slot.wait_for(Option::is_some) => Ok(value.ok().and_then(|value| value.clone())),
                failure = self.failed(process) => Err(failed(failure)),
            }
        };
        tokio::time::timeout(timeout, value).await.unwrap_or(Ok(None))
    }
}

fn positions<T>(items: &[T], holds: impl Fn(&T) -> bool) -> Vec<usize> {
    items.iter().enumerate().filter(|(_, item)| holds(item)).map(|(index, _)| index).collect()
}

fn left(processes: &[usize]) -> String {
    format!("{} left the job and will not come", name_processes(processes))
}

/// The answer to a request that a failure ends.
pub(crate) fn failed(failure: Failure) -> Status {
    let details = Failed::from(failure).encode_to_vec();
    Status::with_details(Code::Aborted, "the job has failed", details.into())
}
