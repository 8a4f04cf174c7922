//! Environments as launchers leave them.
#![allow(clippy::unwrap_used)]

use super::*;

/// `A=1 B=2` as an environment.
fn environment(text: &str) -> Environment {
    text.split_whitespace()
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn found(text: &str) -> Option<Launch> {
    detect(&Flags::default(), &environment(text)).unwrap()
}

fn error(text: &str) -> String {
    detect(&Flags::default(), &environment(text)).unwrap_err().to_string()
}

/// Launcher, process, number of processes, local process and coordinator.
type Place = (Launcher, usize, usize, Option<usize>, Option<String>);

fn place(text: &str) -> Place {
    let launch = found(text).unwrap();
    (
        launch.by,
        launch.process_id,
        launch.num_processes,
        launch.local_process_id,
        launch.coordinator,
    )
}

fn at(by: Launcher, id: usize, count: usize, local: Option<usize>, coordinator: &str) -> Place {
    (by, id, count, local, Some(coordinator.to_owned()).filter(|address| !address.is_empty()))
}

const SLURM: &str = "SLURM_JOB_ID=70000 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NTASKS=8 \
                     SLURM_STEP_NODELIST=node[01-04]";

#[test]
fn a_process_without_a_launcher_is_alone() {
    assert_eq!(found("HOME=/root"), None);
    assert_eq!(found("FULLSHARD_NUM_PROCESSES=1 FULLSHARD_PROCESS_ID=0"), None);
    assert_eq!(found("FULLSHARD_NUM_PROCESSES=1"), None);
    assert_eq!(found("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1"), None);
    assert_eq!(found("JOB_COMPLETION_INDEX=0"), None);
    assert_eq!(found("TPU_WORKER_ID=0 TPU_WORKER_HOSTNAMES=localhost"), None);
    // Empty variables count for nothing.
    assert_eq!(found("RANK= WORLD_SIZE="), None);
}

#[test]
fn flags_come_before_variables() {
    let flags = Flags { process_id: Some(2), coordinator: Some("a:1".into()), ..Flags::default() };
    let variables = "FULLSHARD_NUM_PROCESSES=4 FULLSHARD_PROCESS_ID=1 FULLSHARD_COORDINATOR=b:2 \
                     FULLSHARD_SECRET=s FULLSHARD_COORDINATOR_RUNS=true";
    let launch = detect(&flags, &environment(variables)).unwrap().unwrap();
    assert_eq!((launch.process_id, launch.num_processes), (2, 4));
    assert_eq!(launch.coordinator.as_deref(), Some("a:1"));
    assert_eq!(launch.secret.as_deref(), Some("s"));
    assert!(launch.coordinator_runs);
    assert_eq!(launch.by, Launcher::Flags);
    assert!(!format!("{launch:?}").contains("\"s\""), "a secret is printed");
}

#[test]
fn slurm_steps_are_found() {
    let port = 70000 % 4096 + 61440;
    let address = format!("node01:{port}");
    assert_eq!(place(SLURM), at(Launcher::Slurm, 5, 8, Some(1), &address));
    // A step of fewer tasks than the job.
    assert_eq!(place(&format!("{SLURM} SLURM_STEP_NUM_TASKS=6")).2, 6);
    assert_eq!(found(&format!("{SLURM} SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0")), None);
    // A batch script.
    assert_eq!(found("SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_NODELIST=a"), None);
}

#[test]
fn mpi_in_a_slurm_step_has_its_own_ranks() {
    let mpi = "OMPI_COMM_WORLD_RANK=11 OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_LOCAL_RANK=3";
    assert_eq!(place(&format!("{SLURM} {mpi}")), at(Launcher::OpenMpi, 11, 16, Some(3), ""));
    // srun with PMI states the same ranks twice.
    assert_eq!(place(&format!("{SLURM} PMI_RANK=5 PMI_SIZE=8")).0, Launcher::Slurm);
}

#[test]
fn mpi_needs_no_coordinator() {
    let mpich = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1";
    assert_eq!(place(mpich), at(Launcher::Mpich, 1, 2, Some(1), ""));
    // `fullshard launch` by way of mpiexec.
    let ours = "FULLSHARD_COORDINATOR=127.0.0.1:5 FULLSHARD_SECRET=s FULLSHARD_NUM_PROCESSES=2";
    assert_eq!(
        place(&format!("{mpich} {ours}")),
        at(Launcher::Mpich, 1, 2, Some(1), "127.0.0.1:5")
    );
}

#[test]
fn kubernetes_jobs_are_found() {
    let set = "JOB_COMPLETION_INDEX=3 JOBSET_NAME=run REPLICATED_JOB_NAME=workers \
               FULLSHARD_NUM_PROCESSES=4";
    let pod = "run-workers-0-0.run:61440";
    assert_eq!(place(set), at(Launcher::Kubernetes, 3, 4, Some(0), pod));
    let job = "JOB_COMPLETION_INDEX=0 FULLSHARD_NUM_PROCESSES=2 FULLSHARD_COORDINATOR=run-0.run:7";
    assert_eq!(place(job), at(Launcher::Kubernetes, 0, 2, Some(0), "run-0.run:7"));
    assert!(error("JOB_COMPLETION_INDEX=1").contains("FULLSHARD_NUM_PROCESSES"));
    assert!(
        error("JOB_COMPLETION_INDEX=1 FULLSHARD_NUM_PROCESSES=2").contains("FULLSHARD_COORDINATOR")
    );
}

#[test]
fn torchrun_keeps_its_own_port() {
    let plain = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=h MASTER_PORT=29500";
    assert_eq!(place(plain), at(Launcher::Torchrun, 1, 2, Some(0), "h:29500"));
    let agent = format!("{plain} TORCHELASTIC_USE_AGENT_STORE=True");
    assert_eq!(place(&agent), at(Launcher::Torchrun, 1, 2, Some(0), "h:29501"));
    let v6 = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=fd00::1 MASTER_PORT=29500";
    assert_eq!(place(v6).4.as_deref(), Some("[fd00::1]:29500"));
}

#[test]
fn tpu_slices_are_found() {
    let slice = "TPU_WORKER_ID=1 TPU_WORKER_HOSTNAMES=t0,t1";
    assert_eq!(place(slice), at(Launcher::Tpu, 1, 2, Some(0), "t0:61440"));
    let slices = "MEGASCALE_NUM_SLICES=4 MEGASCALE_SLICE_ID=2 MEGASCALE_COORDINATOR_ADDRESS=m:8080";
    assert_eq!(place(&format!("{slice} {slices}")), at(Launcher::Tpu, 5, 8, Some(0), "m:61440"));
}

#[test]
fn launchers_have_an_order() {
    let slurm_and_torch = format!("{SLURM} RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1");
    assert_eq!(place(&slurm_and_torch).0, Launcher::Slurm);
    let ours = "FULLSHARD_PROCESS_ID=1 FULLSHARD_NUM_PROCESSES=2 FULLSHARD_COORDINATOR=a:1";
    assert_eq!(place(&format!("{SLURM} {ours}")).0, Launcher::Flags);
}

#[test]
fn errors_name_the_variable_and_the_fix() {
    let cases = [
        ("FULLSHARD_PROCESS_ID=1", "--num_processes"),
        ("FULLSHARD_NUM_PROCESSES=2", "--process_id"),
        ("FULLSHARD_COORDINATOR=a:1", "--process_id"),
        ("FULLSHARD_PROCESS_ID=2 FULLSHARD_NUM_PROCESSES=2", "counted from 0"),
        ("FULLSHARD_PROCESS_ID=0 FULLSHARD_NUM_PROCESSES=0", "0 processes"),
        ("FULLSHARD_PROCESS_ID=1 FULLSHARD_NUM_PROCESSES=2", "host:port"),
        ("FULLSHARD_PROCESS_ID=1 FULLSHARD_NUM_PROCESSES=2 FULLSHARD_COORDINATOR=a", "host:port"),
        ("FULLSHARD_PROCESS_ID=1 FULLSHARD_NUM_PROCESSES=2 FULLSHARD_COORDINATOR=a:0", "host:port"),
        ("FULLSHARD_PROCESS_ID=one", "FULLSHARD_PROCESS_ID: \"one\" is not a number"),
        ("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE: not set"),
        ("PMI_RANK=1 PMI_SIZE=2 FULLSHARD_NUM_PROCESSES=4", "PMI_SIZE is 2"),
        ("PMI_RANK=-1 PMI_SIZE=2", "PMI_RANK"),
        ("RANK=0 WORLD_SIZE=2", "FULLSHARD_COORDINATOR"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h", "MASTER_PORT: not set"),
        ("RANK=0", "WORLD_SIZE: not set"),
        ("TPU_WORKER_ID=2 TPU_WORKER_HOSTNAMES=t0,t1", "TPU_WORKER_ID"),
        (
            "TPU_WORKER_ID=0 TPU_WORKER_HOSTNAMES=t0,t1 MEGASCALE_NUM_SLICES=2",
            "MEGASCALE_SLICE_ID: not set",
        ),
        (
            "SLURM_STEP_NODELIST=a SLURM_PROCID=0 SLURM_NTASKS=2",
            "SLURM_JOB_ID: not set, although SLURM_PROCID is",
        ),
    ];
    for (text, part) in cases {
        let error = error(text);
        assert!(error.contains(part), "{text}: {error}");
    }
}
