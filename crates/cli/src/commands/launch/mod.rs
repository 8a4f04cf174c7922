//! `fullshard launch`: several processes of a command on this machine, as one job. The coordinator
//! runs here, so that it listens before anybody connects, and its end is that of all processes.

mod rendezvous;
mod start;
mod supervise;

pub use rendezvous::{RendezvousArgs, rendezvous};

use clap::Args;
use fullshard::{Error, Result};
use fullshard_cluster::{Coordinator, Heartbeat, listen, random_secret};
use fullshard_core::Platform;
use fullshard_pjrt::plugins::Store;
use start::{Job, Way, start};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use supervise::{Signals, supervise};

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

impl LaunchArgs {
    /// The command and its flags, if it is one of several processes.
    pub fn command(&self) -> Result<&[OsString]> {
        check(&self.command)?;
        Ok(&self.command)
    }
}

/// Starts the processes of a command, which is one for a platform if it uses devices.
pub fn run(args: &LaunchArgs, platform: Option<Platform>) -> Result<ExitCode> {
    let command = args.command()?;
    let mpiexec = mpiexec(args, platform)?;
    let program = std::env::current_exe()
        .map_err(|error| Error::Usage(format!("cannot find the fullshard binary: {error}")))?;
    let secret = random_secret().map_err(usage)?;
    let listener = listen(0, true).map_err(usage)?;
    let version = env!("CARGO_PKG_VERSION");
    let heartbeat = Heartbeat::default();
    let count = args.num_processes;
    let coordinator =
        Coordinator::start(listener, count, &secret, version, heartbeat).map_err(usage)?;
    let mut signals = Signals::watch()?;
    let address = coordinator.address().to_string();
    let job = Job { program: &program, args: command, count, address, secret };
    let way = mpiexec.as_deref().map_or(Way::Direct, Way::Mpiexec);
    let mut processes = start(&job, way)?;
    Ok(ExitCode::from(supervise(&mut processes, &coordinator, &mut signals)))
}

/// The `mpiexec` to start processes with, if they need one: on CPU they communicate over MPI.
fn mpiexec(args: &LaunchArgs, platform: Option<Platform>) -> Result<Option<PathBuf>> {
    if args.mpiexec.is_some() || platform != Some(Platform::Cpu) || args.num_processes == 1 {
        return Ok(args.mpiexec.clone());
    }
    match fullshard_pjrt::mpi::installed(&Store::default_location()?)? {
        Some(installed) => Ok(Some(installed.mpiexec)),
        None => Err(Error::Usage(
            "on CPU, processes communicate over MPI: run `fullshard plugins install mpi` first, or \
             pass --mpiexec"
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
