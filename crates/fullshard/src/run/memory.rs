//! Checks whether a run fits, before compilation.

use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::format;
use fullshard_core::Platform;
use fullshard_parallel::Strategy;
use fullshard_pjrt::Client;
use fullshard_plan::{MemoryEstimate, wrap_fix};
use fullshard_step::{Chip, StepSpec};

/// The memory of each device.
pub struct Limit {
    /// Bytes per device.
    pub bytes: u64,
    /// Where the limit comes from.
    pub of: &'static str,
}

impl Limit {
    /// The limit that devices report, or that of the chip; virtual devices share the host memory.
    pub fn of(client: &Client, config: &RunConfig) -> Option<Limit> {
        if config.platform() == Platform::Cpu {
            let system = rustix::system::sysinfo();
            let bytes = u128::from(system.totalram) * u128::from(system.mem_unit);
            let bytes = u64::try_from(bytes).ok()? / config.local_devices().max(1) as u64;
            return Some(Limit { bytes, of: "host memory, shared by the devices" });
        }
        let device = client.device(0).ok()?;
        if let Some(bytes) = device.memory_stats().ok().and_then(|stats| stats.limit) {
            return Some(Limit { bytes, of: "the device" });
        }
        let chip = Chip::of_kind(&device.description().kind)?;
        Some(Limit { bytes: chip.memory as u64, of: chip.name })
    }
}

/// The memory that a run needs per device.
pub enum Needed {
    /// The estimate of a training step.
    Step(MemoryEstimate),
    /// The exact bytes of parameters, a lower bound for evaluation.
    Parameters(u64),
}

impl Needed {
    /// The memory of training or evaluation on a platform.
    pub fn new(spec: &StepSpec, kind: Platform, trains: bool) -> Result<Needed> {
        Ok(match trains {
            true => Needed::Step(MemoryEstimate::new(spec, kind)?),
            false => Needed::Parameters(spec.state_bytes()?.parameters),
        })
    }

    /// Rejects a run that cannot fit, and warns if it may not.
    pub fn check(&self, spec: &StepSpec, config: &RunConfig, limit: &Limit) -> Result<()> {
        match self {
            Needed::Step(estimate) => check_step(estimate, spec, config, limit),
            Needed::Parameters(bytes) => check_parameters(*bytes, limit),
        }
    }
}

/// Rejects evaluation of a model whose parameters alone do not fit.
fn check_parameters(needed: u64, limit: &Limit) -> Result<()> {
    if needed <= limit.bytes {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "the parameters need {} per device, but only {} are available ({}). Try more devices, or \
         a smaller model",
        format::bytes(needed),
        format::bytes(limit.bytes),
        limit.of
    )))
}

/// Rejects a step that cannot fit, and warns if it may not.
///
/// State is exact. The total estimate is within 13 % of compiled steps with default settings on
/// TPUs and GPUs, and within 25 % of those tried on CPU; for B200 it is 25 % too small. So a step
/// is rejected only if no such error would make it fit, and an accepted one may still run out of
/// memory.
fn check_step(
    estimate: &MemoryEstimate,
    spec: &StepSpec,
    config: &RunConfig,
    limit: &Limit,
) -> Result<()> {
    let (needed, available) = (format::bytes(estimate.total), format::bytes(limit.bytes));
    let state = estimate.parameters + estimate.optimizer;
    if state > limit.bytes
        || estimate.total as f64 > MemoryEstimate::MAX_OVERESTIMATE * limit.bytes as f64
    {
        return Err(Error::Usage(format!(
            "a step needs about {needed} per device, of which {} are parameters and optimizer \
             state, but only {available} are available ({}). {}",
            format::bytes(state),
            limit.of,
            fixes(spec, config, estimate, state > limit.bytes)
        )));
    }
    if estimate.total > limit.bytes {
        tracing::warn!(
            "a step needs about {needed} per device, but only {available} are available"
        );
    }
    Ok(())
}

/// Suggestions to make it fit.
fn fixes(spec: &StepSpec, config: &RunConfig, estimate: &MemoryEstimate, state: bool) -> String {
    let devices = config.devices();
    let mut fixes: Vec<String> = wrap_fix(spec).into_iter().collect();
    if config.fsdp.strategy == Strategy::NoShard && devices > 1 {
        fixes.push("shard the state (--fsdp full_shard)".to_owned());
    }
    if !state {
        if spec.placement.remat != fullshard_parallel::Remat::Full {
            fixes.push("--gradient_checkpointing".to_owned());
        }
        fixes.push("a smaller --per_device_train_batch_size or --block_size".to_owned());
    }
    if config.platform() != Platform::Cpu {
        fixes.push(format!("more devices than --num_cores {devices}"));
    }
    if estimate.optimizer > estimate.parameters {
        fixes.push("--optim adafactor, which has less state".to_owned());
    }
    fixes.push("a smaller model".to_owned());
    format!("Try {}", fixes.join(", or "))
}
