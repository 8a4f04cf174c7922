//! What a plan says, however it came about: for people, for machines and for the page.
//!
//! Bytes are of one device. Seconds are of one step.

use fullshard_step::{ModelSummary, StepSettings};
use serde::Serialize;

/// A plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What it is for.
    pub machine: MachineSummary,
    /// What is trained.
    pub model: ModelSummary,
    /// How it is trained.
    pub settings: StepSettings,
    /// Where the figures come from.
    pub basis: Basis,
    /// The SHA-256 of the step program's text, if one was made.
    pub program: Option<String>,
    /// What it needs.
    pub memory: Memory,
    /// How long a step takes.
    pub time: Time,
    /// What that comes to.
    pub rates: Rates,
    /// What is exchanged.
    pub collectives: Vec<Exchanged>,
    /// What is in the way, and what to do about it.
    pub warnings: Vec<Warning>,
    /// What the figures do not have in them.
    pub notes: Vec<String>,
}

/// The machine of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MachineSummary {
    /// As asked for.
    pub name: String,
    /// The name of one device.
    pub chip: String,
    /// How many devices.
    pub devices: usize,
    /// Devices in each dimension of a torus; empty for a switch.
    pub torus: Vec<usize>,
    /// Which of these dimensions are rings.
    pub wrap: Vec<bool>,
    /// Operations a second at most of one device in the type computed in; not always known.
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
        /// Seconds it took, perhaps some time ago.
        seconds: f64,
        /// Whether what it made was kept from before.
        cached: bool,
        /// The compiler, with its version.
        compiler: String,
    },
}

/// Memory of one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// What a program may use.
    pub limit: u64,
    /// What it needs.
    pub total: u64,
    /// That by kind: parameters, optimizer, gradients, activations, temporaries.
    pub parts: Vec<Part>,
    /// The largest buffers that are alive when most is, the largest first.
    pub largest: Vec<LargeBuffer>,
}

impl Memory {
    /// Whether it is there.
    pub fn fits(&self) -> bool {
        self.total <= self.limit
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

/// A buffer worth knowing of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LargeBuffer {
    /// Its bytes.
    pub bytes: u64,
    /// Its type and dimensions, such as `bf16[32,1024,3072]`.
    pub shape: String,
    /// The instruction that makes it.
    pub instruction: String,
    /// The module it belongs to; empty if it belongs to none.
    pub module: String,
}

/// The time of a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Time {
    /// All of it.
    pub step: f64,
    /// Computing.
    pub compute: f64,
    /// Communication that nothing is computed beside.
    pub exposed: f64,
    /// Communication behind computing.
    pub hidden: f64,
    /// By module, in the order of the step.
    pub modules: Vec<ModuleTime>,
}

/// The time of a module.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModuleTime {
    /// The path of the module, with a `*` for the layer of a loop.
    pub module: String,
    /// Whether it is the way back (gradients) rather than forward.
    pub backward: bool,
    /// Seconds of computing.
    pub compute: f64,
    /// Seconds of exposed communication.
    pub exposed: f64,
}

/// What the time of a step comes to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rates {
    /// Tokens a second over all devices.
    pub tokens_per_second: f64,
    /// The share of the peak by the post's formula, `6·N`; unknown without a peak.
    pub mfu: Option<f64>,
    /// By PaLM's, with attention.
    pub mfu_palm: Option<f64>,
    /// With what is computed again, by the post's formula.
    pub hfu: Option<f64>,
    /// And by PaLM's.
    pub hfu_palm: Option<f64>,
    /// Days for a number of tokens, if one was given.
    pub days: Option<f64>,
    /// What they cost, if a price was given.
    pub cost: Option<f64>,
}

/// Collectives of one kind and size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Exchanged {
    /// The kind, as XLA writes it: `all-gather`.
    pub kind: String,
    /// The mesh axis.
    pub axis: String,
    /// Devices that take part.
    pub group: usize,
    /// How often in a step.
    pub count: u64,
    /// The bytes of one, whole.
    pub bytes: u64,
    /// Seconds of all of them.
    pub seconds: f64,
    /// Seconds of that behind computing.
    pub hidden: f64,
}

/// Something in the way.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Warning {
    /// What it is.
    pub what: String,
    /// What would help.
    pub remedy: String,
}
