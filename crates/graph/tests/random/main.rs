//! Random numbers: published test vectors, statistics, and invariance to sharding and
//! recomputation.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod dropout;
mod errors;
mod keys;
mod shardings;
mod statistics;

use common::run;
use fullshard_graph::{Program, Result, Tensor};
use fullshard_pjrt::HostTensor;

/// Runs a program without arguments.
fn results(trace: impl FnOnce() -> Result<Vec<Tensor>>) -> Vec<HostTensor> {
    run(&Program::trace("random", &[], |_| trace()).unwrap(), &[])
}
