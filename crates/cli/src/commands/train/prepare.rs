//! All that can be known of a run before its text is read: flags and files, checked.

use super::Mode;
use super::args::{TrainArgs, When};
use super::demo::DemoText;
use super::model::ChosenModel;
use super::output::Output;
use crate::error::{Error, Result};
use crate::step::StepSize;
use crate::target::cache_root;
use fullshard_checkpoint::Weights;
use fullshard_data::Tokenizer;
use fullshard_models::AnyModel;
use fullshard_optim::Schedule;
use fullshard_pjrt::CompileOptions;
use fullshard_step::StepSpec;
use fullshard_train::CourseOptions;
use serde_json::Value;
use std::path::PathBuf;

/// A run, ready to begin.
pub struct Prepared {
    pub args: TrainArgs,
    pub demo: Option<DemoText>,
    pub does: Does,
    pub course: CourseOptions,
    pub schedule: Schedule,
    pub compile_options: CompileOptions,
    pub spec: StepSpec,
    /// The model's config.json.
    pub config: Value,
    /// What Hugging Face calls this type of model.
    pub model_type: String,
    /// What the model begins with, if it does not begin anew.
    pub weights: Option<Weights>,
    pub tokenizer: Tokenizer,
    pub output: Output,
    /// Where tokens and the demo's text are kept.
    pub cache: PathBuf,
}

/// What a run does.
#[derive(Debug, Clone, Copy)]
pub struct Does {
    pub train: bool,
    /// Evaluate while training.
    pub evaluate_during: bool,
    /// Evaluate at the end.
    pub evaluate: bool,
    /// Write logs for TensorBoard.
    pub report: bool,
}

/// The most tokens in a block that nobody asked for.
const MOST_DEFAULT_BLOCK: usize = 1024;

const NO_MODEL: &str = "there is no model to train: name a config.json with --config_name, a \
     folder with weights with --model_name_or_path, or a type with --model_type gpt2";

impl Prepared {
    /// What the flags come to.
    pub fn new(mut args: TrainArgs, mode: Mode) -> Result<Prepared> {
        args.unsupported.check()?;
        let cache = match &args.model.cache_dir {
            Some(folder) => folder.join("fullshard"),
            None => cache_root()?,
        };
        let demo = match mode {
            Mode::Train if !args.names_data() => Some(DemoText::fill_in(&mut args)?),
            _ => None,
        };
        if args.run.adafactor {
            args.step.optim = "adafactor".to_owned();
        }
        let does = Does::of(&args, mode)?;
        let course = args.run.course()?;
        let schedule = args.run.schedule(&args.step)?;

        let chosen = ChosenModel::of(&args.model)?;
        let tokenizer = match &demo {
            Some(demo) => demo.tokenizer()?,
            None => tokenizer(&args, chosen.as_ref())?,
        };
        let chosen = match (chosen, &demo) {
            (Some(chosen), _) => chosen,
            (None, Some(demo)) => demo.model(&mut args, &tokenizer)?,
            (None, None) => return Err(Error::Usage(NO_MODEL.into())),
        };
        let model_type = chosen.model_type();
        let ChosenModel { model, config, weights, .. } = chosen;
        check_vocabulary(&tokenizer, model.dimensions().vocabulary)?;
        let spec = spec(&args, model, Some(&tokenizer))?;
        let compile_options = args.step.compile_options(spec.model.attention_form())?;
        if let Some(weights) = &weights {
            weights.check(&fullshard_train::model_tensors(&spec))?;
        }
        let folder = args.run.output_dir.clone().unwrap_or_else(|| "trainer_output".into());
        let output = Output::check(&folder, args.run.overwrite_output_dir)?;
        Ok(Prepared {
            args,
            demo,
            does,
            course,
            schedule,
            compile_options,
            spec,
            config,
            model_type,
            weights,
            tokenizer,
            output,
            cache,
        })
    }

    /// Tokens in a block.
    pub fn block(&self) -> usize {
        self.spec.batch.tokens
    }
}

impl Does {
    fn of(args: &TrainArgs, mode: Mode) -> Result<Does> {
        let evaluate_during = !matches!(args.run.eval_strategy, None | Some(When::No));
        let does = Does {
            train: args.run.do_train.unwrap_or(mode == Mode::Train),
            evaluate_during,
            evaluate: args.run.do_eval.unwrap_or(evaluate_during),
            report: reports_to_tensorboard(&args.run.report_to)?,
        };
        if !does.train && !does.evaluate {
            return Err(Error::Usage(
                "there is nothing to do: add --do_train, --do_eval or both".into(),
            ));
        }
        Ok(does)
    }
}

/// The spec of the step that these flags train with, without anything else that training needs.
/// A tokenizer has a say in the length of blocks only if it is named.
pub fn planned(args: &mut TrainArgs) -> Result<StepSpec> {
    args.unsupported.check()?;
    if args.run.adafactor {
        args.step.optim = "adafactor".to_owned();
    }
    let chosen = ChosenModel::of(&args.model)?.ok_or_else(|| Error::Usage(NO_MODEL.into()))?;
    let named = args.model.tokenizer_name.is_some() || chosen.tokenizer.is_some();
    let tokenizer = if named { Some(tokenizer(args, Some(&chosen))?) } else { None };
    spec(args, chosen.model, tokenizer.as_ref())
}

fn spec(
    args: &TrainArgs,
    model: Box<dyn AnyModel>,
    tokenizer: Option<&Tokenizer>,
) -> Result<StepSpec> {
    let longest = tokenizer.and_then(Tokenizer::max_length).unwrap_or(usize::MAX);
    let tokens = block_size(args.data.block_size, longest, model.dimensions().positions)?;
    let sequences = args.run.train_batch().saturating_mul(args.step.devices());
    let flags = "--per_device_train_batch_size, --block_size";
    args.step.spec(model, StepSize { sequences, tokens, flags })
}

fn tokenizer(args: &TrainArgs, chosen: Option<&ChosenModel>) -> Result<Tokenizer> {
    let own = chosen.and_then(|chosen| chosen.tokenizer.as_ref());
    let own = own.map(|folder| folder.display().to_string());
    let name = args.model.tokenizer_name.clone().or(own);
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

/// Tokens in a block: as asked for, if the model has as many positions.
fn block_size(asked: Option<usize>, longest: usize, positions: usize) -> Result<usize> {
    let Some(asked) = asked else {
        return Ok(MOST_DEFAULT_BLOCK.min(longest).min(positions));
    };
    if asked > positions {
        return Err(Error::Usage(format!(
            "--block_size is {asked}, but the model has {positions} positions: lower it, or raise \
             the positions in the model's config"
        )));
    }
    if asked > longest {
        tracing::warn!("--block_size is {asked}, but the tokenizer is made for {longest} at most");
    }
    Ok(asked.min(longest))
}

/// Whether logs go to TensorBoard.
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
