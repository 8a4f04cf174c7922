//! Jobs of several processes with NCCL between them, all on one GPU: their losses are those of one
//! process with one device.
//!
//! NCCL refuses two processes on one GPU unless each claims a host of its own (`NCCL_HOSTID`). That
//! shows that results are right, and says nothing about speed.
#![allow(clippy::unwrap_used)]

use fullshard::run::train_in;
use fullshard::{Membership, RunConfig};
use fullshard_cluster::{Flags, Generation, detect, environment};
use fullshard_core::Platform;
use fullshard_parallel::Strategy;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// The mesh of a process, and where it writes.
const MESH: &str = "FULLSHARD_TEST_MESH";
const OUTPUT: &str = "FULLSHARD_TEST_OUTPUT";

/// Sequences per step.
const BATCH: usize = 16;

#[test]
#[ignore = "gpu: several processes on one"]
fn gpu_jobs_train_as_one_process_does() {
    let folder = tempfile::tempdir().unwrap();
    let expected = losses(folder.path(), "alone", "fsdp=1", 1);
    for (name, mesh, processes) in [
        ("two", "fsdp=2", 2),
        ("four", "fsdp=4", 4),
        ("eight", "fsdp=8", 8),
        ("hybrid", "data=2,fsdp=2", 4),
        ("tensor", "fsdp=2,tensor=2", 4),
        ("context", "context=2,fsdp=2", 4),
    ] {
        let found = losses(folder.path(), name, mesh, processes);
        assert_eq!(found.len(), expected.len());
        let worst = found.iter().zip(&expected).map(|(a, b)| (a / b - 1.0).abs());
        let worst = worst.fold(0.0, f64::max);
        println!("{processes} processes on {mesh}: losses within {worst:.1e} of one device");
        assert!(worst < 1e-6, "{mesh}: {found:?} is not {expected:?}");
    }
}

/// Trains in processes, and returns the losses.
fn losses(folder: &Path, name: &str, mesh: &str, processes: usize) -> Vec<f64> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let coordinator = listener.local_addr().unwrap().to_string();
    drop(listener);
    let output = folder.join(name);
    let start = |index: usize| {
        let log = fs::File::create(folder.join(format!("{name}-{index}.log"))).unwrap();
        Command::new(std::env::current_exe().unwrap())
            .args(["child_trains_in_a_job", "--ignored", "--exact", "--nocapture"])
            .env("FULLSHARD_COORDINATOR", &coordinator)
            .env("FULLSHARD_NUM_PROCESSES", processes.to_string())
            .env("FULLSHARD_PROCESS_ID", index.to_string())
            .env("FULLSHARD_CACHE", folder.join("cache"))
            .env(MESH, mesh)
            .env(OUTPUT, &output)
            .env("NCCL_HOSTID", format!("host{index}"))
            .env("NCCL_NET", "Socket")
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("NCCL_IB_DISABLE", "1")
            .env("NCCL_CUMEM_ENABLE", "0")
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..processes).map(start).collect();
    for (index, mut child) in children.into_iter().enumerate() {
        let log = folder.join(format!("{name}-{index}.log"));
        let ended = child.wait().unwrap();
        assert!(ended.success(), "{mesh}: {}", fs::read_to_string(log).unwrap());
    }
    let state = fs::read_to_string(output.join("trainer_state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    let logs = state["log_history"].as_array().unwrap();
    logs.iter().filter_map(|log| log.get("loss")?.as_f64()).collect()
}

#[test]
#[ignore = "child: a process of a job"]
fn child_trains_in_a_job() {
    let Ok(mesh) = std::env::var(MESH) else { return };
    let launch = detect(&Flags::default(), &environment()).unwrap();
    let membership =
        Arc::new(Membership::join(launch, Generation::default(), Platform::Cuda).unwrap());
    let mut config = RunConfig::demo();
    config.device.platform = Some(Platform::Cuda);
    (config.device.memory_fraction, config.device.preallocate) = (Some(0.1), Some(false));
    config.mesh.shape = Some(mesh.parse().unwrap());
    config.mesh.devices = config.mesh.shape.as_ref().unwrap().devices();
    if mesh.contains("data") {
        config.fsdp.strategy = Strategy::HybridShard;
    }
    config.schedule.per_device_batch = BATCH / config.batch_shards().unwrap();
    config.schedule.max_steps = 20;
    config.evaluation.strategy = fullshard::config::When::No;
    config.evaluation.do_eval = Some(false);
    config.logging.steps = 1.0;
    config.logging.report_to = vec!["none".to_owned()];
    config.checkpoint.steps = 10.0;
    config.output.dir = std::env::var(OUTPUT).unwrap().into();
    train_in(Arc::clone(&membership), &config, &mut ()).unwrap();
    membership.leave().unwrap();
}
