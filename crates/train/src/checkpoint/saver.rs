//! Saves checkpoints while training goes on.

use super::plan::SavePlan;
use super::write::{FileJob, buffers, copy, write_files};
use crate::error::Error;
use crate::runner::Runner;
use fullshard_checkpoint::sharded::{
    MANIFEST_VERSION, Manifest, MeshAxes, OnSave, Progress, Staging,
};
use fullshard_checkpoint::{list, remove_checkpoint};
use fullshard_pjrt::{Buffer, PinnedMemory};
use fullshard_step::Ordered;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// How checkpoints are saved.
#[derive(Clone)]
pub struct SaveOptions {
    /// The folder of the run.
    pub folder: PathBuf,
    /// The most checkpoints of the run that are kept; the best one is kept beside them.
    pub limit: Option<usize>,
    /// Whether the optimizer's state is left out.
    pub only_model: bool,
    /// The most host memory for copies of the state, in bytes; half of what is available by
    /// default. Without enough of it, training waits for each save.
    pub memory: Option<u64>,
    /// The config of the run.
    pub config: Value,
    /// Called at the points of a save.
    pub on_save: OnSave,
}

/// A checkpoint that was saved.
#[derive(Debug, Clone, PartialEq)]
pub struct Saved {
    /// Its folder.
    pub path: PathBuf,
    /// Its step.
    pub step: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The time that training waited.
    pub pause: Duration,
    /// The time from the first write to the commit.
    pub write: Duration,
    /// The host memory of the copies, in bytes; 0 if training waited instead.
    pub memory: u64,
    /// Why an older checkpoint beyond the limit is still there, if one is.
    pub not_removed: Option<String>,
}

/// The outcome of a save. A failed one leaves older checkpoints as they are.
pub type SaveResult = Result<Saved, Error>;

/// Saves checkpoints of a runner, one at a time.
pub struct Saver {
    options: SaveOptions,
    plan: Arc<SavePlan>,
    optimizer: Option<String>,
    mesh: MeshAxes,
    /// The most host memory for copies.
    limit: u64,
    /// Pinned memory for copies, which a thread makes while training starts.
    pinning: Option<JoinHandle<Option<PinnedMemory>>>,
    pinned: Option<Arc<PinnedMemory>>,
    worker: Option<JoinHandle<SaveResult>>,
    finished: VecDeque<SaveResult>,
}

/// A save in progress, without its shards.
struct Job {
    staging: Staging,
    manifest: Manifest,
    start: Instant,
    /// The checkpoint that is kept beyond the limit.
    best: Option<PathBuf>,
    limit: Option<usize>,
    folder: PathBuf,
}

impl Saver {
    /// A saver of a runner's state.
    pub fn new(runner: &Runner<'_>, options: SaveOptions) -> Result<Saver, Error> {
        let plan = SavePlan::new(runner.spec(), runner.state(), options.only_model)?;
        let optimizer = runner.spec().optimizer.name().to_owned();
        let optimizer = (!options.only_model).then_some(optimizer);
        let axes = runner.spec().placement.mesh.axes();
        let mesh = MeshAxes(axes.map(|(axis, size)| (axis.to_owned(), size)).collect());
        let limit = options.memory.unwrap_or_else(|| available_memory() / 2);
        let pins = runner.client().platform_name() != "cpu" && plan.bytes() as u64 <= limit;
        let pinning = pins.then(|| {
            let client = runner.client().clone();
            let sizes: Vec<usize> = plan.tiles.iter().map(|tile| tile.ty.bytes()).collect();
            std::thread::spawn(move || client.pin_memory(&sizes).ok().flatten())
        });
        let plan = Arc::new(plan);
        let (pinned, worker, finished) = (None, None, VecDeque::new());
        Ok(Saver { options, plan, optimizer, mesh, limit, pinning, pinned, worker, finished })
    }

    /// The bytes of a checkpoint's tensors.
    pub fn bytes(&self) -> u64 {
        self.plan.bytes() as u64
    }

    /// Starts to save the state between two steps, after the save before. `others` writes all
    /// files but the shards into the folder that it is given.
    pub fn start(
        &mut self,
        runner: &Runner<'_>,
        progress: Progress,
        best: Option<PathBuf>,
        others: &mut dyn FnMut(&Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let start = Instant::now();
        self.join();
        let job = match self.stage(progress, best, start, others) {
            Ok(job) => job,
            Err(error) => {
                self.finished.push_back(Err(error));
                return Ok(());
            }
        };
        let buffers = buffers(&self.plan, &runner.state().each_ref().flatten());
        let needed = self.bytes();
        if needed > self.limit {
            let files = FileJob::on_devices(&self.plan, &buffers);
            let written = write_files(&job.staging, &self.plan, files, self.limit);
            let saved = written.and_then(|()| job.commit(start.elapsed(), 0));
            self.finished.push_back(saved);
            return Ok(());
        }
        let files = self.copy(&buffers)?;
        let (plan, pause) = (Arc::clone(&self.plan), start.elapsed());
        self.worker = Some(std::thread::spawn(move || {
            write_files(&job.staging, &plan, files, u64::MAX)?;
            job.commit(pause, needed)
        }));
        Ok(())
    }

    /// Copies shards to the host, into pinned memory if there is some.
    fn copy(&mut self, buffers: &[&Buffer]) -> Result<Vec<FileJob<'static>>, Error> {
        if let Some(pinning) = self.pinning.take() {
            let memory = pinning.join().unwrap_or_else(|panic| resume_unwind(panic));
            self.pinned = memory.map(Arc::new);
        }
        if let Some(pinned) = &mut self.pinned
            && let Some(memory) = Arc::get_mut(pinned)
        {
            memory.copy(buffers)?;
            return Ok(FileJob::pinned(&self.plan, pinned));
        }
        Ok(FileJob::copied(&self.plan, copy(buffers)?))
    }

    /// The outcome of the next save that has ended, if any.
    pub fn poll(&mut self) -> Option<SaveResult> {
        if self.worker.as_ref().is_some_and(JoinHandle::is_finished) {
            self.join();
        }
        self.finished.pop_front()
    }

    /// Waits for the save in progress and returns the next outcome, if any.
    pub fn wait(&mut self) -> Option<SaveResult> {
        self.join();
        self.finished.pop_front()
    }

    fn join(&mut self) {
        if let Some(worker) = self.worker.take() {
            let saved = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
            self.finished.push_back(saved);
        }
    }

    /// Creates the folder of a save with all files but the shards.
    fn stage(
        &self,
        progress: Progress,
        best: Option<PathBuf>,
        start: Instant,
        others: &mut dyn FnMut(&Path) -> Result<(), Error>,
    ) -> Result<Job, Error> {
        let SaveOptions { folder, limit, config, on_save, .. } = self.options.clone();
        let staging = Staging::begin(&folder, progress.step, on_save)?;
        if let Some(index) = self.plan.index() {
            staging.write_index(&index, self.plan.model_bytes())?;
        }
        others(staging.path())?;
        staging.adopt_files()?;
        let manifest = Manifest {
            version: MANIFEST_VERSION,
            fullshard: env!("CARGO_PKG_VERSION").to_owned(),
            saved_at: seconds_since_1970(),
            progress,
            mesh: self.mesh.clone(),
            optimizer: self.optimizer.clone(),
            config,
            tensors: self.plan.tensors.clone(),
            files: BTreeMap::new(),
        };
        Ok(Job { staging, manifest, start, best, limit, folder })
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
        if let Some(pinning) = self.pinning.take() {
            let _ = pinning.join();
        }
    }
}

impl Job {
    fn commit(self, pause: Duration, memory: u64) -> SaveResult {
        let Job { staging, manifest, start, best, limit, folder } = self;
        let (step, run) = (manifest.progress.step, manifest.progress.run.clone());
        let bytes = staging.bytes();
        let path = staging.commit(manifest)?;
        let write = start.elapsed().saturating_sub(if memory > 0 { pause } else { Duration::ZERO });
        let pruned = limit.map(|limit| prune(&folder, &run, limit, &[Some(path.clone()), best]));
        let not_removed = pruned.and_then(Result::err).map(|error| error.to_string());
        Ok(Saved { path, step, bytes, pause, write, memory, not_removed })
    }
}

/// Removes the oldest checkpoints of a run beyond a limit, but none of those kept.
fn prune(folder: &Path, run: &str, limit: usize, kept: &[Option<PathBuf>]) -> Result<(), Error> {
    let of_run = |manifest: &Manifest| manifest.progress.run == run;
    let listed = list(folder)?.into_iter();
    let mine = listed.filter(|listed| listed.manifest.as_ref().is_ok_and(of_run));
    for old in mine.skip(limit.max(1)) {
        if !kept.iter().flatten().any(|kept| *kept == old.path) {
            remove_checkpoint(&old.path)?;
        }
    }
    Ok(())
}

fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The memory of this host that programs can still use.
fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map_or(0, |kilobytes| kilobytes * 1024)
}
