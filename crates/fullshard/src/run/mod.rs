//! A training run, from its config to its output files.
//!
//! [`Run::prepare`] validates flags and files, and then fetches weights that are not here, before
//! text is read, devices are used or anything is compiled. [`Run::corpora`], [`Run::client`], [`Run::start`] and [`Run::train`] follow, ordered
//! by cost. [`train()`] does all of it.

mod accounts;
mod copies;
mod data;
mod demo;
mod guard;
mod memory;
mod output;
mod recorder;
mod results;
mod resume;
mod saving;
mod schedule;
mod train;

pub use data::{Corpora, DataProgress, Purpose};
pub use demo::DemoText;
pub use guard::{STUCK, end_stuck};
pub use memory::{Limit, Needed};
pub use output::Output;
pub use saving::{Control, OnStuck};
pub use train::{Finished, Outcome, Started, TrainingSet, train, train_in};

use crate::config::RunConfig;
use crate::device::cache_root;
use crate::error::{Error, Result};
use crate::job::Membership;
use crate::model::ChosenModel;
use fullshard_checkpoint::sharded::Checkpoint;
use fullshard_checkpoint::{Lock, Weights};
use fullshard_data::Tokenizer;
use fullshard_models::AnyModel;
use fullshard_optim::Schedule;
use fullshard_pjrt::{Client, CompileOptions};
use fullshard_step::StepSpec;
use fullshard_train::TrainScheduleOptions;
use serde_json::Value;
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A validated run.
pub struct Run {
    /// The config, with all defaults resolved.
    pub config: RunConfig,
    /// What the run does.
    pub mode: RunMode,
    /// The spec of its training step.
    pub spec: StepSpec,
    /// The text of the demo, if it is one.
    pub demo: Option<DemoText>,
    /// The output folder.
    pub output: Output,
    tokenizer: Tokenizer,
    schedule: TrainScheduleOptions,
    lr_schedule: Schedule,
    compile_options: CompileOptions,
    /// The model's config.json.
    model_config: Value,
    /// Hugging Face's model type.
    model_type: String,
    weights: Option<Weights>,
    /// The checkpoints to resume from, the preferred one first.
    checkpoints: Vec<Checkpoint>,
    /// The place of this process in the job.
    membership: Arc<Membership>,
    /// The first process of a job holds the lock.
    _lock: Option<Lock>,
    /// The cache folder of tokens and the demo's text.
    cache: PathBuf,
    /// The client that counted the devices, if one did.
    client: Cell<Option<Client>>,
    /// The time of preparation and of tokens.
    data_time: Cell<Duration>,
}

/// What a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunMode {
    /// Train.
    pub train: bool,
    /// Evaluate while training.
    pub evaluate_during: bool,
    /// Evaluate at the end.
    pub evaluate: bool,
    /// Write logs for TensorBoard.
    pub tensorboard: bool,
}

/// The maximum default block size.
const MAX_DEFAULT_BLOCK: usize = 1024;

const NO_MODEL: &str = "no model given: pass a config.json with --config_name, a checkpoint \
     with --model_name_or_path, or a model type with --model_type gpt2";

impl Run {
    /// Validates a config and resolves its defaults.
    pub fn prepare(config: &RunConfig, progress: &mut dyn DataProgress) -> Result<Run> {
        Run::prepare_in(Arc::new(Membership::alone()), config, progress)
    }

    /// Validates a config and resolves its defaults, on every process of a job.
    pub fn prepare_in(
        membership: Arc<Membership>,
        config: &RunConfig,
        progress: &mut dyn DataProgress,
    ) -> Result<Run> {
        let start = Instant::now();
        config.check()?;
        let mut config = config.in_generation(&membership)?;
        let client = config.count_devices(&membership)?;
        if let Some(full) = membership.generation.full_processes {
            config.keep_batch(full)?;
        }
        let cache = match &config.data.cache_dir {
            Some(folder) => folder.join("fullshard"),
            None => cache_root()?,
        };
        let mode = RunMode::of(&config)?;
        let (schedule, lr_schedule) = (config.train_schedule()?, config.lr_schedule()?);
        let demo = config.data.demo.then(DemoText::new);
        let local =
            membership.once_per_host("model files", || config.with_local_files(progress))?;
        let chosen = ChosenModel::of(&local.model)?;
        let tokenizer = match &demo {
            Some(demo) => demo.tokenizer()?,
            None => tokenizer(&local, chosen.as_ref())?,
        };
        if demo.is_some() && chosen.is_none() {
            config.model.config = Some(DemoText::model(&tokenizer));
        }
        let chosen = match chosen {
            Some(chosen) => chosen,
            None => ChosenModel::of(&config.model)?.ok_or(Error::Usage(NO_MODEL.into()))?,
        };
        config.pin_revision(&local);
        let model_type = chosen.model_type();
        let ChosenModel { model, config: model_config, .. } = chosen;
        check_vocabulary(&tokenizer, model.dimensions().vocabulary)?;
        let tokens = config.block_tokens(model.as_ref(), Some(&tokenizer))?;
        let spec = config.step_spec(model, tokens)?;
        for warning in config.run_warnings(&spec) {
            tracing::warn!("{warning}");
        }
        let compile_options = config.compile_options(spec.model.attention_form())?;
        config.check_saving()?;
        config.check_guards(&spec)?;
        let restarted = membership.generation.number > 0;
        let resumes = (config.checkpoint.resume.is_some() || restarted) && mode.train;
        let (output, lock) = Output::take(&membership, &config, resumes)?;
        let mut checkpoints = match resumes {
            true => resume::find_in(&membership, &config, &spec)?,
            false => Vec::new(),
        };
        let copy = copies::prepare(&membership, &config, &spec, resumes, checkpoints.first())?;
        checkpoints.splice(0..0, copy);
        let weights = match checkpoints.is_empty() {
            true => {
                let folder =
                    membership.once_per_host("weights", || config.weights_folder(&local, progress));
                folder?.map(Weights::open).transpose()?
            }
            false => None,
        };
        if let Some(weights) = &weights {
            weights.check(&fullshard_train::model_tensors(&spec))?;
        }
        config.resolve_defaults(mode, tokens);
        Ok(Run {
            config,
            mode,
            spec,
            demo,
            output,
            tokenizer,
            schedule,
            lr_schedule,
            compile_options,
            model_config,
            model_type,
            weights,
            checkpoints,
            membership,
            _lock: lock,
            cache,
            client: Cell::new(client),
            data_time: Cell::new(start.elapsed()),
        })
    }

    /// The place of this process in the job.
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.spec.batch.tokens
    }

    /// The config with the files of the demo's text, which are written if needed; and their folder
    /// if it is temporary.
    fn resolved_data(&self) -> Result<(RunConfig, Option<TempDir>)> {
        let mut config = self.config.clone();
        let Some(demo) = &self.demo else { return Ok((config, None)) };
        let (files, folder) = demo.write(&self.cache)?;
        config.data.train_file = vec![files.train];
        config.data.validation_file = vec![files.validation];
        Ok((config, folder))
    }
}

impl RunMode {
    fn of(config: &RunConfig) -> Result<RunMode> {
        let evaluate_during = config.evaluation.strategy != crate::config::When::No;
        let mode = RunMode {
            train: config.schedule.do_train.unwrap_or(true),
            evaluate_during,
            evaluate: config.evaluation.do_eval.unwrap_or(evaluate_during),
            tensorboard: reports_to_tensorboard(&config.logging.report_to)?,
        };
        if !mode.train && !mode.evaluate {
            return Err(Error::Usage("nothing to do: add --do_train, --do_eval or both".into()));
        }
        Ok(mode)
    }
}

impl RunConfig {
    /// The step spec of this config, without anything else that training needs. A tokenizer limits
    /// the block size only if it is named.
    pub fn planned_spec(&self) -> Result<StepSpec> {
        self.check()?;
        let local = self.with_local_files(&mut ())?;
        let chosen = ChosenModel::of(&local.model)?.ok_or(Error::Usage(NO_MODEL.into()))?;
        let named = local.data.tokenizer.is_some() || chosen.tokenizer.is_some();
        let tokenizer = if named { Some(tokenizer(&local, Some(&chosen))?) } else { None };
        let tokens = self.block_tokens(chosen.model.as_ref(), tokenizer.as_ref())?;
        self.step_spec(chosen.model, tokens)
    }

    /// Tokens per block, validated against the positions of the model.
    fn block_tokens(&self, model: &dyn AnyModel, tokenizer: Option<&Tokenizer>) -> Result<usize> {
        let longest = tokenizer.and_then(Tokenizer::max_length).unwrap_or(usize::MAX);
        let positions = model.dimensions().positions;
        let Some(given) = self.data.block_size else {
            return Ok(MAX_DEFAULT_BLOCK.min(longest).min(positions));
        };
        if given > positions {
            return Err(Error::Usage(format!(
                "--block_size is {given}, but the model has {positions} positions: lower it, or \
                 raise the positions in the model's config"
            )));
        }
        if given > longest {
            tracing::warn!(
                "--block_size is {given}, but the maximum length of the tokenizer is {longest}"
            );
        }
        Ok(given.min(longest))
    }

    /// Sets all defaults, so that the config reproduces the run with the defaults of another
    /// version or machine.
    fn resolve_defaults(&mut self, mode: RunMode, tokens: usize) {
        self.device.platform = Some(self.platform());
        self.mesh.devices = Some(self.devices());
        self.data.block_size = Some(tokens);
        self.precision.compute.get_or_insert(crate::config::Compute::Float32);
        self.remat.policy = Some(self.remat());
        self.schedule.do_train = Some(mode.train);
        self.evaluation.do_eval = Some(mode.evaluate);
    }
}

fn tokenizer(config: &RunConfig, chosen: Option<&ChosenModel>) -> Result<Tokenizer> {
    let checkpoint = chosen.and_then(|chosen| chosen.tokenizer.as_ref());
    let checkpoint = checkpoint.map(|folder| folder.display().to_string());
    let name = config.data.tokenizer.clone().or(checkpoint);
    Ok(Tokenizer::open(name.as_deref().unwrap_or("gpt2"))?)
}

fn check_vocabulary(tokenizer: &Tokenizer, vocabulary: usize) -> Result<()> {
    if tokenizer.vocabulary() <= vocabulary {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "the tokenizer `{}` has {} tokens, but the model's vocabulary only {vocabulary}: raise \
         `vocab_size` in its config, or choose another --tokenizer_name",
        tokenizer.name(),
        tokenizer.vocabulary()
    )))
}

/// Whether to log to TensorBoard.
fn reports_to_tensorboard(names: &[String]) -> Result<bool> {
    let names = names.iter().flat_map(|name| name.split(','));
    names.map(str::trim).try_fold(false, |reports, name| match name {
        "tensorboard" | "all" => Ok(true),
        "none" => Ok(reports),
        _ => Err(Error::Usage(format!(
            "--report_to is `{name}`, but must be tensorboard, none or all"
        ))),
    })
}
