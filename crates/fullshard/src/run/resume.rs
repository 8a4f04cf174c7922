//! The checkpoint that a run resumes from, and where its data goes on.

use super::Run;
use crate::config::{ResumeFrom, RunConfig};
use crate::error::{Error, Result};
use crate::job::Membership;
use fullshard_checkpoint::list;
use fullshard_checkpoint::sharded::{Checkpoint, DataPosition};
use fullshard_cluster::Generation;
use fullshard_data::{BatchOrigin, Batches};
use fullshard_step::StepSpec;
use fullshard_train::{Origin, Resumed, check_checkpoint};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The settings that a resumed run should share with the one before; others may change freely.
const SHARED: [&str; 6] = ["model", "data", "precision", "optimizer", "schedule", "evaluation"];

/// Settings of these sections that have no effect on the numbers.
const FREE: [&str; 7] = [
    "cache_dir",
    "overwrite_cache",
    "do_train",
    "do_eval",
    "iterations_per_loop",
    // Their product with the devices is the batch, which is compared below.
    "per_device_batch",
    "gradient_accumulation_steps",
];

/// The checkpoints to resume from, the preferred one first: those that the job itself has saved, if
/// it was restarted, and then those that its config asks for.
pub(super) fn find(
    config: &RunConfig,
    generation: Generation,
    spec: &StepSpec,
) -> Result<Vec<Checkpoint>> {
    if generation.number > 0 {
        let is_own =
            |found: &Checkpoint| found.manifest().saved_at >= generation.launched_at as f64;
        let mut own = usable(&config.output.dir, spec, false).unwrap_or_default();
        own.retain(is_own);
        if !own.is_empty() {
            return Ok(own);
        }
    }
    requested(config, spec)
}

/// The checkpoints that a config asks to resume from: one that is named, or all usable ones of the
/// output folder.
fn requested(config: &RunConfig, spec: &StepSpec) -> Result<Vec<Checkpoint>> {
    let Some(resume) = &config.checkpoint.resume else { return Ok(Vec::new()) };
    match resume {
        ResumeFrom::Folder(folder) if !has_checkpoints(folder) => {
            let checkpoint = Checkpoint::open(folder)?;
            check_checkpoint(spec, &checkpoint)?;
            Ok(vec![checkpoint])
        }
        ResumeFrom::Folder(folder) => usable(folder, spec, true),
        ResumeFrom::Latest => usable(&config.output.dir, spec, true),
        ResumeFrom::Auto => usable(&config.output.dir, spec, false),
    }
}

/// The checkpoints that the first process of a job finds.
pub(super) fn find_in(
    membership: &Membership,
    config: &RunConfig,
    spec: &StepSpec,
) -> Result<Vec<Checkpoint>> {
    let job = membership.job();
    let found = match job.is_first() {
        true => find(config, membership.generation, spec),
        false => Ok(Vec::new()),
    };
    let found = membership.agree("checkpoints", found)?;
    let folders: Vec<&Path> = found.iter().map(Checkpoint::folder).collect();
    let folders = job.first_says("checkpoints/folders", || {
        serde_json::to_vec(&folders).map_err(|error| fullshard_train::Error::Other(error.into()))
    })?;
    if job.is_first() {
        return Ok(found);
    }
    let folders: Vec<PathBuf> = serde_json::from_slice(&folders).map_err(|error| {
        Error::Usage(format!("the first process names no checkpoints: {error}"))
    })?;
    folders.into_iter().map(|folder| Ok(Checkpoint::open(folder)?)).collect()
}

/// Whether a folder is not a checkpoint, but has some.
fn has_checkpoints(folder: &Path) -> bool {
    !folder.join(fullshard_checkpoint::sharded::MANIFEST).exists()
        && list(folder).is_ok_and(|listed| !listed.is_empty())
}

/// The usable checkpoints of a folder, those saved last first. The others are named in warnings;
/// if there are only others, the run does not start over beside them.
fn usable(folder: &Path, spec: &StepSpec, needed: bool) -> Result<Vec<Checkpoint>> {
    let (mut found, mut unusable) = (Vec::new(), None);
    for listed in list(folder)? {
        let opened = listed.manifest.and_then(|_| Checkpoint::open(&listed.path));
        let checked = opened.map_err(Error::from).and_then(|checkpoint| {
            check_checkpoint(spec, &checkpoint)?;
            Ok(checkpoint)
        });
        match checked {
            Ok(checkpoint) => found.push(checkpoint),
            Err(error) => {
                tracing::warn!("{} is not used: {error}", listed.path.display());
                unusable.get_or_insert(error);
            }
        }
    }
    match unusable {
        Some(error) if found.is_empty() => Err(error),
        None if found.is_empty() && needed => Err(Error::Usage(format!(
            "there is no checkpoint to resume from in {}: leave out --resume_from_checkpoint to \
             start from scratch, or pass `auto` to resume only if there is one",
            folder.display()
        ))),
        _ => Ok(found),
    }
}

impl Run {
    /// The checkpoint that is resumed from, unless its values turn out to be damaged.
    pub fn resumes_from(&self) -> Option<&Checkpoint> {
        self.checkpoints.first()
    }

    /// The progress of a run that is resumed, and its loss curve.
    pub(super) fn resumed(&self, checkpoint: &Checkpoint) -> Result<Resumed> {
        let name = "trainer_state.json";
        let state = serde_json::from_slice(&checkpoint.read_file(name)?)
            .map_err(|error| Error::file(checkpoint.folder().join(name), error))?;
        Ok(Resumed { state, progress: checkpoint.manifest().progress.clone() })
    }

    /// Warns of what cannot be the same as in the run that was saved.
    pub(super) fn warn_of_changes(&self, checkpoint: &Checkpoint) -> Result<()> {
        let now = serde_json::to_value(&self.config)
            .map_err(|error| Error::Usage(format!("cannot compare configs: {error}")))?;
        let changed = changes(&checkpoint.manifest().config, &now);
        if !changed.is_empty() {
            tracing::warn!(
                "the run does not go on as it was saved, with other settings: {}",
                changed.join(", ")
            );
        }
        let (batch, saved) = (self.spec.batch, &checkpoint.manifest().progress.data);
        let sequences = (batch.sequences * batch.accumulation) as u64;
        if sequences != saved.batch && !self.config.checkpoint.ignore_data_skip {
            tracing::warn!(
                "steps have {sequences} sequences instead of {}: the run goes on at sequence {} of \
                 epoch {}",
                saved.batch,
                saved.example + 1,
                saved.epoch + 1
            );
        }
        let form = self.spec.model.attention_form();
        if form.dropout > 0.0 && self.spec.placement.options.lowering.fused_attention {
            tracing::warn!(
                "the dropout of cuDNN's attention does not follow the seed, so the resumed run is \
                 not bit-identical: --full_determinism uses one that does"
            );
        }
        Ok(())
    }
}

/// The settings that differ between the config of a checkpoint and that of the run.
fn changes(saved: &Value, now: &Value) -> Vec<String> {
    let mut changed = Vec::new();
    for section in SHARED {
        let Some(fields) = now[section].as_object() else { continue };
        for (key, value) in fields.iter().filter(|(key, _)| !FREE.contains(&key.as_str())) {
            let before = saved.get(section).and_then(|section| section.get(key));
            if before.unwrap_or(&Value::Null) != value {
                let before = before.map_or("unset".to_owned(), Value::to_string);
                changed.push(format!("{section}.{key} {value} instead of {before}"));
            }
        }
    }
    changed
}

/// Checks that data is that of a position, and moves batches to it. Returns where their schedule
/// begins if their size is another.
pub(super) fn go_on(
    batches: &mut Batches,
    now: &DataPosition,
    checkpoint: &Checkpoint,
    from_epoch_start: bool,
) -> Result<Option<Origin>> {
    let progress = &checkpoint.manifest().progress;
    let saved = &progress.data;
    if from_epoch_start {
        batches.origin = BatchOrigin { step: progress.step, epoch: saved.epoch, block: 0 };
    } else {
        if let Some(reason) = other_data(saved, now) {
            return Err(Error::Usage(format!(
                "cannot go on where {} stopped in its data: {reason}. Pass the data that it was \
                 trained on, or --ignore_data_skip to start the epoch with this",
                checkpoint.folder().display()
            )));
        }
        if batches.position(progress.step + progress.passed_over) == (saved.epoch, saved.example) {
            return Ok(None);
        }
        let origin = BatchOrigin { step: progress.step, epoch: saved.epoch, block: saved.example };
        batches.origin = origin;
    }
    let done = batches.origin.block as f64 / now.examples.max(1) as f64;
    let epochs = batches.origin.epoch as f64 + done;
    Ok(Some(Origin { step: progress.step, epochs, left: batches.steps_left() }))
}

/// How data differs from that of a checkpoint, if it does.
fn other_data(saved: &DataPosition, now: &DataPosition) -> Option<String> {
    if saved.examples != now.examples {
        return Some(format!("there are {} blocks instead of {}", now.examples, saved.examples));
    }
    if saved.seed != now.seed {
        return Some(format!("its order has seed {} instead of {}", now.seed, saved.seed));
    }
    (saved.checksum != now.checksum).then(|| "its tokens are others".to_owned())
}

/// The folder of TensorBoard's files of the run that is resumed, if it is still there.
pub(super) fn tensorboard_folder(output: &Path, name: &str) -> Option<PathBuf> {
    let folder = output.join("runs").join(name);
    (!name.is_empty() && folder.is_dir()).then_some(folder)
}
