//! Jobs with failures: against the closed form, and in the cases that formulas leave out.
#![allow(clippy::unwrap_used)]

use fullshard_simulate::job::{Copies, Job, Length, Preset, Saves, Simulated, Stragglers, picture};

const DAY: f64 = 86_400.0;
const REPLAYS: u64 = 40;

/// 64 hosts with a failure every two hours, for twenty days.
fn job() -> Job {
    Job {
        hosts: 64,
        min_hosts: 64,
        spares: 8,
        step: 2.0,
        length: Length::Seconds(20.0 * DAY),
        host_mtbf: 64.0 * 7200.0,
        fail_at: Vec::new(),
        repair: 600.0,
        detection: 10.0,
        restart: 60.0,
        load: 30.0,
        saves: Some(Saves { every: 100, pause: 1.0, write: 20.0 }),
        copies: None,
        stragglers: Stragglers::default(),
    }
}

fn simulated(job: &Job) -> Simulated {
    job.simulate(REPLAYS, 7).unwrap()
}

/// The parts are all of the time.
fn check_parts(found: &Simulated) {
    let total = found.parts.total();
    assert!((total / (found.days.mean * DAY) - 1.0).abs() < 1e-9);
    assert!(found.parts.named().iter().all(|(_, seconds)| *seconds >= 0.0), "{:?}", found.parts);
    assert!((found.parts.steps / found.job.step - found.steps).abs() < 1e-6 * found.steps.max(1.0));
}

fn check_close(found: &Simulated, tolerance: f64) {
    check_parts(found);
    let expected = found.expected.unwrap();
    let error = (found.goodput.mean / expected - 1.0).abs();
    assert!(error < tolerance, "{} beside {expected}", found.goodput.mean);
}

#[test]
fn without_failures_only_start_and_saves_cost() {
    let steps = 1000;
    let job = Job { host_mtbf: f64::INFINITY, length: Length::Steps(steps), ..job() };
    let found = simulated(&job);
    // The last checkpoint is waited for.
    let time = 60.0 + 2000.0 + 10.0 + 20.0;
    assert!((found.goodput.mean - 2000.0 / time).abs() < 1e-9, "{}", found.goodput.mean);
    assert!(found.goodput.deviation < 1e-12);
    assert_eq!((found.failures.most, found.steps), (0.0, 1000.0));
    let none = simulated(&Job { saves: None, restart: 0.0, ..job });
    assert!((none.goodput.mean - 1.0).abs() < 1e-9);
    check_parts(&none);
}

/// Second by second.
#[test]
fn failures_at_stated_times_cost_what_they_must() {
    let drill = Job {
        step: 1.0,
        length: Length::Steps(100),
        host_mtbf: f64::INFINITY,
        fail_at: vec![110.5],
        repair: 0.0,
        saves: Some(Saves { every: 20, pause: 2.0, write: 3.0 }),
        ..job()
    };
    // It has done 46 steps with 2 saves after 60 s of start, and the 47th in part.
    let parts = simulated(&drill).parts;
    assert_eq!((parts.restart, parts.detection, parts.load), (120.0, 10.0, 30.0));
    assert!((parts.redone - 6.5).abs() < 1e-9 && (parts.steps - 100.0).abs() < 1e-9, "{parts:?}");
    // Five saves and the last write.
    assert!((parts.saving - 13.0).abs() < 1e-9, "{parts:?}");
    // A second before, the second checkpoint is not yet written.
    let parts = simulated(&Job { fail_at: vec![60.0 + 44.0 + 2.9], ..drill.clone() }).parts;
    assert!((parts.redone - 22.9).abs() < 1e-6 && (parts.saving - 15.0).abs() < 1e-6, "{parts:?}");
    // During the restart only that is repeated.
    let parts = simulated(&Job { fail_at: vec![110.5, 150.5], ..drill }).parts;
    assert!((parts.restart - 150.0).abs() < 1e-9 && (parts.redone - 6.5).abs() < 1e-9, "{parts:?}");
}

#[test]
fn rare_failures_cost_what_the_closed_form_says() {
    check_close(&simulated(&job()), 0.002);
    let seldom = Job { saves: Some(Saves { every: 1000, pause: 10.0, write: 60.0 }), ..job() };
    check_close(&simulated(&seldom), 0.01);
}

#[test]
fn frequent_failures_too() {
    let often = Job { host_mtbf: 64.0 * 600.0, ..job() };
    check_close(&simulated(&often), 0.02);
    assert!(simulated(&often).goodput.mean < 0.75);
}

#[test]
fn failures_come_at_their_rate() {
    let found = simulated(&job());
    assert!((found.failures.mean / 240.0 - 1.0).abs() < 0.03, "{}", found.failures.mean);
    // As a count of independent events does, it varies with its root.
    assert!((10.0..22.0).contains(&found.failures.deviation), "{}", found.failures.deviation);
}

#[test]
fn replays_follow_from_the_seed() {
    let of = |seed| job().simulate(3, seed).unwrap();
    assert_eq!(of(1), of(1));
    assert_ne!(of(1).goodput, of(2).goodput);
    // Replay by replay.
    let [first, both] = [1, 2].map(|count| job().simulate(count, 1).unwrap());
    assert!(both.goodput.least == first.goodput.mean || both.goodput.most == first.goodput.mean);
}

/// Nothing is stored before the next failure, so the replay is given up rather than endless.
#[test]
fn failures_faster_than_restarts_leave_no_progress() {
    let length = Length::Steps(10_000);
    let stuck = Job { host_mtbf: 64.0 * 5.0, length, ..job() };
    let found = simulated(&stuck);
    assert_eq!((found.stalled, found.steps), (found.replays, 0.0));
    assert!(found.goodput.mean == 0.0 && found.expected.unwrap() < 1e-6);
    assert!(found.warning().unwrap().contains("A failure every 5 s"));
    check_parts(&found);
    // Nor is there any without checkpoints, if the job is longer than what is between failures.
    let long = Job { saves: None, length: Length::Steps(100_000), ..job() };
    assert_eq!(simulated(&long).stalled, REPLAYS as usize);
    // Hosts that fail faster than they are repaired never come together.
    let broken = Job { repair: 100.0 * DAY, spares: 0, length: Length::Steps(1_000_000), ..job() };
    let found = simulated(&broken);
    assert_eq!(found.stalled, found.replays);
    assert!(found.parts.repair > 0.9 * found.parts.total(), "{:?}", found.parts);
}

#[test]
fn a_checkpoint_counts_once_it_is_written() {
    let of =
        |write| simulated(&Job { saves: Some(Saves { every: 100, pause: 1.0, write }), ..job() });
    let (at_once, late) = (of(0.0), of(190.0));
    // Each failure loses the steps of the write besides.
    let more = (late.parts.redone - at_once.parts.redone) / late.failures.mean;
    assert!((more / 190.0 - 1.0).abs() < 0.1, "{more}");
    // A save waits for the write of the one before.
    let slow = of(400.0);
    assert!(slow.parts.saving > 50.0 * at_once.parts.saving, "{}", slow.parts.saving);
}

#[test]
fn copies_in_memory_lose_less() {
    // Copies are many events.
    let simulated = |job: &Job| job.simulate(8, 7).unwrap();
    let copies = Some(Copies { every: 5, pause: 0.05, load: 5.0 });
    let (without, with) = (simulated(&job()), simulated(&Job { copies, ..job() }));
    check_close(&with, 0.002);
    assert!(with.goodput.mean > without.goodput.mean + 0.01);
    assert!(with.parts.redone < 0.1 * without.parts.redone);
    // On one host there is nobody to have a copy.
    let alone = Job { hosts: 1, min_hosts: 1, host_mtbf: 7200.0, copies, ..job() };
    let plain = simulated(&Job { copies: None, ..alone.clone() });
    let alone = simulated(&alone);
    assert!((alone.parts.redone / plain.parts.redone - 1.0).abs() < 0.1);
    // While a job waits for repairs more hosts are lost, and with them copies.
    let four = Job { hosts: 4, min_hosts: 4, host_mtbf: 4.0 * 7200.0, copies, ..job() };
    let waiting = simulated(&Job { spares: 0, repair: 7200.0, ..four.clone() });
    let lost = |found: &Simulated| found.parts.redone / found.failures.mean;
    assert!(lost(&waiting) > 2.0 * lost(&simulated(&four)));
}

#[test]
fn spares_and_fewer_hosts_spare_the_wait() {
    let waits = Job { spares: 0, repair: 3600.0, ..job() };
    let spared = Job { spares: 8, ..waits.clone() };
    let elastic = Job { min_hosts: 32, ..waits.clone() };
    let [waits, spared, elastic] = [waits, spared, elastic].map(|job| simulated(&job));
    for found in [&waits, &spared, &elastic] {
        check_parts(found);
    }
    assert!(waits.parts.repair > 0.2 * waits.parts.total());
    assert!(spared.parts.repair < 1e-3 * spared.parts.total());
    assert_eq!(elastic.parts.repair, 0.0);
    assert!(elastic.parts.fewer_hosts > 0.0 && spared.parts.fewer_hosts == 0.0);
    assert!(elastic.goodput.mean > waits.goodput.mean + 0.1);
    assert!(elastic.goodput.mean < spared.goodput.mean);
}

#[test]
fn steps_wait_for_slow_hosts() {
    let stragglers = Stragglers { probability: 1e-3, factor: 1.5 };
    let job = Job { host_mtbf: f64::INFINITY, stragglers, ..job() };
    let found = simulated(&job);
    check_close(&found, 0.002);
    let slow = 1.0 - 0.999_f64.powi(64);
    let share = found.parts.stragglers / found.parts.steps;
    assert!((share / (0.5 * slow) - 1.0).abs() < 0.02, "{share}");
    let always = Stragglers { probability: 1.0, factor: 2.0 };
    let found = simulated(&Job { stragglers: always, ..job });
    assert!((found.parts.stragglers / found.parts.steps - 1.0).abs() < 1e-4);
}

/// Published goodput follows from published rates, within the spread of what is assumed.
#[test]
fn published_jobs_have_about_their_goodput() {
    for (preset, tolerance) in
        [(Preset::Llama3, 0.03), (Preset::Gemini, 0.01), (Preset::GeminiCheckpoints, 0.03)]
    {
        let found = preset.job().simulate(10, 0).unwrap();
        check_close(&found, 0.01);
        let error = (found.goodput.mean - preset.published()).abs();
        assert!(error < tolerance, "{}: {}", preset.name(), found.goodput.mean);
        assert_eq!(preset.name().parse(), Ok(preset));
    }
}

#[test]
fn bad_values_are_named_by_their_flag() {
    for (job, flag) in [
        (Job { hosts: 0, min_hosts: 0, ..job() }, "--hosts is 0"),
        (Job { min_hosts: 65, ..job() }, "--min_hosts is 65"),
        (Job { step: 0.0, ..job() }, "--step_s is 0"),
        (Job { length: Length::Steps(0), ..job() }, "--steps is 0"),
        (Job { host_mtbf: 0.0, ..job() }, "--host_mtbf_days is 0"),
        (Job { repair: f64::NAN, ..job() }, "--repair_s is NaN"),
        (
            Job { stragglers: Stragglers { probability: 2.0, factor: 1.0 }, ..job() },
            "--straggler_probability is 2",
        ),
        (
            Job { stragglers: Stragglers { probability: 0.1, factor: 0.5 }, ..job() },
            "--straggler_factor is 0.5",
        ),
    ] {
        let error = job.simulate(1, 0).unwrap_err().to_string();
        assert!(error.starts_with(flag), "{error}");
    }
    assert!(job().simulate(0, 0).unwrap_err().to_string().starts_with("--replays is 0"));
}

#[test]
fn picture_shows_every_part_that_there_is() {
    let found = simulated(&job());
    let drawn = picture(&found);
    let parts = found.parts.named().iter().filter(|(_, seconds)| *seconds > 0.0).count();
    assert_eq!(drawn.matches("class=\"part\"").count(), parts);
    assert!(drawn.contains("redone steps") && !drawn.contains("stragglers"), "{drawn}");
}
