//! The model and the results at the end of a run, which are written somewhere in any case.

use super::{Output, Run};
use crate::config::SaveDtype;
use crate::error::{Error, Result};
use crate::format;
use fullshard_checkpoint::{ExportOptions, ModelNames, WeightDtype, free_bytes, write_config};
use fullshard_step::Ordered;
use fullshard_train::report::{Curve, Values};
use fullshard_train::{Runner, TrainSchedule, Trained};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of attempts to write the output folder before another one is used.
const ATTEMPTS: u32 = 3;

/// The time between attempts.
const PAUSE: Duration = Duration::from_secs(3);

impl Run {
    /// Writes the model and the results of training, and returns the size of the model. If the
    /// output folder cannot be written, they go to another, and the error names it.
    pub(super) fn write_results(
        &self,
        runner: &Runner<'_>,
        trained: &Trained,
        values: &Values,
        curve: &Curve,
    ) -> Result<u64> {
        let write = |output: &Output, attempt: u32| -> Result<u64> {
            let written = self.write_model(runner, output.folder()).and_then(|bytes| {
                if self.membership.job().is_first() {
                    output.config(&self.config)?;
                    output.training(&trained.state, values, curve)?;
                }
                Ok(bytes)
            });
            self.membership.agree(&format!("results/{attempt}"), written)
        };
        let mut attempt = 1;
        let reason = loop {
            match write(&self.output, attempt) {
                Ok(bytes) => return Ok(bytes),
                Err(error) if attempt == ATTEMPTS => break error,
                Err(error) => tracing::warn!("{error}; trying again"),
            }
            attempt += 1;
            std::thread::sleep(PAUSE);
        };
        let folder = self.rescue_folder(trained.state.global_step);
        tracing::warn!("{reason}; writing the model to {} instead", folder.display());
        write(&Output::in_folder(folder.clone()), attempt + 1).inspect_err(|_| {
            // Nothing is left of what could not be written there either.
            let _ = std::fs::remove_dir(&folder);
        })?;
        let reason = Box::new(reason);
        Err(Error::Rescued { folder, reason })
    }

    /// Where results go if the output folder cannot be written.
    fn rescue_folder(&self, step: u64) -> PathBuf {
        let parent = self.config.output.rescue_dir.clone().unwrap_or_else(std::env::temp_dir);
        let name = self.output.folder().file_name().unwrap_or_default().to_string_lossy();
        parent.join(format!("fullshard-{name}-step-{step}-{}", std::process::id()))
    }

    fn write_model(&self, runner: &Runner<'_>, folder: &Path) -> Result<u64> {
        let dtype = self.config.output.save_dtype.into();
        let max_shard_bytes = self.config.output.max_shard_size.0;
        let exported = runner.export(folder, &ExportOptions { max_shard_bytes, dtype })?;
        let Some(exported) = exported else { return Ok(0) };
        self.write_model_files(folder, dtype)?;
        Ok(exported.bytes)
    }

    /// Writes the config and the tokenizer of the model for `transformers`.
    pub(super) fn write_model_files(&self, folder: &Path, dtype: WeightDtype) -> Result<()> {
        let architecture = self.spec.model.class();
        let names = ModelNames { model_type: &self.model_type, architecture };
        write_config(folder, &self.model_config, names, dtype)?;
        Ok(self.tokenizer.save(folder)?)
    }

    /// Rejects a run whose model does not fit on the disk, and warns if its checkpoints do not.
    pub fn check_disk(&self, schedule: &TrainSchedule) -> Result<()> {
        let folder = self.output.folder();
        let free = free_bytes(folder)?;
        let elements = |slots: bool| -> Result<u64> {
            let state = self.spec.state()?.flatten();
            let counted = state.iter().filter(|tensor| slots || tensor.slot.is_none());
            let saved = counted.map(|tensor| self.spec.saved(tensor));
            Ok(saved.map(|saved| (saved.elements() * saved.names.len()) as u64).sum())
        };
        let dtype = WeightDtype::from(self.config.output.save_dtype);
        let model = elements(false)? * dtype.bytes() as u64;
        if free < model {
            let message = format!(
                "the model has {}, but {} has only {} free: make room, or name another --output_dir",
                format::bytes(model),
                folder.display(),
                format::bytes(free)
            );
            // A job that was restarted goes on: there may be room when it ends.
            if self.membership.generation.number == 0 {
                return Err(Error::Usage(message));
            }
            tracing::warn!("{message}");
        }
        let options = &self.config.checkpoint;
        let each = 4 * elements(!options.only_model)?;
        let planned = (1..=schedule.steps).filter(|&step| schedule.saves_after(step)).count();
        let kept = options.total_limit.map_or(planned, |limit| planned.min(limit + 1));
        let needed = model + each * kept as u64;
        if free < needed {
            tracing::warn!(
                "{} of {} need {}, but {} has only {} free: set --save_total_limit, or make room",
                format::count(kept, "checkpoint"),
                format::bytes(each),
                format::bytes(needed),
                folder.display(),
                format::bytes(free)
            );
        }
        Ok(())
    }
}

impl From<SaveDtype> for WeightDtype {
    fn from(dtype: SaveDtype) -> WeightDtype {
        match dtype {
            SaveDtype::Float32 => WeightDtype::F32,
            SaveDtype::Bfloat16 => WeightDtype::BF16,
            SaveDtype::Float16 => WeightDtype::F16,
        }
    }
}
