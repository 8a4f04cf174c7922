//! Tensor parallelism in sharding rules: which dims of parameters the `tensor` axis slices, and
//! whether it can.

use crate::error::Error;
use crate::layout::TensorSlice;
use crate::placement::{Placement, PlacementOptions};
use crate::rules::{CONTEXT, NORM_SEQUENCE, Rule, Rules, TENSOR};
use fullshard_core::Mesh;
use fullshard_models::layers::dim_names::{DimName, HEADS, KV_HEADS, MLP, VOCAB};
use fullshard_models::{Annotations, Module, Parameter, TensorParallel, slice_size};

/// The dims that strategies slice over the `tensor` axis: columns of the first projections of
/// attention and of the feed-forward layer, rows of the second, and the vocabulary.
pub(crate) const SLICED: [DimName; 4] = [VOCAB, HEADS, KV_HEADS, MLP];

/// The axes of tensor parallelism in a placement.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorAxes {
    /// Their positions in the mesh.
    pub axes: Vec<usize>,
    /// The names of the dims that they slice.
    pub names: Vec<String>,
    /// Whether they shard the tokens of norms and residuals.
    pub sequence_parallel: bool,
    /// Whether they are automatic: layers have full sizes, and the compiler shards them.
    pub automatic: bool,
}

impl TensorAxes {
    /// The slices that layers compute with, if the axes are manual.
    pub(crate) fn manual(&self, placement: &Placement) -> Option<TensorParallel> {
        let group = placement.group(&self.axes);
        let slices = || TensorParallel::new(group, self.names.clone(), self.sequence_parallel);
        (!self.automatic).then(slices)
    }

    /// The names of dims that the compiler shards, if the axes are automatic.
    pub(crate) fn annotations(&self, mesh: &Mesh) -> Option<Annotations> {
        let tokens = self.sequence_parallel.then(|| NORM_SEQUENCE.to_owned());
        let names = self.names.iter().cloned().chain(tokens);
        let axes = names.map(|name| (name, self.axes.clone())).collect();
        self.automatic.then(|| Annotations::new(mesh.clone(), axes))
    }
}

impl Rules {
    /// The axes of tensor parallelism, if the mesh has any.
    pub(crate) fn tensor_axes(&self, mesh: &Mesh) -> Option<TensorAxes> {
        let axes = tensor_positions(mesh);
        let names: Vec<String> = self.slicing().map(|Rule(name, _)| name.clone()).collect();
        let is_tokens = |Rule(name, axes): &Rule| name == NORM_SEQUENCE && !axes.is_empty();
        let sequence_parallel = self.activations.iter().any(is_tokens);
        let used = !axes.is_empty() && !names.is_empty();
        let automatic = self.automatic;
        used.then_some(TensorAxes { axes, names, sequence_parallel, automatic })
    }

    /// The rules for the tensor axis.
    fn slicing(&self) -> impl Iterator<Item = &Rule> {
        self.parameters.iter().filter(|rule| rule.is_slicing())
    }

    /// How a parameter is sliced.
    pub(crate) fn slice(&self, parameter: &Parameter, mesh: &Mesh) -> Option<TensorSlice> {
        let (dim, name) = self.sliced_dim(parameter)?;
        let axes = tensor_positions(mesh);
        let count = mesh.group_size(&axes);
        let automatic = self.automatic;
        (count > 1).then_some(TensorSlice { dim, parts: name.parts, axes, count, automatic })
    }

    fn sliced_dim(&self, parameter: &Parameter) -> Option<(usize, DimName)> {
        self.slicing().find_map(|Rule(name, _)| {
            let dim = parameter.dim_names.iter().position(|known| known.name == name)?;
            Some((dim, parameter.dim_names[dim]))
        })
    }

    /// Rejects what the tensor axis cannot slice.
    pub(crate) fn check_slices(&self, tree: &Module, mesh: &Mesh) -> Result<(), Error> {
        let rules = self.source.clone();
        let mixed = |Rule(_, axes): &&Rule| axes.len() > 1 && axes.iter().any(|it| it == TENSOR);
        if let Some(Rule(name, _)) = self.parameters.iter().find(mixed) {
            return Err(Error::MixedAxes { rules, name: name.clone() });
        }
        let Some(tensor) = self.tensor_axes(mesh) else { return Ok(()) };
        if tensor.sequence_parallel && !tensor.names.iter().any(|name| name == VOCAB.name) {
            return Err(Error::SequenceWithoutVocab { rules });
        }
        let has = |dim: &DimName| tensor.names.iter().any(|name| name == dim.name);
        let named = tree.named_parameters();
        let grouped = named
            .iter()
            .any(|(_, parameter)| parameter.dim_names.iter().any(|dim| dim.name == KV_HEADS.name));
        if grouped && has(&HEADS) != has(&KV_HEADS) {
            return Err(Error::HeadsApart { rules });
        }
        let sliced: Vec<_> = named
            .iter()
            .filter_map(|(name, parameter)| {
                let (dim, dim_name) = self.sliced_dim(parameter)?;
                Some((name, dim_name, parameter.dims[dim]))
            })
            .collect();
        if sliced.is_empty() {
            return Err(self.idle_axis(TENSOR));
        }
        let units = |name: &DimName, size: usize| name.units.unwrap_or(size / name.parts);
        let fixed = || sliced.iter().filter(|(_, name, _)| !name.padded);
        let devices = mesh.group_size(&tensor.axes);
        let Some((parameter, dim_name, size)) =
            fixed().find(|(_, name, size)| !units(name, *size).is_multiple_of(devices))
        else {
            return Ok(());
        };
        let most = fixed().map(|(_, name, size)| units(name, *size)).min().unwrap_or(1);
        let divides = |count: &usize| {
            fixed().all(|(_, name, size)| units(name, *size).is_multiple_of(*count))
        };
        let sizes: Vec<String> =
            (1..=most).filter(divides).map(|count| count.to_string()).collect();
        let units = units(dim_name, *size);
        let unit = if dim_name.units.is_some() { "heads" } else { "elements" };
        let what = format!("the {units} {unit} of `{parameter}` (dim `{}`)", dim_name.name);
        Err(Error::IndivisibleSlice { rules, what, devices, sizes: sizes.join(", ") })
    }
}

/// Rejects automatic axes that cannot be, or not together with the other options.
pub(crate) fn check_automatic(options: &PlacementOptions, mesh: &Mesh) -> Result<(), Error> {
    let Some(axis) = options.automatic_axes.first() else { return Ok(()) };
    if let Some(axis) = options.automatic_axes.iter().find(|axis| *axis != TENSOR) {
        let reason = "its collectives are written by hand, so that they overlap with computation";
        let fix = "name `tensor` only";
        return Err(Error::AutomaticAxis { axis: axis.clone(), reason, fix });
    }
    if tensor_positions(mesh).is_empty() {
        return Ok(());
    }
    let has_context = mesh.axis_positions(CONTEXT).is_ok();
    let (reason, fix) = match () {
        () if has_context => {
            ("attention over a context axis is manual over both", "leave `context` out of the mesh")
        }
        () if options.config.settings.fp8 => {
            ("FP8 scales are of each device's slices", "leave out FP8")
        }
        () => return Ok(()),
    };
    Err(Error::AutomaticAxis { axis: axis.clone(), reason, fix })
}

impl Placement {
    /// The dimensions of what a device computes with of a parameter.
    pub fn local_dims(&self, parameter: &Parameter) -> Vec<usize> {
        let mut dims = parameter.dims.clone();
        if let Some(TensorSlice { dim, parts, count, .. }) = self.rules.slice(parameter, &self.mesh)
        {
            dims[dim] = slice_size(dims[dim], parts, count);
        }
        dims
    }
}

/// The positions of the tensor axis, which may be split along a torus.
fn tensor_positions(mesh: &Mesh) -> Vec<usize> {
    let axes = mesh.axis_positions(TENSOR).unwrap_or_default();
    axes.into_iter().filter(|&axis| mesh.axis_size(axis) > 1).collect()
}
