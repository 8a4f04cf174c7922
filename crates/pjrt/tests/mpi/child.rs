//! The part of this test binary that runs as a process of a job, in one of many roles.

use crate::{ROLE, faults, launches, values};
use std::env;

/// The entry point of a child process.
#[test]
#[ignore = "child: run by other tests under mpiexec"]
fn child_plays_its_role() {
    match env::var(ROLE).unwrap().as_str() {
        "collectives" => values::collectives(),
        "dtypes" => values::dtypes(),
        "groups" => values::groups(),
        "large" => values::large(),
        "devices" => launches::devices(),
        "loop" => launches::scanned(),
        "permute" => launches::permute(),
        "flight" => launches::flight(),
        "overlap" => launches::overlap(),
        "world" => faults::world(),
        "garbage" => faults::garbage(),
        "truncated" => faults::truncated(),
        "twice" => faults::twice(),
        "different" => faults::different(),
        "exhaust" => faults::exhaust(),
        "die" => faults::die(),
        "alone" => faults::alone(),
        other => panic!("unknown role {other}"),
    }
}
