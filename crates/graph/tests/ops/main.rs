//! Every op: its value against one computed here, its gradient against finite differences, both
//! in `f64` on random shapes; recorded results of another implementation in `f32` and `bf16`; and
//! what is said when operands do not fit.
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
