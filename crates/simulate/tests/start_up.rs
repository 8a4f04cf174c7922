//! Simulated starts of jobs beside the closed form of plans.
#![allow(clippy::unwrap_used)]

use fullshard_simulate::start_up::Launch;

fn launch() -> Launch {
    Launch { spread: 0.0, compile: 60.0, program_bytes: 50_000_000, state_bytes: 240_000_000_000 }
}

#[test]
fn hosts_that_start_at_once_take_what_the_closed_form_says() {
    for hosts in [1, 2, 3, 16, 500, 4096] {
        let started = launch().start(hosts, 1).unwrap();
        assert!(started.error.abs() < 1e-6, "{started:?}");
    }
}

#[test]
fn rendezvous_and_programs_grow_with_hosts_and_weights_shrink() {
    let [few, many] = [64, 4096].map(|hosts| launch().start(hosts, 1).unwrap());
    assert!((many.rendezvous / few.rendezvous - 64.0).abs() < 1e-6);
    assert!((many.programs / few.programs - 64.0).abs() < 1e-6);
    let rest = |it: &fullshard_simulate::start_up::Started| it.total - it.rendezvous - it.programs;
    assert!((rest(&few) - 60.0 - 240.0 / 64.0).abs() < 1e-6);
    assert!((rest(&many) - 60.0 - 240.0 / 4096.0).abs() < 1e-6);
}

/// The coordinator serves early hosts while late ones start.
#[test]
fn a_spread_start_waits_for_the_last_or_for_the_coordinator() {
    let spread = |hosts| Launch { spread: 10.0, ..launch() }.start(hosts, 3).unwrap();
    let few = spread(64);
    assert!((9.0..10.1).contains(&few.rendezvous), "{few:?}");
    let many = spread(4096);
    assert!((4096.0 * 5e-3..4096.0 * 5e-3 + 1.0).contains(&many.rendezvous), "{many:?}");
    assert_eq!(spread(64), few);
}

#[test]
fn bad_values_are_named_by_their_flag() {
    let error = Launch { spread: -1.0, ..launch() }.start(4, 0).unwrap_err().to_string();
    assert!(error.starts_with("--spread_s is -1"), "{error}");
}
