//! A member of a job: the key-value store, barriers and failures.

use crate::coordinator::{Background, listen};
use crate::files::{FileServer, fetch};
use crate::join::{Client, Rendezvous};
use crate::messages::{
    Empty, Event, Fail, Failed, Gather, Gathered, Get, MAX_KEY, MAX_VALUE, Progress, Put, Value,
    method,
};
use crate::{Coordinator, Error, Failure, Launch, Result};
use prost::Message;
use prost::bytes::Bytes;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tonic::{Code, Status, Streaming};

/// How long a process that ends waits for its last words to arrive.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The longest message of a failure.
const MAX_REASON: usize = 2048;

/// A process that has joined its job. Dropped without [`Member::leave`], it has failed for the
/// others.
///
/// Calls block and may come from any thread.
pub struct Member {
    process: usize,
    hosts: Vec<String>,
    client: Client,
    told: Arc<Told>,
    secret: String,
    files: OnceLock<Served>,
    // Its thread ends before the coordinator's: in this order.
    thread: Background,
    coordinator: Option<Coordinator>,
}

/// The folder that this member serves, and where the others serve theirs.
struct Served {
    _server: FileServer,
    addresses: Vec<String>,
}

/// What the member was told of the job's failure, and who wants to know.
#[derive(Default)]
pub(crate) struct Told {
    failure: watch::Sender<Option<Failure>>,
    callbacks: Mutex<Vec<Callback>>,
    left: AtomicBool,
}

type Callback = Box<dyn FnOnce(&Failure) + Send>;

impl Member {
    pub(crate) fn new(launch: &Launch, rendezvous: Rendezvous) -> Member {
        let Rendezvous { client, news, hosts, thread, coordinator } = rendezvous;
        let told = Arc::new(Told::default());
        let address = client.address().to_owned();
        thread.handle.spawn(follow(news, Arc::clone(&told), address));
        let (process, secret) = (launch.process_id, launch.secret.clone().unwrap_or_default());
        let files = OnceLock::new();
        Member { process, hosts, client, told, secret, files, thread, coordinator }
    }

    /// This process's number.
    pub fn process(&self) -> usize {
        self.process
    }

    /// The number of processes.
    pub fn count(&self) -> usize {
        self.hosts.len()
    }

    /// The host of every process.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Stores a value of at most [`crate::MAX_VALUE`] bytes. A key is put once.
    pub fn put(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<()> {
        let value = Bytes::from(value.into());
        check_size(key, value.len())?;
        match self.call(method::PUT, Put { key: key.to_owned(), value })? {
            Ok(Empty {}) => Ok(()),
            Err(status) if status.code() == Code::AlreadyExists => {
                Err(Error::Exists { key: key.to_owned() })
            }
            Err(status) => Err(answered(&status)),
        }
    }

    /// A value, once somebody has put it.
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let no_value = || Error::NoValue { key: key.to_owned(), seconds: timeout.as_secs_f64() };
        self.value(key, milliseconds(timeout))?.ok_or_else(no_value)
    }

    /// A value, if somebody has put it.
    pub fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.value(key, 0)
    }

    fn value(&self, key: &str, timeout_ms: u64) -> Result<Option<Vec<u8>>> {
        match self.call(method::GET, Get { key: key.to_owned(), timeout_ms })? {
            Ok(Value { value }) => Ok(Some(value.into())),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(answered(&status)),
        }
    }

    /// Waits until all processes are at this barrier.
    pub fn barrier(&self, name: &str, timeout: Duration) -> Result<()> {
        self.gather(name, Vec::new(), timeout).map(drop)
    }

    /// The values of all processes, in their order: a barrier with values, which come to at most
    /// [`crate::MAX_VALUE`] bytes together. Names can be used again.
    pub fn gather(&self, name: &str, value: Vec<u8>, timeout: Duration) -> Result<Vec<Vec<u8>>> {
        check_size(name, value.len())?;
        let timeout_ms = milliseconds(timeout);
        let request = Gather { name: name.to_owned(), value: value.into(), timeout_ms };
        match self.call(method::GATHER, request)? {
            Ok(Gathered { values }) => Ok(values.into_iter().map(Vec::from).collect()),
            Err(status) if status.code() == Code::DeadlineExceeded => Err(Error::Missing {
                what: format!("barrier {name:?}"),
                missing: status.message().to_owned(),
                seconds: timeout.as_secs_f64(),
            }),
            Err(status) if status.code() == Code::FailedPrecondition => {
                Err(Error::Refused(format!("barrier {name:?}: {}", status.message())))
            }
            Err(status) => Err(answered(&status)),
        }
    }

    /// Serves a folder to the other members from now on. All call it, once.
    pub fn serve(&self, folder: &Path, timeout: Duration) -> Result<()> {
        let one_host = self.hosts.iter().all(|host| *host == self.hosts[0]);
        let server = FileServer::start(listen(0, one_host)?, folder.to_owned(), &self.secret)?;
        let host = if one_host { "127.0.0.1" } else { self.hosts[self.process].as_str() };
        let address = format!("{host}:{}", server.port()).into_bytes();
        let addresses = self.gather("file servers", address, timeout)?;
        let text = |address: &Vec<u8>| String::from_utf8_lossy(address).into_owned();
        let addresses = addresses.iter().map(text).collect();
        let _ = self.files.set(Served { _server: server, addresses });
        Ok(())
    }

    /// Reads bytes of a file in the folder that another member serves, in pieces, and returns how
    /// many there were.
    pub fn fetch(
        &self,
        process: usize,
        name: &str,
        bytes: crate::Bytes,
        out: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<u64> {
        let address = self.files.get().and_then(|served| served.addresses.get(process));
        let Some(address) = address else {
            let source = std::io::Error::other("no files are served");
            let (name, address) = (name.to_owned(), format!("process {process}"));
            return Err(Error::Fetch { name, address, source });
        };
        fetch(address, &self.secret, name, bytes, out)
    }

    /// The job's failure, if it has failed.
    pub fn failure(&self) -> Option<Failure> {
        self.told.failure.borrow().clone()
    }

    /// Calls back when the job fails, or now if it has: once, on a thread of its own.
    pub fn on_failure(&self, callback: impl FnOnce(&Failure) + Send + 'static) {
        let mut callbacks = self.told.callbacks.lock().unwrap_or_else(PoisonError::into_inner);
        match self.failure() {
            Some(failure) => run(Box::new(callback), failure),
            None => callbacks.push(Box::new(callback)),
        }
    }

    /// Reports a failure of this process to all others, and whether a restart would end the same
    /// way. The process is to end soon.
    pub fn fail(&self, message: &str, is_final: bool) {
        if self.failure().is_some() {
            return;
        }
        let end = message.floor_char_boundary(MAX_REASON);
        let message = message[..end].to_owned();
        let failed = Fail { message: message.clone(), is_final };
        let report = self.client.unary::<_, Empty>(method::FAIL, failed);
        let _ =
            self.thread.handle.block_on(async { tokio::time::timeout(LAST_WORDS, report).await });
        let host = self.hosts.get(self.process).cloned().unwrap_or_default();
        self.told.fail(Failure { process: Some(self.process), host, message, is_final });
        if let Some(coordinator) = &self.coordinator {
            coordinator.outlive_failure();
        }
    }

    /// Tells the coordinator the step that the job would go on from if it failed now.
    pub fn progress(&self, step: u64) -> Result<()> {
        let told = self.call(method::PROGRESS, Progress { step })?;
        told.map(|Empty {}| ()).map_err(|status| answered(&status))
    }

    /// Leaves the job, which is no failure. Process 0 waits until all have left.
    pub fn leave(&self, timeout: Duration) -> Result<()> {
        self.told.left.store(true, Ordering::Relaxed);
        self.call(method::LEAVE, Empty {})?
            .map(|Empty {}| ())
            .map_err(|status| answered(&status))?;
        let Some(coordinator) = &self.coordinator else { return Ok(()) };
        let missing = coordinator.wait_for_end(timeout);
        if let Some(failure) = coordinator.failure() {
            return Err(Error::Failed(failure));
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::Missing {
            what: "the end of the job".to_owned(),
            missing: crate::error::name_processes(&missing),
            seconds: timeout.as_secs_f64(),
        })
    }

    /// A request, with the coordinator's answer. The job's failure ends it at once.
    fn call<M, R>(&self, path: &'static str, message: M) -> Result<Result<R, Status>>
    where
        M: Message + Default + 'static,
        R: Message + Default + 'static,
    {
        if let Some(failure) = self.failure() {
            return Err(Error::Failed(failure));
        }
        self.thread.handle.block_on(async {
            let answer = tokio::select! {
                biased;
                answer = self.client.unary(path, message) => answer,
                failure = self.told.failed() => return Err(Error::Failed(failure)),
            };
            match answer {
                Err(status) if status.code() == Code::Aborted => {
                    let failure = Failed::decode(status.details()).unwrap_or_default();
                    self.told.fail(failure.into());
                    Err(Error::Failed(self.told.failed().await))
                }
                // The connection ended: the news of that are about to come.
                Err(status)
                    if matches!(
                        status.code(),
                        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
                    ) =>
                {
                    match tokio::time::timeout(LAST_WORDS, self.told.failed()).await {
                        Ok(failure) => Err(Error::Failed(failure)),
                        Err(_) => Ok(Err(status)),
                    }
                }
                answer => Ok(answer),
            }
        })
    }
}

impl Told {
    /// Takes note of a failure. The first is the job's.
    fn fail(&self, failure: Failure) {
        let mut callbacks = self.callbacks.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failure.borrow().is_some() {
            return;
        }
        self.failure.send_replace(Some(failure.clone()));
        for callback in callbacks.drain(..) {
            run(callback, failure.clone());
        }
    }

    async fn failed(&self) -> Failure {
        let mut failure = self.failure.subscribe();
        let first = failure.wait_for(Option::is_some).await.ok().and_then(|first| first.clone());
        match first {
            Some(first) => first,
            None => std::future::pending().await,
        }
    }
}

/// Runs a callback on its own thread, where it may call the member.
fn run(callback: Callback, failure: Failure) {
    std::thread::spawn(move || callback(&failure));
}

/// Follows the news of the job. When they end, the coordinator is gone.
async fn follow(mut news: Streaming<Event>, told: Arc<Told>, address: String) {
    let reason = loop {
        match news.message().await {
            Ok(Some(Event { failure: Some(failure), .. })) => return told.fail(failure.into()),
            Ok(Some(_)) => (),
            Ok(None) => break "it ended".to_owned(),
            Err(status) => break status.message().to_owned(),
        }
    };
    if !told.left.load(Ordering::Relaxed) {
        let message = format!("the coordinator of the job at {address} is gone: {reason}");
        let host = String::new();
        told.fail(Failure { process: None, host, message, is_final: false });
    }
}

fn check_size(name: &str, bytes: usize) -> Result<()> {
    for (bytes, most) in [(name.len(), MAX_KEY), (bytes, MAX_VALUE)] {
        if bytes > most {
            let what = format!("{:?}", &name[..name.floor_char_boundary(100)]);
            return Err(Error::TooLarge { what, bytes, most });
        }
    }
    Ok(())
}

/// A time-out on its way to the coordinator. Zero would not wait at all.
fn milliseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn answered(status: &Status) -> Error {
    Error::Answer(format!("{} ({})", status.message(), status.code()))
}
