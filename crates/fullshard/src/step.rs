//! Builds the step spec of a run config. Everything is validated here, before any device is used.

use crate::config::{
    AttentionChoice, CollectiveChoice, Compute, ContextChoice, OnSpike, RunConfig, Scan,
};
use crate::error::{Error, Result};
use crate::format;
use fullshard_core::{CollectiveKind, Platform};
use fullshard_data::hub::MAIN;
use fullshard_models::AnyModel;
use fullshard_models::layers::attention::context::ContextMethod;
use fullshard_models::layers::loss::CHUNKED_FROM;
use fullshard_models::layers::{attention, fp8};
use fullshard_parallel::rules::FSDP;
use fullshard_parallel::{GatherAhead, PlacementOptions, Staging};
use fullshard_pjrt::CompileOptions;
use fullshard_plan::staging::Chosen;
use fullshard_step::{
    BatchShape, StepSpec, check_offload, compiler_flags, dialect, lowering, overlap, scans_layers,
};

/// The range of 32-bit indices.
const MAX_TOKENS: usize = i32::MAX as usize;

/// The maximum number of threads of the CPU runtime; each virtual device needs one in a
/// collective.
const MAX_VIRTUAL_DEVICES: usize = 256;

impl RunConfig {
    /// The spec of a training step on sequences of `tokens`.
    pub fn step_spec(&self, model: Box<dyn AnyModel>, tokens: usize) -> Result<StepSpec> {
        self.check_numbers()?;
        let batch = self.batch(tokens)?;
        let options = self.placement_options(model.as_ref())?;
        let Chosen { mesh, gather: gather_staging, reduce: staging } = self.staged_mesh()?;
        let options = PlacementOptions { staging, gather_staging, ..options };
        let placement = self.placement(&model.tree(), &mesh, &options)?;
        let optimizer =
            fullshard_optim::from_name(&self.optimizer.name, &self.optimizer_options())?;
        let limit = Some(self.optimizer.max_grad_norm).filter(|&limit| limit > 0.0);
        let spec = StepSpec::new(model, placement, optimizer, batch, limit)?
            .with_iterations_per_loop(self.schedule.iterations_per_loop)?
            .with_loss_limit(self.guard.on_loss_spike == OnSpike::Skip);
        check_fp8(&spec)?;
        Ok(spec)
    }

    /// The compile options of programs with this attention.
    pub fn compile_options(&self, attention: attention::Form) -> Result<CompileOptions> {
        self.check_graphs(attention.dropout)?;
        let devices = match self.compiles_per_process() {
            true => self.local_devices(),
            false => self.devices(),
        };
        let options = CompileOptions::new(devices);
        let defaults = compiler_flags(self.platform(), attention).into_iter();
        let deterministic = self.is_deterministic_gpu().then_some("xla_gpu_deterministic_ops=true");
        let overlap = self.machine()?.map(|machine| overlap(&machine.chip)).unwrap_or_default();
        let defaults = defaults.chain(deterministic).chain(overlap.flags.iter().copied());
        let mut flags = defaults.chain(self.device.xla_flags.iter().map(String::as_str));
        Ok(flags.try_fold(options, |options, flag| options.flag_text(flag))?)
    }

    /// Warnings about a step: fields without effect, and settings that are slower or different
    /// than expected.
    pub fn warnings(&self, spec: &StepSpec) -> Vec<String> {
        let mut warnings = spec.placement.options.config.warnings();
        warnings.extend(self.settings_without_effect(spec));
        warnings.extend(self.saving_without_effect());
        warnings.extend(self.guards_without_effect());
        if spec.placement.options.config.settings.fp8 && self.platform() != Platform::Cuda {
            warnings.push(format!(
                "{} has no FP8 matmul units: values are rounded as on GPUs, and steps are slower \
                 than in bfloat16",
                self.platform().name()
            ));
        }
        if spec.placement.remat.offloads() && !spec.placement.options.scan_layers {
            warnings.push(format!(
                "--remat {} may save no memory: the compiler moves activations of unrolled layers \
                 back early to hide the time; scan them (--scan_layers true)",
                spec.placement.remat
            ));
        }
        let others = spec.fp8_matmuls().map_or_else(Vec::new, |matmuls| matmuls.others);
        if !others.is_empty() {
            warnings.push(format!(
                "{} run in bfloat16, not in FP8: a dimension is not a multiple of {}: {}",
                format::count(others.len(), "matmul"),
                fp8::MULTIPLE,
                others.join(", ")
            ));
        }
        warnings
    }

    /// All warnings about a step that is about to run; a plan reports the last one itself.
    pub fn run_warnings(&self, spec: &StepSpec) -> Vec<String> {
        let one_unit = fullshard_plan::one_unit(spec);
        let one_unit = one_unit.map(|warning| format!("{}: {}", warning.what, warning.fix));
        self.warnings(spec).into_iter().chain(one_unit).collect()
    }

    /// Settings that have no effect on this model or platform, by name.
    fn settings_without_effect(&self, spec: &StepSpec) -> Vec<String> {
        let settings = &spec.placement.options.config.settings;
        let scanned = spec.placement.options.scan_layers;
        let (forward, backward) =
            (settings.optimization_barrier_in_forward, settings.optimization_barrier_in_backward);
        let (device, gpu) = (&self.device, self.platform() == Platform::Cuda);
        const BARRIER: &str = "a scan of layers is a barrier itself";
        let not_gpu = "only GPU clients have it";
        let no_model = !self.uses_hub_models();
        const NO_HUB: &str = "nothing is read from the hub";
        let eager = self.model.attention == AttentionChoice::Eager;
        // Elsewhere it changes projections and norms besides.
        let cpu = self.platform() == Platform::Cpu;
        let context = spec.placement.context_shards() > 1;
        let (head, form) = (spec.model.dimensions().head, spec.model.attention_form());
        let is_call =
            attention::call_unsupported_reason(spec.placement.comm.compute, head, form).is_none();
        let short = spec.batch.tokens < attention::BLOCKWISE_FROM;
        let axes = spec.placement.mesh.sizes().into_iter().filter(|&size| size > 1).count();
        let staged = self.fsdp.collective.is_staged();
        let ring = self.fsdp.collective == CollectiveChoice::Ring;
        let replicas = spec.placement.mesh.whole_axes();
        let replicas = replicas.iter().any(|(name, size)| *name != FSDP && *size > 1);
        let hybrid = self.fsdp.rules.is_none() && spec.placement.options.strategy.is_hybrid();
        let found = [
            (
                "--collective",
                staged && !ring && axes == 1,
                "the mesh has one axis, and no torus is known that it covers",
            ),
            (
                "--collective",
                ring && !permutes(spec),
                "no gradient that devices share is large enough for a ring",
            ),
            (
                "--fsdp: hybrid sharding",
                hybrid && axes > 0 && !replicas,
                "no axis besides fsdp has replicas; add one, such as --mesh data=2,fsdp=-1",
            ),
            (
                "--sequence_parallel",
                !self.mesh.sequence_parallel && spec.placement.tensor.is_none(),
                "the mesh has no axis tensor",
            ),
            (
                "--automatic_axes",
                !self.mesh.automatic.is_empty() && spec.placement.tensor.is_none(),
                "the mesh has no axis tensor",
            ),
            (
                "--context_method",
                self.mesh.context_method != ContextChoice::Gather && !context,
                "the mesh has no axis context",
            ),
            (
                "--attn_implementation",
                eager && context && cpu,
                "attention over a context axis is computed in blocks",
            ),
            (
                "--attn_implementation",
                eager && !context && cpu && short && !is_call,
                "sequences this short are computed so in any case",
            ),
            (
                "--logits_chunk_mib",
                self.remat.logits_chunk_mib.is_some()
                    && spec.model.dimensions().vocabulary < CHUNKED_FROM,
                "the logits of a vocabulary this small are computed at once",
            ),
            ("--model_revision", self.model.revision != MAIN && no_model, NO_HUB),
            (
                "--token",
                self.model.token.is_given() && no_model && self.data.dataset.is_none(),
                NO_HUB,
            ),
            ("`optimization_barrier_in_forward`", forward.is_some() && scanned, BARRIER),
            ("`optimization_barrier_in_backward`", backward.is_some() && scanned, BARRIER),
            (
                "`buffer_dtype`",
                settings.buffer_dtype.is_some() && !spec.model.has_buffers(),
                "the model has no buffers",
            ),
            ("--memory_fraction", device.memory_fraction.is_some() && !gpu, not_gpu),
            ("--preallocate", device.preallocate.is_some() && !gpu, not_gpu),
            (
                "--full_determinism",
                self.schedule.full_determinism && !gpu,
                "runs on this platform are always deterministic",
            ),
        ];
        let found = found.into_iter().filter(|(_, applies, _)| *applies);
        let found = found.map(|(name, _, reason)| format!("{name} has no effect: {reason}"));
        let keys = self.fsdp.multi_device_keys().join(", ");
        let alone = (self.devices() == 1 && !keys.is_empty())
            .then(|| format!("FSDP settings have no effect on one device: {keys}"));
        found.chain(alone).collect()
    }

    /// Whether a GPU is asked to repeat runs bit for bit.
    fn is_deterministic_gpu(&self) -> bool {
        self.schedule.full_determinism && self.platform() == Platform::Cuda
    }

    /// Rejects CUDA graphs of attention kernels with dropout.
    fn check_graphs(&self, dropout: f64) -> Result<()> {
        let graphs = attention::GRAPHS_WITHOUT_CUDNN.split('=').next().unwrap_or_default();
        let has_kernels = |flag: &&String| flag.contains(graphs) && flag.contains("CUDNN");
        match self.device.xla_flags.iter().find(has_kernels) {
            Some(flag) if dropout > 0.0 && self.platform() == Platform::Cuda => {
                Err(Error::Usage(format!(
                    "--xla_flag {flag} puts cuDNN's kernels into CUDA graphs, where attention with \
                     dropout {dropout} would use the same mask in every step: remove CUDNN from it"
                )))
            }
            _ => Ok(()),
        }
    }

    fn check_numbers(&self) -> Result<()> {
        if self.platform() == Platform::Cpu && self.local_devices() > MAX_VIRTUAL_DEVICES {
            return Err(Error::Usage(format!(
                "--num_cores is {}, but a CPU has at most {MAX_VIRTUAL_DEVICES} virtual devices: \
                 lower it, or use `fullshard plan` for a larger machine",
                self.devices()
            )));
        }
        let schedule = &self.schedule;
        if schedule.no_sync && schedule.gradient_accumulation_steps == 1 {
            return Err(Error::Usage(
                "--no_sync has no effect without gradient accumulation: add \
                 --gradient_accumulation_steps, or leave it out"
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

    /// The batch shape of a step, if its tokens can be indexed.
    fn batch(&self, tokens: usize) -> Result<BatchShape> {
        let accumulation = self.schedule.gradient_accumulation_steps;
        let sequences = self.schedule.per_device_batch.saturating_mul(self.batch_shards()?);
        let all = sequences.checked_mul(tokens).and_then(|all| all.checked_mul(accumulation));
        if all.is_none_or(|all| all > MAX_TOKENS) {
            return Err(Error::Usage(format!(
                "{sequences} sequences of {tokens} tokens and {accumulation} micro-batches exceed \
                 the maximum of {MAX_TOKENS} tokens per step: lower --per_device_train_batch_size, \
                 --block_size or --gradient_accumulation_steps"
            )));
        }
        let iterations = self.schedule.iterations_per_loop;
        if all.and_then(|all| all.checked_mul(iterations)).is_none_or(|all| all > MAX_TOKENS) {
            return Err(Error::Usage(format!(
                "{iterations} steps per launch exceed the maximum of {MAX_TOKENS} tokens per \
                 launch: lower --iterations_per_loop"
            )));
        }
        Ok(BatchShape {
            sequences,
            tokens,
            accumulation,
            sync_each_microbatch: !self.schedule.no_sync,
        })
    }

    /// The most bytes of logits at once, if they are given.
    fn chunk_bytes(&self) -> Result<Option<usize>> {
        let bytes = |mib: usize| mib.checked_mul(1 << 20).filter(|&bytes| bytes > 0);
        let invalid = || Error::Usage("--logits_chunk_mib is a number of MiB, at least 1".into());
        self.remat.logits_chunk_mib.map(|mib| bytes(mib).ok_or_else(invalid)).transpose()
    }

    fn placement_options(&self, model: &dyn AnyModel) -> Result<PlacementOptions> {
        let kind = self.platform();
        let scan_layers = match self.model.scan_layers {
            // Only a scan bounds the time that offloaded activations are on the device.
            Scan::Auto => self.remat().offloads() || scans_layers(kind, model.dimensions().layers),
            Scan::True => true,
            Scan::False => false,
        };
        let gather_ahead = self.fsdp.gather_ahead.given().unwrap_or_default();
        if gather_ahead != GatherAhead::Nothing && !scan_layers {
            return Err(Error::Usage(
                "--gather_ahead needs scanned layers: add --scan_layers true, or leave it out"
                    .into(),
            ));
        }
        check_offload(kind, &self.remat())?;
        let mut lowering = lowering(kind);
        // The kernel's backward pass has no fixed order of sums, and its dropout no seed.
        lowering.fused_attention &= !self.is_deterministic_gpu();
        if self.model.attention == AttentionChoice::Eager {
            lowering = lowering.eager();
        }
        lowering.chunk_bytes = self.chunk_bytes()?.or(lowering.chunk_bytes);
        Ok(PlacementOptions {
            strategy: self.strategy()?,
            rules: self.sharding_rules()?,
            sequence_parallel: self.mesh.sequence_parallel && model.has_residual_stream(),
            automatic_axes: self.mesh.automatic.clone(),
            context_method: match self.mesh.context_method {
                ContextChoice::Gather => ContextMethod::Gather,
                ContextChoice::Ring => ContextMethod::Ring,
            },
            staging: Staging::Flat,
            gather_staging: Staging::Flat,
            config: self.fsdp.resolve(self.precision.compute.unwrap_or(Compute::Float32))?,
            remat: Some(self.remat()),
            scan_layers,
            gather_ahead,
            lowering,
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

/// Whether gradients go around rings.
fn permutes(spec: &StepSpec) -> bool {
    let collectives = spec.placement.collectives();
    collectives.iter().any(|it| it.kind == CollectiveKind::CollectivePermute)
}

/// Rejects FP8 if no matmul can use it.
fn check_fp8(spec: &StepSpec) -> Result<()> {
    match spec.fp8_matmuls() {
        Some(matmuls) if matmuls.fp8 == 0 && !matmuls.others.is_empty() => {
            Err(Error::Usage(format!(
                "no layer matmul can run in FP8, such as `{}`: the tokens per device and both \
                 dimensions of a weight must be multiples of {}. Change them, or compute in \
                 bfloat16",
                matmuls.others[0],
                fp8::MULTIPLE
            )))
        }
        _ => Ok(()),
    }
}
