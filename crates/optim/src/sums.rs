//! Sums over devices, many for the price of one: latency, not size, is what a small all-reduce
//! costs, so all sums of a phase travel in one vector.

use crate::shard::Shard;
use fullshard_graph::{Group, Result, Tensor, concatenate};

/// The sums of each parameter over the devices that it is cut over, in one all-reduce for each
/// group of devices. What is whole on every device is left as it is.
pub(crate) fn sum_over_devices(parts: &[(Vec<Tensor>, &Shard)]) -> Result<Vec<Vec<Tensor>>> {
    let mut sums: Vec<Vec<Tensor>> = parts.iter().map(|(parts, _)| parts.clone()).collect();
    for (group, members) in by_group(parts) {
        let flat = members
            .iter()
            .flat_map(|&i| &sums[i])
            .map(|part| part.reshape(&[part.ty().elements()]))
            .collect::<Result<Vec<_>>>()?;
        if flat.is_empty() {
            continue;
        }
        let packed = group.sum(&concatenate(&flat.iter().collect::<Vec<_>>(), 0)?)?;
        let mut start = 0;
        for i in members {
            for sum in &mut sums[i] {
                let limit = start + sum.ty().elements();
                *sum = packed.narrow(0, start, limit)?.reshape(sum.dims())?;
                start = limit;
            }
        }
    }
    Ok(sums)
}

/// The groups that parts are cut over, each with the positions of its parts.
fn by_group<'a>(parts: &[(Vec<Tensor>, &'a Shard)]) -> Vec<(&'a Group, Vec<usize>)> {
    let mut groups: Vec<(&Group, Vec<usize>)> = Vec::new();
    for (i, (_, shard)) in parts.iter().enumerate() {
        let Some(group) = shard.shared() else { continue };
        match groups.iter_mut().find(|(known, _)| same(known, group)) {
            Some((_, members)) => members.push(i),
            None => groups.push((group, vec![i])),
        }
    }
    groups
}

/// Groups cannot be compared, but their texts name the mesh and its axes in full.
fn same(a: &Group, b: &Group) -> bool {
    format!("{a:?}") == format!("{b:?}")
}
