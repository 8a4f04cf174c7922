//! What `fullshard bench step` is told, and the recipe that follows from it. Everything is
//! checked here, before a device is touched.

use crate::error::{Error, Result};
use crate::target::Target;
use clap::{Args, ValueEnum};
use fullshard_graph::DType;
use fullshard_models::{CausalLm, from_file};
use fullshard_parallel::{FsdpConfig, FsdpConfigError, Options, Placement, Remat, Strategy};
use fullshard_pjrt::CompileOptions;
use fullshard_train::{Batch, Bench, Recipe, launches_ahead, loops_layers, pads_vocabulary};
use std::path::PathBuf;

#[derive(Args)]
pub struct StepArgs {
    /// The model: a Hugging Face config.json.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// How it is sharded: the path of an fsdp_config.json, or the JSON itself.
    #[arg(long, value_name = "FILE|JSON")]
    pub fsdp_config: Option<String>,
    /// What is sharded: full_shard, shard_grad_op or no_shard, and auto_wrap if you like.
    #[arg(long, value_name = "WORDS", default_value = "full_shard")]
    pub fsdp: String,
    #[command(flatten)]
    pub target: Target,
    /// How many devices.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    pub num_cores: usize,
    /// Sequences that all devices together compute at once.
    #[arg(long, value_name = "B", default_value_t = 8, value_parser = count)]
    pub batch: usize,
    /// Tokens in a sequence; by default all positions of the model.
    #[arg(long, value_name = "S", value_parser = count)]
    pub seq: Option<usize>,
    /// The optimizer: adamw, adafactor or sgd.
    #[arg(long, value_name = "NAME", default_value = "adamw")]
    pub optim: String,
    /// More for the optimizer, as key=value,key=value.
    #[arg(long, value_name = "ARGS", default_value = "")]
    pub optim_args: String,
    /// What layers remember for the way back; by default what the FSDP config says.
    #[arg(long, value_enum)]
    remat: Option<RematArg>,
    /// The type to compute in; by default what the FSDP config says.
    #[arg(long, value_enum)]
    dtype: Option<DTypeArg>,
    /// Whether equal layers are a loop; auto: on CPU always, on TPU above 8 layers, on GPUs never.
    #[arg(long, value_enum, default_value = "auto")]
    scan_layers: ScanArg,
    /// Gather the next layer of a loop while computing one.
    #[arg(long)]
    pub gather_ahead: bool,
    /// Batches whose gradients are added up before an update.
    #[arg(long, value_name = "A", default_value_t = 1, value_parser = count)]
    pub gradient_accumulation_steps: usize,
    /// Reduce gradients once a step rather than after each accumulated batch.
    #[arg(long)]
    pub no_sync: bool,
    /// Parameters that stay as they are, by name, with * for anything.
    #[arg(long, value_name = "PATTERN")]
    pub freeze: Vec<String>,
    /// Clip gradients to this norm; 0 does not.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub max_grad_norm: f64,
    /// The learning rate of every step; by default 5e-5.
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,
    /// Steps to measure, once launched ahead and once one by one.
    #[arg(long, value_name = "K", default_value_t = 10, value_parser = count)]
    pub steps: usize,
    /// Steps before the clock runs.
    #[arg(long, value_name = "W", default_value_t = 2)]
    pub warmup: usize,
    /// The same tokens in every step, so that the loss falls.
    #[arg(long)]
    pub fixed_batch: bool,
    /// What weights and tokens are made up from.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// A flag of the compiler, such as xla_cpu_enable_fast_math=true.
    #[arg(long = "xla-flag", value_name = "NAME=VALUE")]
    xla_flags: Vec<String>,
    /// Compile anew, without the compile cache.
    #[arg(long)]
    pub no_cache: bool,
    /// Print units and a memory estimate, and stop before touching a device.
    #[arg(long)]
    pub plan: bool,
    /// Write the step as StableHLO text, to be compiled ahead of time, and stop before touching a
    /// device.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plan", "json"])]
    pub text: Option<PathBuf>,
    /// Print JSON for machines.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum RematArg {
    None,
    Dots,
    Full,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum DTypeArg {
    Float32,
    Bfloat16,
    Float16,
}

#[derive(Clone, Copy, ValueEnum)]
enum ScanArg {
    Auto,
    True,
    False,
}

/// What indices of 32 bits can tell apart.
const MOST_TOKENS: usize = i32::MAX as usize;

/// Trainer's default.
const LEARNING_RATE: f64 = 5e-5;

impl StepArgs {
    /// The learning rate of every step.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate.unwrap_or(LEARNING_RATE)
    }

    /// How steps are measured.
    pub fn bench(&self) -> Bench {
        Bench {
            warmup: self.warmup,
            steps: self.steps,
            ahead: launches_ahead(self.target.kind()),
            fixed_batch: self.fixed_batch,
            seed: self.seed,
            learning_rate: self.learning_rate(),
        }
    }

    /// How programs are compiled.
    pub fn compile_options(&self) -> Result<CompileOptions> {
        let options = CompileOptions::new(self.num_cores);
        let flag = |options: CompileOptions, flag: &String| options.flag_text(flag);
        Ok(self.xla_flags.iter().try_fold(options, flag)?)
    }

    /// The recipe of the step.
    pub fn recipe(&self) -> Result<Recipe> {
        self.check_numbers()?;
        let model = from_file(&self.config)?;
        let batch = self.batch(model.as_ref())?;
        let options = self.options(model.as_ref())?;
        let placement = Placement::new(&model.tree(), self.num_cores, &options)?;
        let optimizer = fullshard_optim::Options {
            learning_rate: self.learning_rate,
            arguments: self.optim_args.clone(),
            ..fullshard_optim::Options::default()
        };
        let optimizer = fullshard_optim::from_name(&self.optim, &optimizer)?;
        let limit = Some(self.max_grad_norm).filter(|&limit| limit > 0.0);
        Ok(Recipe::new(model, placement, optimizer, batch, limit)?)
    }

    fn check_numbers(&self) -> Result<()> {
        if self.no_sync && self.gradient_accumulation_steps == 1 {
            return Err(Error::Usage(
                "--no_sync does nothing to a single batch: add --gradient_accumulation_steps, or \
                 leave it out"
                    .into(),
            ));
        }
        for (flag, value) in
            [("max_grad_norm", self.max_grad_norm), ("learning_rate", self.learning_rate())]
        {
            if !value.is_finite() || value < 0.0 {
                let expected = "must be a number of at least 0";
                return Err(Error::Usage(format!("--{flag} is {value}, but {expected}")));
            }
        }
        Ok(())
    }

    /// The batches of a step, if they can be counted and cut.
    fn batch(&self, model: &dyn CausalLm) -> Result<Batch> {
        let batch = Batch {
            sequences: self.batch,
            tokens: self.seq.unwrap_or(model.dimensions().positions),
            accumulation: self.gradient_accumulation_steps,
            reduce_each: !self.no_sync,
        };
        let sizes = [batch.sequences, batch.tokens, batch.accumulation];
        let tokens = sizes.iter().try_fold(1_usize, |tokens, &size| tokens.checked_mul(size));
        if tokens.is_none_or(|tokens| tokens > MOST_TOKENS) {
            let [sequences, tokens, accumulation] = sizes;
            return Err(Error::Usage(format!(
                "{sequences} sequences of {tokens} tokens, {accumulation} times, are more tokens \
                 than a step can have ({MOST_TOKENS}): lower --batch, --seq or \
                 --gradient_accumulation_steps"
            )));
        }
        if !self.batch.is_multiple_of(self.num_cores) {
            let (batch, devices) = (self.batch, self.num_cores);
            return Err(fullshard_train::Error::Batch { batch, devices }.into());
        }
        Ok(batch)
    }

    fn options(&self, model: &dyn CausalLm) -> Result<Options> {
        let mut config = match &self.fsdp_config {
            Some(argument) => FsdpConfig::from_argument(argument)?,
            None => FsdpConfig::default(),
        };
        if let Some(dtype) = self.dtype {
            check_dtype(dtype, config.settings.stated_compute_dtype)?;
            config.settings.compute_dtype = dtype.dtype();
        }
        for warning in config.warnings() {
            tracing::warn!("{warning}");
        }
        let scan_layers = match self.scan_layers {
            ScanArg::Auto => loops_layers(self.target.kind(), model.dimensions().layers),
            ScanArg::True => true,
            ScanArg::False => false,
        };
        if self.gather_ahead && !scan_layers {
            return Err(Error::Usage(
                "--gather_ahead is for layers in a loop, and these are written out: add \
                 --scan_layers true, or leave it out"
                    .into(),
            ));
        }
        Ok(Options {
            strategy: self.fsdp.parse::<Strategy>()?,
            config,
            remat: self.remat.map(RematArg::remat),
            scan_layers,
            gather_ahead: self.gather_ahead,
            pad_vocabulary: pads_vocabulary(self.target.kind()),
            frozen: self.freeze.clone(),
        })
    }
}

/// Refuses a type that is not the one the FSDP config states.
fn check_dtype(asked: DTypeArg, stated: Option<DType>) -> Result<()> {
    match stated {
        Some(stated) if stated != asked.dtype() => {
            Err(Error::Fsdp(FsdpConfigError::Contradiction {
                first: format!("`--dtype {}`", asked.name()),
                second: format!("`compute_dtype: {}` of the FSDP config", dtype_name(stated)),
                way_out: "leave one of them out",
            }))
        }
        _ => Ok(()),
    }
}

/// A count as it is written on the command line.
fn count(text: &str) -> std::result::Result<usize, &'static str> {
    let count = text.parse().ok().filter(|&count| count > 0);
    count.ok_or("it must be a whole number of at least 1")
}

impl RematArg {
    fn remat(self) -> Remat {
        match self {
            RematArg::None => Remat::None,
            RematArg::Dots => Remat::Dots,
            RematArg::Full => Remat::Full,
        }
    }
}

impl DTypeArg {
    fn dtype(self) -> DType {
        match self {
            DTypeArg::Float32 => DType::F32,
            DTypeArg::Bfloat16 => DType::Bf16,
            DTypeArg::Float16 => DType::F16,
        }
    }

    fn of(dtype: DType) -> Option<DTypeArg> {
        DTypeArg::value_variants().iter().copied().find(|known| known.dtype() == dtype)
    }

    fn name(self) -> &'static str {
        match self {
            DTypeArg::Float32 => "float32",
            DTypeArg::Bfloat16 => "bfloat16",
            DTypeArg::Float16 => "float16",
        }
    }
}

/// The name that people give a type to compute in.
pub fn dtype_name(dtype: DType) -> &'static str {
    DTypeArg::of(dtype).map_or(dtype.name(), DTypeArg::name)
}
