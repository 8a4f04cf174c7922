//! Copies of the state in the memory of hosts: where they are, and how a run goes on from them.
//!
//! Each process keeps its own shards and those of a process on another host in a folder in memory,
//! in the format of checkpoints, so that the loss of one host loses no shard. After a failure the
//! processes offer one another what their hosts still have. The newest copy with all files is
//! resumed from: files of this host as they are, others when their shards are needed.

use super::Run;
use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::job::Membership;
use fullshard_checkpoint::sharded::{COMMITTED, Checkpoint, MANIFEST, Manifest};
use fullshard_checkpoint::{Checksum, list};
use fullshard_step::StepSpec;
use fullshard_train::{Copies, Job, PeersError, SaveOptions, check_checkpoint, copies_of};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The name of the folder with links to the copy that a process resumes from.
const VIEW: &str = "resumed";

/// The copies that are kept: while one is written, all processes have the one before.
const KEPT: usize = 2;

/// A copy that a host has, or a part of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Offer {
    run: String,
    step: u64,
    saved_at: f64,
    /// Its folder below that of all copies.
    folder: String,
    /// Those of its files that are here, and the number of all.
    files: Vec<String>,
    count: usize,
}

/// A copy of which all files are somewhere.
#[derive(Debug, PartialEq)]
struct Found {
    run: String,
    step: u64,
    saved_at: f64,
    /// The process that has each file, and the file's path there.
    files: BTreeMap<String, (usize, String)>,
}

/// The folder of this host's copies of a run, which other users cannot read.
pub(super) fn folder(config: &RunConfig) -> Result<PathBuf> {
    let shared = &config.checkpoint.replicate_dir;
    let user = rustix::process::geteuid().as_raw();
    let mine = shared.join(format!("fullshard-{user}"));
    let unusable = |reason: &dyn std::fmt::Display| {
        let shared = shared.display();
        Error::Usage(format!("--replicate_dir is {shared}, which cannot be used: {reason}"))
    };
    match fs::DirBuilder::new().mode(0o700).create(&mine) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(unusable(&error)),
        _ => {}
    }
    let owner = fs::symlink_metadata(&mine).map_err(|error| unusable(&error))?;
    if !owner.is_dir() || owner.uid() != user {
        return Err(unusable(&format!("{} is not a folder of this user", mine.display())));
    }
    let output = std::path::absolute(&config.output.dir)
        .map_err(|error| Error::file(&config.output.dir, error))?;
    Ok(mine.join(Checksum::of(output.as_os_str().as_encoded_bytes()).to_string()))
}

/// Prepares the copies of a run, if it has some. A run that resumes gets the newest copy if that is
/// newer than its newest checkpoint; one that does not removes what others have left.
pub(super) fn prepare(
    membership: &Membership,
    config: &RunConfig,
    spec: &StepSpec,
    resumes: bool,
    newest: Option<&Checkpoint>,
) -> Result<Option<Checkpoint>> {
    if config.checkpoint.replicate_state == 0 {
        return Ok(None);
    }
    let root = membership.agree("copies/folder", folder(config))?;
    membership.once_per_host("copies/old", || match resumes {
        true => Ok(()),
        false => remove(&root),
    })?;
    fs::create_dir_all(&root).map_err(|error| Error::file(&root, error))?;
    membership.serve(&root)?;
    if !resumes {
        return Ok(None);
    }
    let job = membership.job();
    let offers = serde_json::to_vec(&offers(&root)).map_err(|error| Error::file(&root, error))?;
    let offers: Vec<Vec<Offer>> = job
        .gather("copies/offers", &offers)?
        .iter()
        .map(|offers| serde_json::from_slice(offers).unwrap_or_default())
        .collect();
    let newest = newest.map(|checkpoint| &checkpoint.manifest().progress.run).zip(newest);
    let launched = membership.generation.launched_at as f64;
    let is_own = |run: &str, saved_at: f64| match newest {
        Some((of, checkpoint)) => run == of && saved_at > checkpoint.manifest().saved_at,
        None => membership.generation.number > 0 && saved_at >= launched,
    };
    let Some(found) = choose(&offers, is_own) else { return Ok(None) };
    let opened = open(job, &root, &found).and_then(|checkpoint| {
        check_checkpoint(spec, &checkpoint)?;
        Ok(checkpoint)
    });
    match membership.agree("copies/opened", opened) {
        Ok(checkpoint) => Ok(Some(checkpoint)),
        Err(error) => {
            tracing::warn!("the copy of step {} in memory is not used: {error}", found.step);
            Ok(None)
        }
    }
}

/// What this host has.
fn offers(root: &Path) -> Vec<Offer> {
    let folders = fs::read_dir(root).into_iter().flatten().flatten();
    let listed = folders.flat_map(|folder| list(&folder.path()).unwrap_or_default());
    let offer = |path: PathBuf, manifest: Manifest| {
        let is_here = |name: &String, bytes| {
            fs::metadata(path.join(name)).is_ok_and(|file| file.len() == bytes)
        };
        let files = manifest.files.iter().filter(|(name, record)| is_here(name, record.bytes));
        Some(Offer {
            folder: path.strip_prefix(root).ok()?.to_str()?.to_owned(),
            files: files.map(|(name, _)| name.clone()).collect(),
            count: manifest.files.len(),
            run: manifest.progress.run,
            step: manifest.progress.step,
            saved_at: manifest.saved_at,
        })
    };
    listed.filter_map(|listed| offer(listed.path, listed.manifest.ok()?)).collect()
}

/// The newest copy of which all files are on some host.
fn choose(offers: &[Vec<Offer>], is_own: impl Fn(&str, f64) -> bool) -> Option<Found> {
    let mut found: HashMap<(&str, u64), (Found, usize)> = HashMap::new();
    for (process, offer) in offers
        .iter()
        .enumerate()
        .flat_map(|(process, offers)| offers.iter().map(move |offer| (process, offer)))
    {
        let (copy, count) = found.entry((&offer.run, offer.step)).or_insert_with(|| {
            let (run, files) = (offer.run.clone(), BTreeMap::new());
            (Found { run, step: offer.step, saved_at: 0.0, files }, offer.count)
        });
        copy.saved_at = copy.saved_at.max(offer.saved_at);
        *count = (*count).max(offer.count);
        for name in &offer.files {
            let path = format!("{}/{name}", offer.folder);
            copy.files.entry(name.clone()).or_insert((process, path));
        }
    }
    let complete = found.into_values().filter(|(copy, count)| copy.files.len() == *count);
    let own = complete.map(|(copy, _)| copy).filter(|copy| is_own(&copy.run, copy.saved_at));
    own.max_by_key(|copy| copy.step)
}

/// Opens a copy: as a folder of links to the files of this host, and of headers of the others, which
/// are fetched when their shards are read.
fn open(job: &Job, root: &Path, found: &Found) -> Result<Checkpoint> {
    let view = root.join(copies_of(job.process().index)).join(VIEW);
    remove(&view)?;
    fs::create_dir_all(&view).map_err(|error| Error::file(&view, error))?;
    let somewhere = found.files.values().next();
    let (process, folder) = somewhere
        .and_then(|(process, path)| Some((*process, path.rsplit_once('/')?.0)))
        .ok_or_else(|| Error::file(&view, "the copy has no files"))?;
    for name in [MANIFEST, COMMITTED] {
        let path = format!("{folder}/{name}");
        if link(root, &path, &view.join(name)).is_err() {
            fetch(job, process, &path, &view.join(name))?;
        }
    }
    let manifest = Manifest::read(&view)?;
    let mut elsewhere = HashMap::new();
    for (name, (process, path)) in &found.files {
        let here = view.join(name);
        if link(root, path, &here).is_ok() {
            continue;
        }
        match manifest.files.get(name) {
            Some(record) if record.shards.is_some() => {
                fetch_header(job, *process, path, &here, record.bytes)?;
                elsewhere.insert(here, (*process, path.clone()));
            }
            _ => fetch(job, *process, path, &here)?,
        }
    }
    let job = job.clone();
    Ok(Checkpoint::open(&view)?.fetching(move |path, offset, out| {
        let (process, name) = elsewhere.get(path)?;
        let failed = |source| fullshard_checkpoint::Error::Values { name: name.clone(), source };
        Some(fetch_into(&job, *process, name, offset, out).map_err(failed))
    }))
}

/// Fetches bytes of a file.
fn fetch_into(
    job: &Job,
    process: usize,
    path: &str,
    offset: u64,
    mut out: &mut [u8],
) -> std::result::Result<(), PeersError> {
    let range = offset..offset + out.len() as u64;
    job.fetch(process, path, range, &mut |bytes| out.write_all(bytes))?;
    match out.is_empty() {
        true => Ok(()),
        false => Err(format!("process {process} has less of it").into()),
    }
}

/// Makes a file of this host's copies appear in a folder, too.
fn link(root: &Path, path: &str, to: &Path) -> io::Result<()> {
    fs::hard_link(root.join(path), to)
}

/// Fetches a file.
fn fetch(job: &Job, process: usize, path: &str, to: &Path) -> Result<()> {
    let failed = |error: &dyn std::fmt::Display| Error::file(to, error);
    let mut file = File::create(to).map_err(|error| failed(&error))?;
    let mut add = |bytes: &[u8]| file.write_all(bytes);
    job.fetch(process, path, 0..u64::MAX, &mut add).map_err(|error| failed(&error))?;
    Ok(())
}

/// Fetches the header of a file of shards, into one of the same length.
fn fetch_header(job: &Job, process: usize, path: &str, to: &Path, bytes: u64) -> Result<()> {
    let failed = |error: &dyn std::fmt::Display| Error::file(to, error);
    let read = |range| {
        let mut found = Vec::new();
        let mut add = |bytes: &[u8]| found.write_all(bytes);
        job.fetch(process, path, range, &mut add).map_err(|error| failed(&error))?;
        Ok::<_, Error>(found)
    };
    let length = read(0..8)?.try_into().map(u64::from_le_bytes);
    let length = length.map_err(|_| failed(&"it has no header"))?.min(bytes);
    let header = read(0..8 + length)?;
    let file = File::create(to).map_err(|error| failed(&error))?;
    file.set_len(bytes).and_then(|()| file.write_all_at(&header, 0)).map_err(|error| failed(&error))
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file(folder, error)),
        _ => Ok(()),
    }
}

impl Run {
    /// Where and when the state is copied, if it is.
    pub(super) fn copies(&self, options: &SaveOptions) -> Result<Option<Copies>> {
        let every = self.config.checkpoint.replicate_state;
        if every == 0 {
            return Ok(None);
        }
        let folder = self.copies_folder()?;
        fs::create_dir_all(&folder).map_err(|error| Error::file(&folder, error))?;
        let (limit, in_memory) = (Some(KEPT), Some(self.membership.distance_to_host()));
        let options = SaveOptions { folder, limit, in_memory, ..options.clone() };
        Ok(Some(Copies { options, every }))
    }

    /// Whether a checkpoint is a copy in memory.
    pub(super) fn is_copy(&self, checkpoint: &Checkpoint) -> bool {
        checkpoint.folder().ends_with(VIEW)
    }

    /// Frees the copy that was resumed from.
    pub(super) fn forget_resumed(&self) -> Result<()> {
        match self.config.checkpoint.replicate_state {
            0 => Ok(()),
            _ => remove(&self.copies_folder()?.join(VIEW)),
        }
    }

    /// Frees all copies of this process at the end of a run.
    pub(super) fn remove_copies(&self) {
        if self.config.checkpoint.replicate_state > 0
            && let Err(error) = self.copies_folder().and_then(|folder| remove(&folder))
        {
            tracing::warn!("copies of the state are left in memory: {error}");
        }
    }

    fn copies_folder(&self) -> Result<PathBuf> {
        Ok(folder(&self.config)?.join(copies_of(self.membership.process().index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(step: u64, folder: &str, files: &[&str]) -> Offer {
        Offer {
            run: "run".to_owned(),
            step,
            saved_at: step as f64,
            folder: folder.to_owned(),
            files: files.iter().map(|&name| name.to_owned()).collect(),
            count: 3,
        }
    }

    /// With the second of three hosts gone, the third still has its files; of the newest step it has
    /// not, so that the one before counts.
    #[test]
    fn the_newest_complete_copy_is_chosen() {
        let first = vec![offer(5, "0/5", &["a", "c"]), offer(6, "0/6", &["a", "c"])];
        let third = vec![offer(5, "2/5", &["b", "c"]), offer(6, "2/6", &["c"])];
        let found = choose(&[first, vec![], third], |_, _| true);
        let found = found.map(|found| (found.step, found.files));
        let place = |process, path: &str| (process, path.to_owned());
        let files = [("a", place(0, "0/5/a")), ("b", place(2, "2/5/b")), ("c", place(0, "0/5/c"))];
        let files = files.map(|(name, place)| (name.to_owned(), place));
        assert_eq!(found, Some((5, BTreeMap::from(files))));
        assert!(choose(&[vec![offer(5, "0/5", &["a", "c"])]], |_, _| true).is_none());
        let complete = [vec![offer(5, "0/5", &["a", "b", "c"])]];
        assert!(choose(&complete, |_, saved_at| saved_at > 5.0).is_none());
    }
}
