//! What a run is planned for: so many accelerators and the network between them.

use crate::network::{Network, Streams};
use fullshard_core::{Chip, Platform, TpuSlice, UnknownAccelerator};

/// Accelerators and the network between them.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its name, as people write it: `v4-8`, `h200:8`, `cpu:4`.
    pub name: String,
    /// The plugin that compiles for it.
    pub kind: Platform,
    /// One of its devices.
    pub chip: Chip,
    /// How many devices a program sees.
    pub devices: usize,
    /// What is between them.
    pub network: Network,
    /// The bytes of a device's memory that a program may use.
    pub memory: u64,
}

/// A machine that there is not.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Nothing is known by this name.
    #[error("no machine is called {name}: {hint}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        hint: String,
    },
    /// There are no figures of it.
    #[error("nothing is known of the speed of {name}: plan for one of {known}")]
    NoFigures {
        /// What was asked for.
        name: String,
        /// What there are figures of.
        known: String,
    },
}

/// Seconds from one TPU to the next: what the Scaling Book and ASTRA-sim's model of v3 have.
const HOP: f64 = 1e-6;

/// Seconds from one GPU to another, and the share of NVLink's rate that rings over it reach: of
/// the 450 GB/s of an HGX-H100 ASTRA-sim found 400 with 936 ns to match NCCL.
const SWITCH_HOP: f64 = 0.936e-6;
const SWITCH_SHARE: f64 = 400.0 / 450.0;

/// GPUs that one switch connects.
const MOST_GPUS: usize = 8;

/// Virtual devices that one host can be asked for.
const MOST_CPUS: usize = 1024;

/// Seconds for one thread to wake another.
const THREAD_HOP: f64 = 20e-6;

impl Machine {
    /// Reads a TPU slice (`v4-8`, `v4:2x2x1`), so many GPUs (`h200`, `h200:8`) or cores (`cpu:4`).
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

    /// GPUs or cores.
    fn counted(
        text: &str,
        chip: &'static Chip,
        count: Option<&str>,
    ) -> Result<Machine, MachineError> {
        let cpu = chip.platform == Platform::Cpu;
        let most = if cpu { MOST_CPUS } else { MOST_GPUS };
        let devices = count.map_or(Some(1), |count| count.parse().ok());
        let devices = devices.filter(|devices| (1..=most).contains(devices)).ok_or_else(|| {
            let hint = format!("write {0}:N for N from 1 to {most}, such as {0}:4", chip.short);
            MachineError::Unknown { name: text.to_owned(), hint }
        })?;
        let outwards = chip.link * chip.links as f64;
        let network = match cpu {
            true => Network::Switch { bandwidth: outwards, latency: THREAD_HOP },
            false => Network::Switch { bandwidth: SWITCH_SHARE * outwards, latency: SWITCH_HOP },
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
            streams: Streams::InTurn,
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

/// What there is instead of something: sizes for a TPU that is known, or everything.
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
        "write a TPU slice ({}) as v4-8 or v4:2x2x1, and others ({}) with their number, as h200:8",
        of(true),
        of(false)
    )
}
