//! Chooses how collectives over several mesh axes run, by the network model.

use crate::machine::Machine;
use fullshard_core::{Mesh, Platform};
use fullshard_parallel::{Rules, Staging};
use fullshard_pjrt::hlo::CollectiveKind;

/// The elements of the tensor that is compared, of two bytes each: a large matrix.
const ELEMENTS: usize = 1 << 25;

/// The mesh that programs are written for, and how collectives run over it: the fastest way to
/// all-gather parameters twice and to reduce gradients once, under some sharding rules.
pub fn choose(machine: &Machine, mesh: &Mesh, rules: &Rules) -> (Mesh, Staging) {
    let torus = machine.torus_dims().and_then(|dims| mesh.along_torus(&dims));
    let staged = [Staging::Axes, Staging::Hierarchical];
    let along = staged.into_iter().flat_map(|staging| torus.iter().map(move |it| (it, staging)));
    let over = [Staging::Flat, Staging::Hierarchical].map(|staging| (mesh, staging));
    let mut best: Option<(f64, &Mesh, Staging)> = None;
    for (mesh, staging) in over.into_iter().chain(along) {
        let seconds = seconds(machine, mesh, staging, rules);
        // Fewer collectives, unless another way is clearly faster.
        if best.is_none_or(|(least, _, _)| seconds < 0.98 * least) {
            best = Some((seconds, mesh, staging));
        }
    }
    best.map_or((mesh.clone(), Staging::Flat), |(_, mesh, staging)| (mesh.clone(), staging))
}

/// Seconds of the collectives of one parameter.
fn seconds(machine: &Machine, mesh: &Mesh, staging: Staging, rules: &Rules) -> f64 {
    let Ok((sharded, replicas)) = rules.example_axes(mesh) else { return 0.0 };
    let shard = ELEMENTS / mesh.group_size(&sharded);
    let of = |kind, axes: &[usize], elements| -> f64 {
        let stages = staging.stages(kind, mesh, axes, elements);
        stages.iter().map(|stage| stage_seconds(machine, mesh, stage.kind, stage)).sum()
    };
    2.0 * of(CollectiveKind::AllGather, &sharded, ELEMENTS)
        + of(CollectiveKind::ReduceScatter, &sharded, ELEMENTS)
        + of(CollectiveKind::AllReduce, &replicas, shard)
}

fn stage_seconds(
    machine: &Machine,
    mesh: &Mesh,
    kind: CollectiveKind,
    stage: &fullshard_parallel::Stage,
) -> f64 {
    let members = mesh.groups(&stage.axes).swap_remove(0);
    let span = machine.network.span(&members);
    let bytes = 2 * stage.elements as u64;
    // libtpu keeps reduce-scatters along one dimension of a torus; over more of them it sums the
    // full tensor, with streams through all of them at once.
    let several_dims = machine.kind == Platform::Tpu && span.dims().len() > 1;
    match kind {
        CollectiveKind::ReduceScatter if several_dims => {
            machine.network.rotated().seconds_over(CollectiveKind::AllReduce, bytes, &span)
        }
        kind => machine.network.seconds_over(kind, bytes, &span),
    }
}
