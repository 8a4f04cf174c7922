//! Where the time of a step went, by kind of work, by module and by kernel, read from a profile.
//!
//! A profile has kernels with their times; the compiled program has instructions with the paths of
//! modules and the shapes of what they move. [`launches`] brings the two together, and what is here
//! adds up. Times and counts are of one step, seconds throughout.
//!
//! A kernel counts as the kind and the module of the instruction that launched it. A fusion is one
//! instruction with one path, that of its result, though it may do work of its neighbours as well.

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

/// Where the time of a step went.
#[derive(Debug, Clone, Serialize)]
pub struct Breakdown {
    /// The device, as the profile calls it.
    pub device: String,
    /// The steps that were profiled.
    pub steps: usize,
    /// From the beginning of the first kernel to the end of the last, over the steps.
    pub span: f64,
    /// The time in which some kernel ran.
    pub busy: f64,
    /// The time in which none did.
    pub idle: f64,
    /// The time of kernels that ran beside others: their times add up to so much more than `busy`.
    pub overlapped: f64,
    /// The time of kernels of which the instruction is not known.
    pub unknown: f64,
    /// By kind of work, the longest first.
    pub kinds: Vec<KindTime>,
    /// By module and way, the longest first.
    pub modules: Vec<ModuleShare>,
    /// By kernel, the longest first; equal kernels of equal layers are one.
    pub kernels: Vec<KernelTime>,
}

/// Why a profile does not say where the time went.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BreakdownError {
    /// There is no GPU in it.
    #[error("the profile has no GPU in it; breakdowns are read from profiles of NVIDIA's GPUs")]
    NoDevice,
    /// The program did not run.
    #[error("{device} ran nothing of `{program}` while it was profiled")]
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
    /// Reads where so many steps of a compiled program spent their time on the first of some
    /// devices, of which speed and bandwidth may be known.
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
        let a_step = |picos: u64| picos as f64 / PICOS / steps as f64;
        let (span, busy) = (a_step(end - first.start), a_step(busy(&kernels)));
        let sum = a_step(kernels.iter().map(|kernel| kernel.duration).sum());
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

/// The picoseconds in which some kernel ran, of kernels in the order of beginning.
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
