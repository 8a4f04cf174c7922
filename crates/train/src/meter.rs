//! What is worth knowing of the steps since the last log: loss, speed and memory.

use crate::report::Values;
use crate::runner::{Metrics, Runner};
use fullshard_step::Chip;
use fullshard_step::{Flops, utilization};
use std::time::{Duration, Instant};

/// Bytes that a device uses, and who says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceMemory {
    /// The most there were in use so far, as the device says.
    Measured(u64),
    /// What the compiled step needs, where the device does not tell.
    Compiled(u64),
}

impl DeviceMemory {
    /// What the first device of a runner uses.
    pub fn of(runner: &Runner<'_>) -> Option<DeviceMemory> {
        let program = &runner.program().program;
        let device = program.devices().first().copied().unwrap_or(0);
        let stats = runner.client().device(device).and_then(|device| device.memory_stats());
        if let Ok(stats) = stats {
            return Some(DeviceMemory::Measured(stats.peak.unwrap_or(stats.in_use)));
        }
        program.executable().memory().ok().map(|memory| DeviceMemory::Compiled(memory.total()))
    }

    /// The bytes.
    pub fn bytes(self) -> u64 {
        match self {
            DeviceMemory::Measured(bytes) | DeviceMemory::Compiled(bytes) => bytes,
        }
    }
}

/// The steps since the last log.
pub(crate) struct Meter {
    tokens: usize,
    devices: usize,
    flops: Flops,
    /// Operations a second of one device at most, if they are known.
    peak: Option<f64>,
    since: Instant,
    steps: u64,
    loss: f64,
    waited: Duration,
}

impl Meter {
    pub fn new(runner: &Runner<'_>) -> Meter {
        let spec = runner.spec();
        let tokens = spec.tokens_per_step();
        let parameters = spec.parameter_count();
        let flops = Flops::new(parameters, spec.model.dimensions(), tokens, spec.batch.tokens);
        let device = runner.program().program.devices().first().copied().unwrap_or(0);
        let kind = runner.client().device(device).map(|device| device.description().kind.clone());
        let chip = kind.ok().and_then(|kind| Chip::of_kind(&kind));
        Meter {
            tokens,
            devices: spec.placement.devices(),
            flops,
            peak: chip.and_then(|chip| chip.peak(spec.placement.wire.compute)),
            since: Instant::now(),
            steps: 0,
            loss: 0.0,
            waited: Duration::ZERO,
        }
    }

    /// A step is done.
    pub fn add(&mut self, metrics: Metrics, waited: Duration) {
        self.steps += 1;
        self.loss += f64::from(metrics.loss);
        self.waited += waited;
    }

    /// Time that was spent on something else does not count.
    pub fn leave_out(&mut self, time: Duration) {
        self.since += time;
    }

    /// What to log of the steps since the last time, and a new beginning.
    pub fn log(&mut self, last: Metrics, rate: f64, memory: Option<DeviceMemory>) -> Values {
        let now = Instant::now();
        let steps = self.steps.max(1) as f64;
        let step_time = now.duration_since(self.since).as_secs_f64() / steps;
        let mut values = Values::from([
            ("loss".to_owned(), (self.loss / steps).into()),
            ("grad_norm".to_owned(), f64::from(last.gradient_norm).into()),
            ("learning_rate".to_owned(), rate.into()),
            ("step_time".to_owned(), step_time.into()),
            ("tokens_per_second".to_owned(), (self.tokens as f64 / step_time).into()),
            ("input_wait".to_owned(), (self.waited.as_secs_f64() / steps).into()),
        ]);
        if let Some(peak) = self.peak {
            let share = |flops| utilization(flops, step_time, self.devices, peak);
            values.insert("mfu".to_owned(), share(self.flops.post).into());
            values.insert("mfu_palm".to_owned(), share(self.flops.palm).into());
        }
        if let Some(memory) = memory {
            values.insert("device_memory".to_owned(), memory.bytes().into());
        }
        (self.since, self.steps, self.loss, self.waited) = (now, 0, 0.0, Duration::ZERO);
        values
    }
}
