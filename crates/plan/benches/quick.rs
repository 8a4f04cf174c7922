//! Time of a quick plan: 128 billion parameters on the 256 chips of a v4-512.
//!
//!     cargo bench -p fullshard-plan --bench quick
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Case, Shape};
use fullshard_plan::quick;
use std::time::Instant;

const ROUNDS: usize = 20;

fn main() {
    let case = Case::new("v4-512", Shape::Gpt2(40, 16384, 128), 4);
    let unrolled = Case { scan: false, ..case.clone() };
    for (what, case) in [("scanned layers", case), ("unrolled layers", unrolled)] {
        let machine = case.machine();
        let mut best = (f64::INFINITY, f64::INFINITY);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let spec = case.spec();
            let spec_time = start.elapsed().as_secs_f64();
            quick(&spec, &machine).unwrap();
            let total = start.elapsed().as_secs_f64();
            best = (best.0.min(spec_time), best.1.min(total - spec_time));
        }
        println!("{what}: spec {:.2} ms, plan {:.2} ms", 1e3 * best.0, 1e3 * best.1);
    }
}
