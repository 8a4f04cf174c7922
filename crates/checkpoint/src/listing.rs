//! The checkpoints of a run as `fullshard checkpoint list` and `verify` show them: which are
//! complete, which is the best, and which one a run would resume from.

use crate::error::{Error, Result};
use crate::folder::{checkpoint_name, list};
use crate::opened::is_checkpoint;
use crate::sharded::{Checkpoint, Manifest, Problem, verify};
use serde::Serialize;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The file with the best checkpoint's name.
const TRAINER_STATE: &str = "trainer_state.json";

/// A checkpoint in the folder of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckpointSummary {
    /// Its folder.
    pub path: PathBuf,
    /// Its step.
    pub step: u64,
    /// When it was saved, in seconds since 1970, if its manifest can be read.
    pub saved_at: Option<f64>,
    /// The bytes of all its files.
    pub bytes: u64,
    /// Whether it can be used. Values are not read.
    pub state: CheckpointState,
    /// Why it cannot be used.
    pub reason: Option<String>,
    /// Whether it had the best evaluation.
    pub best: bool,
    /// Whether `--resume_from_checkpoint` takes it.
    pub resumes: bool,
}

/// Whether a checkpoint can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointState {
    /// All files are there with their lengths.
    Complete,
    /// It has no marker: its save did not end.
    NotCommitted,
    /// Files are missing, cut or another's.
    Damaged,
}

/// The outcome of verifying a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Its folder.
    pub path: PathBuf,
    /// The bytes of all files that it should have.
    pub bytes: u64,
    /// What is wrong; empty if it is complete.
    pub problems: Vec<Problem>,
}

/// The checkpoints of a run's folder, those saved last first.
pub fn summarize(folder: &Path) -> Result<Vec<CheckpointSummary>> {
    let found = listed(folder)?;
    let best = best(folder, found.first().map(|(path, ..)| path.as_path()));
    let mut resumes = true;
    let mut summaries = Vec::new();
    for (path, step, manifest) in found {
        let opened = manifest.as_ref().ok().map(|_| Checkpoint::open(&path));
        let error = match (&manifest, &opened) {
            (Err(error), _) | (_, Some(Err(error))) => Some(error),
            _ => None,
        };
        let manifest = manifest.as_ref().ok();
        let usable = error.is_none() && manifest.is_some_and(|it| it.optimizer.is_some());
        summaries.push(CheckpointSummary {
            step,
            saved_at: manifest.map(|manifest| manifest.saved_at),
            bytes: manifest.map_or_else(|| bytes_in(&path), Manifest::file_bytes),
            state: match error {
                None => CheckpointState::Complete,
                Some(Error::Uncommitted { .. }) => CheckpointState::NotCommitted,
                Some(_) => CheckpointState::Damaged,
            },
            reason: error.map(|error| Problem::new(&path, error).to_string()),
            best: best.as_deref() == Some(checkpoint_name(step).as_str()),
            resumes: usable && std::mem::take(&mut resumes),
            path,
        });
    }
    Ok(summaries)
}

/// A checkpoint, or all of a run's folder, to be verified.
pub fn to_verify(path: &Path) -> Result<Vec<PathBuf>> {
    if is_checkpoint(path) {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = listed(path)?;
    found.sort_by_key(|(_, step, _)| *step);
    Ok(found.into_iter().map(|(path, ..)| path).collect())
}

/// The bytes that [`verify_checkpoint`] reads.
pub fn bytes_to_verify(path: &Path) -> u64 {
    crate::sharded::read_manifest(path).map_or(0, |manifest| manifest.file_bytes())
}

/// Reads every byte of a checkpoint. `progress` is called with the bytes read since the last call.
/// A missing marker or manifest is a problem too.
pub fn verify_checkpoint(path: &Path, progress: &mut dyn FnMut(u64)) -> Verified {
    let problems = verify(path, progress);
    let problems = problems.unwrap_or_else(|error| vec![Problem::new(path, &error)]);
    Verified { path: path.to_owned(), bytes: bytes_to_verify(path), problems }
}

/// Path, step and manifest of all checkpoints in a folder, which has some.
fn listed(folder: &Path) -> Result<Vec<(PathBuf, u64, Result<Manifest>)>> {
    let read = |source| Error::Read { path: folder.to_owned(), source };
    fs::metadata(folder).map_err(read)?;
    let found = list(folder)?;
    if found.is_empty() {
        return Err(Error::NoCheckpoints { path: folder.to_owned() });
    }
    Ok(found.into_iter().map(|it| (it.path, it.step, it.manifest)).collect())
}

/// The name of the best checkpoint, by the trainer's state that was written last: that of the
/// newest checkpoint, or that of the end of the run.
fn best(folder: &Path, newest: Option<&Path>) -> Option<String> {
    let states = newest.into_iter().chain([folder]).map(|folder| folder.join(TRAINER_STATE));
    let written = |path: &PathBuf| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let dated = states.filter_map(|path| Some((written(&path)?, path)));
    let (_, path): (SystemTime, PathBuf) = dated.max_by_key(|(written, _)| *written)?;
    let state: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let best = Path::new(state.get("best_model_checkpoint")?.as_str()?);
    Some(best.file_name()?.to_string_lossy().into_owned())
}

/// The bytes of the files in a folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}
