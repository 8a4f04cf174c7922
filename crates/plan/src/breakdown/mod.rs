//! Step time breakdown by kind of work, by module and by kernel, from a profile.
//!
//! A profile has kernels with their times; the compiled program has instructions with module paths
//! and shapes. [`launches`] matches the two, and this module adds them up. Times are in seconds
//! per step, and counts are per step.
//!
//! A kernel has the kind and the module of the instruction that launched it. A fusion is one
//! instruction with one path, that of its result, though it may include work of other modules.

mod kinds;
mod launches;
mod rows;

pub use kinds::Kind;
pub use rows::{KernelTime, KindTime, ModuleShare};

use crate::compiled::Paths;
use fullshard_models::AnyModel;
use fullshard_pjrt::hlo::Module;
use fullshard_pjrt::{DeviceProfile, Kernel};
use fullshard_step::Chip;
use serde::Serialize;

/// The step time breakdown.
#[derive(Debug, Clone, Serialize)]
pub struct Breakdown {
    /// The name of the device in the profile.
    pub device: String,
    /// Number of profiled steps.
    pub steps: usize,
    /// From the start of the first kernel to the end of the last, divided by the steps.
    pub span: f64,
    /// Time in which a kernel ran.
    pub busy: f64,
    /// Time in which no kernel ran.
    pub idle: f64,
    /// Time of concurrent kernels: the sum of kernel times minus `busy`.
    pub overlapped: f64,
    /// Time of kernels with unknown instructions.
    pub unknown: f64,
    /// By kind of work, longest first.
    pub kinds: Vec<KindTime>,
    /// By module and pass, longest first.
    pub modules: Vec<ModuleShare>,
    /// By kernel, longest first; equal kernels of equal layers are merged.
    pub kernels: Vec<KernelTime>,
}

/// Why a profile has no breakdown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BreakdownError {
    /// The profile has no GPU.
    #[error("the profile has no GPU; breakdowns need a profile of an NVIDIA GPU")]
    NoDevice,
    /// The program did not run.
    #[error("{device} ran no kernels of `{program}` while it was profiled")]
    NoKernels {
        /// The device.
        device: String,
        /// The program.
        program: String,
    },
}

/// Picoseconds in a second.
const PICOS: f64 = 1e12;

impl Breakdown {
    /// Breaks down the time of the profiled steps of a compiled program on the first device. Rates
    /// are relative to the chip, if it is known.
    pub fn new(
        devices: &[DeviceProfile],
        program: &Module,
        model: &dyn AnyModel,
        steps: usize,
        chip: Option<&Chip>,
    ) -> Result<Breakdown, BreakdownError> {
        let device = devices.first().ok_or(BreakdownError::NoDevice)?;
        let of_program = |kernel: &&Kernel| kernel.module.as_deref() == Some(&*program.name);
        let kernels: Vec<&Kernel> = device.kernels.iter().filter(of_program).collect();
        let (Some(first), Some(end)) =
            (kernels.first(), kernels.iter().map(|kernel| kernel.end()).max())
        else {
            let (device, program) = (device.name.clone(), program.name.clone());
            return Err(BreakdownError::NoKernels { device, program });
        };
        let steps = steps.max(1);
        let per_step = |picos: u64| picos as f64 / PICOS / steps as f64;
        let (span, busy) = (per_step(end - first.start), per_step(busy(&kernels)));
        let sum = per_step(kernels.iter().map(|kernel| kernel.duration).sum());
        let launched = launches::launched(program, &kernels, steps);
        let known = kernels.iter().copied().zip(&launched);
        let rows = rows::Rows::of(program, &Paths::new(model), chip, known, steps, span);
        Ok(Breakdown {
            device: device.name.clone(),
            steps,
            span,
            busy,
            idle: span - busy,
            overlapped: sum - busy,
            unknown: rows.unknown,
            kinds: rows.kinds(span - busy, span),
            modules: rows.modules,
            kernels: rows.kernels,
        })
    }
}

/// Picoseconds in which a kernel ran. Kernels are ordered by start.
fn busy(kernels: &[&Kernel]) -> u64 {
    let mut done = 0;
    let mut busy = 0;
    for kernel in kernels {
        busy += kernel.end().saturating_sub(done.max(kernel.start));
        done = done.max(kernel.end());
    }
    busy
}

#[cfg(test)]
mod tests;
