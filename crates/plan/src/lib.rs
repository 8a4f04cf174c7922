//! Planning: will a run fit a machine that is not here, how fast will it be, and what is in the way?
//!
//! A [`Machine`] is what a run is planned for. Two ways lead to the same [`Report`]: the quick one
//! computes it from the spec alone, and the compiled one reads it from what the real compiler
//! makes of the very step program that training would run.
#![forbid(unsafe_code)]

mod breakdown;
mod compiled;
mod describe;
mod error;
mod html;
mod machine;
mod network;
mod quick;
mod report;
mod search;

pub use breakdown::{Breakdown, BreakdownError, KernelTime, Kind, KindTime, ModuleShare};
pub use compiled::{AheadCompiler, Made, compiled};
pub use describe::Budget;
pub use error::Error;
pub use html::page;
pub use machine::{Machine, MachineError};
pub use network::{Network, Streams};
pub use quick::{MemoryEstimate, quick};
pub use report::{
    Basis, Exchanged, LargeBuffer, MachineSummary, Memory, ModuleTime, Part, Rates, Report, Time,
    Warning,
};
pub use search::{Callbacks, Candidate, Frontier, Point, Progress, Space, search};
