//! The output folder: checked before the run, written at its end.

use crate::config::{FILE_NAME, RunConfig};
use crate::error::{Error, Result};
use crate::goodput::JOURNAL;
use crate::job::Membership;
use fullshard_checkpoint::{Error as CheckpointError, LOCK, Lock, check_place, sweep, write_file};
use fullshard_train::report::{Curve, TrainerState, Values, save_metrics};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A writable folder.
pub struct Output {
    folder: PathBuf,
}

/// Results of an earlier run, which are removed before new ones are written.
const RESULTS: [&str; 4] =
    ["all_results.json", "train_results.json", "eval_results.json", "trainer_state.json"];

/// Other files of a run: the config, the journal, the loss curve, the model and its tokenizer.
const OTHERS: [&str; 11] = [
    FILE_NAME,
    JOURNAL,
    "loss.svg",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
];

/// How long other processes look for what the first wrote: network file systems are late.
const LOOK: Duration = Duration::from_secs(10);

impl Output {
    /// Checks that a run can write its files to its folder, and takes it: the first process of a
    /// job for all of them. Others check that it is the same folder.
    pub(super) fn take(
        membership: &Membership,
        config: &RunConfig,
        resumes: bool,
    ) -> Result<(Output, Option<Lock>)> {
        let folder = &config.output.dir;
        let job = membership.job();
        let taken = match job.is_first() {
            true => Output::check(folder, config.output.overwrite || resumes).and_then(|output| {
                let lock = Lock::acquire(folder)?;
                sweep(folder)?;
                Ok((output, Some(lock)))
            }),
            false => Ok((Output::in_folder(folder.clone()), None)),
        };
        let taken = membership.agree("output folder", taken)?;
        let holder = || Ok(fs::read(folder.join(LOCK)).unwrap_or_default());
        let expected = job.first_says("output folder/lock", holder)?;
        let shared = is_there(&folder.join(LOCK), &expected);
        let shared =
            shared.then_some(()).ok_or(CheckpointError::NotShared { folder: folder.clone() });
        membership.agree("output folder/shared", shared.map_err(Error::from))?;
        Ok(taken)
    }

    /// Checks that a run can write its files to a folder, without creating it.
    pub(super) fn check(folder: &Path, overwrite: bool) -> Result<Output> {
        let unusable = |reason: String| {
            Error::Usage(format!("--output_dir is {}, {reason}", folder.display()))
        };
        if folder.exists() && !folder.is_dir() {
            return Err(unusable("which is a file: name a folder".into()));
        }
        let mut above = folder.ancestors();
        if let Some(link) = above.find(|above| above.is_symlink() && !above.exists()) {
            let link = link.display();
            return Err(unusable(format!("but {link} is a dangling link: name another folder")));
        }
        let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
        // The journal may be all that is left of a run that failed.
        let is_empty =
            entries.all(|entry| [LOCK, JOURNAL].map(Into::into).contains(&entry.file_name()));
        if !is_empty && !overwrite {
            return Err(unusable(
                "which is not empty: add --resume_from_checkpoint to go on with its run, \
                 --overwrite_output_dir to write over it, or name another"
                    .into(),
            ));
        }
        for name in RESULTS.iter().chain(&OTHERS) {
            check_place(folder.join(name))?;
        }
        let above = folder.ancestors().find(|above| above.exists() || above.as_os_str().is_empty());
        let above = above.filter(|above| !above.as_os_str().is_empty());
        let tried = tempfile::tempfile_in(above.unwrap_or(Path::new(".")));
        tried.map_err(|error| match error.kind() {
            // There may be room later.
            io::ErrorKind::StorageFull => Error::file(folder, error),
            _ => unusable(format!("which cannot be written to: {error}")),
        })?;
        Ok(Output { folder: folder.to_owned() })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes the results of an earlier run.
    pub(super) fn clear(&self) -> Result<()> {
        for name in RESULTS {
            let path = self.folder.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::file(path, error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the resolved config, which reproduces the run.
    pub(super) fn config(&self, config: &RunConfig) -> Result<()> {
        Ok(write_file(self.folder.join(FILE_NAME), config.to_toml()?)?)
    }

    /// The same files in another folder.
    pub(super) fn in_folder(folder: PathBuf) -> Output {
        Output { folder }
    }

    /// Writes the trainer state, the results and the loss curve.
    pub(super) fn training(
        &self,
        state: &TrainerState,
        values: &Values,
        curve: &Curve,
    ) -> Result<()> {
        save_metrics(&self.folder, "train", values)?;
        state.save(&self.folder)?;
        curve.save_svg(self.folder.join("loss.svg"))?;
        Ok(())
    }

    /// Writes the results of the evaluation.
    pub(super) fn evaluation(&self, values: &Values) -> Result<()> {
        Ok(save_metrics(&self.folder, "eval", values)?)
    }
}

/// Whether a file has this content, now or soon.
fn is_there(path: &Path, content: &[u8]) -> bool {
    let start = Instant::now();
    loop {
        if fs::read(path).is_ok_and(|found| found == content) {
            return true;
        }
        if start.elapsed() > LOOK {
            return false;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
