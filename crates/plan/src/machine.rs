//! Machines to plan for: accelerators and the network between them.

use crate::network::{Network, Streams};
use fullshard_core::{Chip, Platform, TpuSlice, UnknownAccelerator};

/// Accelerators and the network between them.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its name, such as `v4-8`, `h200:8` or `cpu:4`.
    pub name: String,
    /// The platform whose plugin compiles for it.
    pub kind: Platform,
    /// One of its devices.
    pub chip: Chip,
    /// Number of devices that a program sees.
    pub devices: usize,
    /// The network between them.
    pub network: Network,
    /// Bytes of device memory available to a program.
    pub memory: u64,
}

/// An unknown machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The name is unknown.
    #[error("unknown machine {name}: {hint}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The valid names.
        hint: String,
    },
    /// The chip has no performance figures.
    #[error("no performance figures for {name}: plan for one of {known}")]
    NoFigures {
        /// The requested name.
        name: String,
        /// Chips with figures.
        known: String,
    },
}

/// Latency in seconds between neighboring TPUs, from the Scaling Book and ASTRA-sim's model of v3.
const HOP: f64 = 1e-6;

/// Latency in seconds between GPUs, and the share of NVLink's rate that rings over it reach: of
/// the 450 GB/s of an HGX-H100 ASTRA-sim found 400 with 936 ns to match NCCL.
const SWITCH_HOP: f64 = 0.936e-6;
const SWITCH_SHARE: f64 = 400.0 / 450.0;

/// GPUs per switch.
const MAX_GPUS: usize = 8;

/// The most virtual CPU devices on one host.
const MAX_CPUS: usize = 1024;

/// Seconds for one thread to wake another.
const THREAD_HOP: f64 = 20e-6;

impl Machine {
    /// Parses a TPU slice (`v4-8`, `v4:2x2x1`), GPUs (`h200`, `h200:8`) or CPU cores (`cpu:4`).
    pub fn parse(text: &str) -> Result<Machine, MachineError> {
        let lower = text.trim().to_ascii_lowercase();
        let (name, count) = match lower.split_once(':') {
            Some((name, count)) => (name, Some(count)),
            None => (lower.as_str(), None),
        };
        match Chip::named(name) {
            Some(chip) if chip.tpu.is_none() => Machine::counted(text, chip, count),
            _ => Machine::slice(text, &lower),
        }
    }

    /// GPUs or CPU cores.
    fn counted(
        text: &str,
        chip: &'static Chip,
        count: Option<&str>,
    ) -> Result<Machine, MachineError> {
        let cpu = chip.platform == Platform::Cpu;
        let max = if cpu { MAX_CPUS } else { MAX_GPUS };
        let devices = count.map_or(Some(1), |count| count.parse().ok());
        let devices = devices.filter(|devices| (1..=max).contains(devices)).ok_or_else(|| {
            let hint = format!("use {0}:N with N from 1 to {max}, such as {0}:4", chip.short);
            MachineError::Unknown { name: text.to_owned(), hint }
        })?;
        let bandwidth = chip.link * chip.links as f64;
        let network = match cpu {
            true => Network::Switch { bandwidth, latency: THREAD_HOP },
            false => Network::Switch { bandwidth: SWITCH_SHARE * bandwidth, latency: SWITCH_HOP },
        };
        Ok(Machine {
            name: text.to_owned(),
            kind: chip.platform,
            chip: *chip,
            devices,
            network,
            memory: chip.usable.round() as u64,
        })
    }

    /// A slice of a TPU pod.
    fn slice(text: &str, lower: &str) -> Result<Machine, MachineError> {
        let slice = TpuSlice::parse(lower).map_err(|error| MachineError::Unknown {
            name: text.to_owned(),
            hint: hint(lower, &error),
        })?;
        let chip = slice.generation().chip().ok_or_else(|| {
            let known: Vec<&str> = Chip::ALL.iter().map(|chip| chip.short).collect();
            MachineError::NoFigures { name: text.to_owned(), known: known.join(", ") }
        })?;
        let dims = slice.dims().to_vec();
        let network = Network::Torus {
            wrap: slice.wrap()[..dims.len()].to_vec(),
            dims,
            link: chip.link,
            latency: HOP,
            streams: Streams::Sequential,
        };
        Ok(Machine {
            name: text.to_owned(),
            kind: Platform::Tpu,
            chip: *chip,
            devices: slice.devices(),
            network,
            memory: chip.usable.round() as u64,
        })
    }
}

impl Machine {
    /// The dimensions of the torus that device ids follow, the fastest-varying first: the cores of
    /// a chip, if programs see them, then the dimensions of the slice.
    pub fn torus_dims(&self) -> Option<Vec<usize>> {
        let Network::Torus { dims, .. } = &self.network else { return None };
        let chips: usize = dims.iter().product();
        let cores = self.devices.is_multiple_of(chips).then(|| self.devices / chips)?;
        Some([cores].into_iter().chain(dims.iter().copied()).filter(|&dim| dim > 1).collect())
    }
}

/// The valid names: slice sizes for a known TPU generation, otherwise all machines.
fn hint(lower: &str, error: &UnknownAccelerator) -> String {
    let generation = lower.split([':', '-']).next().unwrap_or_default();
    if Chip::named(generation).is_some_and(|chip| chip.tpu.is_some()) {
        return error.hint.clone();
    }
    let of = |tpu: bool| {
        let chips = Chip::ALL.iter().filter(|chip| chip.tpu.is_some() == tpu);
        chips.map(|chip| chip.short).collect::<Vec<_>>().join(", ")
    };
    format!(
        "use a TPU slice ({}) such as v4-8 or v4:2x2x1, or others ({}) with a count, as h200:8",
        of(true),
        of(false)
    )
}
