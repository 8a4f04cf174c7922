//! Chooses how collectives over several mesh axes run, by the network model.

use crate::machine::Machine;
use fullshard_core::{Mesh, Platform};
use fullshard_parallel::{Rules, Stage, Staging};
use fullshard_pjrt::hlo::CollectiveKind;
use fullshard_step::overlap;

/// The elements of the tensor that is compared, of two bytes each: a large matrix.
const ELEMENTS: usize = 1 << 25;

/// How a run's collectives go over a mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// The mesh that programs are written for.
    pub mesh: Mesh,
    /// How all-gathers run.
    pub gather: Staging,
    /// How reductions run.
    pub reduce: Staging,
}

/// The fastest ways to all-gather a parameter and to reduce its gradient, under some sharding
/// rules. If one of them goes along the dimensions of a torus, the axes of the mesh are split.
/// Rings of permutes are no faster by themselves: they are chosen where only they overlap.
pub fn choose(machine: &Machine, mesh: &Mesh, rules: &Rules) -> Chosen {
    let torus = machine.torus_dims().and_then(|dims| mesh.along_torus(&dims));
    let along = torus.as_ref().unwrap_or(mesh);
    let fastest = |seconds: &dyn Fn(&Mesh, Staging) -> f64| {
        let ways = [(mesh, Staging::Flat), (along, Staging::Axes), (along, Staging::Hierarchical)];
        let mut best = (f64::INFINITY, Staging::Flat);
        for (mesh, staging) in ways {
            let seconds = seconds(mesh, staging);
            // Fewer collectives, unless another way is clearly faster.
            if seconds < CLEARLY * best.0 {
                best = (seconds, staging);
            }
        }
        best.1
    };
    let gather = fastest(&|mesh, staging| seconds(machine, mesh, staging, rules, true));
    let one_slice = machine.network.islands() == 1;
    let reduce = match overlap(&machine.chip).rings && one_slice && torus.is_some() {
        true => Staging::Ring,
        false => fastest(&|mesh, staging| seconds(machine, mesh, staging, rules, false)),
    };
    let split = gather.is_staged() || reduce != Staging::Flat;
    let mesh = if split { along } else { mesh };
    Chosen { mesh: mesh.clone(), gather, reduce }
}

/// The share of another's time below which a way is clearly faster.
const CLEARLY: f64 = 0.98;

/// Seconds of the all-gather of one parameter, or of the reduction of its gradient.
fn seconds(machine: &Machine, mesh: &Mesh, staging: Staging, rules: &Rules, gather: bool) -> f64 {
    let Ok((sharded, replicas)) = rules.example_axes(mesh) else { return 0.0 };
    let shard = ELEMENTS / mesh.group_size(&sharded);
    let of = |kind, axes: &[usize], elements| -> f64 {
        let stages = staging.stages(kind, mesh, axes, elements, 1);
        stages.iter().map(|stage| stage_seconds(machine, mesh, stage)).sum()
    };
    match gather {
        true => of(CollectiveKind::AllGather, &sharded, ELEMENTS),
        false => {
            of(CollectiveKind::ReduceScatter, &sharded, ELEMENTS)
                + of(CollectiveKind::AllReduce, &replicas, shard)
        }
    }
}

fn stage_seconds(machine: &Machine, mesh: &Mesh, stage: &Stage) -> f64 {
    let members = mesh.groups(&stage.axes).swap_remove(0);
    let span = machine.network.span(&members);
    let bytes = 2 * stage.elements as u64;
    // libtpu keeps reduce-scatters along one dimension of a torus; over more of them it sums the
    // full tensor, with streams through all of them at once.
    let several_dims = machine.kind == Platform::Tpu && span.dims().len() > 1;
    match stage.kind {
        CollectiveKind::ReduceScatter if several_dims => {
            machine.network.rotated().seconds_over(CollectiveKind::AllReduce, bytes, &span)
        }
        kind => machine.network.seconds_over(kind, bytes, &span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullshard_core::MeshSpec;
    use fullshard_parallel::{Settings, Strategy};

    fn chosen(machine: &str, mesh: &str, strategy: Strategy) -> Chosen {
        let machine = Machine::parse(machine).unwrap();
        let mesh: MeshSpec = mesh.parse().unwrap();
        let mesh = mesh.resolve(machine.devices).unwrap();
        choose(&machine, &mesh, &Rules::of(strategy, &Settings::default(), &mesh, true).unwrap())
    }

    #[test]
    fn one_node_and_one_axis_need_no_stages() {
        for (machine, mesh) in
            [("h200:8", "fsdp=8"), ("h200:8", "data=2,fsdp=4"), ("cpu:4", "fsdp=4")]
        {
            for strategy in Strategy::ALL {
                let found = chosen(machine, mesh, strategy);
                assert_eq!((found.gather, found.reduce), (Staging::Flat, Staging::Flat), "{mesh}");
            }
        }
    }

    #[test]
    fn split_axes_are_for_stages_alone() {
        let found = chosen("v4-128", "fsdp=64", Strategy::FullShard);
        assert_eq!((found.gather, found.reduce), (Staging::Flat, Staging::Ring));
        assert_eq!(found.mesh.sizes(), [4, 4, 4]);
        let found = chosen("v5p-128", "fsdp=64", Strategy::FullShard);
        let split = found.mesh.sizes() == [4, 4, 4];
        assert_eq!(found.reduce.is_staged() || found.gather.is_staged(), split, "{found:?}");
        let replicas = chosen("v4-128", "data=4,fsdp=16", Strategy::HybridShard);
        assert_eq!(replicas.mesh.whole_axes(), [("data", 4), ("fsdp", 16)]);
    }

    /// libtpu and NCCL split collectives between islands themselves, so that each device sends its
    /// share only.
    #[test]
    fn islands_need_no_stages() {
        for (machine, mesh) in [("2xv4-128", "data=2,fsdp=64"), ("h100:8x2", "data=2,fsdp=8")] {
            let found = chosen(machine, mesh, Strategy::NoShard);
            assert_eq!((found.gather, found.reduce), (Staging::Flat, Staging::Flat), "{machine}");
        }
    }
}
