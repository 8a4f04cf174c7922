//! What `fullshard bench step` has to say, under names that stay.

use super::args::StepArgs;
use super::exchanges::ExchangeReport;
use crate::attention::AttentionReport;
use crate::error::Result;
use crate::plan;
use crate::step::dtype_name;
use fullshard_optim::Optimizer;
use fullshard_pjrt::hlo::{self, CollectiveSummary};
use fullshard_pjrt::{CompiledMemory, MemoryStats};
use fullshard_plan::{Breakdown, MemoryEstimate};
use fullshard_step::{Chip, Flops, StepSpec, UnitRow, utilization};
use fullshard_train::{Compiler, Measured, Runner};
use serde::Serialize;
use std::path::PathBuf;

/// What is known before a device is touched.
#[derive(Serialize)]
pub struct PlanReport {
    pub model: ModelReport,
    pub settings: SettingsReport,
    pub attention: AttentionReport,
    pub units: Vec<UnitRow>,
    pub estimate: MemoryEstimate,
    /// What a forward and backward pass exchanges; `None` where it is steps that do, gathering
    /// and reducing everything once.
    pub exchanges: Option<Vec<ExchangeReport>>,
    /// The units as a table.
    #[serde(skip)]
    pub table: String,
}

#[derive(Serialize)]
pub struct ModelReport {
    pub config: PathBuf,
    pub class: &'static str,
    pub parameters: usize,
    pub trained_parameters: usize,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub vocabulary: usize,
    pub positions: usize,
}

#[derive(Serialize)]
pub struct SettingsReport {
    pub device: &'static str,
    pub devices: usize,
    pub fsdp: &'static str,
    pub batch: usize,
    pub sequence: usize,
    pub gradient_accumulation_steps: usize,
    pub no_sync: bool,
    pub tokens_per_step: usize,
    pub optimizer: String,
    /// `None` where the optimizer chooses the size of its steps by itself.
    pub learning_rate: Option<f64>,
    pub max_grad_norm: Option<f64>,
    pub compute_dtype: &'static str,
    /// How many products of layers run in 8 bits, if they should.
    pub eight_bit_products: Option<usize>,
    /// The modules of those that should but do not.
    pub not_in_eight_bits: Vec<String>,
    pub reduce_dtype: &'static str,
    pub remat: &'static str,
    pub scan_layers: bool,
    pub gather_ahead: bool,
    pub frozen: Vec<String>,
    pub fixed_batch: bool,
    pub seed: u64,
    pub warmup: usize,
    pub steps: usize,
}

/// What was measured as well.
#[derive(Serialize)]
pub struct StepReport {
    #[serde(flatten)]
    pub plan: PlanReport,
    pub device_kind: String,
    pub chip: Option<&'static Chip>,
    pub compile: CompileReport,
    pub time: Measured,
    pub tokens_per_second: f64,
    pub tokens_per_second_per_device: f64,
    pub flops: Flops,
    pub mfu: MfuReport,
    pub memory: MemoryReport,
    pub collectives: Vec<CollectiveReport>,
    pub loss: FirstAndLast,
    pub gradient_norm: FirstAndLast,
    /// Where the time goes, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breakdown: Option<Breakdown>,
}

#[derive(Serialize)]
pub struct CompileReport {
    /// Seconds for the step alone.
    pub seconds: f64,
    /// Whether the step came from the cache.
    pub cached: bool,
    /// The SHA-256 of the step's text.
    pub program: String,
    /// Seconds for everything before the first step: tracing, compiling, making the state.
    pub setup_seconds: f64,
}

/// Shares of the peak, where the device has a known one.
#[derive(Serialize)]
pub struct MfuReport {
    /// Operations a second of one device at most.
    pub peak: Option<f64>,
    pub post: Option<f64>,
    pub palm: Option<f64>,
}

/// Bytes on each device.
#[derive(Serialize)]
pub struct MemoryReport {
    #[serde(flatten)]
    pub compiled: CompiledMemory,
    pub total: u64,
    /// What the first device itself says, where it does.
    pub device: Option<MemoryStats>,
}

/// Equal collectives of a step.
#[derive(Serialize)]
pub struct CollectiveReport {
    pub kind: String,
    pub dtype: Option<String>,
    pub asynchronous: bool,
    pub in_loop: bool,
    pub group_size: Option<usize>,
    /// How many run in a step; `None` if a loop's length is not known.
    pub count: Option<u64>,
    /// Bytes of the whole tensor for one of them.
    pub bytes: Option<u64>,
    pub bytes_per_step: Option<u64>,
}

#[derive(Serialize)]
pub struct FirstAndLast {
    pub first: f32,
    pub last: f32,
}

impl PlanReport {
    pub fn new(args: &StepArgs, spec: &StepSpec) -> Result<PlanReport> {
        let tree = spec.model.tree();
        let dimensions = spec.model.dimensions();
        let exchanges = ExchangeReport::grouped(&spec.placement.exchanges());
        Ok(PlanReport {
            model: ModelReport {
                config: args.config.clone(),
                class: tree.class,
                parameters: spec.parameter_count(),
                trained_parameters: spec.trained_count(),
                layers: dimensions.layers,
                hidden: dimensions.hidden,
                heads: dimensions.heads,
                vocabulary: dimensions.vocabulary,
                positions: dimensions.positions,
            },
            settings: SettingsReport::new(args, spec),
            attention: AttentionReport::new(spec),
            estimate: MemoryEstimate::new(spec, args.step.target.kind())?,
            exchanges: (spec.batch.reduce_each || exchanges.is_empty()).then_some(exchanges),
            table: plan::table(spec)?,
            units: spec.unit_rows(),
        })
    }
}

/// Whether the steps of an optimizer follow the learning rate.
fn follows_learning_rate(optimizer: &dyn Optimizer) -> bool {
    optimizer.scalars(1, 0.0) != optimizer.scalars(1, 1.0)
}

impl SettingsReport {
    fn new(args: &StepArgs, spec: &StepSpec) -> SettingsReport {
        let placement = &spec.placement;
        let follows = follows_learning_rate(spec.optimizer.as_ref());
        let products = spec.eight_bit_products();
        SettingsReport {
            device: args.step.target.kind().name(),
            devices: placement.devices(),
            fsdp: placement.options.strategy.name(),
            batch: spec.batch.sequences,
            sequence: spec.batch.tokens,
            gradient_accumulation_steps: spec.batch.accumulation,
            no_sync: !spec.batch.reduce_each,
            tokens_per_step: spec.tokens_per_step(),
            optimizer: args.step.optim.clone(),
            learning_rate: follows.then(|| args.step.rate()),
            max_grad_norm: spec.max_grad_norm,
            compute_dtype: dtype_name(placement.wire.compute),
            eight_bit_products: products.as_ref().map(|products| products.eight_bit),
            not_in_eight_bits: products.map_or_else(Vec::new, |products| products.others),
            reduce_dtype: dtype_name(placement.wire.reduce),
            remat: placement.remat.name(),
            scan_layers: placement.options.scan_layers,
            gather_ahead: placement.options.gather_ahead,
            frozen: placement.options.frozen.clone(),
            fixed_batch: args.fixed_batch,
            seed: args.seed,
            warmup: args.warmup,
            steps: args.steps,
        }
    }
}

impl StepReport {
    pub fn new(
        compiler: &Compiler<'_>,
        spec: &StepSpec,
        runner: &Runner<'_>,
        setup_seconds: f64,
        measured: Measured,
        mut plan: PlanReport,
    ) -> Result<StepReport> {
        let step = runner.program();
        let devices = spec.placement.devices();
        let device =
            compiler.client.device(step.program.devices().first().copied().unwrap_or(0))?;
        let chip = Chip::of_kind(&device.description().kind);
        let tokens = spec.tokens_per_step();
        let dimensions = spec.model.dimensions();
        let flops = Flops::new(plan.model.parameters, dimensions, tokens, spec.batch.tokens);
        let peak = chip.and_then(|chip| chip.peak(spec.placement.wire.compute));
        let share = |flops| peak.map(|peak| utilization(flops, measured.step, devices, peak));
        let module = step.program.executable().optimized_program()?.module()?;
        plan.attention.compiled(&module);
        let memory = step.program.executable().memory()?;
        let rate = tokens as f64 / measured.step;
        let (first, last) = (measured.first, measured.last);
        Ok(StepReport {
            device_kind: device.description().kind.clone(),
            chip,
            compile: CompileReport {
                seconds: step.time.as_secs_f64(),
                cached: step.cached,
                program: step.hash.clone(),
                setup_seconds,
            },
            tokens_per_second: rate,
            tokens_per_second_per_device: rate / devices as f64,
            flops,
            mfu: MfuReport { peak, post: share(flops.post), palm: share(flops.palm) },
            memory: MemoryReport {
                compiled: memory,
                total: memory.total(),
                device: device.memory_stats().ok(),
            },
            collectives: hlo::collectives(&module).into_iter().map(Into::into).collect(),
            loss: FirstAndLast { first: first.loss, last: last.loss },
            gradient_norm: FirstAndLast { first: first.gradient_norm, last: last.gradient_norm },
            time: measured,
            breakdown: None,
            plan,
        })
    }
}

impl CollectiveReport {
    /// Whether another differs in its size and number alone.
    pub fn is_like(&self, other: &CollectiveReport) -> bool {
        let traits = |it: &CollectiveReport| {
            (it.kind.clone(), it.dtype.clone(), it.asynchronous, it.in_loop, it.group_size)
        };
        traits(self) == traits(other)
    }
}

impl From<CollectiveSummary> for CollectiveReport {
    fn from(summary: CollectiveSummary) -> CollectiveReport {
        let count = summary.runs.map(|runs| runs.saturating_mul(summary.count));
        CollectiveReport {
            kind: summary.kind.to_string(),
            dtype: summary.element.map(|element| element.to_string()),
            asynchronous: summary.asynchronous,
            in_loop: summary.in_loop,
            group_size: summary.group_size,
            count,
            bytes: summary.bytes,
            bytes_per_step: summary.bytes.zip(count).map(|(bytes, count)| bytes * count),
        }
    }
}
