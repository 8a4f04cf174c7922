//! Benchmarks saving and loading a checkpoint of a model's training state.

use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::job::Membership;
use fullshard_checkpoint::sharded::{Checkpoint, Progress};
use fullshard_checkpoint::{ExportOptions, Weights};
use fullshard_train::{Compiler, Job, Runner, SaveOptions, Saver};
use serde::Serialize;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The times of a checkpoint's parts. Loads read files that the system may have in memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckpointReport {
    /// The bytes of a checkpoint.
    pub bytes: u64,
    /// Seconds to write the same bytes into one file and sync it, as `dd conv=fsync` does.
    pub plain_write_s: f64,
    /// Seconds that training waits for a save.
    pub pause_s: f64,
    /// Seconds to write and commit a save, after the pause.
    pub write_s: f64,
    /// Bytes of host memory for copies.
    pub copied_bytes: u64,
    /// The rate of writing as a share of that.
    pub write_share: f64,
    /// Seconds to load the state onto the devices, checksums included.
    pub load_s: f64,
    /// Seconds to save the model in Hugging Face's format.
    pub export_s: f64,
    /// The bytes of that model.
    pub export_bytes: u64,
    /// Seconds to load it onto the devices.
    pub import_s: f64,
    /// The most memory of this process so far, in bytes.
    pub peak_memory: u64,
}

/// Saves that are measured, in turn with plain writes since disks change their speed. One before
/// them warms up.
const ROUNDS: u64 = 3;

/// Measures a checkpoint of a config's state, in a new folder inside `folder`.
pub fn bench_checkpoint(config: &RunConfig, folder: &Path) -> Result<CheckpointReport> {
    let spec = config.bench_spec()?;
    let temporary = |error| Error::file(folder, error);
    let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(folder).map_err(temporary)?;
    let client = config.client(&Membership::alone())?;
    let options = config.compile_options(spec.model.attention_form())?;
    let cache = config.device.compile_cache()?;
    let compiler = Compiler { client: &client, cache, options, job: Job::alone() };
    let mut runner = Runner::new(&compiler, &spec, config.schedule.seed)?;
    let options = SaveOptions {
        folder: folder.path().to_owned(),
        limit: Some(1),
        only_model: config.checkpoint.only_model,
        memory: config.checkpoint.memory.map(|size| size.0),
        config: serde_json::Value::Null,
        on_save: Arc::new(|_| {}),
        in_memory: None,
    };
    let mut saver = Saver::new(&runner, options)?;
    let mut times = [0.0; 3];
    let mut last = None;
    for round in 0..=ROUNDS {
        let progress = Progress { step: round + 1, ..Progress::default() };
        saver.start(&runner, progress, None, &mut |_| Ok(()))?;
        let saved = saver.wait().transpose()?;
        let saved = saved.ok_or_else(|| Error::Usage("nothing was saved".into()))?;
        let plain = write_plainly(&saved.path, &folder.path().join("plain"))?;
        if round > 0 {
            let round = [saved.pause.as_secs_f64(), saved.write.as_secs_f64(), plain];
            times.iter_mut().zip(round).for_each(|(sum, time)| *sum += time / ROUNDS as f64);
        }
        last = Some(saved);
    }
    let saved = last.ok_or_else(|| Error::Usage("nothing was saved".into()))?;
    let [pause_s, write_s, plain_write_s] = times;
    let load_s = timed(|| {
        let checkpoint = Checkpoint::open(&saved.path)?;
        Ok(runner.load_checkpoint(&checkpoint)?)
    })?;
    let model = folder.path().join("model");
    let mut export_bytes = 0;
    let export_s = timed(|| {
        let exported = runner.export(&model, &ExportOptions::default())?;
        export_bytes = exported.map_or(0, |exported| exported.bytes);
        Ok(())
    })?;
    let import_s = timed(|| Ok(runner.load_weights(&Weights::open(&model)?)?))?;
    Ok(CheckpointReport {
        bytes: saved.bytes,
        plain_write_s,
        pause_s,
        write_s,
        copied_bytes: saved.memory,
        write_share: plain_write_s / write_s,
        load_s,
        export_s,
        export_bytes,
        import_s,
        peak_memory: peak_memory(),
    })
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Writes the bytes of a checkpoint's files into one file and syncs it. Zeros would not do: some
/// disks do not store them.
fn write_plainly(checkpoint: &Path, path: &Path) -> Result<f64> {
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        for entry in std::fs::read_dir(checkpoint)? {
            std::io::copy(&mut File::open(entry?.path())?, &mut file)?;
        }
        file.sync_all()
    };
    let seconds = timed(|| write().map_err(|error| Error::file(path, error)))?;
    std::fs::remove_file(path).map_err(|error| Error::file(path, error))?;
    Ok(seconds)
}

/// The peak resident memory of this process.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map_or(0, |kilobytes| kilobytes * 1024)
}
