//! A job of several processes with NCCL between them, on one GPU.
//!
//! NCCL refuses two processes on one GPU unless each claims a host of its own (`NCCL_HOSTID`). That
//! shows that results are right, and says nothing about speed. The test runs this binary once per
//! process; on CPU, whose plugin knows one process, it runs a job of one with two devices.
#![allow(clippy::unwrap_used)]

mod common;

use common::{on_each_device, plugin};
use fullshard_pjrt::plugins::Platform;
use fullshard_pjrt::{
    Array, Client, ClientOptions, CompileCache, CompileOptions, Error, HostTensor, KeyValueError,
    KeyValueStore, LoadedExecutable, Process,
};
use sha2::{Digest, Sha256};
use std::env;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const PLATFORM: &str = "FULLSHARD_TEST_JOB_PLATFORM";
const PROCESS: &str = "FULLSHARD_TEST_JOB_PROCESS";
const COUNT: &str = "FULLSHARD_TEST_JOB_COUNT";
const FOLDER: &str = "FULLSHARD_TEST_JOB_FOLDER";
const TIMEOUT: Duration = Duration::from_secs(240);

#[test]
#[ignore = "gpu: several processes on one"]
fn gpu_processes_agree_over_nccl() {
    for count in [2, 4] {
        run_job(Platform::Cuda, count);
    }
}

#[test]
fn a_job_of_one_process_needs_no_other() {
    run_job(Platform::Cpu, 1);
}

/// Runs every process of a job, and checks that all succeed.
fn run_job(platform: Platform, count: usize) {
    let folder = tempfile::tempdir().unwrap();
    let start = |index: usize| {
        let log = fs::File::create(folder.path().join(format!("log-{index}"))).unwrap();
        Command::new(env::current_exe().unwrap())
            .args(["child_is_a_process_of_a_job", "--ignored", "--exact", "--nocapture"])
            .env(PLATFORM, platform.name())
            .env(PROCESS, index.to_string())
            .env(COUNT, count.to_string())
            .env(FOLDER, folder.path())
            .env("NCCL_HOSTID", format!("host{index}"))
            .env("NCCL_NET", "Socket")
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("NCCL_IB_DISABLE", "1")
            .env("NCCL_CUMEM_ENABLE", "0")
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    };
    let started = Instant::now();
    let mut children: Vec<Child> = (0..count).map(start).collect();
    let succeeded = wait_for_all(&mut children);
    for index in 0..count {
        let log = fs::read(folder.path().join(format!("log-{index}"))).unwrap();
        let log = String::from_utf8_lossy(&log);
        println!("== process {index} of {count}\n{log}");
        assert!(succeeded && log.contains("answer: right"), "process {index} of {count}");
    }
    println!("{count} processes on {platform}: {:.1} s", started.elapsed().as_secs_f64());
}

/// Waits for the processes, and ends the others when one fails or time is up.
fn wait_for_all(children: &mut [Child]) -> bool {
    let deadline = Instant::now() + TIMEOUT + Duration::from_secs(30);
    loop {
        let ended: Vec<_> = children.iter_mut().map(|child| child.try_wait().unwrap()).collect();
        if ended.iter().all(|status| status.is_some_and(|it| it.success())) {
            return true;
        }
        let failed = ended.iter().flatten().any(|status| !status.success());
        if failed || Instant::now() > deadline {
            for child in children {
                // It may have ended by itself.
                let _ = child.kill();
                child.wait().unwrap();
            }
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A key-value store of files in a folder.
struct Folder(PathBuf);

impl Folder {
    /// Keys can be long, and have slashes.
    fn path(&self, key: &str) -> PathBuf {
        let digest = Sha256::digest(key.as_bytes());
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        self.0.join(name)
    }

    fn failed(error: &std::io::Error) -> KeyValueError {
        match error.kind() {
            ErrorKind::NotFound => KeyValueError::NotFound,
            ErrorKind::AlreadyExists => KeyValueError::AlreadyExists,
            _ => KeyValueError::Unavailable(error.to_string()),
        }
    }
}

impl KeyValueStore for Folder {
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, KeyValueError> {
        let start = Instant::now();
        loop {
            match self.try_get(key) {
                Err(KeyValueError::NotFound) if start.elapsed() < timeout => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(KeyValueError::NotFound) => return Err(KeyValueError::DeadlineExceeded),
                found => return found,
            }
        }
    }

    fn try_get(&self, key: &str) -> Result<Vec<u8>, KeyValueError> {
        fs::read(self.path(key)).map_err(|error| Folder::failed(&error))
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError> {
        let put = || {
            let mut file = tempfile::NamedTempFile::new_in(&self.0)?;
            file.write_all(value)?;
            file.persist_noclobber(self.path(key)).map_err(|error| error.error)
        };
        put().map(drop).map_err(|error| Folder::failed(&error))
    }
}

/// The entry point of each process.
#[test]
#[ignore = "child: run by other tests as a child process"]
fn child_is_a_process_of_a_job() {
    let number = |name: &str| env::var(name).unwrap().parse().unwrap();
    let process = Process::new(number(PROCESS), number(COUNT)).unwrap();
    let folder = PathBuf::from(env::var_os(FOLDER).unwrap());
    let platform: Platform = env::var(PLATFORM).unwrap().parse().unwrap();
    let options = match platform {
        Platform::Cuda => ClientOptions::new().memory_fraction(0.1).preallocate(false),
        _ => ClientOptions::new().cpu_device_count(2),
    };
    let store: Arc<dyn KeyValueStore> = Arc::new(Folder(folder.clone()));
    let client = Client::in_job(plugin(platform), &options, process, store.clone()).unwrap();
    let (local, devices) = (client.devices().len(), client.device_count());
    assert_eq!((client.process(), devices), (process, process.count * local));
    let processes: Vec<usize> =
        client.global_devices().iter().map(|device| device.process as usize).collect();
    let expected: Vec<usize> = (0..devices).map(|number| number / local).collect();
    assert_eq!(processes, expected);
    println!("joined: {local} of {devices} devices");

    let job = Job { client, store, folder };
    job.check("all_reduce", 2, Share::CompileEach, |shards| vec![sum(shards); devices]);
    job.check("all_gather", 2 * devices, Share::CompileOnce, |shards| {
        vec![shards.concat(); devices]
    });
    job.check("reduce_scatter", 2, Share::CompileOnce, |shards| {
        sum(shards).chunks(2 * 4).map(<[f32]>::to_vec).collect()
    });
    job.wait_for_others("done");
    println!("answer: right");
}

/// The sum of the shards, element by element.
fn sum(shards: &[Vec<f32>]) -> Vec<f32> {
    (0..shards[0].len()).map(|i| shards.iter().map(|shard| shard[i]).sum()).collect()
}

/// Whether every process compiles, or the first and the others load.
#[derive(PartialEq)]
enum Share {
    CompileEach,
    CompileOnce,
}

struct Job {
    client: Client,
    store: Arc<dyn KeyValueStore>,
    folder: PathBuf,
}

impl Job {
    /// Runs a collective over all devices a few times. `expected` has each device's result, given
    /// the shards of all.
    fn check(
        &self,
        collective: &str,
        result_rows: usize,
        share: Share,
        expected: impl Fn(&[Vec<f32>]) -> Vec<Vec<f32>>,
    ) {
        let (process, devices) = (self.client.process(), self.client.device_count());
        let local: Vec<usize> = (0..self.client.devices().len()).collect();
        let rows = if collective == "reduce_scatter" { 2 * devices } else { 2 };
        let body = body(collective, devices, rows, result_rows);
        let text = on_each_device(devices, rows, &body, result_rows);
        let program = self.program(collective, &text, &share);
        assert_eq!(program.devices(), local, "{collective}");
        for round in 0..3 {
            let values: Vec<f32> =
                (0..devices * rows * 4).map(|i| (i * 7 % 31 + round) as f32).collect();
            let shards: Vec<Vec<f32>> = values.chunks(rows * 4).map(<[f32]>::to_vec).collect();
            let tensor = HostTensor::from_values(&[devices * rows, 4], &values).unwrap();
            let tiling = program.argument_type(0).unwrap().tiling;
            let array = Array::from_host(&self.client, &tensor, tiling, &local).unwrap();
            assert_eq!(array.positions(), process.positions(local.len()));
            let result = program.execute_arrays(&[&array]).unwrap().remove(0);
            assert_eq!(result.ty().dims, [devices * result_rows, 4]);
            for (position, shard) in result.positions().zip(result.shards()) {
                let found = shard.to_host().unwrap().values::<f32>().unwrap();
                let expected = &expected(&shards)[position];
                assert_eq!(&found, expected, "{collective}, round {round}, device {position}");
            }
            let is_partial = matches!(result.to_host(), Err(Error::PartlyElsewhere { .. }));
            assert_eq!(is_partial, !process.is_alone());
        }
        println!("{collective}: right");
    }

    fn program(&self, name: &str, text: &str, share: &Share) -> LoadedExecutable {
        let options = CompileOptions::new(self.client.device_count());
        let key = format!("program/{name}");
        if *share == Share::CompileEach {
            return self.client.compile(text, &options).unwrap();
        }
        if self.client.process().index > 0 {
            return self.client.load(&self.store.get(&key, TIMEOUT).unwrap()).unwrap();
        }
        let cache = CompileCache::at(self.folder.join("cache"));
        let (program, bytes, _) = cache.compile_to_share(&self.client, text, &options).unwrap();
        self.store.put(&key, &bytes).unwrap();
        program
    }

    /// A barrier: a process that leaves early would take its communicators with it.
    fn wait_for_others(&self, name: &str) {
        let Process { index, count } = self.client.process();
        self.store.put(&format!("{name}/{index}"), b"").unwrap();
        for other in 0..count {
            self.store.get(&format!("{name}/{other}"), TIMEOUT).unwrap();
        }
    }
}

/// The text of one collective over all devices, from `%x` to `%y`.
fn body(collective: &str, devices: usize, rows: usize, result_rows: usize) -> String {
    let all: Vec<_> = (0..devices).map(|device| device.to_string()).collect();
    let groups = format!(
        "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, \
         replica_groups = dense<[[{}]]> : tensor<1x{devices}xi64>, use_global_device_ids",
        all.join(", ")
    );
    let (dim, region) = match collective {
        "all_gather" => ("all_gather_dim = 0 : i64, ", ""),
        "reduce_scatter" => ("scatter_dimension = 0 : i64, ", SUM),
        _ => ("", SUM),
    };
    format!(
        r#"%y = "stablehlo.{collective}"(%x) <{{{dim}{groups}}}> {region}
             : (tensor<{rows}x4xf32>) -> tensor<{result_rows}x4xf32>"#
    )
}

const SUM: &str = "({ ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %s = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %s : tensor<f32> })";
