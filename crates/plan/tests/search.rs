//! Searches with a compiler that is made up: it is the quick model, but for what a test says.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Case, Layout, Shape};
use fullshard_parallel::{Remat, Strategy};
use fullshard_plan::{
    Callbacks, Candidate, Error, Frontier, Machine, Progress, Report, Space, quick, search,
};
use fullshard_step::StepSpec;

const MODEL: Shape = Shape::Gpt2(4, 1024, 8);

fn spec(candidate: &Candidate) -> StepSpec {
    let case = Case {
        remat: candidate.remat,
        optimizer: "adamw",
        scan: candidate.scan_layers,
        layout: candidate.layout,
        ahead: candidate.gather_ahead,
        strategy: candidate.strategy,
        ..Case::new("v4-8", MODEL, candidate.batch)
    };
    case.spec()
}

/// A space with little in it.
fn space() -> Space {
    Space {
        layouts: vec![Layout::Dim0],
        scans: vec![true],
        aheads: vec![false],
        strategies: vec![Strategy::FullShard],
        most_sequences: 64,
        ..Space::default()
    }
}

/// A machine with so much memory.
fn machine(gigabytes: f64) -> Machine {
    Machine { memory: (gigabytes * 1e9) as u64, ..Machine::parse("v4-8").unwrap() }
}

/// Searches with a compiler; also what it was asked to compile.
fn run(
    space: &Space,
    machine: &Machine,
    most: usize,
    compiler: impl Fn(&Candidate, Report) -> Result<Report, Error>,
) -> (Frontier, Vec<Candidate>, usize) {
    let mut asked = Vec::new();
    let mut refused = 0;
    let frontier = search(
        space,
        machine,
        most,
        &mut Callbacks {
            spec: &mut |candidate| Ok(spec(candidate)),
            confirm: &mut |candidate| {
                asked.push(candidate.clone());
                compiler(candidate, quick(&spec(candidate), machine)?)
            },
            progress: &mut |progress| {
                refused += usize::from(matches!(progress, Progress::Refused { .. }));
            },
        },
    );
    (frontier.unwrap(), asked, refused)
}

#[test]
fn the_largest_batch_that_fits_is_found_and_confirmed() {
    let machine = machine(8.0);
    let (frontier, asked, _) = run(&space(), &machine, 8, |_, report| Ok(report));
    let best = frontier.best.unwrap();
    assert!(best.confirmed && best.fits());
    assert!(asked.contains(&best.candidate));
    // One size more would not fit.
    let batch = best.candidate.batch;
    let larger = Candidate { batch: batch + batch.div_ceil(8), ..best.candidate.clone() };
    assert!(!quick(&spec(&larger), &machine).unwrap().memory.fits());
    // The frontier goes up in both.
    assert!(frontier.points.len() > 2);
    for pair in frontier.points.windows(2) {
        assert!(pair[0].memory() < pair[1].memory() && pair[0].speed() < pair[1].speed());
    }
    assert!(frontier.points.iter().all(|point| point.memory() <= machine.memory));
}

/// Where the compiler needs a half more than was thought, batches become smaller until they fit.
#[test]
fn what_does_not_fit_after_all_is_tried_smaller() {
    let machine = machine(8.0);
    let larger = |_: &Candidate, mut report: Report| {
        report.memory.total += report.memory.total / 2;
        Ok(report)
    };
    let (frontier, asked, _) = run(&space(), &machine, 8, larger);
    let best = frontier.best.unwrap();
    assert!(best.fits() && asked.len() >= 2);
    assert!(asked[0].batch > best.candidate.batch);
}

/// And where it needs half, they become larger.
#[test]
fn room_that_is_left_is_used() {
    let machine = machine(8.0);
    let smaller = |_: &Candidate, mut report: Report| {
        report.memory.total /= 2;
        Ok(report)
    };
    let one = Space { remats: vec![Remat::None], ..space() };
    let (frontier, asked, _) = run(&one, &machine, 8, smaller);
    let best = frontier.best.unwrap();
    assert!(best.candidate.batch > asked[0].batch);
    assert!(best.fits());
}

#[test]
fn a_compiler_that_finds_no_room_is_asked_for_less() {
    let machine = machine(8.0);
    let picky = |candidate: &Candidate, report: Report| match candidate.remat {
        Remat::Full => Ok(report),
        _ => Err(Error::NoRoom { reason: "none".into(), temporaries: None }),
    };
    let (frontier, asked, refused) = run(&space(), &machine, 30, picky);
    assert!(refused > 0 && asked.len() > refused);
    assert_eq!(frontier.best.unwrap().candidate.remat, Remat::Full);
}

/// What the compiler would need is believed: four times the estimate does not fit a second time.
#[test]
fn a_compiler_that_says_what_is_missing_is_believed() {
    let machine = machine(8.0);
    let needs = |report: &Report| 4 * report.memory.total;
    let exact = |_: &Candidate, mut report: Report| {
        let needed = needs(&report);
        if needed > machine.memory {
            let state: u64 = report.memory.parts[..2].iter().map(|part| part.bytes).sum();
            let temporaries = Some(needed - state);
            return Err(Error::NoRoom { reason: "none".into(), temporaries });
        }
        report.memory.total = needed;
        Ok(report)
    };
    let one = Space { remats: vec![Remat::Full], ..space() };
    let (frontier, asked, refused) = run(&one, &machine, 8, exact);
    assert_eq!((asked.len(), refused), (2, 1));
    assert!(frontier.best.is_some());
}

#[test]
fn other_errors_end_the_search() {
    let machine = machine(8.0);
    let broken = Error::Devices { spec: 1, machine: "none".into(), devices: 2 };
    let mut error = Some(broken);
    let found = search(
        &space(),
        &machine,
        4,
        &mut Callbacks {
            spec: &mut |candidate| Ok(spec(candidate)),
            confirm: &mut |_| Err(error.take().unwrap()),
            progress: &mut |_| {},
        },
    );
    assert!(matches!(found, Err(Error::Devices { .. })));
}

/// A compiler that says the first is four times as fast as thought leaves nothing else worth it.
#[test]
fn what_cannot_be_faster_is_not_compiled() {
    let machine = machine(8.0);
    let fast = |_: &Candidate, mut report: Report| {
        report.rates.tokens_per_second *= 4.0;
        Ok(report)
    };
    let (frontier, asked, _) = run(&space(), &machine, 8, fast);
    assert_eq!(asked.len(), 1);
    assert_eq!(frontier.best.unwrap().candidate, asked[0]);
}

#[test]
fn without_a_compiler_the_quick_model_is_believed() {
    let (frontier, asked, _) = run(&space(), &machine(8.0), 0, |_, report| Ok(report));
    assert!(asked.is_empty() && frontier.confirmed.is_empty());
    let best = frontier.best.unwrap();
    assert!(!best.confirmed);
    assert_eq!(best.speed(), frontier.points.last().unwrap().speed());
}

#[test]
fn nothing_fits_into_nothing() {
    let (frontier, asked, _) = run(&space(), &machine(0.01), 8, |_, report| Ok(report));
    assert!(frontier.best.is_none() && frontier.points.is_empty() && asked.is_empty());
}

#[test]
fn a_candidate_says_its_flags() {
    let candidate = Candidate {
        batch: 24,
        remat: Remat::Dots,
        layout: Layout::Flat,
        scan_layers: true,
        gather_ahead: true,
        strategy: Strategy::FullShard,
    };
    let flags = "--per_device_train_batch_size 24 --remat dots --scan_layers true --fsdp \
                 full_shard --gather_ahead";
    assert_eq!(candidate.flags().join(" "), flags);
    let settings = [("shard_param_on_dim_0", false), ("flatten_parameters", false)];
    assert_eq!(candidate.settings(), settings);
}
