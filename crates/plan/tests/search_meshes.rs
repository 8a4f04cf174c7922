//! Searches over meshes, by formula alone: tensor and context parallelism are for steps that plain
//! FSDP does not fit, or is slower for.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Case, Layout, Shape};
use fullshard_parallel::{GatherAhead, Remat};
use fullshard_plan::{
    Callbacks, Candidate, Effort, Error, Frontier, Machine, Point, Space, search,
};
use fullshard_step::StepSpec;

/// The model and its sequences.
struct Setup {
    machine: &'static str,
    shape: Shape,
    tokens: usize,
}

impl Setup {
    fn machine(&self) -> Machine {
        Machine::parse(self.machine).unwrap()
    }

    fn spec(&self, candidate: &Candidate) -> Result<StepSpec, Error> {
        let mesh = candidate.mesh.as_ref().map(|mesh| &*mesh.to_string().leak());
        let case = Case {
            tokens: self.tokens,
            remat: candidate.remat.clone(),
            optimizer: "adamw",
            scan: candidate.scan_layers,
            layout: candidate.layout,
            ahead: candidate.gather_ahead,
            strategy: candidate.strategy,
            mesh,
            ..Case::new(self.machine, self.shape, candidate.batch)
        };
        case.try_spec()
    }

    fn search(&self, machine: &Machine) -> Frontier {
        let space = plain().with_meshes_of(machine);
        self.search_in(machine, &space.with_parallel_meshes_of(machine, self.tokens))
    }

    fn search_in(&self, machine: &Machine, space: &Space) -> Frontier {
        let mut callbacks = Callbacks {
            spec: &mut |candidate| self.spec(candidate),
            confirm: &mut |_| unreachable!(),
            progress: &mut |_| {},
        };
        search(space, machine, Effort::compiles(0), &mut callbacks).unwrap()
    }
}

/// A small space with one axis.
fn plain() -> Space {
    Space {
        remats: vec![Remat::Dots, Remat::Full],
        layouts: vec![Layout::Dim(0)],
        scans: vec![true],
        aheads: vec![GatherAhead::Nothing],
        max_batch: 12,
        ..Space::default()
    }
}

fn axes(point: &Point) -> String {
    point.candidate.mesh.as_ref().map(|mesh| mesh.to_string()).unwrap_or_default()
}

/// Of one sequence, even the inputs of layers do not fit one GPU, and there is one key head.
#[test]
fn long_sequences_are_sharded_over_context() {
    let shape = Shape::Llama(32, 4096, 32, 1, 14336, 32000);
    let setup = Setup { machine: "h100:8", shape, tokens: 262_144 };
    let found = setup.search(&setup.machine());
    assert!(!found.points.is_empty());
    for point in found.points.iter().chain(&found.best) {
        assert!(axes(point).contains("context"), "{:?}", point.candidate);
    }
    let flags = found.best.unwrap().candidate.flags().join(" ");
    assert!(flags.contains("--mesh ") && flags.contains("context="), "{flags}");
}

/// With less memory than one sequence and an all-gathered layer need.
#[test]
fn wide_layers_are_sliced_over_tensor() {
    let shape = Shape::Llama(2, 8192, 64, 8, 32768, 32000);
    let setup = Setup { machine: "h100:8", shape, tokens: 1024 };
    let machine = setup.machine();
    let plain = setup.search_in(&machine, &plain().with_meshes_of(&machine));
    let least = plain.points.iter().map(Point::memory).min().unwrap();
    let found = setup.search(&Machine { memory: least - 1, ..machine });
    assert!(!found.points.is_empty());
    for point in found.points.iter().chain(&found.best) {
        assert!(axes(point).contains("tensor"), "{:?}", point.candidate);
    }
}

#[test]
fn plain_fsdp_is_chosen_where_it_fits_and_is_faster() {
    for machine in ["h100:8", "v4-8"] {
        let shape = Shape::Llama(16, 2048, 32, 8, 8192, 32000);
        let setup = Setup { machine, shape, tokens: 2048 };
        let best = setup.search(&setup.machine()).best.unwrap();
        let mesh = axes(&best);
        assert!(!mesh.contains("tensor") && !mesh.contains("context"), "{:?}", best.candidate);
    }
}
