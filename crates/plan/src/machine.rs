//! Machines to plan for: accelerators and the network between them.

use crate::network::{Dcn, Fabric, Network, Streams};
use fullshard_core::{Chip, GpuTarget, Platform, TpuSlice, UnknownAccelerator};
use fullshard_parallel::GatherAhead;
use fullshard_step::overlap;

/// Accelerators and the network between them.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its name, such as `v4-8`, `2xv4-128`, `h200:8`, `h100:8x16` or `cpu:4`.
    pub name: String,
    /// The platform whose plugin compiles for it.
    pub kind: Platform,
    /// One of its devices.
    pub chip: Chip,
    /// Number of devices that a program sees.
    pub devices: usize,
    /// Number of hosts: GPU nodes, the hosts of TPU slices, or one for CPU cores.
    pub hosts: usize,
    /// The network between them.
    pub network: Network,
    /// Bytes of device memory available to a program.
    pub memory: u64,
}

/// The share of host memory that activations may take: processes need some themselves.
const HOST_SHARE: f64 = 0.9;

impl Machine {
    /// Bytes of host memory available to each device, where known.
    pub fn host_memory(&self) -> Option<u64> {
        self.chip.host_memory.map(|bytes| (HOST_SHARE * bytes) as u64)
    }

    /// What is all-gathered ahead by default, where it can be.
    pub fn gather_ahead(&self) -> GatherAhead {
        if self.devices > 1 { overlap(&self.chip).ahead } else { GatherAhead::Nothing }
    }
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
    /// Nothing is known of the network between its hosts.
    #[error("no published network between several slices or nodes of {chip}: plan for one")]
    NoDcn {
        /// The name of the chip.
        chip: &'static str,
    },
}

/// Latency in seconds between neighboring TPUs, from the Scaling Book and ASTRA-sim's model of v3.
const HOP: f64 = 1e-6;

/// Latency in seconds between GPUs, and the share of NVLink's rate that rings over it reach: of
/// the 450 GB/s of an HGX-H100 ASTRA-sim found 400 with 936 ns to match NCCL.
const SWITCH_HOP: f64 = 0.936e-6;
const SWITCH_SHARE: f64 = 400.0 / 450.0;

/// The share of an adapter's rate that NCCL reaches: of 400 Gb/s, which are 50 GB/s, its
/// developers expect 46 to 48 per adapter (NVIDIA/nccl-tests issue 290).
const NIC_SHARE: f64 = 47.0 / 50.0;

/// Latency in seconds between nodes: NCCL's own model of a hop of its rings over a network.
const NODE_HOP: f64 = 14e-6;

/// Latency in seconds between slices, through both hosts. Assumed: nothing is published, and only
/// small tensors depend on it.
const SLICE_HOP: f64 = 50e-6;

/// The most virtual CPU devices on one host.
const MAX_CPUS: usize = 1024;

/// Seconds for one thread to wake another.
const THREAD_HOP: f64 = 20e-6;

impl Machine {
    /// Parses TPU slices (`v4-8`, `v4:2x2x1`, `2xv4-128`), GPUs (`h200`, `h200:8`, `h100:8x16`) or
    /// CPU cores (`cpu:4`).
    pub fn parse(text: &str) -> Result<Machine, MachineError> {
        let lower = text.trim().to_ascii_lowercase();
        let (name, count) = lower.split_once(':').unwrap_or((&lower, "1"));
        match Chip::named(name) {
            Some(chip) if chip.platform == Platform::Cuda => Machine::gpus(text, chip, count),
            Some(chip) if chip.platform == Platform::Cpu => Machine::cores(text, chip, count),
            _ => Machine::slices(text, &lower),
        }
    }

    /// Nodes of GPUs.
    fn gpus(text: &str, chip: &'static Chip, count: &str) -> Result<Machine, MachineError> {
        let counts = GpuTarget::parse_counts(count);
        let (per_node, nodes) = counts.ok_or_else(|| {
            let hint = GpuTarget::counts_hint(chip.short);
            MachineError::Unknown { name: text.to_owned(), hint }
        })?;
        let bandwidth = SWITCH_SHARE * chip.link * chip.links as f64;
        let network = Network {
            fabric: Fabric::Switch { bandwidth, latency: SWITCH_HOP },
            island: per_node,
            dcn: dcn(chip, nodes, NIC_SHARE, NODE_HOP)?,
        };
        Ok(Machine::new(text, chip, nodes, network))
    }

    /// CPU cores of one host.
    fn cores(text: &str, chip: &'static Chip, count: &str) -> Result<Machine, MachineError> {
        let cores = count.parse().ok().filter(|cores| (1..=MAX_CPUS).contains(cores));
        let cores = cores.ok_or_else(|| {
            let hint = format!("use {0}:N with N from 1 to {MAX_CPUS}, such as {0}:4", chip.short);
            MachineError::Unknown { name: text.to_owned(), hint }
        })?;
        let fabric = Fabric::Switch { bandwidth: chip.link, latency: THREAD_HOP };
        Ok(Machine::new(text, chip, 1, Network { fabric, island: cores, dcn: None }))
    }

    /// Slices of TPU pods.
    fn slices(text: &str, lower: &str) -> Result<Machine, MachineError> {
        let slices = TpuSlice::parse(lower).map_err(|error| MachineError::Unknown {
            name: text.to_owned(),
            hint: hint(lower, &error),
        })?;
        let chip = slices.generation().chip().ok_or_else(|| {
            let known: Vec<&str> = Chip::ALL.iter().map(|chip| chip.short).collect();
            MachineError::NoFigures { name: text.to_owned(), known: known.join(", ") }
        })?;
        let dims = slices.dims().to_vec();
        let fabric = Fabric::Torus {
            wrap: slices.wrap()[..dims.len()].to_vec(),
            dims,
            link: chip.link,
            latency: HOP,
            streams: Streams::Sequential,
        };
        let network = Network {
            fabric,
            island: slices.devices_per_slice(),
            dcn: dcn(chip, slices.slices(), 1.0, SLICE_HOP)?,
        };
        Ok(Machine::new(text, chip, slices.hosts(), network))
    }

    fn new(text: &str, chip: &'static Chip, hosts: usize, network: Network) -> Machine {
        Machine {
            name: text.to_owned(),
            kind: chip.platform,
            chip: *chip,
            devices: network.devices(),
            hosts,
            network,
            memory: chip.usable.round() as u64,
        }
    }
}

impl Machine {
    /// The dimensions of the torus that device ids follow, the fastest-varying first: the cores of
    /// a chip, if programs see them, the dimensions of the slice, and the slices.
    pub fn torus_dims(&self) -> Option<Vec<usize>> {
        let Fabric::Torus { dims, .. } = &self.network.fabric else { return None };
        let chips: usize = dims.iter().product();
        let cores = self.network.island.is_multiple_of(chips);
        let cores = cores.then(|| self.network.island / chips)?;
        let islands = self.devices / self.network.island;
        let dims = [cores].into_iter().chain(dims.iter().copied()).chain([islands]);
        Some(dims.filter(|&dim| dim > 1).collect())
    }
}

/// The network between several islands, at a share of its nominal rate.
fn dcn(
    chip: &'static Chip,
    islands: usize,
    share: f64,
    latency: f64,
) -> Result<Option<Dcn>, MachineError> {
    if islands < 2 {
        return Ok(None);
    }
    let rate = share * chip.dcn.ok_or(MachineError::NoDcn { chip: chip.name })?;
    Ok(Some(Dcn { islands, rate, latency }))
}

/// The valid names: slice sizes for a known TPU generation, otherwise all machines.
fn hint(lower: &str, error: &UnknownAccelerator) -> String {
    let name = lower.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches('x');
    let generation = name.split([':', '-']).next().unwrap_or_default();
    if Chip::named(generation).is_some_and(|chip| chip.tpu.is_some()) {
        return error.hint.clone();
    }
    let of = |tpu: bool| {
        let chips = Chip::ALL.iter().filter(|chip| chip.tpu.is_some() == tpu);
        chips.map(|chip| chip.short).collect::<Vec<_>>().join(", ")
    };
    format!(
        "use a TPU slice ({}) such as v4-8 or v4:2x2x1, several as 2xv4-8, or others ({}) with a \
         count, as h200:8, or with nodes, as h200:8x4",
        of(true),
        of(false)
    )
}
