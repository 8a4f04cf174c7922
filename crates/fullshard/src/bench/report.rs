//! The report of `fullshard bench step`, with stable names.

use super::BenchOptions;
use super::attention::AttentionReport;
use super::collectives::PlannedCollective;
use crate::config::{ConfigSource, RunConfig};
use crate::error::{Error, Result};
use crate::units;
use fullshard_optim::Optimizer;
use fullshard_pjrt::hlo::{self, CollectiveSummary};
use fullshard_pjrt::{CompiledMemory, MemoryStats};
use fullshard_plan::{Breakdown, MemoryEstimate, ModuleCollectives, collectives_by_module};
use fullshard_step::{Chip, Flops, ModelSummary, StepSettings, StepSpec, UnitRow, utilization};
use fullshard_train::{Compiler, Measured, Runner};
use serde::Serialize;

/// The plan of a step, without using a device.
#[derive(Serialize)]
pub struct PlanReport {
    /// The model's config, if it is in a file.
    pub config: Option<ConfigSource>,
    /// The model.
    pub model: ModelSummary,
    /// The settings.
    pub settings: BenchSettings,
    /// The attention implementation.
    pub attention: AttentionReport,
    /// The FSDP units.
    pub units: Vec<UnitRow>,
    /// The estimated memory of a step.
    pub estimate: MemoryEstimate,
    /// The collectives of a forward and backward pass; `None` if a step all-gathers and reduces
    /// everything once.
    pub planned_collectives: Option<Vec<PlannedCollective>>,
    /// The units as a table.
    #[serde(skip)]
    pub table: String,
    /// The placement of every parameter as a table.
    #[serde(skip)]
    pub placement: String,
}

/// The settings of a benchmark.
#[derive(Serialize)]
pub struct BenchSettings {
    /// The platform.
    pub device: &'static str,
    /// The settings of the step.
    #[serde(flatten)]
    pub step: StepSettings,
    /// The learning rate; `None` if the optimizer does not use it.
    pub learning_rate: Option<f64>,
    /// Whether all steps use the same tokens.
    pub fixed_batch: bool,
    /// Random seed of weights and tokens.
    pub seed: u64,
    /// Number of warmup steps.
    pub warmup: usize,
    /// Number of measured steps; those of launches that are begun.
    pub steps: usize,
}

/// The plan and measurements of a step.
#[derive(Serialize)]
pub struct StepReport {
    /// The plan.
    #[serde(flatten)]
    pub plan: PlanReport,
    /// PJRT's name of the device.
    pub device_kind: String,
    /// The specs of the chip, if known.
    pub chip: Option<&'static Chip>,
    /// Compilation.
    pub compile: CompileReport,
    /// Step times.
    pub time: Measured,
    /// Tokens per second, over all devices.
    pub tokens_per_second: f64,
    /// Tokens per second and device.
    pub tokens_per_second_per_device: f64,
    /// FLOPs of a step.
    pub flops: Flops,
    /// Model FLOPs utilization.
    pub mfu: MfuReport,
    /// Memory per device.
    pub memory: MemoryReport,
    /// The collectives of the compiled step.
    pub collectives: Vec<CollectiveReport>,
    /// The same by the modules that cause them, most bytes first.
    pub collectives_by_module: Vec<ModuleCollectives>,
    /// Losses.
    pub loss: FirstAndLast,
    /// Gradient norms.
    pub gradient_norm: FirstAndLast,
    /// The breakdown of the step time, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breakdown: Option<Breakdown>,
    /// Why the requested breakdown failed.
    #[serde(skip)]
    pub breakdown_error: Option<Error>,
}

/// Compilation of a step.
#[derive(Serialize)]
pub struct CompileReport {
    /// Compile time of the step, in seconds.
    pub seconds: f64,
    /// Whether the step came from the cache.
    pub cached: bool,
    /// The SHA-256 of the step program's text.
    pub program: String,
    /// Seconds before the first step: tracing, compilation and initialization.
    pub setup_seconds: f64,
}

/// Fractions of the peak, if the peak of the device is known.
#[derive(Serialize)]
pub struct MfuReport {
    /// Peak FLOP/s per device.
    pub peak: Option<f64>,
    /// MFU with `6·N` FLOPs per token.
    pub mfu_6n: Option<f64>,
    /// MFU with attention FLOPs, as in PaLM.
    pub mfu_palm: Option<f64>,
    /// HFU, which counts rematerialization too, with `6·N`.
    pub hfu_6n: Option<f64>,
    /// HFU with attention FLOPs.
    pub hfu_palm: Option<f64>,
}

/// Bytes per device.
#[derive(Serialize)]
pub struct MemoryReport {
    #[serde(flatten)]
    /// The memory of the compiled step, by kind.
    pub compiled: CompiledMemory,
    /// The total.
    pub total: u64,
    /// The statistics of the first device, if it reports them.
    pub device: Option<MemoryStats>,
}

/// Identical collectives of a step.
#[derive(Serialize)]
pub struct CollectiveReport {
    /// The kind.
    pub kind: String,
    /// The communicated dtype.
    pub dtype: Option<String>,
    /// Whether it is asynchronous.
    pub asynchronous: bool,
    /// Whether it is in a loop.
    pub in_loop: bool,
    /// Number of devices in a group.
    pub group_size: Option<usize>,
    /// Number per step; `None` if the length of a loop is unknown.
    pub count: Option<u64>,
    /// Bytes of the full tensor of one of them.
    pub bytes: Option<u64>,
    /// Bytes per step.
    pub bytes_per_step: Option<u64>,
}

/// A value of the first and the last step.
#[derive(Serialize)]
pub struct FirstAndLast {
    /// The first step.
    pub first: f32,
    /// The last step.
    pub last: f32,
}

impl PlanReport {
    /// The plan of the step of a config.
    pub fn new(config: &RunConfig, options: &BenchOptions, spec: &StepSpec) -> Result<PlanReport> {
        let collectives = PlannedCollective::grouped(&spec.placement.collectives());
        let uses_learning_rate = uses_learning_rate(spec.optimizer.as_ref());
        Ok(PlanReport {
            config: config.model.config.clone(),
            model: spec.model_summary(),
            settings: BenchSettings {
                device: config.platform().name(),
                step: spec.settings(),
                learning_rate: uses_learning_rate.then(|| config.learning_rate()),
                fixed_batch: options.fixed_batch,
                seed: config.schedule.seed,
                warmup: options.warmup,
                steps: options.steps.next_multiple_of(spec.iterations_per_loop),
            },
            attention: AttentionReport::new(spec),
            estimate: MemoryEstimate::new(spec, config.platform())?,
            planned_collectives: (spec.batch.sync_each_microbatch || collectives.is_empty())
                .then_some(collectives),
            table: units::table(spec)?,
            placement: spec.placement.table(),
            units: spec.unit_rows(),
        })
    }
}

/// Whether an optimizer uses the learning rate.
fn uses_learning_rate(optimizer: &dyn Optimizer) -> bool {
    optimizer.scalars(1, 0.0) != optimizer.scalars(1, 1.0)
}

impl StepReport {
    /// The report of a measured runner.
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
        let (flops, hardware) = (spec.model_flops(), spec.hardware_flops());
        let peak = chip.and_then(|chip| chip.peak(spec.placement.comm.compute));
        let share = |flops| peak.map(|peak| utilization(flops, measured.step, devices, peak));
        let module = step.program.executable().optimized_program()?.module()?;
        plan.attention.compiled(&module, spec.iterations_per_loop);
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
            mfu: MfuReport {
                peak,
                mfu_6n: share(flops.flops_6n),
                mfu_palm: share(flops.palm),
                hfu_6n: share(hardware.flops_6n),
                hfu_palm: share(hardware.palm),
            },
            memory: MemoryReport {
                compiled: memory,
                total: memory.total(),
                device: device.memory_stats().ok(),
            },
            collectives: collectives(&module, spec.iterations_per_loop),
            collectives_by_module: collectives_by_module(spec, &module),
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
    /// Whether another differs only in size and count.
    pub fn is_like(&self, other: &CollectiveReport) -> bool {
        let traits = |it: &CollectiveReport| {
            (it.kind.clone(), it.dtype.clone(), it.asynchronous, it.in_loop, it.group_size)
        };
        traits(self) == traits(other)
    }
}

/// The collectives per step of a program of one or several steps.
fn collectives(module: &hlo::Module, steps: usize) -> Vec<CollectiveReport> {
    let per_step = |mut summary: CollectiveSummary| {
        let steps = steps as u64;
        // The loop of steps is not one of a step.
        summary.in_loop &= steps == 1 || summary.runs != Some(steps);
        summary.runs = summary.runs.map(|runs| runs / steps);
        summary
    };
    hlo::collectives(module).into_iter().map(per_step).map(Into::into).collect()
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
