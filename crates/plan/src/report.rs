//! The contents of a plan, for printing, JSON and the HTML page.
//!
//! Bytes are per device. Seconds are per step, except those of the start-up and of failures.

use crate::goodput::Goodput;
use crate::start_up::StartUp;
use fullshard_step::{ModelSummary, StepSettings};
use serde::Serialize;

/// A plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The machine planned for.
    pub machine: MachineSummary,
    /// The model.
    pub model: ModelSummary,
    /// The training settings.
    pub settings: StepSettings,
    /// Where the figures come from.
    pub basis: Basis,
    /// The SHA-256 of the step program's text, if one was built.
    pub program: Option<String>,
    /// Memory per device.
    pub memory: Memory,
    /// Step time.
    pub time: Time,
    /// Throughput, utilization and cost.
    pub rates: Rates,
    /// The start of the job.
    pub start_up: StartUp,
    /// The share of the time that is spent on steps when hosts fail.
    pub goodput: Goodput,
    /// The collectives.
    pub collectives: Vec<CollectiveTime>,
    /// The same by the modules that cause them, most bytes first.
    pub collectives_by_module: Vec<ModuleCollectives>,
    /// Warnings, with fixes.
    pub warnings: Vec<Warning>,
    /// Limits of the figures.
    pub notes: Vec<String>,
}

/// The machine of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MachineSummary {
    /// The name as given.
    pub name: String,
    /// The name of one device.
    pub chip: String,
    /// Number of devices.
    pub devices: usize,
    /// Number of slices or nodes.
    pub islands: usize,
    /// Devices in each dimension of the torus of a slice; empty for a switch.
    pub torus: Vec<usize>,
    /// Which of these dimensions are rings.
    pub wrap: Vec<bool>,
    /// Peak FLOP/s of one device in the compute dtype; not always known.
    pub peak: Option<f64>,
}

/// Where figures come from.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Basis {
    /// A formula.
    Quick,
    /// The compiler.
    Compiled {
        /// Compile time in seconds, of the original compile if cached.
        seconds: f64,
        /// Whether the executable came from the cache.
        cached: bool,
        /// The compiler, with its version.
        compiler: String,
    },
}

/// Memory of one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// Bytes available to a program.
    pub limit: u64,
    /// Bytes needed.
    pub total: u64,
    /// Bytes needed in host memory, which `total` does not include.
    pub host: u64,
    /// Bytes of host memory available to a device, where known.
    pub host_limit: Option<u64>,
    /// `total` by kind: parameters, optimizer, gradients, activations, temporaries.
    pub parts: Vec<Part>,
    /// The largest buffers that are live at the peak, the largest first.
    pub largest: Vec<LargeBuffer>,
}

impl Memory {
    /// Whether the step fits, in the memory of the device and of the host.
    pub fn fits(&self) -> bool {
        self.total <= self.limit && self.fits_host()
    }

    /// Whether what is in host memory fits, as far as known.
    pub fn fits_host(&self) -> bool {
        self.host_limit.is_none_or(|limit| self.host <= limit)
    }
}

/// A kind of memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// The kind.
    pub what: &'static str,
    /// Its bytes.
    pub bytes: u64,
}

/// A large buffer at the memory peak.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LargeBuffer {
    /// Its bytes.
    pub bytes: u64,
    /// Its type and dimensions, such as `bf16[32,1024,3072]`.
    pub shape: String,
    /// The instruction that produces it.
    pub instruction: String,
    /// The module it belongs to; empty if none.
    pub module: String,
}

/// The step time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Time {
    /// Total.
    pub step: f64,
    /// Compute.
    pub compute: f64,
    /// Exposed communication: not overlapped with compute.
    pub exposed: f64,
    /// The part of it in which a collective that is waited for itself waits for links that others
    /// use. All collectives take `hidden + exposed - contention`.
    pub contention: f64,
    /// Communication overlapped with compute.
    pub hidden: f64,
    /// By module, in execution order.
    pub modules: Vec<ModuleTime>,
}

/// The time of a module.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModuleTime {
    /// The path of the module, with a `*` for the layer number.
    pub module: String,
    /// Whether this is its backward pass.
    pub backward: bool,
    /// Seconds of compute.
    pub compute: f64,
    /// Seconds of exposed communication.
    pub exposed: f64,
}

/// Rates that follow from the step time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rates {
    /// Tokens per second over all devices.
    pub tokens_per_second: f64,
    /// MFU by the `6·N` convention; unknown without a peak.
    pub mfu: Option<f64>,
    /// MFU by PaLM's convention, with attention.
    pub mfu_palm: Option<f64>,
    /// HFU, which includes rematerialization, by `6·N`.
    pub hfu: Option<f64>,
    /// HFU by PaLM's convention.
    pub hfu_palm: Option<f64>,
    /// Days to train on the given number of tokens, without failures.
    pub days: Option<f64>,
    /// Cost of those days at the given price, in US dollars.
    pub cost_usd: Option<f64>,
}

/// Collectives of one kind and size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CollectiveTime {
    /// The kind by its XLA name, such as `all-gather`.
    pub kind: String,
    /// The mesh axes whose group communicates, such as `fsdp`, or `part of fsdp`.
    pub axis: String,
    /// Devices in a group.
    pub group: usize,
    /// Slices or nodes that a group spans.
    pub islands: usize,
    /// The dimensions of the torus that a group covers.
    pub dims: Vec<usize>,
    /// Number per step.
    pub count: u64,
    /// Bytes of one: those of the full tensor.
    pub bytes: u64,
    /// Total seconds.
    pub seconds: f64,
    /// Seconds of that overlapped with compute.
    pub hidden: f64,
}

impl CollectiveTime {
    /// Whether both are collectives of one kind and size over equal groups.
    pub(crate) fn is_like(&self, other: &CollectiveTime) -> bool {
        let group = |it: &CollectiveTime| (it.group, it.islands, it.bytes);
        self.kind == other.kind
            && group(self) == group(other)
            && self.axis == other.axis
            && self.dims == other.dims
    }
}

/// The collectives of one kind over the same axes that a module causes. Those that the compiler
/// inserted to reshard a tensor belong to the module of the op that needed it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModuleCollectives {
    /// The path of the module, with a `*` for the layer number; empty for none.
    pub module: String,
    /// Whether this is its backward pass.
    pub backward: bool,
    /// The kind by its XLA name, such as `all-gather`.
    pub kind: String,
    /// The mesh axes whose group communicates, as in [`CollectiveTime::axis`].
    pub axis: String,
    /// Devices in a group.
    pub group: usize,
    /// Number per step.
    pub count: u64,
    /// Bytes per step of the full tensors.
    pub bytes: u64,
    /// The most collectives that the compiler combined into one of them; the module is that of the
    /// first.
    pub combined: usize,
}

impl ModuleCollectives {
    /// The module, its pass and the number combined: `h.*.mlp, backward, first of 2`.
    pub fn cause(&self) -> String {
        let module = if self.module.is_empty() { "(no module)" } else { &self.module };
        let backward = if self.backward { ", backward" } else { "" };
        match self.combined {
            0 | 1 => format!("{module}{backward}"),
            combined => format!("{module}{backward}, first of {combined}"),
        }
    }

    /// The row of this module, kind and group.
    pub(crate) fn is_like(&self, other: &ModuleCollectives) -> bool {
        let key = |it: &ModuleCollectives| (it.backward, it.group);
        key(self) == key(other)
            && self.module == other.module
            && self.kind == other.kind
            && self.axis == other.axis
    }
}

/// A warning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Warning {
    /// The problem.
    pub what: String,
    /// How to fix it.
    pub fix: String,
}
