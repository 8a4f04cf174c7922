//! Saves checkpoints while training goes on.

use super::plan::SavePlan;
use super::write::{FileJob, buffers, copy, write_files};
use crate::error::Error;
use crate::guard::Watch;
use crate::job::{Job, PeersError};
use crate::runner::Runner;
use fullshard_checkpoint::sharded::{
    MANIFEST_VERSION, Manifest, MeshAxes, OnSave, Progress, Staging, WrittenFiles,
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
    /// Whether the folder is one of this process alone, in its host's memory: it then has the files
    /// of this process and those of the one before.
    pub in_memory: bool,
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

/// A save in progress, without its shards.
struct Save {
    /// The processes that write it.
    job: Job,
    /// Its name in the job.
    name: String,
    /// The folder with all files but the shards, which the first process makes.
    staging: Result<Staging, Error>,
    manifest: Manifest,
    start: Instant,
    /// The checkpoint that is kept beyond the limit.
    best: Option<PathBuf>,
    options: SaveOptions,
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
        let staging = match job.is_first() || options.in_memory {
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
        let kind = if options.in_memory { "copy" } else { "save" };
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

impl Save {
    /// Writes the files of this process, and commits the checkpoint on the first process when all
    /// have written theirs. `copied` is how long training waited for copies, and their bytes.
    fn complete(
        mut self,
        plan: &SavePlan,
        files: Vec<FileJob<'_>>,
        memory: u64,
        copied: Option<(Duration, u64)>,
    ) -> SaveResult {
        let staging = self.staging()?;
        let written = write_files(&staging, plan, files, memory);
        let pause = copied.map_or_else(|| self.start.elapsed(), |(pause, _)| pause);
        match self.options.in_memory {
            true => self.exchange(&staging, written)?,
            false => self.add_written(&staging, written)?,
        }
        let (start, step, bytes) = (self.start, self.manifest.progress.step, staging.bytes());
        let path = staging.target().to_owned();
        let not_removed = self.commit(staging)?;
        let write = start.elapsed();
        let write = copied.map_or(write, |(pause, _)| write.saturating_sub(pause));
        let memory = copied.map_or(0, |(_, bytes)| bytes);
        Ok(Saved { path, step, bytes, pause, write, memory, not_removed })
    }

    /// The folder to write into, when the first process has made it.
    fn staging(&mut self) -> Result<Staging, Error> {
        let missing = Err(Error::OtherProcess { process: 0, message: String::new() });
        let staging = std::mem::replace(&mut self.staging, missing);
        let name = format!("{}/begun", self.name);
        if self.job.is_first() || self.options.in_memory {
            return self.job.agree(&name, staging);
        }
        self.job.agree(&name, Ok(()))?;
        let SaveOptions { folder, on_save, .. } = self.options.clone();
        Ok(Staging::join(&folder, self.manifest.progress.step, on_save)?)
    }

    /// Tells the first process of the files that the others have written.
    fn add_written(&self, staging: &Staging, written: Result<(), Error>) -> Result<(), Error> {
        let name = format!("{}/written", self.name);
        self.job.agree(&name, written)?;
        if self.job.is_alone() {
            return Ok(());
        }
        let other = |error: serde_json::Error| Error::Other(error.into());
        let name = |process: usize| format!("{}/files/{process}", self.name);
        let this = self.job.process();
        if this.index > 0 {
            let mine = serde_json::to_vec(&staging.written()).map_err(other)?;
            return self.job.publish(&name(this.index), &mine);
        }
        for process in 1..this.count {
            let files = self.job.published(&name(process))?;
            staging.add_written(serde_json::from_slice(&files).map_err(other)?);
        }
        Ok(())
    }

    /// Takes copies of the files of the process before this one, and learns what all have written.
    /// The job is alive after that, so that what was read from the devices can be trusted.
    fn exchange(&self, staging: &Staging, written: Result<(), Error>) -> Result<(), Error> {
        let (job, other) = (&self.job, |error: serde_json::Error| Error::Other(error.into()));
        job.agree(&format!("{}/written", self.name), written)?;
        let mine = serde_json::to_vec(&staging.written()).map_err(other)?;
        let all = job.gather(&format!("{}/files", self.name), &mine)?;
        let all: Vec<WrittenFiles> = all
            .iter()
            .map(|files| serde_json::from_slice(files).map_err(other))
            .collect::<Result<_, _>>()?;
        let this = job.process();
        let before = (this.index + this.count - 1) % this.count;
        let received = match before == this.index {
            true => Ok(()),
            false => self.receive(staging, before, &all[before]),
        };
        job.agree(&format!("{}/received", self.name), received)?;
        all.into_iter().for_each(|written| staging.add_written(written));
        Ok(())
    }

    fn receive(
        &self,
        staging: &Staging,
        process: usize,
        files: &WrittenFiles,
    ) -> Result<(), Error> {
        let folder = staging.path().file_name().unwrap_or_default().to_string_lossy();
        let received = staging.receive(files, |name, add| {
            let path = format!("{}/{folder}/{name}", copies_of(process));
            let failed = |source: PeersError| fullshard_checkpoint::Error::Values {
                name: name.to_owned(),
                source,
            };
            self.job.fetch(process, &path, 0..u64::MAX, add).map(drop).map_err(failed)
        });
        Ok(received?)
    }

    /// Makes the checkpoint complete, and removes old ones. Returns why one is not removed, if so.
    fn commit(self, staging: Staging) -> Result<Option<String>, Error> {
        let Save { job, name, manifest, best, options, .. } = self;
        let run = manifest.progress.run.clone();
        let committed = match job.is_first() || options.in_memory {
            true => staging.commit(manifest).map(Some).map_err(Error::from),
            false => Ok(None),
        };
        let Some(path) = job.agree(&format!("{name}/committed"), committed)? else {
            return Ok(None);
        };
        let kept = [Some(path), best];
        let pruned = options.limit.map(|limit| prune(&options.folder, &run, limit, &kept));
        Ok(pruned.and_then(Result::err).map(|error| error.to_string()))
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

/// The name of the folder with the copies of a process.
pub fn copies_of(process: usize) -> String {
    format!("process-{process}")
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
