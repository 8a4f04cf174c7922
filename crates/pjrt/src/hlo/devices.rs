//! Device lists, kept in their compact form.
//!
//! A list of thousands of devices is a few bytes in a module (an iota, reshaped and transposed),
//! and every collective and every sharding has one. They are checked when read, and only expanded
//! on demand.

use std::fmt;

use super::mesh;
use super::proto;
use super::shape::write_list;

/// No machine is larger; a longer list means a malformed module.
const MAX_DEVICES: usize = 1 << 20;

/// An ordered list of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    base: Base,
    steps: Vec<Reorder>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Base {
    Iota(usize),
    List(Vec<usize>),
}

/// A reshape of the list to these extents, and a transpose.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reorder {
    reshape: Vec<usize>,
    transpose: Vec<usize>,
}

impl Devices {
    /// Devices 0 to `count`.
    pub(super) fn iota(count: usize) -> Result<Self, String> {
        if count > MAX_DEVICES {
            return Err(format!("{count} devices are more than any machine has"));
        }
        Ok(Self { base: Base::Iota(count), steps: Vec::new() })
    }

    /// These devices.
    pub(super) fn list(ids: &[i64]) -> Result<Self, String> {
        Ok(Self { base: Base::List(to_usizes(ids)?), steps: Vec::new() })
    }

    /// An iota as XLA represents it: extents, and a permutation of them (empty for none).
    pub(super) fn from_iota(reshape: &[i64], transpose: &[i64]) -> Result<Self, String> {
        let reshape = to_usizes(reshape)?;
        let count = product(&reshape).ok_or("a device list is larger than any machine")?;
        let transpose = match transpose {
            [] => (0..reshape.len()).collect(),
            given => to_usizes(given)?,
        };
        Self::iota(count)?.reordered(&reshape, &transpose)
    }

    /// The list reshaped to `reshape` and transposed.
    pub(super) fn reordered(
        mut self,
        reshape: &[usize],
        transpose: &[usize],
    ) -> Result<Self, String> {
        if product(reshape) != Some(self.len()) {
            return Err(format!("{} devices do not fill {reshape:?}", self.len()));
        }
        check_permutation(transpose, reshape.len())?;
        let step = Reorder::without_ones(reshape, transpose);
        if !step.transpose.is_sorted() {
            self.steps.push(step);
        }
        Ok(self)
    }

    /// Number of devices.
    pub fn len(&self) -> usize {
        match &self.base {
            Base::Iota(count) => *count,
            Base::List(ids) => ids.len(),
        }
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The expanded list.
    pub fn to_vec(&self) -> Vec<usize> {
        let base = match &self.base {
            Base::Iota(count) => (0..*count).collect(),
            Base::List(ids) => ids.clone(),
        };
        self.steps.iter().fold(base, |devices, step| step.apply(&devices))
    }
}

impl Reorder {
    /// Drops dims of extent one, which have no effect, to keep the rank small.
    fn without_ones(reshape: &[usize], transpose: &[usize]) -> Self {
        let mut renumbered = vec![0; reshape.len()];
        let mut kept = Vec::new();
        for (dim, &extent) in reshape.iter().enumerate() {
            renumbered[dim] = kept.len();
            if extent != 1 {
                kept.push(extent);
            }
        }
        let moving = transpose.iter().filter(|&&dim| reshape[dim] != 1);
        Self { transpose: moving.map(|&dim| renumbered[dim]).collect(), reshape: kept }
    }

    fn apply(&self, values: &[usize]) -> Vec<usize> {
        let mut strides = vec![1; self.reshape.len()];
        for dim in (1..self.reshape.len()).rev() {
            strides[dim - 1] = strides[dim] * self.reshape[dim];
        }
        let mut offsets = vec![0];
        for &dim in &self.transpose {
            let steps = 0..self.reshape[dim];
            offsets = offsets
                .iter()
                .flat_map(|offset| steps.clone().map(move |step| (offset, step)))
                .map(|(offset, step)| offset + step * strides[dim])
                .collect();
        }
        offsets.into_iter().filter_map(|offset| values.get(offset).copied()).collect()
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.base, self.steps.is_empty()) {
            (Base::List(_), _) => return write_list(f, self.to_vec(), ","),
            (Base::Iota(count), true) => return write!(f, "<=[{count}]"),
            (Base::Iota(_), false) => f.write_str("<=")?,
        }
        for step in &self.steps {
            f.write_str("[")?;
            write_list(f, &step.reshape, ",")?;
            f.write_str("]T(")?;
            write_list(f, &step.transpose, ",")?;
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// The device groups of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaGroups {
    /// Explicit groups. No groups means one group of all devices.
    Listed(Vec<Vec<usize>>),
    /// A device list split into groups of one size.
    Regular {
        /// Devices in each group.
        group_size: usize,
        /// The concatenated groups.
        devices: Devices,
    },
}

impl ReplicaGroups {
    pub(super) fn decode(instruction: &proto::Instruction) -> Result<Self, String> {
        if let Some(axes) = &instruction.mesh_axes_replica_group_list {
            return mesh::replica_groups(axes);
        }
        // Older compilers have the iota inside the list.
        let list = instruction.collective_device_list.as_ref();
        let inner = list.and_then(|list| list.iota_replica_group_list.as_ref());
        if let Some(iota) = instruction.iota_collective_device_list.as_ref().or(inner) {
            return Self::from_iota(iota);
        }
        let groups = match list {
            Some(list) => &list.replica_groups,
            None => &instruction.replica_groups,
        };
        let groups = groups.iter().map(|group| to_usizes(&group.replica_ids));
        groups.collect::<Result<_, _>>().map(Self::Listed)
    }

    fn from_iota(list: &proto::IotaReplicaGroupList) -> Result<Self, String> {
        let transpose: Vec<i64> = list.iota_transpose_perm.iter().map(|&dim| dim.into()).collect();
        let devices = Devices::from_iota(&list.iota_reshape_dims, &transpose)?;
        let sizes = to_usizes(&[list.num_replica_groups, list.num_devices_per_group])?;
        if product(&sizes) != Some(devices.len()) {
            return Err(format!("{} devices do not make {sizes:?} groups", devices.len()));
        }
        Ok(Self::Regular { group_size: sizes[1], devices })
    }

    /// Whether there are no groups, which means one group of all devices.
    pub fn is_empty(&self) -> bool {
        self.group_size().is_none()
    }

    /// Devices in the largest group; `None` if there are no groups.
    pub fn group_size(&self) -> Option<usize> {
        match self {
            Self::Listed(groups) => groups.iter().map(Vec::len).max(),
            Self::Regular { group_size, .. } => Some(*group_size),
        }
    }

    /// The expanded groups.
    pub fn to_vecs(&self) -> Vec<Vec<usize>> {
        match self {
            Self::Listed(groups) => groups.clone(),
            Self::Regular { group_size, devices } => {
                devices.to_vec().chunks((*group_size).max(1)).map(<[usize]>::to_vec).collect()
            }
        }
    }
}

impl fmt::Display for ReplicaGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed(groups) => {
                f.write_str("{")?;
                for (position, group) in groups.iter().enumerate() {
                    f.write_str(if position == 0 { "{" } else { ",{" })?;
                    write_list(f, group, ",")?;
                    f.write_str("}")?;
                }
                f.write_str("}")
            }
            Self::Regular { group_size, devices } => {
                write!(f, "[{},{group_size}]{devices}", devices.len() / (*group_size).max(1))
            }
        }
    }
}

/// The product of extents, if it is a valid number of devices.
pub(super) fn product(extents: &[usize]) -> Option<usize> {
    extents.iter().try_fold(1usize, |product, &extent| {
        product.checked_mul(extent).filter(|product| (1..=MAX_DEVICES).contains(product))
    })
}

pub(super) fn to_usizes(values: &[i64]) -> Result<Vec<usize>, String> {
    let value = |&value| usize::try_from(value).map_err(|_| format!("{value} is negative"));
    values.iter().map(value).collect()
}

fn check_permutation(permutation: &[usize], rank: usize) -> Result<(), String> {
    let mut sorted = permutation.to_vec();
    sorted.sort_unstable();
    if sorted.into_iter().eq(0..rank) {
        Ok(())
    } else {
        Err(format!("{permutation:?} does not permute {rank} dims"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iota_reshaped_and_transposed() {
        let devices = Devices::from_iota(&[2, 1, 3], &[2, 1, 0]).unwrap();
        assert_eq!(devices.to_vec(), [0, 3, 1, 4, 2, 5]);
        assert_eq!(devices.to_string(), "<=[2,3]T(1,0)");
        assert_eq!(Devices::from_iota(&[4], &[0]).unwrap().to_string(), "<=[4]");
        let cube = Devices::from_iota(&[2, 2, 2], &[1, 2, 0]).unwrap();
        assert_eq!(cube.to_vec(), [0, 4, 1, 5, 2, 6, 3, 7]);
    }

    #[test]
    fn rejects_huge_lists() {
        for reshape in [&[i64::MAX, i64::MAX][..], &[1 << 40], &[-1], &[0, 5], &[1 << 20, 2]] {
            assert!(Devices::from_iota(reshape, &[]).is_err(), "{reshape:?}");
        }
        assert!(Devices::from_iota(&[2, 2], &[0, 0]).is_err());
        assert!(Devices::from_iota(&[2, 2], &[0]).is_err());
        assert!(Devices::from_iota(&[2, 2], &[0, 7]).is_err());
    }

    #[test]
    fn iota_groups() {
        let list = proto::IotaReplicaGroupList {
            num_replica_groups: 2,
            num_devices_per_group: 4,
            iota_reshape_dims: vec![4, 2],
            iota_transpose_perm: vec![1, 0],
        };
        let groups = ReplicaGroups::from_iota(&list).unwrap();
        assert_eq!(groups.to_vecs(), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(groups.to_string(), "[2,4]<=[4,2]T(1,0)");
        assert_eq!(groups.group_size(), Some(4));
        let wrong = proto::IotaReplicaGroupList { num_replica_groups: 3, ..list };
        assert!(ReplicaGroups::from_iota(&wrong).is_err());
    }
}
