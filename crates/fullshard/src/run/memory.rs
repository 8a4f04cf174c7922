//! Whether a run will fit, before anything is compiled.

use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::format;
use fullshard_core::Platform;
use fullshard_parallel::Strategy;
use fullshard_pjrt::Client;
use fullshard_plan::MemoryEstimate;
use fullshard_step::{Chip, StepSpec};

/// The bytes that each device has, and whose they are.
pub struct Limit {
    /// How many.
    pub bytes: u64,
    /// Whose.
    pub of: &'static str,
}

impl Limit {
    /// What the devices say, or the table of chips; virtual devices share this machine's memory.
    pub fn of(client: &Client, config: &RunConfig) -> Option<Limit> {
        if config.platform() == Platform::Cpu {
            let system = rustix::system::sysinfo();
            let bytes = u128::from(system.totalram) * u128::from(system.mem_unit);
            let bytes = u64::try_from(bytes).ok()? / config.devices() as u64;
            return Some(Limit { bytes, of: "this machine's memory, shared by the devices" });
        }
        let device = client.device(0).ok()?;
        if let Some(bytes) = device.memory_stats().ok().and_then(|stats| stats.limit) {
            return Some(Limit { bytes, of: "the device" });
        }
        let chip = Chip::of_kind(&device.description().kind)?;
        Some(Limit { bytes: chip.memory as u64, of: chip.name })
    }
}

/// What a run needs on each device.
pub enum Needed {
    /// A training step, by estimate.
    Step(MemoryEstimate),
    /// The parameters alone, exactly: all that is known of an evaluation.
    Parameters(u64),
}

impl Needed {
    /// What training on devices of a kind needs, or evaluating.
    pub fn new(spec: &StepSpec, kind: Platform, trains: bool) -> Result<Needed> {
        Ok(match trains {
            true => Needed::Step(MemoryEstimate::new(spec, kind)?),
            false => Needed::Parameters(spec.state_bytes()?.parameters),
        })
    }

    /// Refuses what cannot fit, and warns of what hardly does.
    pub fn check(&self, spec: &StepSpec, config: &RunConfig, limit: &Limit) -> Result<()> {
        match self {
            Needed::Step(estimate) => check_step(estimate, spec, config, limit),
            Needed::Parameters(bytes) => check_parameters(*bytes, limit),
        }
    }
}

/// Refuses to evaluate a model that cannot fit even by itself.
fn check_parameters(needed: u64, limit: &Limit) -> Result<()> {
    if needed <= limit.bytes {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "the parameters take {} on each device, but there are {} ({}). Try more devices, or a \
         smaller model",
        format::bytes(needed),
        format::bytes(limit.bytes),
        limit.of
    )))
}

/// Refuses a step that cannot fit, and warns of one that hardly does.
///
/// State is exact. The estimate as a whole is within 13 % of compiled steps as they are by default
/// on TPUs and GPUs, and within a quarter of those that were tried on CPU; for B200 it is a quarter
/// too small. So a step is refused only if no such error would make it fit, and one that is let through
/// may still find no room.
fn check_step(
    estimate: &MemoryEstimate,
    spec: &StepSpec,
    config: &RunConfig,
    limit: &Limit,
) -> Result<()> {
    let (needed, there) = (format::bytes(estimate.total), format::bytes(limit.bytes));
    let state = estimate.parameters + estimate.optimizer;
    if state > limit.bytes || estimate.total as f64 > MemoryEstimate::SURE * limit.bytes as f64 {
        return Err(Error::Usage(format!(
            "a step needs about {needed} on each device, of which {} are parameters and optimizer \
             state, but there are {there} ({}). {}",
            format::bytes(state),
            limit.of,
            remedies(spec, config, estimate, state > limit.bytes)
        )));
    }
    if estimate.total > limit.bytes {
        tracing::warn!("a step needs about {needed} on each device, where {there} are");
    }
    Ok(())
}

/// What would make it fit.
fn remedies(spec: &StepSpec, config: &RunConfig, estimate: &MemoryEstimate, state: bool) -> String {
    let devices = config.devices();
    let mut ways = Vec::new();
    if config.fsdp.strategy == Strategy::NoShard && devices > 1 {
        ways.push("shard the state (--fsdp full_shard)".to_owned());
    }
    if config.platform() != Platform::Cpu {
        ways.push(format!("more devices than --num_cores {devices}"));
    }
    if !state {
        ways.push("a smaller --per_device_train_batch_size or --block_size".to_owned());
        if spec.placement.remat != fullshard_parallel::Remat::Full {
            ways.push("--gradient_checkpointing".to_owned());
        }
    }
    if estimate.optimizer > estimate.parameters {
        ways.push("--optim adafactor, which remembers less".to_owned());
    }
    ways.push("a smaller model".to_owned());
    format!("Try {}", ways.join(", or "))
}
