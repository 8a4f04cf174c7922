//! Random numbers: the published vectors, statistics, and the same values however they are made.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod cuts;
mod dropout;
mod keys;
mod mistakes;
mod statistics;

use common::run;
use fullshard_graph::{Program, Result, Tensor};
use fullshard_pjrt::HostTensor;

/// Runs a program of no arguments.
fn results(trace: impl FnOnce() -> Result<Vec<Tensor>>) -> Vec<HostTensor> {
    run(&Program::trace("random", &[], |_| trace()).unwrap(), &[])
}
