//! Meshes of devices with named axes.
//!
//! An axis that covers several dimensions of a torus can be split into one axis per dimension, so
//! that collectives can run along one at a time. A split axis is still known by its own name.

use crate::TensorType;
use crate::sharding::Sharding;
use std::sync::Arc;

/// A grid of devices with named axes. Devices are numbered row-major. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mesh {
    pub(crate) axes: Arc<[Axis]>,
}

/// An axis of a mesh, or a part of a split one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Axis {
    pub(crate) name: String,
    pub(crate) size: usize,
    /// The axis that it is a part of: itself, unless that was split.
    whole: String,
    /// Whether its devices are in different processes, of which the compiler does not know.
    pub(crate) across: bool,
}

/// An error of a mesh or of a sharding over one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// An axis without devices.
    #[error("mesh axis `{0}` has size 0; leave it out, or give it size 1")]
    EmptyAxis(String),
    /// An invalid name.
    #[error("mesh axis `{0}`: a name consists of letters, digits and underscores")]
    BadName(String),
    /// A duplicate name, among the axes of a mesh or in a request for some.
    #[error("mesh axis `{0}` is repeated; name each axis once")]
    RepeatedAxis(String),
    /// Too many devices.
    #[error("a mesh of {0:?} devices; the maximum is {max}", max = Mesh::MAX_DEVICES)]
    TooLarge(Vec<usize>),
    /// An axis that the mesh does not have.
    #[error("no axis `{axis}` in {known:?}")]
    UnknownAxis {
        /// The axis requested.
        axis: String,
        /// The axes of the mesh.
        known: Vec<String>,
    },
    /// An axis that shards two dimensions.
    #[error("mesh axis `{0}` shards two dimensions; it can shard one")]
    TwoDims(String),
    /// Parts that are not those of an axis.
    #[error("mesh axis `{axis}` of size {size} cannot be split into {parts:?}")]
    BadSplit {
        /// The axis.
        axis: String,
        /// Its size.
        size: usize,
        /// The sizes of the parts.
        parts: Vec<usize>,
    },
    /// Axes that do not divide into processes.
    #[error(
        "axes of sizes {sizes:?} cannot be divided into {processes} processes with consecutive \
         devices: at each axis, its size must divide the processes that are left, or be a multiple \
         of them"
    )]
    Processes {
        /// The sizes of the axes.
        sizes: Vec<usize>,
        /// The number of processes.
        processes: usize,
    },
    /// A tensor of another rank, or with an indivisible dimension.
    #[error("{ty} cannot be sharded as {sharding}; pad it to a multiple of the devices")]
    Indivisible {
        /// The type of the full tensor.
        ty: TensorType,
        /// The sharding.
        sharding: String,
    },
}

impl Mesh {
    /// The maximum number of devices of a mesh.
    pub const MAX_DEVICES: usize = 1 << 20;

    /// A mesh of named axes, the slowest-varying first.
    pub fn new(axes: &[(&str, usize)]) -> Result<Mesh, MeshError> {
        for (i, &(name, size)) in axes.iter().enumerate() {
            if size == 0 {
                return Err(MeshError::EmptyAxis(name.to_owned()));
            }
            if name.is_empty() || name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                return Err(MeshError::BadName(name.to_owned()));
            }
            if axes[..i].iter().any(|(earlier, _)| *earlier == name) {
                return Err(MeshError::RepeatedAxis(name.to_owned()));
            }
        }
        let devices =
            axes.iter().try_fold(1_usize, |devices, (_, size)| devices.checked_mul(*size));
        if devices.is_none_or(|devices| devices > Mesh::MAX_DEVICES) {
            return Err(MeshError::TooLarge(axes.iter().map(|(_, size)| *size).collect()));
        }
        let axis = |&(name, size): &(&str, usize)| {
            let name = name.to_owned();
            Axis { whole: name.clone(), name, size, across: false }
        };
        Ok(Mesh { axes: axes.iter().map(axis).collect() })
    }

    /// The same devices with each axis split into parts of these sizes, the slowest-varying first.
    pub fn split(&self, parts: &[Vec<usize>]) -> Result<Mesh, MeshError> {
        let mut axes = Vec::new();
        for (i, axis) in self.axes.iter().enumerate() {
            let sizes = parts.get(i).map_or(&[][..], Vec::as_slice);
            if sizes.len() < 2 {
                axes.push(axis.clone());
                continue;
            }
            if sizes.iter().product::<usize>() != axis.size {
                let (axis, parts) = (axis.name.clone(), sizes.to_vec());
                return Err(MeshError::BadSplit { axis, size: self.axes[i].size, parts });
            }
            axes.extend(sizes.iter().enumerate().map(|(part, &size)| Axis {
                name: format!("{}_{part}", axis.name),
                size,
                whole: axis.whole.clone(),
                across: axis.across,
            }));
        }
        Ok(Mesh { axes: axes.into() })
    }

    /// The mesh with its axes split into the parts that lie along the dimensions of a torus, whose
    /// first varies fastest over device ids. Nothing if sizes do not divide each other, or the
    /// numbers of devices differ.
    pub fn along_torus(&self, dims: &[usize]) -> Option<Mesh> {
        if dims.iter().product::<usize>() != self.devices() {
            return None;
        }
        let mut dims = dims.iter().copied().filter(|&dim| dim > 1);
        let mut left = 1;
        let mut parts = Vec::new();
        for axis in self.axes.iter().rev() {
            let (mut size, mut of_axis) = (axis.size, Vec::new());
            while size > 1 {
                if left == 1 {
                    left = dims.next()?;
                }
                let part = left.min(size);
                if !left.is_multiple_of(part) || !size.is_multiple_of(part) {
                    return None;
                }
                of_axis.insert(0, part);
                (left, size) = (left / part, size / part);
            }
            parts.insert(0, of_axis);
        }
        self.split(&parts).ok()
    }

    /// The names and sizes of the axes, the slowest-varying first; parts of split ones separately.
    pub fn axes(&self) -> impl ExactSizeIterator<Item = (&str, usize)> {
        self.axes.iter().map(|axis| (axis.name.as_str(), axis.size))
    }

    /// The names and sizes of the axes, the slowest-varying first; split ones as one.
    pub fn whole_axes(&self) -> Vec<(&str, usize)> {
        let mut all: Vec<(&str, usize)> = Vec::new();
        for axis in self.axes.iter() {
            match all.last_mut().filter(|(name, _)| *name == axis.whole) {
                Some((_, size)) => *size *= axis.size,
                None => all.push((&axis.whole, axis.size)),
            }
        }
        all
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// The size of each axis.
    pub fn sizes(&self) -> Vec<usize> {
        self.axes.iter().map(|axis| axis.size).collect()
    }

    /// The name of an axis by its position.
    pub fn axis_name(&self, axis: usize) -> &str {
        &self.axes[axis].name
    }

    /// The names of axes by their positions; a split axis once, by its own name.
    pub fn whole_names(&self, axes: &[usize]) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for &axis in axes {
            let name = self.axes[axis].whole.as_str();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The size of an axis by its position.
    pub fn axis_size(&self, axis: usize) -> usize {
        self.axes[axis].size
    }

    /// The number of devices along axes, by their positions.
    pub fn group_size(&self, axes: &[usize]) -> usize {
        axes.iter().map(|&axis| self.axis_size(axis)).product()
    }

    /// The devices of each group along axes, by their positions, in the order of the axes.
    pub fn groups(&self, axes: &[usize]) -> Vec<Vec<usize>> {
        let sizes = self.sizes();
        let others: Vec<usize> = (0..sizes.len()).filter(|axis| !axes.contains(axis)).collect();
        let unravel = |mut index: usize, axes: &[usize], coords: &mut [usize]| {
            for &axis in axes.iter().rev() {
                coords[axis] = index % sizes[axis];
                index /= sizes[axis];
            }
        };
        let device = |coords: &[usize]| {
            coords.iter().zip(&sizes).fold(0, |device, (coord, size)| device * size + coord)
        };
        let mut coords = vec![0; sizes.len()];
        let group = |group: usize| {
            unravel(group, &others, &mut coords);
            let member = |i| {
                unravel(i, axes, &mut coords);
                device(&coords)
            };
            (0..self.group_size(axes)).map(member).collect()
        };
        (0..self.group_size(&others)).map(group).collect()
    }

    /// The positions of an axis: several if it is split.
    pub fn axis_positions(&self, name: &str) -> Result<Vec<usize>, MeshError> {
        let is_part = |&axis: &usize| self.axes[axis].whole == name;
        let found: Vec<usize> = (0..self.axes.len()).filter(is_part).collect();
        match found.is_empty() {
            true => Err(self.unknown(name)),
            false => Ok(found),
        }
    }

    /// The positions of axes by their names.
    pub fn positions(&self, names: &[&str]) -> Result<Vec<usize>, MeshError> {
        let find = |name: &&str| {
            let found = self.axes.iter().position(|known| known.name == *name);
            found.ok_or_else(|| self.unknown(name))
        };
        let axes = names.iter().map(find).collect::<Result<Vec<usize>, MeshError>>()?;
        match (1..axes.len()).find(|&i| axes[..i].contains(&axes[i])) {
            Some(i) => Err(MeshError::RepeatedAxis(names[i].to_owned())),
            None => Ok(axes),
        }
    }

    fn unknown(&self, name: &str) -> MeshError {
        let known = self.whole_axes().into_iter().map(|(known, _)| known.to_owned()).collect();
        MeshError::UnknownAxis { axis: name.to_owned(), known }
    }

    /// A sharding: for each dimension the axes that shard it, the major first.
    pub fn sharding(&self, dims: &[&[&str]]) -> Result<Sharding, MeshError> {
        let dims = dims.iter().map(|names| self.positions(names)).collect::<Result<Vec<_>, _>>()?;
        self.sharding_over(dims)
    }

    /// A sharding over axes by their positions.
    pub fn sharding_over(&self, dims: Vec<Vec<usize>>) -> Result<Sharding, MeshError> {
        let mut used: Vec<usize> = dims.iter().flatten().copied().collect();
        used.sort_unstable();
        match used.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(MeshError::TwoDims(self.axis_name(pair[0]).to_owned())),
            None => Ok(Sharding { mesh: self.clone(), dims }),
        }
    }

    /// A sharding that replicates on all devices.
    pub fn replicated(&self, rank: usize) -> Sharding {
        Sharding { mesh: self.clone(), dims: vec![Vec::new(); rank] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn mesh() -> Mesh {
        Mesh::new(&[("data", 2), ("fsdp", 4)]).unwrap()
    }

    #[test]
    fn dimensions_are_sharded_over_all_their_axes() {
        let sharding = mesh().sharding(&[&["data", "fsdp"], &[]]).unwrap();
        assert_eq!(sharding.to_string(), "[{\"data\", \"fsdp\"}, {}]");
        assert_eq!(sharding.parts().collect::<Vec<_>>(), [8, 1]);
        let ty = TensorType::new(DType::F32, &[16, 3]);
        assert_eq!(sharding.local_dims(&ty).unwrap(), [2, 3]);
        let half = sharding.local(&ty, &[0]).unwrap();
        assert_eq!(half.dims, [8, 3]);
        assert_eq!(sharding.global(&half, &[0]).unwrap(), ty);
        assert_eq!(mesh().replicated(2).local_dims(&ty).unwrap(), [16, 3]);
    }

    #[test]
    fn errors_name_the_axis() {
        let new = |axes: &[(&str, usize)]| Mesh::new(axes).unwrap_err();
        assert_eq!(new(&[("a", 0)]), MeshError::EmptyAxis("a".into()));
        assert_eq!(new(&[("a b", 1)]), MeshError::BadName("a b".into()));
        assert_eq!(new(&[("a", 2), ("a", 2)]), MeshError::RepeatedAxis("a".into()));
        assert!(matches!(new(&[("a", usize::MAX), ("b", 2)]), MeshError::TooLarge(_)));
        let sharding = |dims: &[&[&str]]| mesh().sharding(dims).unwrap_err();
        assert_eq!(sharding(&[&["data"], &["data"]]), MeshError::TwoDims("data".into()));
        assert_eq!(sharding(&[&["data", "data"]]), MeshError::RepeatedAxis("data".into()));
        assert_eq!(sharding(&[&["x"]]).to_string(), "no axis `x` in [\"data\", \"fsdp\"]");
        let ty = TensorType::new(DType::F32, &[6]);
        let error = mesh().sharding(&[&["fsdp"]]).unwrap().local_dims(&ty).unwrap_err();
        assert!(error.to_string().contains("f32[6] cannot be sharded as [{\"fsdp\"}]"), "{error}");
        assert!(mesh().replicated(2).local_dims(&ty).is_err());
    }

    #[test]
    fn groups_of_any_axes() {
        let mesh = Mesh::new(&[("a", 2), ("b", 2), ("c", 2)]).unwrap();
        let groups = |names: &[&str]| mesh.groups(&mesh.positions(names).unwrap());
        assert_eq!(groups(&["c"]), [[0, 1], [2, 3], [4, 5], [6, 7]]);
        assert_eq!(groups(&["a"]), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(groups(&["a", "c"]), [[0, 1, 4, 5], [2, 3, 6, 7]]);
        assert_eq!(groups(&["c", "a"]), [[0, 4, 1, 5], [2, 6, 3, 7]]);
        assert_eq!(groups(&["a", "b", "c"]), [[0, 1, 2, 3, 4, 5, 6, 7]]);
    }

    #[test]
    fn split_axes_keep_their_names_and_devices() {
        let split = mesh().split(&[vec![2], vec![2, 2]]).unwrap();
        assert_eq!(split.axes().collect::<Vec<_>>(), [("data", 2), ("fsdp_0", 2), ("fsdp_1", 2)]);
        assert_eq!(split.whole_axes(), [("data", 2), ("fsdp", 4)]);
        let fsdp = split.axis_positions("fsdp").unwrap();
        assert_eq!(split.groups(&fsdp), mesh().groups(&[1]));
        assert_eq!(split.whole_names(&[0, 1, 2]), ["data", "fsdp"]);
        let error = mesh().split(&[vec![], vec![3, 2]]).unwrap_err().to_string();
        assert_eq!(error, "mesh axis `fsdp` of size 4 cannot be split into [3, 2]");
        assert!(split.axis_positions("tensor").unwrap_err().to_string().contains("fsdp"));
    }

    #[test]
    fn axes_follow_the_dimensions_of_a_torus() {
        let along = |axes: &[(&str, usize)], dims: &[usize]| {
            Mesh::new(axes).unwrap().along_torus(dims).map(|mesh| mesh.sizes())
        };
        assert_eq!(along(&[("fsdp", 64)], &[4, 4, 4]), Some(vec![4, 4, 4]));
        assert_eq!(along(&[("fsdp", 32)], &[2, 4, 4]), Some(vec![4, 4, 2]));
        assert_eq!(along(&[("data", 4), ("fsdp", 16)], &[4, 4, 4]), Some(vec![4, 4, 4]));
        assert_eq!(along(&[("data", 2), ("fsdp", 32)], &[4, 4, 4]), Some(vec![2, 2, 4, 4]));
        assert_eq!(along(&[("fsdp", 4)], &[2, 2, 1]), Some(vec![2, 2]));
        assert_eq!(along(&[("data", 3), ("fsdp", 4)], &[2, 6]), Some(vec![3, 2, 2]));
        assert_eq!(along(&[("data", 2), ("fsdp", 6)], &[4, 3]), None);
        assert_eq!(along(&[("fsdp", 8)], &[4]), None);
    }

    #[test]
    fn types_are_send_and_sync() {
        fn check<T: Send + Sync>() {}
        check::<Mesh>();
        check::<Sharding>();
        check::<crate::Chip>();
    }
}
