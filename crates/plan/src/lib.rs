//! Planning: does a run fit a machine that is not attached, how fast is it, and what limits it?
//!
//! A run is planned for a [`Machine`]. Two methods produce the same [`Report`]: the quick one
//! computes it from the spec alone, and the compiled one reads it from the step program that
//! training would run, compiled by the real compiler.
#![forbid(unsafe_code)]

mod breakdown;
mod compiled;
mod describe;
mod error;
mod goodput;
mod html;
mod machine;
mod network;
mod quick;
mod report;
mod search;
pub mod staging;
mod start_up;

pub use breakdown::{Breakdown, BreakdownError, KernelTime, Kind, KindTime, ModuleShare};
pub use compiled::{AheadCompiler, CompiledStep, collectives_by_module, compiled, update_bytes};
pub use describe::{Budget, memory_fix, one_unit, wrap_fix};
pub use error::Error;
pub use goodput::{Failures, Goodput, Interruptions, LostTime};
pub use html::page;
pub use machine::{Machine, MachineError};
pub use network::{Dcn, Fabric, Network, Phase, Side, Span, Streams};
pub use quick::{MemoryEstimate, quick};
pub use report::{
    Basis, CollectiveTime, LargeBuffer, MachineSummary, Memory, ModuleCollectives, ModuleTime,
    Part, Rates, Report, Time, Warning,
};
pub use search::{Callbacks, Candidate, Effort, Frontier, Point, Progress, Space, search};
pub use start_up::{DISK_RATE, JOIN, STORE_RATE, StartUp, StartUpPart};
