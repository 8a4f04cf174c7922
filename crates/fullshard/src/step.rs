//! From a run config to the spec of its step. Everything is checked here, before a device is
//! touched.

use crate::config::{Compute, RunConfig, Scan};
use crate::error::{Error, Result};
use crate::format;
use fullshard_core::Platform;
use fullshard_models::AnyModel;
use fullshard_models::layers::{attention, fp8};
use fullshard_parallel::{Placement, PlacementOptions};
use fullshard_pjrt::CompileOptions;
use fullshard_step::{BatchShape, StepSpec, compiler_flags, dialect, loops_layers, lowering};

/// What indices of 32 bits can tell apart.
const MOST_TOKENS: usize = i32::MAX as usize;

/// The threads that the CPU's runtime has at most; each virtual device needs one of them in a
/// collective.
const MOST_VIRTUAL: usize = 256;

impl RunConfig {
    /// The spec of the step of a model on sequences of `tokens`.
    pub fn step_spec(&self, model: Box<dyn AnyModel>, tokens: usize) -> Result<StepSpec> {
        self.check_numbers()?;
        let batch = self.batch(tokens)?;
        let options = self.placement_options(model.as_ref())?;
        let placement = Placement::new(&model.tree(), self.devices(), &options)?;
        let optimizer =
            fullshard_optim::from_name(&self.optimizer.name, &self.optimizer_options())?;
        let limit = Some(self.optimizer.max_grad_norm).filter(|&limit| limit > 0.0);
        let spec = StepSpec::new(model, placement, optimizer, batch, limit)?;
        check_eight_bit(&spec)?;
        Ok(spec)
    }

    /// How programs of a model with such attention are compiled.
    pub fn compile_options(&self, attention: attention::Form) -> Result<CompileOptions> {
        self.check_graphs(attention.dropout)?;
        let options = CompileOptions::new(self.devices());
        let suiting = compiler_flags(self.platform(), attention).into_iter();
        let mut flags = suiting.chain(self.device.xla_flags.iter().map(String::as_str));
        Ok(flags.try_fold(options, |options, flag| options.flag_text(flag))?)
    }

    /// What a person should know of a step before it runs: fields without effect, and what is
    /// slower or other than it seems.
    pub fn warnings(&self, spec: &StepSpec) -> Vec<String> {
        let mut warnings = spec.placement.options.config.warnings();
        if spec.placement.options.config.settings.fp8 && self.platform() != Platform::Cuda {
            warnings.push(format!(
                "{} has no units for FP8 matmuls: numbers are rounded as on GPUs, and it takes \
                 longer than in bfloat16",
                self.platform().name()
            ));
        }
        let others = spec.eight_bit_products().map_or_else(Vec::new, |products| products.others);
        if !others.is_empty() {
            warnings.push(format!(
                "{} run in bfloat16, not in FP8, since a size is no multiple of {}: {}",
                format::count(others.len(), "matmul"),
                fp8::MULTIPLE,
                others.join(", ")
            ));
        }
        warnings
    }

    /// Refuses CUDA graphs of kernels that drop.
    fn check_graphs(&self, dropout: f64) -> Result<()> {
        let graphs = attention::GRAPHS_WITHOUT_CUDNN.split('=').next().unwrap_or_default();
        let has_kernels = |flag: &&String| flag.contains(graphs) && flag.contains("CUDNN");
        match self.device.xla_flags.iter().find(has_kernels) {
            Some(flag) if dropout > 0.0 && self.platform() == Platform::Cuda => {
                Err(Error::Usage(format!(
                    "--xla_flag {flag} puts cuDNN's kernels into CUDA graphs, where attention with \
                     dropout {dropout} would drop the same in every step: leave CUDNN out of it"
                )))
            }
            _ => Ok(()),
        }
    }

    fn check_numbers(&self) -> Result<()> {
        if self.platform() == Platform::Cpu && self.devices() > MOST_VIRTUAL {
            return Err(Error::Usage(format!(
                "--num_cores is {}, but a CPU can stand in for at most {MOST_VIRTUAL} devices: \
                 lower it, or ask `fullshard plan` about a larger machine",
                self.devices()
            )));
        }
        let schedule = &self.schedule;
        if schedule.no_sync && schedule.gradient_accumulation_steps == 1 {
            return Err(Error::Usage(
                "--no_sync does nothing to a single batch: add --gradient_accumulation_steps, or \
                 leave it out"
                    .into(),
            ));
        }
        let (limit, rate) = (self.optimizer.max_grad_norm, self.learning_rate());
        for (flag, value) in [("max_grad_norm", limit), ("learning_rate", rate)] {
            if !value.is_finite() || value < 0.0 {
                let expected = "must be a number of at least 0";
                return Err(Error::Usage(format!("--{flag} is {value}, but {expected}")));
            }
        }
        Ok(())
    }

    /// The batches of a step, if they can be counted.
    fn batch(&self, tokens: usize) -> Result<BatchShape> {
        let accumulation = self.schedule.gradient_accumulation_steps;
        let sequences = self.schedule.per_device_batch.saturating_mul(self.devices());
        let all = sequences.checked_mul(tokens).and_then(|all| all.checked_mul(accumulation));
        if all.is_none_or(|all| all > MOST_TOKENS) {
            return Err(Error::Usage(format!(
                "{sequences} sequences of {tokens} tokens, {accumulation} times, are more tokens \
                 than a step can have ({MOST_TOKENS}): lower --per_device_train_batch_size, \
                 --block_size or --gradient_accumulation_steps"
            )));
        }
        Ok(BatchShape {
            sequences,
            tokens,
            accumulation,
            sync_each_microbatch: !self.schedule.no_sync,
        })
    }

    fn placement_options(&self, model: &dyn AnyModel) -> Result<PlacementOptions> {
        let kind = self.platform();
        let scan_layers = match self.model.scan_layers {
            Scan::Auto => loops_layers(kind, model.dimensions().layers),
            Scan::True => true,
            Scan::False => false,
        };
        if self.fsdp.gather_ahead && !scan_layers {
            return Err(Error::Usage(
                "--gather_ahead is for scanned layers, and these are unrolled: add --scan_layers \
                 true, or leave it out"
                    .into(),
            ));
        }
        Ok(PlacementOptions {
            strategy: self.fsdp.strategy,
            config: self.fsdp.resolve(self.precision.compute.unwrap_or(Compute::Float32))?,
            remat: Some(self.remat()),
            scan_layers,
            gather_ahead: self.fsdp.gather_ahead,
            lowering: lowering(kind),
            dialect: dialect(kind),
            frozen: self.model.freeze.clone(),
        })
    }

    fn optimizer_options(&self) -> fullshard_optim::OptimizerOptions {
        let optimizer = &self.optimizer;
        fullshard_optim::OptimizerOptions {
            learning_rate: optimizer.learning_rate,
            weight_decay: optimizer.weight_decay,
            adam_beta1: optimizer.adam_beta1,
            adam_beta2: optimizer.adam_beta2,
            adam_epsilon: optimizer.adam_epsilon,
            arguments: optimizer.args.clone(),
        }
    }
}

/// Refuses FP8 where no matmul can be in it.
fn check_eight_bit(spec: &StepSpec) -> Result<()> {
    match spec.eight_bit_products() {
        Some(products) if products.fp8 == 0 && !products.others.is_empty() => {
            Err(Error::Usage(format!(
                "no matmul of a layer can run in FP8, `{}` the first: the tokens of a device and \
                 both sizes of a weight must be multiples of {}. Choose others, or compute in \
                 bfloat16",
                products.others[0],
                fp8::MULTIPLE
            )))
        }
        _ => Ok(()),
    }
}
