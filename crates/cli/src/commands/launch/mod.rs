//! `fullshard launch`: several processes of a command, as one job that goes on after failures.
//!
//! The coordinator runs here, so that it listens before anybody connects, and its end is that of all
//! processes. When a process of a training job is lost, all end, and the next generation starts from
//! the last checkpoint: with as many processes, or with fewer if hosts are gone.

mod hosts;
mod rendezvous;
mod restart;
mod start;
mod supervise;

pub use rendezvous::{RendezvousArgs, rendezvous};

use clap::Args;
use fullshard::config::RunConfig;
use fullshard::{Error, Result};
use fullshard_cluster::{Coordinator, Generation, Heartbeat, listen, random_secret};
use fullshard_core::Platform;
use fullshard_pjrt::plugins::Store;
use hosts::Hosts;
use restart::Restarts;
use start::{Job, Way, end_orphans, start};
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use supervise::{Ended, Signals, supervise};

/// The commands of several processes, with other ways to write them.
const COMMANDS: [&str; 5] = ["train", "run_clm", "run-clm", "rendezvous", "bench step"];

#[derive(Args)]
pub struct LaunchArgs {
    /// Number of processes.
    #[arg(short = 'n', long = "num_processes", value_name = "N", value_parser = at_least_one)]
    num_processes: usize,
    /// Start the processes with this mpiexec (MPICH's or Intel's); on CPU it defaults to that of
    /// `fullshard plugins install mpi`.
    #[arg(long = "mpiexec", value_name = "PATH")]
    mpiexec: Option<PathBuf>,
    /// Hosts to start processes on, by mpiexec; more than there are processes are spares. Defaults
    /// to this machine.
    #[arg(long = "hosts", value_name = "HOST,HOST", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Restart failed training from its last checkpoint, at most this many times without progress.
    #[arg(long = "max_restarts", value_name = "N", default_value_t = 3)]
    max_restarts: usize,
    /// Restart with as few processes as this if hosts are gone; steps keep their batch. Defaults to
    /// all processes.
    #[arg(long = "min_processes", value_name = "N", value_parser = at_least_one)]
    min_processes: Option<usize>,
    /// How long a restart waits for enough hosts.
    #[arg(long = "host_timeout_s", value_name = "SECONDS", default_value_t = 600)]
    host_timeout_s: u64,
    /// After how long without a sign of life a process is lost.
    #[arg(
        long = "heartbeat_timeout_s",
        value_name = "SECONDS",
        default_value_t = Heartbeat::default().timeout.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    heartbeat_timeout_s: u64,
    /// The command and its flags: train, run_clm, bench step or rendezvous.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least one process is needed".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err(format!("{text:?} is not a number")),
    }
}

/// What a command is: the platform of its devices if it uses some, and its config if it trains.
#[derive(Default)]
pub struct Launched {
    pub platform: Option<Platform>,
    pub config: Option<RunConfig>,
}

impl LaunchArgs {
    /// The command and its flags, if it is one of several processes.
    pub fn command(&self) -> Result<&[OsString]> {
        check(&self.command)?;
        Ok(&self.command)
    }
}

/// Starts the processes of a command, generation after generation until it is done.
pub fn run(args: &LaunchArgs, launched: &Launched) -> Result<ExitCode> {
    let mut launcher = Launcher::new(args, launched)?;
    let mut restarts = Restarts::new(args, launched.config.as_ref())?;
    let mut generation = restarts.first();
    loop {
        let ended = launcher.generation(&generation)?;
        let Launcher { hosts, signals, .. } = &mut launcher;
        match restarts.after(&ended, hosts.as_mut(), signals)? {
            Some(next) => generation = next,
            None => return Ok(ExitCode::from(ended.code)),
        }
    }
}

/// The processes of one generation, and which one it is.
pub(crate) struct Started {
    pub count: usize,
    pub generation: Generation,
}

/// What is the same for all generations.
struct Launcher<'a> {
    command: &'a [OsString],
    program: PathBuf,
    mpiexec: Option<PathBuf>,
    hosts: Option<Hosts>,
    heartbeat: Heartbeat,
    signals: Signals,
}

impl<'a> Launcher<'a> {
    fn new(args: &'a LaunchArgs, launched: &Launched) -> Result<Launcher<'a>> {
        let command = args.command()?;
        let mpiexec = mpiexec(args, launched.platform)?;
        let program = std::env::current_exe()
            .map_err(|error| Error::Usage(format!("cannot find the fullshard binary: {error}")))?;
        let hosts = Hosts::new(&args.hosts, args.num_processes, mpiexec.as_deref())?;
        let timeout = Duration::from_secs(args.heartbeat_timeout_s);
        let heartbeat = Heartbeat { timeout, ..Heartbeat::default() };
        Ok(Launcher { command, program, mpiexec, hosts, heartbeat, signals: Signals::watch()? })
    }

    /// Runs one generation to its end.
    fn generation(&mut self, started: &Started) -> Result<Ended> {
        let secret = random_secret().map_err(usage)?;
        let (listener, address) = self.listen()?;
        let (count, version) = (started.count, env!("CARGO_PKG_VERSION"));
        let coordinator =
            Coordinator::start(listener, count, &secret, version, self.heartbeat).map_err(usage)?;
        let generation = started.generation;
        let (program, args) = (&self.program, self.command);
        let job = Job { program, args, count, address, secret, generation };
        let way = match (&self.mpiexec, &self.hosts) {
            (Some(mpiexec), Some(hosts)) => Way::Hosts(mpiexec, hosts.chosen(count)),
            (Some(mpiexec), None) => Way::Mpiexec(mpiexec),
            (None, _) => Way::Direct,
        };
        let mut processes = start(&job, way)?;
        let ended = supervise(&mut processes, &coordinator, &mut self.signals);
        drop(processes);
        end_orphans();
        Ok(ended)
    }

    /// Where the coordinator listens: for this machine alone, unless there are others.
    fn listen(&self) -> Result<(TcpListener, String)> {
        let listener = listen(0, self.hosts.is_none()).map_err(usage)?;
        let address = listener
            .local_addr()
            .map_err(|error| Error::Usage(format!("the coordinator cannot listen: {error}")))?;
        let address = match self.hosts {
            None => address.to_string(),
            Some(_) => {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                format!("{host}:{}", address.port())
            }
        };
        Ok((listener, address))
    }
}

/// The `mpiexec` to start processes with, if they need one: on CPU they communicate over MPI, and
/// on other hosts it starts them.
fn mpiexec(args: &LaunchArgs, platform: Option<Platform>) -> Result<Option<PathBuf>> {
    let on_cpu = platform == Some(Platform::Cpu) && args.num_processes > 1;
    let needed = on_cpu || !args.hosts.is_empty();
    if args.mpiexec.is_some() || !needed {
        return Ok(args.mpiexec.clone());
    }
    match fullshard_pjrt::mpi::installed(&Store::default_location()?)? {
        Some(installed) => Ok(Some(installed.mpiexec)),
        None => Err(Error::Usage(
            "on CPU, processes communicate over MPI, and on other hosts mpiexec starts them: run \
             `fullshard plugins install mpi` first, or pass --mpiexec"
                .into(),
        )),
    }
}

/// Refuses commands that know nothing of other processes: each would do the same.
fn check(command: &[OsString]) -> Result<()> {
    let words: Vec<_> = command.iter().take(2).map(|word| word.to_string_lossy()).collect();
    let name = match &words[..] {
        [command, what] if command == "bench" => format!("bench {what}"),
        words => words.first().map(ToString::to_string).unwrap_or_default(),
    };
    if COMMANDS.contains(&name.as_str()) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "`{name}` does not run as several processes: `fullshard launch` starts train, run_clm, \
         bench step and rendezvous; run `fullshard {name}` without it"
    )))
}

/// An error of the cluster, as this binary's.
fn usage(error: fullshard_cluster::Error) -> Error {
    Error::Usage(error.to_string())
}
