//! Searches with a mock compiler: the quick model, modified by each test.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Case, Layout, Shape};
use fullshard_parallel::{GatherAhead, Remat, Strategy};
use fullshard_plan::{
    Basis, Callbacks, Candidate, Effort, Error, Frontier, Machine, Progress, Report, Space, quick,
    search,
};
use fullshard_step::StepSpec;

const MODEL: Shape = Shape::Gpt2(4, 1024, 8);

fn spec(candidate: &Candidate) -> StepSpec {
    let case = Case {
        remat: candidate.remat.clone(),
        optimizer: "adamw",
        scan: candidate.scan_layers,
        layout: candidate.layout,
        ahead: candidate.gather_ahead,
        strategy: candidate.strategy,
        ..Case::new("v4-8", MODEL, candidate.batch)
    };
    let mut spec = case.spec();
    if let Some(mib) = candidate.logits_chunk_mib {
        spec.placement.options.lowering.chunk_bytes = Some(mib << 20);
    }
    spec
}

/// A small search space.
fn space() -> Space {
    Space {
        remats: vec![Remat::None, Remat::Dots, Remat::Full],
        layouts: vec![Layout::Dim(0)],
        scans: vec![true],
        aheads: vec![GatherAhead::Nothing],
        strategies: vec![Strategy::FullShard],
        max_batch: 64,
        ..Space::default()
    }
}

/// A machine with the given memory.
fn machine(gigabytes: f64) -> Machine {
    Machine { memory: (gigabytes * 1e9) as u64, ..Machine::parse("v4-8").unwrap() }
}

/// Searches with a compiler; returns the frontier, the compiled candidates and the number refused.
fn run(
    space: &Space,
    machine: &Machine,
    most: usize,
    compiler: impl Fn(&Candidate, Report) -> Result<Report, Error>,
) -> (Frontier, Vec<Candidate>, usize) {
    let mut compiled = Vec::new();
    let mut refused = 0;
    let frontier = search(
        space,
        machine,
        Effort::compiles(most),
        &mut Callbacks {
            spec: &mut |candidate| Ok(spec(candidate)),
            confirm: &mut |candidate| {
                compiled.push(candidate.clone());
                compiler(candidate, quick(&spec(candidate), machine)?)
            },
            progress: &mut |progress| {
                refused += usize::from(matches!(progress, Progress::DoesNotFit { .. }));
            },
        },
    );
    (frontier.unwrap(), compiled, refused)
}

#[test]
fn finds_the_largest_batch_that_fits() {
    let machine = machine(8.0);
    let (frontier, compiled, _) = run(&space(), &machine, 8, |_, report| Ok(report));
    let best = frontier.best.unwrap();
    assert!(best.confirmed && best.fits());
    assert!(compiled.contains(&best.candidate));
    // The next size does not fit.
    let batch = best.candidate.batch;
    let larger = Candidate { batch: batch + batch.div_ceil(8), ..best.candidate.clone() };
    assert!(!quick(&spec(&larger), &machine).unwrap().memory.fits());
    // Memory and speed both increase along the frontier.
    assert!(frontier.points.len() > 2);
    for pair in frontier.points.windows(2) {
        assert!(pair[0].memory() < pair[1].memory() && pair[0].speed() < pair[1].speed());
    }
    assert!(frontier.points.iter().all(|point| point.memory() <= machine.memory));
}

/// Where the compiler needs half more than estimated, smaller batches are tried until one fits.
#[test]
fn retries_with_smaller_batches() {
    let machine = machine(8.0);
    let larger = |_: &Candidate, mut report: Report| {
        report.memory.total += report.memory.total / 2;
        Ok(report)
    };
    let (frontier, compiled, _) = run(&space(), &machine, 8, larger);
    let best = frontier.best.unwrap();
    assert!(best.fits() && compiled.len() >= 2);
    assert!(compiled[0].batch > best.candidate.batch);
}

/// Where it needs half of the estimate, larger batches are tried.
#[test]
fn uses_memory_that_is_left() {
    let machine = machine(8.0);
    let smaller = |_: &Candidate, mut report: Report| {
        report.memory.total /= 2;
        Ok(report)
    };
    let one = Space { remats: vec![Remat::None], ..space() };
    let (frontier, compiled, _) = run(&one, &machine, 8, smaller);
    let best = frontier.best.unwrap();
    assert!(best.candidate.batch > compiled[0].batch);
    assert!(best.fits());
}

#[test]
fn retries_after_out_of_memory() {
    let machine = machine(8.0);
    let only_full_remat = |candidate: &Candidate, report: Report| match candidate.remat {
        Remat::Full => Ok(report),
        _ => Err(Error::OutOfMemory { reason: "none".into(), temporaries: None }),
    };
    let (frontier, compiled, refused) = run(&space(), &machine, 30, only_full_remat);
    assert!(refused > 0 && compiled.len() > refused);
    assert_eq!(frontier.best.unwrap().candidate.remat, Remat::Full);
}

/// The compiler's reported size is used: with four times the estimate, the second try fits.
#[test]
fn uses_reported_memory_after_out_of_memory() {
    let machine = machine(8.0);
    let needs = |report: &Report| 4 * report.memory.total;
    let exact = |_: &Candidate, mut report: Report| {
        let needed = needs(&report);
        if needed > machine.memory {
            let state: u64 = report.memory.parts[..2].iter().map(|part| part.bytes).sum();
            let temporaries = Some(needed - state);
            return Err(Error::OutOfMemory { reason: "none".into(), temporaries });
        }
        report.memory.total = needed;
        Ok(report)
    };
    let one = Space { remats: vec![Remat::Full], ..space() };
    let (frontier, compiled, refused) = run(&one, &machine, 8, exact);
    assert_eq!((compiled.len(), refused), (2, 1));
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
        Effort::compiles(4),
        &mut Callbacks {
            spec: &mut |candidate| Ok(spec(candidate)),
            confirm: &mut |_| Err(error.take().unwrap()),
            progress: &mut |_| {},
        },
    );
    assert!(matches!(found, Err(Error::Devices { .. })));
}

/// If the first candidate is four times as fast as estimated, no other is worth compiling.
#[test]
fn skips_candidates_that_cannot_be_faster() {
    let machine = machine(8.0);
    let fast = |_: &Candidate, mut report: Report| {
        report.rates.tokens_per_second *= 4.0;
        Ok(report)
    };
    let (frontier, compiled, _) = run(&space(), &machine, 8, fast);
    assert_eq!(compiled.len(), 1);
    assert_eq!(frontier.best.unwrap().candidate, compiled[0]);
}

#[test]
fn trusts_the_quick_model_without_a_compiler() {
    let (frontier, compiled, _) = run(&space(), &machine(8.0), 0, |_, report| Ok(report));
    assert!(compiled.is_empty() && frontier.confirmed.is_empty());
    let best = frontier.best.unwrap();
    assert!(!best.confirmed);
    assert_eq!(best.speed(), frontier.points.last().unwrap().speed());
}

#[test]
fn nothing_fits_without_memory() {
    let (frontier, compiled, _) = run(&space(), &machine(0.01), 8, |_, report| Ok(report));
    assert!(frontier.best.is_none() && frontier.points.is_empty() && compiled.is_empty());
}

/// Compilers that run short of memory overlap less.
#[test]
fn tries_a_smaller_batch_where_a_full_memory_slows_the_step() {
    let space = Space { remats: vec![Remat::Full], ..space() };
    let machine = machine(4.0);
    let crowded = |report: &Report| report.memory.total as f64 > 0.9 * machine.memory as f64;
    let slowed = |_: &Candidate, mut report: Report| {
        if crowded(&report) {
            report.rates.tokens_per_second /= 2.0;
        }
        Ok(report)
    };
    let (frontier, compiled, _) = run(&space, &machine, 8, slowed);
    assert_eq!(compiled.len(), 2);
    assert!(crowded(&frontier.confirmed[0].report));
    assert!(frontier.best.is_some_and(|best| !crowded(&best.report)));
}

/// Fewer chunks of logits are faster where there is memory for them, and default ones are chosen
/// where there is not.
#[test]
fn chooses_chunks_of_logits_by_memory() {
    let space =
        Space { remats: vec![Remat::Full], logits_chunks_mib: vec![Some(2048), None], ..space() };
    let chosen = |gigabytes| {
        let (frontier, ..) = run(&space, &machine(gigabytes), 0, |_, report| Ok(report));
        frontier.best.map(|best| best.candidate.logits_chunk_mib)
    };
    assert_eq!(chosen(32.0), Some(Some(2048)));
    assert_eq!(chosen(2.5), Some(None));
}

/// Settings that the formula finds equally fast are not all compiled, if they differ in little.
#[test]
fn compiles_no_two_candidates_that_are_alike() {
    let aheads = vec![GatherAhead::Nothing, GatherAhead::Vectors];
    let machine = machine(16.0);
    let compiled = |space: &Space| run(space, &machine, 8, |_, report| Ok(report)).1;
    let one_policy = Space { remats: vec![Remat::Full], aheads, ..space() };
    let alike = compiled(&one_policy);
    let batches: Vec<usize> = alike.iter().map(|candidate| candidate.batch).collect();
    assert!(batches.windows(2).all(|pair| pair[0] != pair[1]), "{alike:?}");
    let more = compiled(&Space { remats: vec![Remat::Dots, Remat::Full], ..one_policy });
    let policies = [Remat::Dots, Remat::Full];
    assert!(policies.iter().all(|it| more.iter().any(|found| found.remat == *it)), "{more:?}");
}

/// A candidate that does not fit says nothing of one that is alike and needs less.
#[test]
fn tries_what_is_like_a_candidate_that_does_not_fit() {
    let (remats, aheads) = (vec![Remat::Full], vec![GatherAhead::Nothing, GatherAhead::Vectors]);
    let space = Space { remats, aheads, max_batch: 1, ..space() };
    let only_nothing = |candidate: &Candidate, report: Report| match candidate.gather_ahead {
        GatherAhead::Nothing => Ok(report),
        _ => Err(Error::OutOfMemory { reason: "none".into(), temporaries: None }),
    };
    let (frontier, compiled, refused) = run(&space, &machine(16.0), 8, only_nothing);
    assert_eq!((compiled.len(), refused), (2, 1), "{compiled:?}");
    assert_eq!(frontier.best.unwrap().candidate.gather_ahead, GatherAhead::Nothing);
}

/// The formula finds no difference where all communication is hidden.
#[test]
fn prefers_the_default_of_the_platform_where_estimates_are_the_same() {
    for (name, default) in [("v4-8", GatherAhead::Vectors), ("h100:4", GatherAhead::Nothing)] {
        let machine = Machine { memory: 16 << 30, ..Machine::parse(name).unwrap() };
        let aheads = GatherAhead::ALL.to_vec();
        let space = Space { remats: vec![Remat::Full], aheads, ..space() };
        let (frontier, ..) = run(&space, &machine, 0, |_, report| Ok(report));
        let best = frontier.best.unwrap().candidate;
        assert_eq!(best.gather_ahead, default, "{name}");
        assert_eq!(frontier.points.last().unwrap().candidate, best);
        let compiled = run(&space, &machine, 8, |_, report| Ok(report)).1;
        assert!(compiled.iter().all(|it| it.gather_ahead == default), "{compiled:?}");
    }
}

#[test]
fn candidate_flags() {
    let candidate = Candidate {
        batch: 24,
        remat: Remat::Dots,
        logits_chunk_mib: Some(2048),
        layout: Layout::Flat,
        scan_layers: true,
        gather_ahead: GatherAhead::Layer,
        strategy: Strategy::FullShard,
        mesh: None,
    };
    let flags = "--per_device_train_batch_size 24 --remat dots --scan_layers true --fsdp \
                 full_shard --logits_chunk_mib 2048 --gather_ahead true";
    assert_eq!(candidate.flags().join(" "), flags);
    let settings = [("shard_param_on_dim_0", false), ("flatten_parameters", false)];
    assert_eq!(candidate.settings(), settings);
}

/// Unrolled layers are not compiled where there is no time for them, whatever they promise.
#[test]
fn compiles_what_there_is_time_for() {
    let (space, machine) = (Space { scans: vec![true, false], ..space() }, machine(8.0));
    let tried = |seconds: f64| {
        let (mut tried, mut too_long) = (Vec::new(), 0);
        let slow = |report: Report| {
            let basis = Basis::Compiled { seconds: 3000.0, cached: true, compiler: "none".into() };
            Report { basis, ..report }
        };
        search(
            &space,
            &machine,
            Effort { compiles: 8, seconds },
            &mut Callbacks {
                spec: &mut |candidate| Ok(spec(candidate)),
                confirm: &mut |candidate| {
                    tried.push(candidate.scan_layers);
                    Ok(slow(quick(&spec(candidate), &machine)?))
                },
                progress: &mut |progress| {
                    too_long += usize::from(matches!(progress, Progress::TooLong { .. }));
                },
            },
        )
        .unwrap();
        (tried.len(), too_long)
    };
    let (all, none) = (tried(f64::INFINITY), tried(2000.0));
    assert!(all.0 > 1 && all.1 == 0, "{all:?}");
    assert!(none.0 == 1 && none.1 > 0, "{none:?}");
}
