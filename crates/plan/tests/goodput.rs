//! The goodput of plans: how it follows from the machine, the state and the saves.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Case, Shape};
use fullshard_plan::{Budget, Failures, Goodput, Rates, quick};

const LARGE: Shape = Shape::Gpt2(24, 4096, 32);

fn goodput(machine: &'static str, failures: Failures) -> Goodput {
    let case = Case { optimizer: "adamw", ..Case::new(machine, LARGE, 1) };
    let (spec, machine) = (case.spec(), case.machine());
    let report = quick(&spec, &machine).unwrap();
    let budget = Budget { tokens: Some(3e11), price: Some(2.0) };
    let rates = Rates::new(&spec, &machine, report.time.step, budget);
    Goodput::new(&machine, report.time.step, &report.start_up, &rates, failures)
}

#[test]
fn more_hosts_fail_more_often() {
    let [few, many] = ["h100:8x4", "h100:8x64"].map(|name| goodput(name, Failures::default()));
    assert!((few.interruptions.mtbf / many.interruptions.mtbf - 16.0).abs() < 1e-9);
    assert!(many.goodput < few.goodput && few.goodput < 1.0);
    // Llama 3's rate, on as many GPUs a failure every three hours.
    assert!((few.host_mtbf_days - 264.0).abs() < 0.5);
    assert_eq!(goodput("v4-128", Failures::default()).host_mtbf_days, 1250.0);
}

#[test]
fn days_and_cost_grow_by_what_is_lost() {
    let often = Failures { host_mtbf_days: Some(0.1), ..Failures::default() };
    let found = goodput("h100:8x16", often);
    let never = Failures { host_mtbf_days: Some(1e9), ..Failures::default() };
    let alone = goodput("h100:8x16", never);
    assert!(alone.goodput > 0.999 && found.goodput < 0.95);
    let ratio = found.days.unwrap() / alone.days.unwrap();
    assert!((ratio * found.goodput / alone.goodput - 1.0).abs() < 1e-9);
    assert!(
        (found.cost_usd.unwrap() / found.days.unwrap() / (24.0 * 2.0 * 128.0) - 1.0).abs() < 1e-9
    );
}

#[test]
fn the_best_number_of_steps_is_taken_unless_one_is_given() {
    let best = goodput("h100:8x16", Failures::default());
    assert_eq!(best.save_steps, best.best_save_steps);
    for factor in [0.2, 5.0] {
        let save_steps = Some((factor * best.best_save_steps).max(1.0).round());
        let other = goodput("h100:8x16", Failures { save_steps, ..Failures::default() });
        assert_eq!(
            (Some(other.save_steps), other.best_save_steps),
            (save_steps, best.best_save_steps)
        );
        assert!(other.goodput < best.goodput, "{factor}");
    }
}

#[test]
fn a_given_restart_counts() {
    let restart = Some(1200.0);
    let [slow, usual] = [restart, None]
        .map(|restart| goodput("h100:8x64", Failures { restart, ..Failures::default() }));
    assert_eq!(slow.interruptions.restart, 1200.0);
    assert!((63.0..100.0).contains(&usual.interruptions.restart));
    assert!(slow.goodput < usual.goodput);
}
