//! Metrics of the steps since the last log: loss, throughput and memory.

use crate::launch::Metrics;
use crate::report::Values;
use crate::runner::Runner;
use fullshard_step::Chip;
use fullshard_step::{Flops, utilization};
use std::time::{Duration, Instant};

/// Bytes used on a device, and their source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceMemory {
    /// Peak bytes in use so far, as the device reports.
    Measured(u64),
    /// What the compiled step needs, if the device does not report its usage.
    Compiled(u64),
}

impl DeviceMemory {
    /// The memory of the first device of a runner.
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
    /// The FLOPs of a step that MFU counts, and those that HFU counts.
    flops: (Flops, Flops),
    /// Peak FLOP/s of one device, if known.
    peak: Option<f64>,
    /// When the last launch was done.
    since: Instant,
    /// The time of the steps since the last log.
    time: Duration,
    steps: u64,
    /// Those of them that were done before the run was resumed.
    resumed: u64,
    loss: f64,
    waited: Duration,
}

impl Meter {
    pub fn new(runner: &Runner<'_>) -> Meter {
        let spec = runner.spec();
        let tokens = spec.tokens_per_step();
        let device = runner.program().program.devices().first().copied().unwrap_or(0);
        let kind = runner.client().device(device).map(|device| device.description().kind.clone());
        let chip = kind.ok().and_then(|kind| Chip::of_kind(&kind));
        Meter {
            tokens,
            devices: spec.placement.devices(),
            flops: (spec.model_flops(), spec.hardware_flops()),
            peak: chip.and_then(|chip| chip.peak(spec.placement.comm.compute)),
            since: Instant::now(),
            time: Duration::ZERO,
            steps: 0,
            resumed: 0,
            loss: 0.0,
            waited: Duration::ZERO,
        }
    }

    /// The time since the launch before, when one is done.
    pub fn launch_time(&mut self) -> Duration {
        let now = Instant::now();
        now.saturating_duration_since(std::mem::replace(&mut self.since, now))
    }

    /// Adds a step, with its share of the time of its launch.
    pub fn add(&mut self, metrics: Metrics, time: Duration, waited: Duration) {
        self.steps += 1;
        self.time += time;
        self.loss += f64::from(metrics.loss);
        self.waited += waited;
    }

    /// The steps since the last log and the sum of their losses.
    pub fn unlogged(&self) -> (u64, f64) {
        (self.steps, self.loss)
    }

    /// Goes on from the steps since the last log of a run that is resumed, which took no time here.
    pub fn resume(&mut self, steps: u64, loss: f64) {
        (self.steps, self.loss, self.resumed) = (steps, loss, steps);
        (self.time, self.waited) = (Duration::ZERO, Duration::ZERO);
    }

    /// Excludes time spent on something else.
    pub fn exclude(&mut self, time: Duration) {
        self.since += time;
    }

    /// The values to log for the steps since the last log; resets the meter.
    pub fn log(&mut self, last: Metrics, rate: f64, memory: Option<DeviceMemory>) -> Values {
        let steps = self.steps.max(1) as f64;
        let timed = self.steps.saturating_sub(self.resumed).max(1) as f64;
        let step_time = self.time.as_secs_f64() / timed;
        let mut values = Values::from([
            ("loss".to_owned(), (self.loss / steps).into()),
            ("grad_norm".to_owned(), f64::from(last.gradient_norm).into()),
            ("learning_rate".to_owned(), rate.into()),
            ("step_time".to_owned(), step_time.into()),
            ("tokens_per_second".to_owned(), (self.tokens as f64 / step_time).into()),
            ("input_wait".to_owned(), (self.waited.as_secs_f64() / timed).into()),
        ]);
        if let Some(peak) = self.peak {
            let (model, hardware) = self.flops;
            for (name, flops) in [
                ("mfu", model.flops_6n),
                ("mfu_palm", model.palm),
                ("hfu", hardware.flops_6n),
                ("hfu_palm", hardware.palm),
            ] {
                let share = utilization(flops, step_time, self.devices, peak);
                values.insert(name.to_owned(), share.into());
            }
        }
        if let Some(memory) = memory {
            values.insert("device_memory".to_owned(), memory.bytes().into());
        }
        (self.time, self.steps, self.resumed) = (Duration::ZERO, 0, 0);
        (self.loss, self.waited) = (0.0, Duration::ZERO);
        values
    }
}
