//! Device lists expressed as mesh axes.
//!
//! Newer XLA writes replica groups and shardings as references to mesh axes, or to sub-axes. Each
//! axis is split into pieces such that every reference is a run of pieces; the rest is one reshape
//! and one transpose of the mesh's devices.

use std::collections::BTreeSet;

use super::devices::{Devices, ReplicaGroups, product, to_usizes};
use super::proto;

/// A mesh whose axes are split into pieces.
pub(super) struct SplitMesh {
    devices: Devices,
    sizes: Vec<usize>,
    /// For each axis, the start of its pieces: the product of the sizes to the left, and the piece.
    starts: Vec<Vec<(i64, usize)>>,
}

impl SplitMesh {
    /// Splits `mesh` so that each of `references` is a run of pieces.
    pub fn new<'a>(
        mesh: &proto::Mesh,
        references: impl IntoIterator<Item = &'a proto::AxisRef>,
    ) -> Result<Self, String> {
        let axis_sizes: Vec<i64> = mesh.axes.iter().map(|axis| axis.size).collect();
        let devices = mesh_devices(mesh, &to_usizes(&axis_sizes)?)?;
        let mut points: Vec<BTreeSet<i64>> =
            axis_sizes.iter().map(|&size| BTreeSet::from([1, size])).collect();
        for reference in references {
            let axis = axis_index(reference, points.len())?;
            if let Some((start, end)) = sub_axis_bounds(reference)? {
                points[axis].extend([start, end]);
            }
        }
        let mut split = Self { devices, sizes: Vec::new(), starts: Vec::new() };
        for (points, size) in points.iter().zip(axis_sizes) {
            split.push_axis(points, size)?;
        }
        Ok(split)
    }

    fn push_axis(&mut self, points: &BTreeSet<i64>, size: i64) -> Result<(), String> {
        let mut starts = Vec::new();
        for (start, end) in points.iter().zip(points.iter().skip(1)) {
            if end % start != 0 || *end > size {
                return Err(format!("an axis of size {size} cannot be split at {start} and {end}"));
            }
            starts.push((*start, self.sizes.len()));
            self.sizes.extend(usize::try_from(end / start));
        }
        self.starts.push(starts);
        Ok(())
    }

    /// The pieces of one of the references passed to [`SplitMesh::new`].
    pub fn pieces(&self, reference: &proto::AxisRef) -> Result<Vec<usize>, String> {
        let starts = &self.starts[axis_index(reference, self.starts.len())?];
        let (start, end) = sub_axis_bounds(reference)?.unwrap_or((1, i64::MAX));
        let inside = starts.iter().filter(|(at, _)| (start..end).contains(at));
        Ok(inside.map(|&(_, piece)| piece).collect())
    }

    /// The concatenated pieces of several references.
    pub fn all_pieces(&self, references: &[proto::AxisRef]) -> Result<Vec<usize>, String> {
        let pieces = references.iter().map(|reference| self.pieces(reference));
        Ok(pieces.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// The pieces that are not in `used`, in mesh order.
    pub fn rest(&self, used: &[usize]) -> Vec<usize> {
        let used: BTreeSet<_> = used.iter().collect();
        (0..self.sizes.len()).filter(|piece| !used.contains(piece)).collect()
    }

    /// Number of devices along these pieces.
    pub fn extent(&self, pieces: &[usize]) -> usize {
        pieces.iter().map(|&piece| self.sizes[piece]).fold(1, usize::saturating_mul)
    }

    /// The devices with the pieces in this order, outermost first.
    pub fn arranged(&self, order: &[usize]) -> Result<Devices, String> {
        self.devices.clone().reordered(&self.sizes, order)
    }
}

/// The groups of a collective over some axes: devices that differ only along them.
pub(super) fn replica_groups(
    list: &proto::MeshAxesReplicaGroupList,
) -> Result<ReplicaGroups, String> {
    let mesh = list.mesh.as_ref().ok_or("replica groups over mesh axes have no mesh")?;
    let split = SplitMesh::new(mesh, &list.axes)?;
    let along = split.all_pieces(&list.axes)?;
    let order = [split.rest(&along), along.clone()].concat();
    let devices = split.arranged(&order)?;
    Ok(ReplicaGroups::Regular { group_size: split.extent(&along), devices })
}

fn mesh_devices(mesh: &proto::Mesh, sizes: &[usize]) -> Result<Devices, String> {
    let count = product(sizes).ok_or("a mesh is empty, or larger than any machine")?;
    let devices = match &mesh.iota_transform {
        _ if !mesh.device_ids.is_empty() => Devices::list(&mesh.device_ids)?,
        Some(iota) => Devices::from_iota(&iota.reshape_dims, &iota.transpose_perm)?,
        None => Devices::iota(count)?,
    };
    if devices.len() != count {
        return Err(format!("a mesh of {sizes:?} lists {} devices", devices.len()));
    }
    Ok(devices)
}

fn axis_index(reference: &proto::AxisRef, axes: usize) -> Result<usize, String> {
    let index = usize::try_from(reference.mesh_axis_index).ok().filter(|&index| index < axes);
    index.ok_or_else(|| format!("a mesh of {axes} axes has no axis {}", reference.mesh_axis_index))
}

fn sub_axis_bounds(reference: &proto::AxisRef) -> Result<Option<(i64, i64)>, String> {
    let Some(sub) = reference.sub_axis else {
        return Ok(None);
    };
    let end = sub.pre_size.checked_mul(sub.size);
    match end {
        Some(end) if sub.pre_size >= 1 && sub.size >= 1 => Ok(Some((sub.pre_size, end))),
        _ => Err(format!("a sub-axis of size {} after {}", sub.size, sub.pre_size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(sizes: &[i64]) -> proto::Mesh {
        let axes = sizes.iter().map(|&size| proto::MeshAxis { size }).collect();
        proto::Mesh { axes, ..Default::default() }
    }

    fn axis(mesh_axis_index: i64) -> proto::AxisRef {
        proto::AxisRef { mesh_axis_index, sub_axis: None }
    }

    fn sub_axis(mesh_axis_index: i64, pre_size: i64, size: i64) -> proto::AxisRef {
        proto::AxisRef { mesh_axis_index, sub_axis: Some(proto::SubAxis { pre_size, size }) }
    }

    fn groups(mesh: proto::Mesh, axes: Vec<proto::AxisRef>) -> Result<Vec<Vec<usize>>, String> {
        let list = proto::MeshAxesReplicaGroupList { mesh: Some(mesh), axes };
        replica_groups(&list).map(|groups| groups.to_vecs())
    }

    #[test]
    fn groups_over_axes() {
        assert_eq!(groups(mesh(&[2, 3]), vec![axis(1)]).unwrap(), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(groups(mesh(&[2, 3]), vec![axis(0)]).unwrap(), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(groups(mesh(&[2, 2]), vec![axis(1), axis(0)]).unwrap(), [[0, 2, 1, 3]]);
    }

    #[test]
    fn groups_over_sub_axes() {
        assert_eq!(groups(mesh(&[4]), vec![sub_axis(0, 1, 2)]).unwrap(), [[0, 2], [1, 3]]);
        assert_eq!(groups(mesh(&[4]), vec![sub_axis(0, 2, 2)]).unwrap(), [[0, 1], [2, 3]]);
    }

    #[test]
    fn groups_over_reordered_meshes() {
        let listed = proto::Mesh { device_ids: vec![3, 2, 1, 0], ..mesh(&[2, 2]) };
        assert_eq!(groups(listed, vec![axis(0)]).unwrap(), [[3, 1], [2, 0]]);
        let iota = proto::IotaTransform { reshape_dims: vec![2, 2], transpose_perm: vec![1, 0] };
        let transposed = proto::Mesh { iota_transform: Some(iota), ..mesh(&[2, 2]) };
        assert_eq!(groups(transposed, vec![axis(1)]).unwrap(), [[0, 2], [1, 3]]);
    }

    #[test]
    fn rejects_invalid_references() {
        assert!(groups(mesh(&[4]), vec![axis(1)]).is_err());
        assert!(groups(mesh(&[4]), vec![axis(0), axis(0)]).is_err());
        assert!(groups(mesh(&[4]), vec![sub_axis(0, 3, 2)]).is_err());
        assert!(groups(mesh(&[4]), vec![sub_axis(0, 0, 2)]).is_err());
        assert!(groups(mesh(&[4]), vec![sub_axis(0, i64::MAX, 2)]).is_err());
        assert!(groups(mesh(&[1 << 40]), vec![axis(0)]).is_err());
        assert!(groups(mesh(&[0]), vec![axis(0)]).is_err());
    }
}
