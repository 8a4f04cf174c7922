//! What a training step is made of, as flags: those that `bench step` and `train` share, so that
//! the step that is measured is the step that trains. Everything is checked here, before a device
//! is touched.

mod aim;
mod dtype;

pub use dtype::{compute_name, dtype_name};

use crate::error::{Error, Result};
use crate::flag::{count, switch};
use crate::target::Target;
use clap::{Args, ValueEnum};
use dtype::DTypeArg;
use fullshard_models::AnyModel;
use fullshard_models::layers::{attention, fp8};
use fullshard_parallel::{FsdpConfig, FsdpConfigError, Options, Placement, Remat, Strategy};
use fullshard_pjrt::plugins::PluginKind;
use fullshard_pjrt::{Client, CompileOptions};
use fullshard_step::{Batch, StepSpec, compiler_flags, dialect, forms, loops_layers};

#[derive(Args, Clone)]
#[command(next_help_heading = "The step")]
pub struct StepFlags {
    #[command(flatten)]
    pub target: Target,
    /// How many devices.
    #[arg(long, value_name = "N", value_parser = count, visible_alias = "tpu-num-cores")]
    num_cores: Option<usize>,
    /// What is sharded: full_shard, shard_grad_op or no_shard, and auto_wrap if you like.
    #[arg(long, value_name = "WORDS", default_value = "full_shard", num_args = 0..=1,
          default_missing_value = "full_shard")]
    pub fsdp: String,
    /// How it is sharded: the path of an fsdp_config.json, or the JSON itself.
    #[arg(long, value_name = "FILE|JSON")]
    pub fsdp_config: Option<String>,
    /// The optimizer: adamw (or Hugging Face's names for it), adafactor or sgd.
    #[arg(long, value_name = "NAME", default_value = "adamw")]
    pub optim: String,
    /// More for the optimizer, as key=value,key=value.
    #[arg(long, value_name = "ARGS", default_value = "")]
    optim_args: String,
    /// The learning rate, before any schedule; by default 5e-5.
    #[arg(long, value_name = "RATE")]
    pub learning_rate: Option<f64>,
    /// How much weights decay.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    weight_decay: f64,
    /// AdamW's first decay.
    #[arg(long, value_name = "X", default_value_t = 0.9)]
    adam_beta1: f64,
    /// AdamW's second decay.
    #[arg(long, value_name = "X", default_value_t = 0.999)]
    adam_beta2: f64,
    /// What AdamW divides by at least.
    #[arg(long, value_name = "X", default_value_t = 1e-8)]
    adam_epsilon: f64,
    /// Clip gradients to this norm; 0 does not.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    max_grad_norm: f64,
    /// Batches whose gradients are added up before an update.
    #[arg(long, value_name = "A", default_value_t = 1, value_parser = count)]
    pub gradient_accumulation_steps: usize,
    /// Reduce gradients once a step rather than after each accumulated batch.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = switch)]
    no_sync: bool,
    /// The type to compute in; by default what the FSDP config says.
    #[arg(long, value_enum)]
    dtype: Option<DTypeArg>,
    /// Compute in bfloat16: the same as --dtype bfloat16.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = switch)]
    bf16: bool,
    /// Compute in bfloat16, the matrix products of layers in 8 bits: the same as compute_dtype
    /// float8_e4m3fn in the FSDP config.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = switch)]
    fp8: bool,
    /// What layers remember for the way back; by default what the FSDP config says.
    #[arg(long, value_enum)]
    remat: Option<RematArg>,
    /// Compute layers again on the way back: the same as --remat full.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = switch)]
    gradient_checkpointing: bool,
    /// Whether equal layers are a loop; auto: on CPU always, on TPU above 8 layers, on GPUs never.
    #[arg(long, value_enum, default_value = "auto")]
    scan_layers: ScanArg,
    /// Gather the next layer of a loop while computing one.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = switch)]
    gather_ahead: bool,
    /// Parameters that stay as they are, by name, with * for anything.
    #[arg(long, value_name = "PATTERN")]
    freeze: Vec<String>,
    /// A flag of the compiler, such as xla_cpu_enable_fast_math=true.
    #[arg(long = "xla-flag", value_name = "NAME=VALUE")]
    xla_flags: Vec<String>,
    /// Compile anew, without the compile cache.
    #[arg(long)]
    pub no_cache: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum RematArg {
    /// Everything: the fastest, if it fits.
    None,
    /// What matrix products and attention give: hardly slower.
    Dots,
    /// Only what goes into a layer: the least memory.
    Full,
}

#[derive(Clone, Copy, ValueEnum)]
enum ScanArg {
    Auto,
    True,
    False,
}

/// What indices of 32 bits can tell apart.
const MOST_TOKENS: usize = i32::MAX as usize;

/// The threads that the CPU's runtime has at most; each virtual device needs one of them when they
/// exchange something.
const MOST_VIRTUAL: usize = 256;

/// Trainer's default.
const LEARNING_RATE: f64 = 5e-5;

/// How large a step is, and the flags that say so.
#[derive(Clone, Copy)]
pub struct StepSize {
    /// Sequences that all devices together compute at once.
    pub sequences: usize,
    /// Tokens in a sequence.
    pub tokens: usize,
    /// The flags that make it smaller.
    pub flags: &'static str,
}

impl StepFlags {
    /// How many devices.
    pub fn devices(&self) -> usize {
        self.num_cores.unwrap_or(1)
    }

    /// On so many devices, unless another number was asked for.
    pub fn or_devices(&mut self, devices: usize) {
        self.num_cores.get_or_insert(devices);
    }

    /// The learning rate.
    pub fn rate(&self) -> f64 {
        self.learning_rate.unwrap_or(LEARNING_RATE)
    }

    /// How programs of a model with such attention are compiled.
    pub fn compile_options(&self, attention: attention::Form) -> Result<CompileOptions> {
        let options = CompileOptions::new(self.devices());
        self.check_graphs(attention.dropout)?;
        let suiting = compiler_flags(self.target.kind(), attention).into_iter();
        let mut flags = suiting.chain(self.xla_flags.iter().map(String::as_str));
        Ok(flags.try_fold(options, |options, flag| options.flag_text(flag))?)
    }

    /// Refuses CUDA graphs of kernels that drop.
    fn check_graphs(&self, dropout: f64) -> Result<()> {
        let graphs = attention::GRAPHS_WITHOUT_CUDNN.split('=').next().unwrap_or_default();
        let has_kernels = |flag: &&String| flag.contains(graphs) && flag.contains("CUDNN");
        match self.xla_flags.iter().find(has_kernels) {
            Some(flag) if dropout > 0.0 && self.target.kind() == PluginKind::Cuda => {
                Err(Error::Usage(format!(
                    "--xla-flag {flag} puts cuDNN's kernels into CUDA graphs, where attention with \
                 dropout {dropout} would drop the same in every step: leave CUDNN out of it"
                )))
            }
            _ => Ok(()),
        }
    }

    /// The spec of the step of a model.
    pub fn spec(&self, model: Box<dyn AnyModel>, size: StepSize) -> Result<StepSpec> {
        self.check_numbers()?;
        let batch = self.batch(size)?;
        let options = self.options(model.as_ref())?;
        let placement = Placement::new(&model.tree(), self.devices(), &options)?;
        let optimizer = fullshard_optim::Options {
            learning_rate: self.learning_rate,
            weight_decay: self.weight_decay,
            adam_beta1: self.adam_beta1,
            adam_beta2: self.adam_beta2,
            adam_epsilon: self.adam_epsilon,
            arguments: self.optim_args.clone(),
        };
        let optimizer = fullshard_optim::from_name(&self.optim, &optimizer)?;
        let limit = Some(self.max_grad_norm).filter(|&limit| limit > 0.0);
        let spec = StepSpec::new(model, placement, optimizer, batch, limit)?;
        if let Some(products) = spec.eight_bit_products() {
            tell_of_others(&products)?;
        }
        Ok(spec)
    }

    /// The devices to run on, if there are as many as asked for.
    pub fn client(&self) -> Result<Client> {
        if self.target.kind() == PluginKind::Cpu {
            fullshard_pjrt::keep_freed_memory();
        }
        let (client, _) = self.target.client(self.devices())?;
        let (asked, there) = (self.devices(), client.devices().len());
        if asked <= there {
            return Ok(client);
        }
        Err(Error::Usage(format!(
            "--num_cores is {asked}, but there {} {} here: ask for at most {there}, or try it \
             with virtual ones, --device cpu",
            if there == 1 { "is" } else { "are" },
            crate::format::count(there, &format!("{} device", client.platform_name())),
        )))
    }

    fn check_numbers(&self) -> Result<()> {
        if self.target.kind() == PluginKind::Cpu && self.devices() > MOST_VIRTUAL {
            return Err(Error::Usage(format!(
                "--num_cores is {}, but a CPU can stand in for at most {MOST_VIRTUAL} devices: \
                 lower it, or ask `fullshard plan` about a larger machine",
                self.devices()
            )));
        }
        if self.no_sync && self.gradient_accumulation_steps == 1 {
            return Err(Error::Usage(
                "--no_sync does nothing to a single batch: add --gradient_accumulation_steps, or \
                 leave it out"
                    .into(),
            ));
        }
        for (flag, value) in [("max_grad_norm", self.max_grad_norm), ("learning_rate", self.rate())]
        {
            if !value.is_finite() || value < 0.0 {
                let expected = "must be a number of at least 0";
                return Err(Error::Usage(format!("--{flag} is {value}, but {expected}")));
            }
        }
        Ok(())
    }

    /// The batches of a step, if they can be counted and cut.
    fn batch(&self, size: StepSize) -> Result<Batch> {
        let StepSize { sequences, tokens, flags } = size;
        let accumulation = self.gradient_accumulation_steps;
        let all = sequences.checked_mul(tokens).and_then(|all| all.checked_mul(accumulation));
        if all.is_none_or(|all| all > MOST_TOKENS) {
            return Err(Error::Usage(format!(
                "{sequences} sequences of {tokens} tokens, {accumulation} times, are more tokens \
                 than a step can have ({MOST_TOKENS}): lower {flags} or \
                 --gradient_accumulation_steps"
            )));
        }
        let devices = self.devices();
        if !sequences.is_multiple_of(devices) {
            return Err(fullshard_step::Error::Batch { batch: sequences, devices }.into());
        }
        Ok(Batch { sequences, tokens, accumulation, reduce_each: !self.no_sync })
    }

    fn config(&self) -> Result<FsdpConfig> {
        match &self.fsdp_config {
            Some(argument) => Ok(FsdpConfig::from_argument(argument)?),
            None => Ok(FsdpConfig::default()),
        }
    }

    fn options(&self, model: &dyn AnyModel) -> Result<Options> {
        let mut config = self.config()?;
        self.choose_dtype(&mut config.settings)?;
        let kind = self.target.kind();
        if config.settings.fp8 && kind != PluginKind::Cuda {
            tracing::warn!(
                "{} has no units for products in 8 bits: numbers are rounded as on GPUs, and it \
                 takes longer than in bfloat16",
                kind.name()
            );
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
            remat: self.asked_remat()?,
            scan_layers,
            gather_ahead: self.gather_ahead,
            forms: forms(self.target.kind()),
            dialect: dialect(self.target.kind()),
            frozen: self.freeze.clone(),
        })
    }

    fn asked_remat(&self) -> Result<Option<Remat>> {
        match (self.remat, self.gradient_checkpointing) {
            (Some(RematArg::None | RematArg::Dots), true) => {
                Err(contradiction("`--remat`".into(), "`--gradient_checkpointing`".into()))
            }
            (_, true) => Ok(Some(Remat::Full)),
            (remat, false) => Ok(remat.map(RematArg::remat)),
        }
    }
}

/// Says which products do not run in 8 bits although they should; refuses if none does.
fn tell_of_others(products: &fp8::Products) -> Result<()> {
    let Some(first) = products.others.first() else { return Ok(()) };
    let multiple = fp8::MULTIPLE;
    if products.eight_bit == 0 {
        return Err(Error::Usage(format!(
            "no product of a layer can run in 8 bits, `{first}` the first: the tokens of a device \
             and both sizes of a weight must be multiples of {multiple}. Choose others, or compute \
             in bfloat16"
        )));
    }
    tracing::warn!(
        "{} run in bfloat16, not in 8 bits, since a size is no multiple of {multiple}: {}",
        crate::format::count(products.others.len(), "product"),
        products.others.join(", ")
    );
    Ok(())
}

fn contradiction(first: String, second: String) -> Error {
    let way_out = "leave one of them out";
    Error::Fsdp(FsdpConfigError::Contradiction { first, second, way_out })
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
