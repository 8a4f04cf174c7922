//! Sums over devices. The cost of a small all-reduce is latency, not size, so all sums of a phase
//! are packed into one vector.

use crate::shard::Shard;
use fullshard_graph::{Group, Result, Tensor, concatenate};

/// The sums of each parameter over the devices that it is sharded over, in one all-reduce per group
/// of devices. Those of replicated parameters are unchanged.
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

/// The groups that parameters are sharded over, whatever the order of their axes, each with the indices of its parameters.
fn by_group(parts: &[(Vec<Tensor>, &Shard)]) -> Vec<(Group, Vec<usize>)> {
    let mut groups: Vec<(Group, Vec<usize>)> = Vec::new();
    for (i, (_, shard)) in parts.iter().enumerate() {
        let Some(group) = shard.shard_group() else { continue };
        match groups.iter_mut().find(|(known, _)| known.has_devices_of(&group)) {
            Some((_, members)) => members.push(i),
            None => groups.push((group, vec![i])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullshard_core::Layout;
    use fullshard_graph::{Mesh, MeshExt};

    #[test]
    fn orders_of_axes_share_an_all_reduce() {
        let mesh = Mesh::new(&[("a", 2), ("b", 2), ("c", 2)]).unwrap();
        let shard = |axes: &[usize]| {
            let (dims, group) = (vec![8, 8], Some(mesh.group(axes)));
            Shard { dims, stack: None, layout: Layout::Dim(0), slice: 0, group, tensor: None }
        };
        let shards = [[0, 1], [1, 0], [0, 2]].map(|axes| shard(&axes));
        let parts = shards.each_ref().map(|shard| (Vec::new(), shard));
        let groups = by_group(&parts);
        let members: Vec<&[usize]> = groups.iter().map(|(_, members)| &members[..]).collect();
        assert_eq!(members, [&[0, 1][..], &[2]]);
    }
}
