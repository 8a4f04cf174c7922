//! The place of this process in its job: alone, or one of several that find one another before
//! anything else is done.
//!
//! On CPU the processes are those of MPI, over which the first tells the others where its
//! coordinator is. Elsewhere they know from their launcher.

use crate::error::{Error, Result};
use fullshard_cluster::{Bytes, Generation, Launch, Member, Options};
use fullshard_core::{Platform, Process};
use fullshard_pjrt::mpi::World;
use fullshard_pjrt::{Client, ClientOptions, KeyValueError, KeyValueStore, Plugin};
use fullshard_train::{Job, Peers, PeersError};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long processes wait for one another. One that fails ends the wait at once.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// When the start of MPI is late.
const LATE: Duration = Duration::from_secs(20);

/// How long the first process waits for the others to leave.
const FAREWELL: Duration = Duration::from_secs(60);

/// The place of this process in its job.
pub struct Membership {
    job: Job,
    others: Option<Others>,
    /// Which start of the job this is.
    pub generation: Generation,
    /// When this process began.
    pub launched: Instant,
    /// The time until all processes were there.
    pub rendezvous: Duration,
}

struct Others {
    member: Arc<Member>,
    world: Option<&'static World>,
}

impl Membership {
    /// The only process of its job.
    pub fn alone() -> Membership {
        let (launched, rendezvous) = (Instant::now(), Duration::ZERO);
        let generation = Generation::default();
        Membership { job: Job::alone(), others: None, generation, launched, rendezvous }
    }

    /// Joins the job in which this process was launched, for a run on a platform. Waits until all
    /// processes are there. Without a launch it is alone.
    pub fn join(
        launch: Option<Launch>,
        generation: Generation,
        platform: Platform,
    ) -> Result<Membership> {
        let launched = Instant::now();
        let Some(mut launch) = launch else {
            return Ok(Membership { generation, ..Membership::alone() });
        };
        let mut options = Options::new(env!("CARGO_PKG_VERSION"));
        let world = match platform {
            Platform::Cpu => {
                let _late = warn_if_late(launch.process_id);
                Some(start_mpi(&mut launch, &mut options)?)
            }
            Platform::Cuda | Platform::Tpu => None,
        };
        let member = Arc::new(fullshard_cluster::join(&launch, options)?);
        let job = Job::of(Arc::new(Connection(Arc::clone(&member))));
        let others = Some(Others { member, world });
        Ok(Membership { job, others, generation, launched, rendezvous: launched.elapsed() })
    }

    /// The job, as training knows it.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The place of this process.
    pub fn process(&self) -> Process {
        self.job.process()
    }

    /// Whether this process reports failures: the first of its host does, since logs may be kept
    /// per host.
    pub fn reports(&self) -> bool {
        self.place_on_host().0 == 0
    }

    /// Calls back when another process fails, with the message if this process is to report it.
    /// This one may wait for the other in a collective without an end, so the callback should end
    /// the process.
    pub fn on_failure(&self, callback: impl FnOnce(Option<&str>) + Send + 'static) {
        let Some(Others { member, .. }) = &self.others else { return };
        let (this, reports) = (member.process(), self.reports());
        member.on_failure(move |failure| {
            if failure.process != Some(this) {
                // If the first process is gone without a word, the second reports it.
                let reports = reports || (failure.process.is_none() && this == 1);
                callback(reports.then(|| failure.to_string()).as_deref());
            }
        });
    }

    /// Tells the others that this process fails.
    pub fn fail(&self, error: &Error) {
        if let Some(Others { member, .. }) = &self.others {
            member.fail(&error.to_string(), error.is_final());
        }
    }

    /// Tells the launcher the step that the job would go on from.
    pub(crate) fn progress(&self, step: u64) {
        if let Some(Others { member, .. }) = &self.others
            && let Err(error) = member.progress(step)
        {
            tracing::warn!("the launcher does not know of step {step}: {error}");
        }
    }

    /// Lets the other processes read the files of a folder. All call it, once.
    pub(crate) fn serve(&self, folder: &Path) -> Result<()> {
        match &self.others {
            Some(Others { member, .. }) => Ok(member.serve(folder, PATIENCE)?),
            None => Ok(()),
        }
    }

    /// Leaves the job at the end of a run.
    pub fn leave(&self) -> Result<()> {
        let Some(Others { member, world }) = &self.others else { return Ok(()) };
        member.leave(FAREWELL)?;
        if let Some(world) = world {
            world.finish()?;
        }
        Ok(())
    }

    /// The outcome on all processes: the error of this one, or of the first other that failed.
    pub(crate) fn agree<T>(&self, name: &str, outcome: Result<T>) -> Result<T> {
        let failed = outcome.as_ref().err().map(ToString::to_string);
        let mine =
            failed.map_or(Ok(()), |failed| Err(fullshard_train::Error::Other(failed.into())));
        let agreed = self.job.agree(name, mine);
        let value = outcome?;
        agreed?;
        Ok(value)
    }

    /// Does something on one process of each host first, and then on the others, which find what
    /// the first left in the host's caches.
    pub(crate) fn once_per_host<T>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match &self.others {
            None => work(),
            Some(_) if self.place_on_host().0 == 0 => self.agree(name, work()),
            Some(_) => {
                self.agree(name, Ok(()))?;
                work()
            }
        }
    }

    /// The number of this process among those of its host, and how many they are.
    pub(crate) fn place_on_host(&self) -> (usize, usize) {
        let Some(Others { member, .. }) = &self.others else { return (0, 1) };
        let (hosts, this) = (member.hosts(), member.process());
        let here = |hosts: &[String]| {
            hosts.iter().filter(|host| Some(*host) == member.hosts().get(this)).count()
        };
        (here(&hosts[..this]), here(hosts))
    }

    /// How many processes before this one the nearest process on another host is, or the one before
    /// if there is one host.
    pub(crate) fn distance_to_host(&self) -> usize {
        match self.place_on_host() {
            (_, here) if here < self.process().count => here,
            _ => 1,
        }
    }

    /// Starts a client of a plugin.
    pub(crate) fn client(
        &self,
        plugin: &'static Plugin,
        options: &ClientOptions,
    ) -> Result<Client> {
        Ok(match &self.others {
            None => Client::new(plugin, options)?,
            Some(Others { member, .. }) => {
                let store = Arc::new(Connection(Arc::clone(member)));
                Client::in_job(plugin, options, self.process(), store)?
            }
        })
    }
}

/// Starts MPI. What no launcher has stated, the first process tells the others: where its
/// coordinator listens, and a secret.
fn start_mpi(launch: &mut Launch, options: &mut Options) -> Result<&'static World> {
    let world = World::start(launch.num_processes)?;
    if world.rank() != launch.process_id {
        return Err(Error::Usage(format!(
            "this is process {} by {}, but rank {} of MPI: launch it with one launcher, or number \
             processes as MPI does",
            launch.process_id,
            launch.by,
            world.rank()
        )));
    }
    let mut told = String::new();
    if world.rank() == 0 {
        let secret = fullshard_cluster::random_secret()?;
        let address = match &launch.coordinator {
            Some(address) => address.clone(),
            None => {
                let one_host = all_on_this_host(launch.num_processes);
                let listener = fullshard_cluster::listen(0, one_host)?;
                let port =
                    listener.local_addr().map_err(|error| Error::file("coordinator", error))?;
                options.listener = Some(listener);
                let host = match one_host {
                    true => "127.0.0.1".to_owned(),
                    false => rustix::system::uname().nodename().to_string_lossy().into_owned(),
                };
                format!("{host}:{}", port.port())
            }
        };
        told = format!("{address}\n{secret}");
    }
    let told = world.broadcast(told.into_bytes())?;
    let told = String::from_utf8_lossy(&told);
    let (address, secret) = told.split_once('\n').unwrap_or_default();
    launch.coordinator.get_or_insert_with(|| address.to_owned());
    launch.secret.get_or_insert_with(|| secret.to_owned());
    Ok(world)
}

/// Warns if MPI takes long to start, until the result is dropped: it waits for all processes without
/// a word, and forever if its network does not work. The second process warns for all others.
fn warn_if_late(process: usize) -> Sender<()> {
    let (started, waiting) = channel();
    if process <= 1 {
        std::thread::spawn(move || {
            if waiting.recv_timeout(LATE) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!(
                    "MPI has not connected the processes after {} s: some are missing, or its \
                     network does not work between their hosts. Try UCX_TLS=tcp,self, or another \
                     network (docs/hosts.md)",
                    LATE.as_secs()
                );
            }
        });
    }
    started
}

/// Whether the launcher states that all processes are on this host.
fn all_on_this_host(count: usize) -> bool {
    let local = ["MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"];
    let local = local.iter().find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok());
    local == Some(count)
}

/// The way to the other processes.
struct Connection(Arc<Member>);

impl Peers for Connection {
    fn process(&self) -> Process {
        Process { index: self.0.process(), count: self.0.count() }
    }

    fn gather(&self, name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, PeersError> {
        Ok(self.0.gather(name, bytes.to_vec(), PATIENCE)?)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), PeersError> {
        Ok(self.0.put(name, bytes)?)
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, PeersError> {
        Ok(self.0.get(name, PATIENCE)?)
    }

    fn fetch(
        &self,
        process: usize,
        name: &str,
        bytes: Range<u64>,
        add: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<u64, PeersError> {
        let bytes = Bytes { offset: bytes.start, length: bytes.end - bytes.start };
        Ok(self.0.fetch(process, name, bytes, add)?)
    }
}

impl KeyValueStore for Connection {
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, KeyValueError> {
        self.0.get(key, timeout).map_err(key_value_error)
    }

    fn try_get(&self, key: &str) -> Result<Vec<u8>, KeyValueError> {
        self.0.try_get(key).map_err(key_value_error)?.ok_or(KeyValueError::NotFound)
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError> {
        self.0.put(key, value).map_err(key_value_error)
    }
}

fn key_value_error(error: fullshard_cluster::Error) -> KeyValueError {
    match error {
        fullshard_cluster::Error::Exists { .. } => KeyValueError::AlreadyExists,
        fullshard_cluster::Error::NoValue { .. } => KeyValueError::DeadlineExceeded,
        error => KeyValueError::Unavailable(error.to_string()),
    }
}
