//! Named shardings over mesh axes, converted to tiles.
//!
//! Each tensor dim lists the axes that shard it; axes that shard no dim are replicated, unless they
//! are marked manual or unreduced.

use super::devices::to_usizes;
use super::mesh::SplitMesh;
use super::proto;
use super::sharding::{OpSharding, Subgroup, SubgroupKind, TileSharding};

/// Decodes a sharding over mesh axes.
pub(super) fn decode(named: &proto::NamedSharding) -> Result<OpSharding, String> {
    let Some(mesh) = named.mesh.as_ref().filter(|mesh| **mesh != proto::Mesh::default()) else {
        return Ok(OpSharding::Replicated);
    };
    if let (true, [device]) = (mesh.axes.is_empty(), to_usizes(&mesh.device_ids)?.as_slice()) {
        return Ok(OpSharding::Maximal(*device));
    }
    let over_dims = named.dim_shardings.iter().flat_map(|dim| &dim.axes);
    let references = over_dims.chain(&named.manual_axes).chain(&named.unreduced_axes);
    let split = SplitMesh::new(mesh, references)?;

    let dims = named.dim_shardings.iter().map(|dim| split.all_pieces(&dim.axes));
    let dims = dims.collect::<Result<Vec<_>, _>>()?;
    let manual = split.all_pieces(&named.manual_axes)?;
    let unreduced = split.all_pieces(&named.unreduced_axes)?;
    let rest = split.rest(&[dims.concat(), manual.clone(), unreduced.clone()].concat());
    let grid: Vec<usize> = dims.iter().map(|pieces| split.extent(pieces)).collect();
    let order = [dims.concat(), rest.clone(), manual.clone(), unreduced.clone()].concat();
    let devices = split.arranged(&order)?;

    let subgroups: Vec<Subgroup> = [
        (SubgroupKind::Replicated, rest),
        (SubgroupKind::Manual, manual),
        (SubgroupKind::Unreduced, unreduced),
    ]
    .into_iter()
    .map(|(kind, pieces)| Subgroup { kind, size: split.extent(&pieces) })
    .filter(|group| group.size > 1)
    .collect();
    let untiled = grid.iter().all(|&parts| parts == 1);
    Ok(match subgroups.as_slice() {
        [Subgroup { kind: SubgroupKind::Replicated, .. }] if untiled => OpSharding::Replicated,
        [Subgroup { kind: SubgroupKind::Manual, .. }] if untiled => OpSharding::Manual,
        [Subgroup { kind: SubgroupKind::Unreduced, .. }] if untiled => OpSharding::Unreduced,
        _ => OpSharding::Tiled(TileSharding { grid, subgroups, devices }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiled(named: &proto::NamedSharding) -> TileSharding {
        match decode(named).unwrap() {
            OpSharding::Tiled(tiles) => tiles,
            other => panic!("{other:?}"),
        }
    }

    fn named(dims: &[&[i64]]) -> proto::NamedSharding {
        let axis = |&mesh_axis_index: &i64| proto::AxisRef { mesh_axis_index, sub_axis: None };
        let axes = [2, 4].map(|size| proto::MeshAxis { size }).to_vec();
        let dim = |axes: &&[i64]| proto::DimSharding { axes: axes.iter().map(axis).collect() };
        proto::NamedSharding {
            mesh: Some(proto::Mesh { axes, ..Default::default() }),
            dim_shardings: dims.iter().map(dim).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn named_axes() {
        let tiles = tiled(&named(&[&[], &[1]]));
        assert_eq!((tiles.grid.as_slice(), tiles.replicas()), (&[1, 4][..], 2));
        assert_eq!(tiles.devices.to_vec(), [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(tiles.tile_of(5), Some(vec![0, 1]));
        assert_eq!(decode(&named(&[&[], &[]])).unwrap(), OpSharding::Replicated);
        assert!(decode(&named(&[&[1], &[1]])).is_err());
    }
}
