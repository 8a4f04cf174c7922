//! Saves checkpoints while training goes on.

use super::plan::SavePlan;
use super::save::Save;
use super::write::{FileJob, buffers, copy};
use crate::error::Error;
use crate::guard::Watch;
use crate::job::Job;
use crate::runner::Runner;
use fullshard_checkpoint::sharded::{
    MANIFEST_VERSION, Manifest, MeshAxes, OnSave, Progress, Staging,
};
use fullshard_pjrt::{Buffer, PinnedMemory};
use fullshard_step::Ordered;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// The time that copies of the state may take, besides that at [`SLOW_COPY`] bytes per second.
const LEAST_COPY: Duration = Duration::from_secs(60);
const SLOW_COPY: u64 = 100_000_000;

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
    /// For copies in memory: the folder is one of this process alone, with its files and those of
    /// the process that comes this many before it, which is on another host.
    pub in_memory: Option<usize>,
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
    /// The number of saves so far.
    saves: usize,
    /// Times copies.
    watch: Watch,
}

impl Saver {
    /// A saver of a runner's state.
    pub fn new(runner: &Runner<'_>, options: SaveOptions) -> Result<Saver, Error> {
        let plan = SavePlan::new(runner.spec(), runner.state(), options.only_model)?;
        let optimizer = runner.spec().optimizer.name().to_owned();
        let optimizer = (!options.only_model).then_some(optimizer);
        let axes = runner.spec().placement.mesh.whole_axes().into_iter();
        let mesh = MeshAxes(axes.map(|(axis, size)| (axis.to_owned(), size)).collect());
        let limit = options.memory.unwrap_or_else(|| available_memory() / 2);
        let pins = runner.client().platform_name() != "cpu" && plan.bytes() as u64 <= limit;
        let pinning = pins.then(|| {
            let client = runner.client().clone();
            let sizes: Vec<usize> = plan.tiles.iter().map(|tile| tile.ty.bytes()).collect();
            std::thread::spawn(move || client.pin_memory(&sizes).ok().flatten())
        });
        let plan = Arc::new(plan);
        Ok(Saver {
            options,
            plan,
            optimizer,
            mesh,
            limit,
            pinning,
            pinned: None,
            worker: None,
            finished: VecDeque::new(),
            saves: 0,
            watch: Watch::default(),
        })
    }

    /// The saver with a deadline for its copies.
    pub(crate) fn watched_by(mut self, watch: Watch) -> Saver {
        self.watch = watch;
        self
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
        let (start, step) = (Instant::now(), progress.step);
        self.join();
        let save = self.begin(&runner.compiler().job, progress, best, start, others);
        let buffers = buffers(&self.plan, &runner.state().each_ref().flatten());
        let (plan, needed) = (Arc::clone(&self.plan), self.bytes());
        if needed > self.limit {
            let files = FileJob::on_devices(&plan, &buffers);
            let saved = save.complete(&plan, files, self.limit, None);
            self.finished.push_back(saved);
            return Ok(());
        }
        let least = LEAST_COPY + Duration::from_secs(needed / SLOW_COPY);
        let timed = self.watch.time("copying the state to be saved", step, least);
        let (files, limit) = (self.copy(&buffers)?, u64::MAX);
        drop(timed);
        let copied = Some((start.elapsed(), needed));
        self.worker = Some(std::thread::spawn(move || save.complete(&plan, files, limit, copied)));
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

    /// Begins a save.
    fn begin(
        &mut self,
        job: &Job,
        progress: Progress,
        best: Option<PathBuf>,
        start: Instant,
        others: &mut dyn FnMut(&Path) -> Result<(), Error>,
    ) -> Save {
        self.saves += 1;
        let options = self.options.clone();
        let step = progress.step;
        let staging = match job.is_first() || options.in_memory.is_some() {
            true => self.stage(step, job.is_first(), others),
            // The first process makes it, and says when it has.
            false => Err(Error::OtherProcess { process: 0, message: String::new() }),
        };
        let manifest = Manifest {
            version: MANIFEST_VERSION,
            fullshard: env!("CARGO_PKG_VERSION").to_owned(),
            saved_at: seconds_since_1970(),
            progress,
            mesh: self.mesh.clone(),
            optimizer: self.optimizer.clone(),
            config: options.config.clone(),
            tensors: self.plan.tensors.clone(),
            files: BTreeMap::new(),
        };
        let kind = if options.in_memory.is_some() { "copy" } else { "save" };
        let name = format!("{kind}/{}/{step}", self.saves);
        Save { job: job.clone(), name, staging, manifest, start, best, options }
    }

    /// Creates the folder of a save with all files but the shards.
    fn stage(
        &self,
        step: u64,
        is_first: bool,
        others: &mut dyn FnMut(&Path) -> Result<(), Error>,
    ) -> Result<Staging, Error> {
        let SaveOptions { folder, on_save, .. } = self.options.clone();
        let staging = Staging::begin(&folder, step, on_save)?;
        if let Some(index) = self.plan.index.as_ref().filter(|_| is_first) {
            staging.write_index(index, self.plan.model_bytes())?;
        }
        if is_first {
            others(staging.path())?;
        }
        staging.adopt_files()?;
        Ok(staging)
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
