//! What launchers leave in the environment of the processes that they start.

use super::nodelist::first_host;
use super::{Environment, Launcher, number, text, variable};
use crate::Result;

/// The port where a launcher states none. Linux gives out the ports below to others.
const PORT: usize = 61440;

/// What a launcher states.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub by: Launcher,
    pub process_id: usize,
    /// The variable that has it.
    pub id_name: &'static str,
    /// The number of processes, and the variable that has it.
    pub count: Option<(usize, &'static str)>,
    pub local_process_id: Option<usize>,
    pub coordinator: Option<String>,
}

/// The first launcher that has left its variables.
pub(super) fn find(environment: &Environment) -> Result<Option<Found>> {
    let mpi = match open_mpi(environment)? {
        Some(found) => Some(found),
        None => mpich(environment)?,
    };
    if let Some(slurm) = slurm(environment)? {
        return Ok(Some(match mpi {
            Some(mpi) if inside_step(&mpi, &slurm) => mpi,
            _ => slurm,
        }));
    }
    if mpi.is_some() {
        return Ok(mpi);
    }
    for launcher in [kubernetes, torchrun, tpu] {
        if let Some(found) = launcher(environment)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Whether an `mpiexec` started this process in a Slurm step: it runs one task per node there, and
/// that task's variables are inherited.
fn inside_step(mpi: &Found, slurm: &Found) -> bool {
    let place = |found: &Found| (found.process_id, found.count.map(|(count, _)| count));
    place(mpi) != place(slurm)
}

/// Slurm, in a step: a batch script without `srun` is one process.
fn slurm(environment: &Environment) -> Result<Option<Found>> {
    let Some(nodes) = text("SLURM_STEP_NODELIST", environment) else { return Ok(None) };
    let Some(process_id) = number("SLURM_PROCID", environment)? else { return Ok(None) };
    // The step may have fewer tasks than the job.
    let count = either(["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"], "SLURM_PROCID", environment)?;
    let job = required("SLURM_JOB_ID", "SLURM_PROCID", environment)?;
    Ok(Some(Found {
        by: Launcher::Slurm,
        process_id,
        id_name: "SLURM_PROCID",
        count: Some(count),
        local_process_id: number("SLURM_LOCALID", environment)?,
        coordinator: Some(format!("{}:{}", first_host(nodes)?, job % 4096 + PORT)),
    }))
}

fn open_mpi(environment: &Environment) -> Result<Option<Found>> {
    let [rank, size, local] =
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"];
    mpi(Launcher::OpenMpi, rank, size, local, environment)
}

fn mpich(environment: &Environment) -> Result<Option<Found>> {
    mpi(Launcher::Mpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", environment)
}

/// MPI's ranks. Process 0 tells the others by MPI where it listens.
fn mpi(
    by: Launcher,
    rank: &'static str,
    size: &'static str,
    local: &str,
    environment: &Environment,
) -> Result<Option<Found>> {
    let Some(process_id) = number(rank, environment)? else { return Ok(None) };
    Ok(Some(Found {
        by,
        process_id,
        id_name: rank,
        count: Some((required(size, rank, environment)?, size)),
        local_process_id: number(local, environment)?,
        coordinator: None,
    }))
}

/// An indexed Job or a JobSet with one Job. Its number of pods is in no variable of Kubernetes:
/// `FULLSHARD_NUM_PROCESSES` has it.
fn kubernetes(environment: &Environment) -> Result<Option<Found>> {
    let name = "JOB_COMPLETION_INDEX";
    let Some(process_id) = number(name, environment)? else { return Ok(None) };
    let set = text("JOBSET_NAME", environment);
    let job = text("REPLICATED_JOB_NAME", environment);
    // A JobSet's pods are named so, in a headless service of the set's name.
    let pod = set.zip(job).map(|(set, job)| format!("{set}-{job}-0-0.{set}:{PORT}"));
    Ok(Some(Found {
        by: Launcher::Kubernetes,
        process_id,
        id_name: name,
        count: None,
        local_process_id: Some(0),
        coordinator: pod,
    }))
}

fn torchrun(environment: &Environment) -> Result<Option<Found>> {
    let Some(process_id) = number("RANK", environment)? else { return Ok(None) };
    let count = required("WORLD_SIZE", "RANK", environment)?;
    let coordinator = match text("MASTER_ADDR", environment) {
        Some(host) => {
            let port = required("MASTER_PORT", "MASTER_ADDR", environment)?;
            // torchrun itself listens on that port, and says so.
            let taken = text("TORCHELASTIC_USE_AGENT_STORE", environment) == Some("True");
            Some(format!("{}:{}", bracketed(host), port + usize::from(taken)))
        }
        None => None,
    };
    Ok(Some(Found {
        by: Launcher::Torchrun,
        process_id,
        id_name: "RANK",
        count: Some((count, "WORLD_SIZE")),
        local_process_id: number("LOCAL_RANK", environment)?,
        coordinator,
    }))
}

/// The hosts of a TPU slice, or of several slices of equal size.
fn tpu(environment: &Environment) -> Result<Option<Found>> {
    let Some(worker) = number("TPU_WORKER_ID", environment)? else { return Ok(None) };
    let Some(hosts) = text("TPU_WORKER_HOSTNAMES", environment) else { return Ok(None) };
    let hosts: Vec<_> = hosts.split(',').map(str::trim).collect();
    if worker >= hosts.len() {
        let problem = format!(
            "worker {worker} is none of the {} hosts of {}",
            hosts.len(),
            "TPU_WORKER_HOSTNAMES"
        );
        return Err(variable("TPU_WORKER_ID", problem));
    }
    let (slices, slice, first) = match number("MEGASCALE_NUM_SLICES", environment)? {
        None | Some(1) => (1, 0, hosts[0]),
        Some(slices) => {
            let slice = required("MEGASCALE_SLICE_ID", "MEGASCALE_NUM_SLICES", environment)?;
            let name = "MEGASCALE_COORDINATOR_ADDRESS";
            let address =
                text(name, environment).ok_or_else(|| missing(name, "MEGASCALE_NUM_SLICES"))?;
            (slices, slice, without_port(address))
        }
    };
    Ok(Some(Found {
        by: Launcher::Tpu,
        process_id: slice * hosts.len() + worker,
        id_name: "TPU_WORKER_ID",
        count: Some((slices * hosts.len(), "TPU_WORKER_HOSTNAMES")),
        local_process_id: Some(0),
        coordinator: Some(format!("{}:{PORT}", bracketed(first))),
    }))
}

/// A number that a launcher sets together with another one.
fn required(name: &'static str, with: &str, environment: &Environment) -> Result<usize> {
    number(name, environment)?.ok_or_else(|| missing(name, with))
}

/// The first of two numbers that is there, with its name.
fn either(
    names: [&'static str; 2],
    with: &str,
    environment: &Environment,
) -> Result<(usize, &'static str)> {
    for name in names {
        if let Some(number) = number(name, environment)? {
            return Ok((number, name));
        }
    }
    Err(missing(names[1], with))
}

fn missing(name: &str, with: &str) -> crate::Error {
    let problem = format!(
        "not set, although {with} is: set it, or unset {with} if this is one process, or give \
         --process_id, --num_processes and --coordinator"
    );
    variable(name, problem)
}

/// The host of `host` or `host:port`.
fn without_port(address: &str) -> &str {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && port.parse::<u16>().is_ok() => host,
        _ => address,
    }
}

/// A host before a port: addresses of IPv6 need brackets.
fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() }
}
