//! Meshes of devices with named axes, and sharding specs over them.

use crate::TensorType;
use std::fmt;
use std::sync::Arc;

/// A grid of devices with named axes. Devices are numbered row-major. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mesh {
    axes: Arc<[(String, usize)]>,
}

/// How a tensor is sharded over a mesh: for each dimension the axes that shard it, the major
/// first. It is replicated over the other axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sharding {
    mesh: Mesh,
    dims: Vec<Vec<usize>>,
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
        Ok(Mesh { axes: axes.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect() })
    }

    /// The names and sizes of the axes, the slowest-varying first.
    pub fn axes(&self) -> impl ExactSizeIterator<Item = (&str, usize)> {
        self.axes.iter().map(|(name, size)| (name.as_str(), *size))
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// The size of each axis.
    pub fn sizes(&self) -> Vec<usize> {
        self.axes.iter().map(|(_, size)| *size).collect()
    }

    /// The name of an axis by its position.
    pub fn axis_name(&self, axis: usize) -> &str {
        &self.axes[axis].0
    }

    /// The size of an axis by its position.
    pub fn axis_size(&self, axis: usize) -> usize {
        self.axes[axis].1
    }

    /// The positions of axes by their names.
    pub fn positions(&self, names: &[&str]) -> Result<Vec<usize>, MeshError> {
        let find = |name: &&str| {
            self.axes.iter().position(|(known, _)| known == name).ok_or_else(|| {
                let known = self.axes.iter().map(|(known, _)| known.clone()).collect();
                MeshError::UnknownAxis { axis: (*name).to_owned(), known }
            })
        };
        let axes = names.iter().map(find).collect::<Result<Vec<usize>, MeshError>>()?;
        match (1..axes.len()).find(|&i| axes[..i].contains(&axes[i])) {
            Some(i) => Err(MeshError::RepeatedAxis(names[i].to_owned())),
            None => Ok(axes),
        }
    }

    /// A sharding: for each dimension the axes that shard it, the major first.
    pub fn sharding(&self, dims: &[&[&str]]) -> Result<Sharding, MeshError> {
        let dims = dims.iter().map(|names| self.positions(names)).collect::<Result<Vec<_>, _>>()?;
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

impl Sharding {
    /// Its mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The sharding of such tensors stacked along a new first dimension, which is not sharded.
    pub fn stacked(&self) -> Sharding {
        let dims = [Vec::new()].into_iter().chain(self.dims.iter().cloned()).collect();
        Sharding { mesh: self.mesh.clone(), dims }
    }

    /// The rank of the tensors it is for.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// For each dimension the positions of the axes that shard it, the major first.
    pub fn dims(&self) -> &[Vec<usize>] {
        &self.dims
    }

    /// The number of shards of each dimension.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = usize> {
        self.dims.iter().map(|axes| axes.iter().map(|&axis| self.mesh.axis_size(axis)).product())
    }

    /// The dimensions of one device's shard of a tensor.
    pub fn local_dims(&self, ty: &TensorType) -> Result<Vec<usize>, MeshError> {
        let all: Vec<usize> = (0..self.mesh.axes.len()).collect();
        Ok(self.local(ty, &all)?.dims)
    }

    /// The shard of a tensor when only `axes`, by position, shard it.
    pub fn local(&self, ty: &TensorType, axes: &[usize]) -> Result<TensorType, MeshError> {
        self.scale(ty, axes, |dim, shards| (dim % shards == 0).then(|| dim / shards))
    }

    /// The full tensor of such shards: the inverse of [`Sharding::local`].
    pub fn global(&self, ty: &TensorType, axes: &[usize]) -> Result<TensorType, MeshError> {
        self.scale(ty, axes, |dim, shards| Some(dim * shards))
    }

    fn scale(
        &self,
        ty: &TensorType,
        over: &[usize],
        scale: impl Fn(usize, usize) -> Option<usize>,
    ) -> Result<TensorType, MeshError> {
        let fail = || MeshError::Indivisible { ty: ty.clone(), sharding: self.to_string() };
        if self.dims.len() != ty.rank() {
            return Err(fail());
        }
        let dims = ty.dims.iter().zip(&self.dims).map(|(&dim, axes)| {
            let axes = axes.iter().filter(|axis| over.contains(axis));
            let shards = axes.map(|&axis| self.mesh.axis_size(axis)).product();
            scale(dim, shards).ok_or_else(fail)
        });
        Ok(TensorType::new(ty.dtype, &dims.collect::<Result<Vec<_>, _>>()?))
    }
}

impl fmt::Display for Sharding {
    /// As in StableHLO text: `[{"data", "fsdp"}, {}]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dim = |axes: &Vec<usize>| {
            let names = axes.iter().map(|&axis| format!("\"{}\"", self.mesh.axis_name(axis)));
            format!("{{{}}}", names.collect::<Vec<_>>().join(", "))
        };
        write!(f, "[{}]", self.dims.iter().map(dim).collect::<Vec<_>>().join(", "))
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
    fn types_are_send_and_sync() {
        fn check<T: Send + Sync>() {}
        check::<Mesh>();
        check::<Sharding>();
        check::<crate::Chip>();
    }
}
