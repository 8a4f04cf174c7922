//! Imports for programs that train, plan or define custom models.
//!
//! `Result` is the one of tracing, which models return; [`crate::Result`] is the one of runs.

pub use crate::bench::{BenchOptions, StepReport, bench};
pub use crate::config::{Compute, ConfigSource, RunConfig, Scan, When};
pub use crate::plan::{PlanOptions, Report, plan};
pub use crate::run::{Outcome, Run, train};
pub use fullshard_graph::{DType, Result, Tensor};
pub use fullshard_models::{
    Architecture, CausalLm, Dimensions, Fields, Initializer, Model, Scope, Task, boxed,
    register as register_model,
};
pub use fullshard_parallel::{Remat, Strategy};
pub use fullshard_train::report::Values;
pub use fullshard_train::{Callback, Evaluated, Metrics};
