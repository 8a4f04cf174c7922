//! What `fullshard bench step` has to say, under names that stay.

use super::BenchOptions;
use super::attention::AttentionReport;
use super::collectives::PlannedCollective;
use crate::config::{ConfigSource, RunConfig};
use crate::error::{Error, Result};
use crate::units;
use fullshard_optim::Optimizer;
use fullshard_pjrt::hlo::{self, CollectiveSummary};
use fullshard_pjrt::{CompiledMemory, MemoryStats};
use fullshard_plan::{Breakdown, MemoryEstimate};
use fullshard_step::{Chip, Flops, ModelSummary, StepSettings, StepSpec, UnitRow, utilization};
use fullshard_train::{Compiler, Measured, Runner};
use serde::Serialize;

/// What is known before a device is touched.
#[derive(Serialize)]
pub struct PlanReport {
    /// The model's config, if it is in a file.
    pub config: Option<ConfigSource>,
    /// The model.
    pub model: ModelSummary,
    /// The settings.
    pub settings: BenchSettings,
    /// The form of attention.
    pub attention: AttentionReport,
    /// The units.
    pub units: Vec<UnitRow>,
    /// The memory that a step should need.
    pub estimate: MemoryEstimate,
    /// The collectives of a forward and backward pass; `None` where a step gathers and reduces
    /// everything once.
    pub exchanges: Option<Vec<PlannedCollective>>,
    /// The units as a table.
    #[serde(skip)]
    pub table: String,
}

/// The settings of a benchmark.
#[derive(Serialize)]
pub struct BenchSettings {
    /// The platform.
    pub device: &'static str,
    /// Those of the step.
    #[serde(flatten)]
    pub step: StepSettings,
    /// `None` where the optimizer chooses the size of its steps by itself.
    pub learning_rate: Option<f64>,
    /// Whether all steps have the same tokens.
    pub fixed_batch: bool,
    /// Seed of weights and tokens.
    pub seed: u64,
    /// Steps before the clock ran.
    pub warmup: usize,
    /// Steps measured.
    pub steps: usize,
}

/// What was measured as well.
#[derive(Serialize)]
pub struct StepReport {
    /// What was known before.
    #[serde(flatten)]
    pub plan: PlanReport,
    /// What PJRT calls the device.
    pub device_kind: String,
    /// Its figures, if it is known.
    pub chip: Option<&'static Chip>,
    /// Compiling.
    pub compile: CompileReport,
    /// The times of steps.
    pub time: Measured,
    /// Tokens per second, over all devices.
    pub tokens_per_second: f64,
    /// Tokens per second and device.
    pub tokens_per_second_per_device: f64,
    /// The arithmetic of a step.
    pub flops: Flops,
    /// Model FLOPs utilization.
    pub mfu: MfuReport,
    /// Memory per device.
    pub memory: MemoryReport,
    /// The collectives of the compiled step.
    pub collectives: Vec<CollectiveReport>,
    /// Losses.
    pub loss: FirstAndLast,
    /// Gradient norms.
    pub gradient_norm: FirstAndLast,
    /// Where the time goes, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breakdown: Option<Breakdown>,
    /// Why it cannot be told, if it was asked for in vain.
    #[serde(skip)]
    pub breakdown_error: Option<Error>,
}

/// Compiling a step.
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
    /// By `6·N`.
    pub post: Option<f64>,
    /// With attention, as PaLM counts.
    pub palm: Option<f64>,
}

/// Bytes on each device.
#[derive(Serialize)]
pub struct MemoryReport {
    #[serde(flatten)]
    /// What the compiled step needs, by kind.
    pub compiled: CompiledMemory,
    /// In all.
    pub total: u64,
    /// What the first device itself says, where it does.
    pub device: Option<MemoryStats>,
}

/// Equal collectives of a step.
#[derive(Serialize)]
pub struct CollectiveReport {
    /// What it is.
    pub kind: String,
    /// The type on the wire.
    pub dtype: Option<String>,
    /// Whether it is asynchronous.
    pub asynchronous: bool,
    /// Whether it is in a loop.
    pub in_loop: bool,
    /// Devices in a group.
    pub group_size: Option<usize>,
    /// How many run in a step; `None` if a loop's length is not known.
    pub count: Option<u64>,
    /// Bytes of the whole tensor for one of them.
    pub bytes: Option<u64>,
    /// Bytes per step.
    pub bytes_per_step: Option<u64>,
}

/// A figure of the first and the last step.
#[derive(Serialize)]
pub struct FirstAndLast {
    /// Of the first step.
    pub first: f32,
    /// Of the last step.
    pub last: f32,
}

impl PlanReport {
    /// What is known of the step of a config.
    pub fn new(config: &RunConfig, options: &BenchOptions, spec: &StepSpec) -> Result<PlanReport> {
        let exchanges = PlannedCollective::grouped(&spec.placement.exchanges());
        let follows = follows_learning_rate(spec.optimizer.as_ref());
        Ok(PlanReport {
            config: config.model.config.clone(),
            model: spec.model_summary(),
            settings: BenchSettings {
                device: config.platform().name(),
                step: spec.settings(),
                learning_rate: follows.then(|| config.learning_rate()),
                fixed_batch: options.fixed_batch,
                seed: config.schedule.seed,
                warmup: options.warmup,
                steps: options.steps,
            },
            attention: AttentionReport::new(spec),
            estimate: MemoryEstimate::new(spec, config.platform())?,
            exchanges: (spec.batch.sync_each_microbatch || exchanges.is_empty())
                .then_some(exchanges),
            table: units::table(spec)?,
            units: spec.unit_rows(),
        })
    }
}

/// Whether the steps of an optimizer follow the learning rate.
fn follows_learning_rate(optimizer: &dyn Optimizer) -> bool {
    optimizer.scalars(1, 0.0) != optimizer.scalars(1, 1.0)
}

impl StepReport {
    /// What a runner measured.
    pub(super) fn new(
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
        let flops = Flops::new(spec.parameter_count(), dimensions, tokens, spec.batch.tokens);
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
            breakdown_error: None,
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
