//! Every op: its value against a reference and its gradient against finite differences, both in
//! `f64` on random shapes; recorded JAX results in `f32` and `bf16`; and errors of invalid
//! operands.
#![allow(clippy::unwrap_used)]

mod check;
#[path = "../common/mod.rs"]
mod common;
mod contract;
mod elementwise;
mod errors;
mod index;
mod nn;
mod random;
mod recorded;
mod reduce;
mod shape;
mod values;
mod windows;
