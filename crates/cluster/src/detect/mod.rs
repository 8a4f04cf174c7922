//! Which process of which job this is: from flags, our own variables, or those of a launcher.

mod launchers;
mod nodelist;
#[cfg(test)]
mod tests;

use crate::{Error, Result};
use launchers::Found;
use std::collections::BTreeMap;
use std::fmt;

/// The environment, by variable.
pub(crate) type Environment = BTreeMap<String, String>;

/// What flags state about the processes of the job; the variables `FULLSHARD_...` state the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--coordinator` or `FULLSHARD_COORDINATOR`: `host:port` of process 0.
    pub coordinator: Option<String>,
    /// `--num_processes` or `FULLSHARD_NUM_PROCESSES`.
    pub num_processes: Option<usize>,
    /// `--process_id` or `FULLSHARD_PROCESS_ID`: from 0.
    pub process_id: Option<usize>,
    /// The contents of `--secret_file`, or `FULLSHARD_SECRET`.
    pub secret: Option<String>,
}

/// This process's place in a job of several processes.
#[derive(Clone, PartialEq, Eq)]
pub struct Launch {
    /// The number of processes: at least 2.
    pub num_processes: usize,
    /// This process's number, from 0.
    pub process_id: usize,
    /// Its number among those of this machine, if the launcher states it.
    pub local_process_id: Option<usize>,
    /// `host:port` of the coordinator. Under MPI it may be unknown: see [`crate::listen`].
    pub coordinator: Option<String>,
    /// Whether a launcher runs the coordinator; otherwise process 0 does.
    pub coordinator_runs: bool,
    /// The secret that all processes share. No launcher gives one by itself.
    pub secret: Option<String>,
    /// Who started the processes.
    pub by: Launcher,
}

/// Secrets are not printed.
impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("num_processes", &self.num_processes)
            .field("process_id", &self.process_id)
            .field("local_process_id", &self.local_process_id)
            .field("coordinator", &self.coordinator)
            .field("coordinator_runs", &self.coordinator_runs)
            .field("secret", &self.secret.as_ref().map(|_| "..."))
            .field("by", &self.by)
            .finish()
    }
}

/// Who started the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// Flags or `FULLSHARD_...` variables, which `fullshard launch` sets.
    Flags,
    /// `srun` of Slurm.
    Slurm,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH, Intel MPI and others with Hydra.
    Mpich,
    /// An indexed Job or JobSet of Kubernetes.
    Kubernetes,
    /// `torchrun`.
    Torchrun,
    /// A Cloud TPU slice, or several.
    Tpu,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Flags => "flags",
            Launcher::Slurm => "Slurm",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Mpich => "MPICH",
            Launcher::Kubernetes => "Kubernetes",
            Launcher::Torchrun => "torchrun",
            Launcher::Tpu => "Cloud TPU",
        })
    }
}

/// The place of this process, or nothing if it is alone.
///
/// Flags come before our own variables, and both before launchers, in the order of [`Launcher`].
/// A coordinator, a secret and, on Kubernetes, a number of processes may be given by flag or
/// variable while the launcher gives the rest.
pub fn detect(flags: &Flags, environment: &BTreeMap<String, String>) -> Result<Option<Launch>> {
    let flags = with_variables(flags, environment)?;
    let found = match flags.process_id {
        Some(process_id) => Some(from_flags(&flags, process_id)?),
        None => launchers::find(environment)?,
    };
    let Some(found) = found else { return alone(&flags).map(|()| None) };
    let count = number_of_processes(&flags, &found)?;
    if found.process_id >= count {
        let problem = format!(
            "process {} of {count} processes does not exist: they are counted from 0",
            found.process_id
        );
        return Err(variable(found.id_name, problem));
    }
    if count == 1 {
        return Ok(None);
    }
    let coordinator = flags.coordinator.or(found.coordinator);
    // Only MPI can tell the others an address later.
    if coordinator.is_none() && !matches!(found.by, Launcher::OpenMpi | Launcher::Mpich) {
        let problem = format!(
            "by {}, nothing states where process 0 is: give --coordinator or FULLSHARD_COORDINATOR \
             as host:port, the same in all processes",
            found.by
        );
        return Err(variable("--coordinator", problem));
    }
    if let Some(coordinator) = &coordinator {
        check_address(coordinator)?;
    }
    Ok(Some(Launch {
        num_processes: count,
        process_id: found.process_id,
        local_process_id: found.local_process_id,
        coordinator,
        coordinator_runs: flag_variable("FULLSHARD_COORDINATOR_RUNS", environment)?,
        secret: flags.secret,
        by: found.by,
    }))
}

/// Which start of its job this is. A launcher that restarts a failed job counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Generation {
    /// From 0. Later ones go on from where the one before had saved.
    pub number: usize,
    /// The number of processes that the job was made for, if it may have fewer now.
    pub full_processes: Option<usize>,
    /// When the first generation started, in seconds since 1970: what was saved since then is this
    /// job's.
    pub launched_at: usize,
}

impl Generation {
    /// Whether a launcher counts generations.
    pub fn is_counted(&self) -> bool {
        self.launched_at > 0
    }

    /// As `fullshard launch` states it: `FULLSHARD_GENERATION`, `FULLSHARD_FULL_PROCESSES`,
    /// `FULLSHARD_LAUNCHED_AT`.
    pub fn detect(environment: &BTreeMap<String, String>) -> Result<Generation> {
        Ok(Generation {
            number: number("FULLSHARD_GENERATION", environment)?.unwrap_or(0),
            full_processes: number("FULLSHARD_FULL_PROCESSES", environment)?,
            launched_at: number("FULLSHARD_LAUNCHED_AT", environment)?.unwrap_or(0),
        })
    }
}

/// The environment of this process. Variables that are not UTF-8 are none of ours.
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The flags, and our variables where there is none.
fn with_variables(flags: &Flags, environment: &Environment) -> Result<Flags> {
    let text = |name: &str| text(name, environment).map(str::to_owned);
    let number = |name: &str| number(name, environment);
    Ok(Flags {
        coordinator: flags.coordinator.clone().or_else(|| text("FULLSHARD_COORDINATOR")),
        num_processes: flags.num_processes.or(number("FULLSHARD_NUM_PROCESSES")?),
        process_id: flags.process_id.or(number("FULLSHARD_PROCESS_ID")?),
        secret: flags.secret.clone().or_else(|| text("FULLSHARD_SECRET")),
    })
}

fn from_flags(flags: &Flags, process_id: usize) -> Result<Found> {
    if flags.num_processes.is_none() {
        let problem = "this is process {id}, but of how many? Give --num_processes or \
                       FULLSHARD_NUM_PROCESSES too";
        return Err(variable("--process_id", problem.replace("{id}", &process_id.to_string())));
    }
    Ok(Found {
        by: Launcher::Flags,
        process_id,
        id_name: "--process_id",
        count: None,
        local_process_id: None,
        coordinator: None,
    })
}

/// The number of processes, which flags and launcher must not contradict.
fn number_of_processes(flags: &Flags, found: &Found) -> Result<usize> {
    match (flags.num_processes, found.count) {
        (Some(0), _) => Err(variable("--num_processes", "0 processes cannot train")),
        (Some(given), Some((count, name))) if given != count => Err(variable(
            "--num_processes",
            format!("{given} processes were given, but {name} is {count}: leave out the flag"),
        )),
        (Some(given), _) => Ok(given),
        (None, Some((0, name))) => Err(variable(name, "0 processes cannot train")),
        (None, Some((count, _))) => Ok(count),
        // An indexed Job of one pod: others would have a higher index, and fail.
        (None, None) if found.process_id == 0 => Ok(1),
        (None, None) => Err(variable(
            found.id_name,
            format!(
                "this is process {}, but {} does not state of how many: set \
                 FULLSHARD_NUM_PROCESSES to the number of pods, or give --num_processes",
                found.process_id, found.by
            ),
        )),
    }
}

/// Without a launcher and a process id, nothing else of several processes may be given.
fn alone(flags: &Flags) -> Result<()> {
    let name = match flags {
        Flags { num_processes: Some(count), .. } if *count != 1 => "--num_processes",
        Flags { num_processes: None, coordinator: Some(_), .. } => "--coordinator",
        _ => return Ok(()),
    };
    let problem = "which process is this? No launcher states it: give --process_id and \
                   --num_processes (FULLSHARD_PROCESS_ID, FULLSHARD_NUM_PROCESSES), or start the \
                   processes with `fullshard launch`";
    Err(variable(name, problem))
}

/// Checks that an address is `host:port`.
fn check_address(address: &str) -> Result<()> {
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.map(|(_, port)| port.parse::<u16>()) {
        Some(Ok(port)) if port > 0 => Ok(()),
        _ => Err(variable("--coordinator", format!("{address:?} is not host:port"))),
    }
}

/// An error of a flag or variable.
fn variable(name: impl Into<String>, problem: impl Into<String>) -> Error {
    Error::Variable { name: name.into(), problem: problem.into() }
}

/// A variable's value. An empty one is as good as none.
fn text<'a>(name: &str, environment: &'a Environment) -> Option<&'a str> {
    environment.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
}

/// A variable's number.
fn number(name: &str, environment: &Environment) -> Result<Option<usize>> {
    let Some(value) = text(name, environment) else { return Ok(None) };
    match value.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(variable(name, format!("{value:?} is not a number; unset it or correct it"))),
    }
}

/// A variable that is on or off.
fn flag_variable(name: &str, environment: &Environment) -> Result<bool> {
    match text(name, environment) {
        None | Some("0" | "false") => Ok(false),
        Some("1" | "true") => Ok(true),
        Some(value) => Err(variable(name, format!("{value:?} is neither true nor false"))),
    }
}
