//! When and how a run saves checkpoints, by its config.

use super::{Run, end_stuck};
use crate::config::{RunConfig, SaveWhen, When};
use crate::error::{Error, Result};
use fullshard_checkpoint::sharded::{DataPosition, OnSave};
use fullshard_train::{BestMetric, Resumed, SaveOptions, Saving};
use std::sync::Arc;
use std::time::SystemTime;

/// What steers a run from outside.
pub struct Control<'a> {
    /// Whether to stop after the current launch.
    pub stop: &'a dyn Fn() -> bool,
    /// Whether to save a checkpoint after the current launch.
    pub save: &'a dyn Fn() -> bool,
    /// Called at the points of a save, from the threads that write.
    pub on_save: OnSave,
    /// Called on a thread of its own when a step takes longer than its deadline, after the stacks
    /// of all threads were written and the other processes told. The thread of the run cannot be
    /// stopped, so this should end the process, as the default does ([`end_stuck`]).
    pub on_stuck: OnStuck,
}

/// What is done when a step takes longer than its deadline.
pub type OnStuck = Arc<dyn Fn(&Error) + Send + Sync>;

impl Default for Control<'_> {
    /// A run that is left to its config.
    fn default() -> Self {
        let on_stuck = |error: &Error| {
            tracing::error!("{error}");
            end_stuck()
        };
        Control {
            stop: &|| false,
            save: &|| false,
            on_save: Arc::new(|_| {}),
            on_stuck: Arc::new(on_stuck),
        }
    }
}

impl Run {
    /// How checkpoints are saved, if they are.
    pub(super) fn saving<'a>(
        &self,
        control: &Control<'a>,
        position: &'a dyn Fn(u64) -> DataPosition,
        run: &str,
    ) -> Result<Option<Saving<'a>>> {
        let options = &self.config.checkpoint;
        if options.strategy == SaveWhen::No {
            return Ok(None);
        }
        let config = serde_json::to_value(&self.config)
            .map_err(|error| Error::Usage(format!("cannot write the config: {error}")))?;
        let save_options = SaveOptions {
            folder: self.output.folder().to_owned(),
            limit: options.total_limit,
            only_model: options.only_model,
            memory: options.memory.map(|size| size.0),
            config,
            on_save: Arc::clone(&control.on_save),
            in_memory: None,
        };
        Ok(Some(Saving {
            copies: self.copies(&save_options)?,
            options: save_options,
            run: run.to_owned(),
            seed: self.config.schedule.seed,
            position,
            requested: control.save,
            best: self.config.best_metric()?,
            on_best: options.strategy == SaveWhen::Best,
            load_best: options.load_best,
        }))
    }
}

impl Run {
    /// The name of the run: that of the one that is resumed, or a new one.
    pub(super) fn run_name(&self, resumed: Option<&Resumed>) -> Result<String> {
        if let Some(resumed) = resumed {
            return Ok(resumed.progress.run.clone());
        }
        let name = self.membership.job().first_says("run name", || Ok(new_run().into_bytes()))?;
        Ok(String::from_utf8_lossy(&name).into_owned())
    }
}

/// A name for a run.
fn new_run() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", now.as_micros(), std::process::id())
}

impl RunConfig {
    /// The metric that chooses the best checkpoint, if one is chosen.
    fn best_metric(&self) -> Result<Option<BestMetric>> {
        let options = &self.checkpoint;
        let chooses = options.load_best || options.strategy == SaveWhen::Best;
        if !chooses && options.metric.is_none() {
            return Ok(None);
        }
        let name = options.metric.as_deref().unwrap_or("loss");
        let name = if name.starts_with("eval_") { name.to_owned() } else { format!("eval_{name}") };
        let greater = options.greater_is_better.unwrap_or(!name.ends_with("loss"));
        Ok(Some(BestMetric { name, greater }))
    }

    /// Rejects settings of checkpoints that contradict each other, by the rules of Hugging Face's
    /// Trainer.
    pub(super) fn check_saving(&self) -> Result<()> {
        let (options, evaluation) = (&self.checkpoint, &self.evaluation);
        let usage = |text: String| Err(Error::Usage(text));
        let best = options.load_best || options.strategy == SaveWhen::Best;
        if best && evaluation.strategy == When::No {
            return usage(
                "the best checkpoint is chosen by evaluations: add --eval_strategy".into(),
            );
        }
        let metric = options.metric.as_deref().unwrap_or("loss");
        if !["loss", "eval_loss"].contains(&metric) {
            return usage(format!(
                "--metric_for_best_model is `{metric}`, but evaluations have only `loss`"
            ));
        }
        if options.load_best {
            let matches = match options.strategy {
                SaveWhen::Best => true,
                SaveWhen::No => false,
                SaveWhen::Epoch => evaluation.strategy == When::Epoch,
                SaveWhen::Steps => {
                    let each = evaluation.steps.unwrap_or(self.logging.steps);
                    evaluation.strategy == When::Steps && (options.steps / each).fract() == 0.0
                }
            };
            if !matches {
                return usage(format!(
                    "--load_best_model_at_end needs a checkpoint of every evaluation that may be \
                     the best: --save_strategy is {}, but --eval_strategy {}; make them the same, \
                     with --save_steps a multiple of --eval_steps, or use --save_strategy best",
                    options.strategy.name(),
                    evaluation.strategy.name()
                ));
            }
        }
        if options.replicate_state > 0 && options.only_model {
            return usage(
                "--replicate_state copies all of the state, which --save_only_model leaves out: \
                 leave out one of them"
                    .into(),
            );
        }
        if !(options.grace.is_finite() && options.grace >= 0.0) {
            return usage(format!(
                "--preemption_grace_s is {}, but must be a number of at least 0",
                options.grace
            ));
        }
        Ok(())
    }

    /// Settings of checkpoints that have no effect, by name.
    pub(crate) fn saving_without_effect(&self) -> Vec<String> {
        let options = &self.checkpoint;
        let off = options.strategy == SaveWhen::No;
        let best = options.load_best || options.strategy == SaveWhen::Best;
        const OFF: &str = "--save_strategy is no";
        const NOT_BEST: &str = "no best checkpoint is chosen without --load_best_model_at_end or \
                                --save_strategy best";
        const ANEW: &str = "the run does not resume";
        const NO_COPIES: &str = "--replicate_state is 0";
        let elsewhere = options.replicate_dir != crate::config::Checkpoint::default().replicate_dir;
        let trains = self.schedule.do_train.unwrap_or(true);
        let resumes = options.resume.is_some();
        let found = [
            ("save_total_limit", options.total_limit.is_some() && off, OFF),
            ("save_only_model", options.only_model && off, OFF),
            ("save_memory", options.memory.is_some() && off, OFF),
            ("replicate_state", options.replicate_state > 0 && off, OFF),
            ("replicate_dir", elsewhere && options.replicate_state == 0, NO_COPIES),
            ("metric_for_best_model", options.metric.is_some() && !best, NOT_BEST),
            ("greater_is_better", options.greater_is_better.is_some() && !best, NOT_BEST),
            ("ignore_data_skip", options.ignore_data_skip && !resumes, ANEW),
            ("resume_from_checkpoint", resumes && !trains, "the run does not train"),
        ];
        let found = found.into_iter().filter(|(_, applies, _)| *applies);
        found.map(|(flag, _, reason)| format!("--{flag} has no effect: {reason}")).collect()
    }
}
