//! A save in progress: writes the files of this process, and commits the checkpoint when all have
//! written theirs.

use super::plan::SavePlan;
use super::saver::{SaveOptions, SaveResult, Saved};
use super::write::{FileJob, write_files};
use crate::error::Error;
use crate::job::{Job, PeersError};
use fullshard_checkpoint::sharded::{Manifest, Staging, WrittenFiles};
use fullshard_checkpoint::{list, remove_checkpoint};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A save in progress, without its shards.
pub(super) struct Save {
    /// The processes that write it.
    pub job: Job,
    /// Its name in the job.
    pub name: String,
    /// The folder with all files but the shards, which the first process makes.
    pub staging: Result<Staging, Error>,
    pub manifest: Manifest,
    pub start: Instant,
    /// The checkpoint that is kept beyond the limit.
    pub best: Option<PathBuf>,
    pub options: SaveOptions,
}

impl Save {
    /// Writes the files of this process, and commits the checkpoint on the first process when all
    /// have written theirs. `copied` is how long training waited for copies, and their bytes.
    pub fn complete(
        mut self,
        plan: &SavePlan,
        files: Vec<FileJob<'_>>,
        memory: u64,
        copied: Option<(Duration, u64)>,
    ) -> SaveResult {
        let (staging, name) = (self.staging()?, format!("{}/written", self.name));
        let staging = match staging {
            Ok(staging) => staging,
            // The others learn of it when they have written their files.
            Err(error) => return self.job.agree(&name, Err(error)),
        };
        self.job.agree(&name, write_files(&staging, plan, files, memory))?;
        let pause = copied.map_or_else(|| self.start.elapsed(), |(pause, _)| pause);
        match self.options.in_memory {
            Some(distance) => self.keep_other(distance, &staging)?,
            None => self.add_written(&staging)?,
        }
        let (start, step, bytes) = (self.start, self.manifest.progress.step, staging.bytes());
        let path = staging.target().to_owned();
        let not_removed = self.commit(staging)?;
        let write = start.elapsed();
        let write = copied.map_or(write, |(pause, _)| write.saturating_sub(pause));
        let memory = copied.map_or(0, |(_, bytes)| bytes);
        Ok(Saved { path, step, bytes, pause, write, memory, not_removed })
    }

    /// The folder to write into, when the first process has made it; an error of this process alone
    /// if it does not see it.
    fn staging(&mut self) -> Result<Result<Staging, Error>, Error> {
        let missing = Err(Error::OtherProcess { process: 0, message: String::new() });
        let staging = std::mem::replace(&mut self.staging, missing);
        let name = format!("{}/begun", self.name);
        if self.job.is_first() || self.options.in_memory.is_some() {
            return self.job.agree(&name, staging).map(Ok);
        }
        self.job.agree(&name, Ok(()))?;
        let SaveOptions { folder, on_save, .. } = self.options.clone();
        Ok(Staging::join(&folder, self.manifest.progress.step, on_save).map_err(Error::from))
    }

    /// Tells the first process of the files that the others have written.
    fn add_written(&self, staging: &Staging) -> Result<(), Error> {
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

    /// Takes copies of the files of another process, and learns what all have written. The job is
    /// alive after that, so that what was read from the devices can be trusted.
    fn keep_other(&self, distance: usize, staging: &Staging) -> Result<(), Error> {
        let (job, other) = (&self.job, |error: serde_json::Error| Error::Other(error.into()));
        let mine = serde_json::to_vec(&staging.written()).map_err(other)?;
        let all = job.gather(&format!("{}/files", self.name), &mine)?;
        let all: Vec<WrittenFiles> = all
            .iter()
            .map(|files| serde_json::from_slice(files).map_err(other))
            .collect::<Result<_, _>>()?;
        let this = job.process();
        let kept = (this.index + this.count - distance % this.count) % this.count;
        let received = match kept == this.index {
            true => Ok(()),
            false => self.receive(staging, kept, &all[kept]),
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
        let committed = match (job.is_first(), options.in_memory.is_some()) {
            (_, true) => staging.commit(manifest).map(Some),
            (true, false) => {
                let complete = staging.check_files();
                complete.and_then(|()| staging.commit(manifest)).map(Some)
            }
            (false, false) => Ok(None),
        };
        let committed = committed.map_err(Error::from);
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
