//! Annotations: how tensors are sharded over automatic mesh axes, by the names of their dims.
//!
//! Over an automatic axis a model computes with full sizes, and the compiler shards tensors and
//! inserts collectives. Annotations state where it matters: names of dims, which rules map to mesh
//! axes. Axes that are manual shard tensors already, so their names constrain nothing; on one
//! device no name does.

use crate::layers::dim_names::{self, DimName, NORM_SEQUENCE};
use crate::module::Parameter;
use crate::scope::Scope;
use crate::tensor_parallel::slice_size;
use fullshard_graph::{Error, Group, Mesh, MeshError, MeshExt, Result, Sharding, Tensor};

/// The name of each dim, where it has one.
pub type DimNames<'a> = &'a [Option<DimName>];

/// The automatic axes of a mesh, and the names of the dims that they shard.
#[derive(Debug, Clone)]
pub struct Annotations {
    mesh: Mesh,
    /// The positions of the axes of each name.
    axes: Vec<(String, Vec<usize>)>,
}

impl Annotations {
    /// With the positions of the automatic axes that shard dims of each name. The first name that a
    /// parameter has decides how it is sharded.
    pub fn new(mesh: Mesh, axes: Vec<(String, Vec<usize>)>) -> Annotations {
        Annotations { mesh, axes }
    }

    /// The number of shards of dims of a name.
    pub fn shards(&self, dim: &DimName) -> usize {
        self.mesh.group_size(self.axes_of(dim))
    }

    /// The devices that shard dims of a name, inside of [`Scope::per_shard`].
    pub fn group(&self, dim: &DimName) -> Group {
        self.mesh.group(self.axes_of(dim))
    }

    fn axes_of(&self, dim: &DimName) -> &[usize] {
        self.axes.iter().find(|(name, _)| name == dim.name).map_or(&[], |(_, axes)| axes)
    }

    fn sharding(&self, dims: DimNames<'_>) -> Result<Sharding> {
        let axes = dims.iter().map(|dim| dim.map_or(Vec::new(), |dim| self.axes_of(&dim).to_vec()));
        let invalid = |error: MeshError| Error::new(CONSTRAIN, error.to_string());
        self.mesh.sharding_over(axes.collect()).map_err(invalid)
    }

    /// The dims of a parameter as a tracer returns it: a sharded dim is padded to a multiple of its
    /// shards, and a dim of fused parts is two.
    pub(crate) fn stored_dims(&self, parameter: &Parameter) -> Vec<usize> {
        let names = &parameter.dim_names;
        let position = |name: &str| names.iter().position(|dim| dim.name == name);
        let sharded = self.axes.iter().find_map(|(name, axes)| Some((position(name)?, axes)));
        let mut dims = parameter.dims.clone();
        if let Some((dim, axes)) = sharded {
            let (parts, shards) = (names[dim].parts, self.mesh.group_size(axes));
            let size = shards * slice_size(dims[dim], parts, shards) / parts;
            let sizes = if parts > 1 { vec![parts, size] } else { vec![size] };
            dims.splice(dim..=dim, sizes);
        }
        dims
    }
}

const CONSTRAIN: &str = "constrain";

impl Scope<'_> {
    /// Annotates how the compiler shards a value: each dim with a name, over the automatic axes
    /// that the rules map it to. It chooses for dims without. The gradient is annotated in the same
    /// way. Nothing changes without automatic axes.
    pub fn constrain(&self, x: &Tensor, dims: DimNames<'_>) -> Result<Tensor> {
        match self.annotated(x, dims)? {
            Some(sharding) if sharding.dims().iter().any(|axes| !axes.is_empty()) => {
                x.constrain(&sharding)
            }
            _ => Ok(x.clone()),
        }
    }

    /// As [`Scope::constrain`], but dims without a name are not sharded over automatic axes.
    pub fn constrain_exactly(&self, x: &Tensor, dims: DimNames<'_>) -> Result<Tensor> {
        match self.annotated(x, dims)? {
            Some(sharding) => x.constrain_exactly(&sharding),
            None => Ok(x.clone()),
        }
    }

    /// The residual stream, `[..., tokens, width]`, whose tokens sequence parallelism shards.
    pub(crate) fn constrain_residual(&self, x: &Tensor) -> Result<Tensor> {
        let mut dims = vec![None; x.rank()];
        if let Some(dim) = x.rank().checked_sub(2) {
            dims[dim] = Some(NORM_SEQUENCE);
        }
        self.constrain_exactly(x, &dims)
    }

    /// A value whose last dim has a name.
    pub(crate) fn constrain_last(&self, x: &Tensor, name: DimName) -> Result<Tensor> {
        let mut dims = vec![None; x.rank()];
        if let Some(last) = dims.last_mut() {
            *last = Some(name);
        }
        self.constrain(x, &dims)
    }

    /// Runs a function on the shards of its inputs over automatic axes, as what the compiler cannot
    /// shard needs it. Inputs and results are sharded along their named dims.
    pub fn per_shard(
        &self,
        inputs: &[(&Tensor, DimNames<'_>)],
        results: &[DimNames<'_>],
        function: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        let Some(annotations) = self.annotations() else {
            return function(inputs.iter().map(|(x, _)| (*x).clone()).collect());
        };
        let shards = inputs.iter().map(|(x, dims)| {
            self.check_dims(x, dims)?;
            Ok((*x, annotations.sharding(dims)?))
        });
        let shards = shards.collect::<Result<Vec<_>>>()?;
        let results = results.iter().map(|dims| annotations.sharding(dims));
        annotations.mesh.per_shard(&shards, &results.collect::<Result<Vec<_>>>()?, function)
    }

    /// The sharding of a value over automatic axes, if there are any.
    fn annotated(&self, x: &Tensor, dims: DimNames<'_>) -> Result<Option<Sharding>> {
        self.check_dims(x, dims)?;
        self.annotations().map(|annotations| annotations.sharding(dims)).transpose()
    }

    /// Rejects names that no rule can have, and too many or too few of them.
    fn check_dims(&self, x: &Tensor, dims: DimNames<'_>) -> Result<()> {
        if dims.len() != x.rank() {
            let reason = format!("{} names of dims for {}", dims.len(), x.ty());
            return Err(Error::new(CONSTRAIN, reason));
        }
        let known = |dim: &&DimName| dim_names::ALL.iter().any(|known| known.name == dim.name);
        match dims.iter().flatten().find(|dim| !known(dim)) {
            Some(dim) => {
                let names: Vec<&str> = dim_names::ALL.iter().map(|known| known.name).collect();
                let (name, names) = (dim.name, names.join(", "));
                Err(Error::new(
                    CONSTRAIN,
                    format!("no dim is named `{name}`; the names are {names}"),
                ))
            }
            None => Ok(()),
        }
    }
}

/// A stored parameter in the dims of its declaration: parts merged, without padding.
pub(crate) fn as_declared(stored: &Tensor, parameter: &Parameter) -> Result<Tensor> {
    let mut merged = stored.dims().to_vec();
    if let Some(dim) = (stored.rank() > parameter.dims.len()).then(|| split_dim(parameter)) {
        merged.splice(dim..dim + 2, [stored.dims()[dim] * stored.dims()[dim + 1]]);
    }
    let merged = stored.reshape(&merged)?;
    parameter.dims.iter().enumerate().try_fold(merged, |tensor, (dim, &size)| {
        if tensor.dims()[dim] == size { Ok(tensor) } else { tensor.narrow(dim, 0, size) }
    })
}

/// The dim of fused parts.
fn split_dim(parameter: &Parameter) -> usize {
    parameter.dim_names.iter().position(|dim| dim.parts > 1).unwrap_or(0)
}
