//! Manual regions, nested ones too, and constraints on the axes that are left automatic.
//!
//! Each axis of a mesh is either manual at a point of a program, with tensors that are shards, or
//! automatic, with tensors that are global and that the compiler shards. Regions make axes manual
//! from outside in; a sharding inside names only axes that are not manual outside.

use crate::error::{Error, Result};
use crate::op::{Constraint, Manual, Op};
use crate::tensor::Tensor;
use crate::trace::{emit, emit_one, is_manual, trace_graph, with_manual};
use fullshard_core::{Mesh, MeshError, Sharding};
use std::rc::Rc;

const MANUAL: &str = "manual";

/// Traces a region that is manual over axes, by their positions.
pub(crate) fn region(
    mesh: &Mesh,
    axes: &[usize],
    inputs: &[(&Tensor, Sharding)],
    outputs: &[Sharding],
    trace: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    if let Some(axis) = axes.iter().map(|&axis| mesh.axis_name(axis)).find(|axis| is_manual(axis)) {
        let reason = format!("axis `{axis}` is manual already; name automatic axes only");
        return Err(Error::new(MANUAL, reason));
    }
    for sharding in inputs.iter().map(|(_, sharding)| sharding).chain(outputs) {
        check_sharding(mesh, axes, sharding)?;
    }
    let local = inputs
        .iter()
        .map(|(tensor, sharding)| {
            Ok(Rc::new(sharding.local(tensor.ty(), axes).map_err(mesh_error)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let traced = with_manual(names(mesh, axes), || trace_graph(MANUAL, &local, trace))?;
    if outputs.len() != traced.graph.results.len() {
        let (found, expected) = (traced.graph.results.len(), outputs.len());
        return Err(Error::new(MANUAL, format!("{found} results for {expected} shardings")));
    }
    let captured = traced.captured.iter();
    let replicated = captured.clone().map(|tensor| mesh.replicated(tensor.rank()));
    let shardings = inputs.iter().map(|(_, sharding)| sharding.clone()).chain(replicated);
    let operands: Vec<&Tensor> = inputs.iter().map(|(tensor, _)| *tensor).chain(captured).collect();
    let manual = Manual {
        mesh: mesh.clone(),
        axes: axes.to_vec(),
        inputs: shardings.collect(),
        outputs: outputs.to_vec(),
        body: Rc::new(traced.graph),
    };
    emit_region(manual, &operands)
}

/// Emits a traced region.
pub(crate) fn emit_region(manual: Manual, operands: &[&Tensor]) -> Result<Vec<Tensor>> {
    let results = manual.body.result_types();
    let global = |(ty, sharding): (&Rc<_>, &Sharding)| sharding.global(ty, &manual.axes);
    let types = results.iter().zip(&manual.outputs).map(global).collect::<Result<_, _>>();
    let types = types.map_err(mesh_error)?;
    emit(MANUAL, Op::Manual(Rc::new(manual)), operands, types)
}

/// Traces a function on the shards of its inputs, see
/// [`MeshExt::per_shard`](crate::MeshExt::per_shard).
pub(crate) fn per_shard(
    mesh: &Mesh,
    inputs: &[(&Tensor, Sharding)],
    outputs: &[Sharding],
    function: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let is_automatic = |axis: &usize| !is_manual(mesh.axis_name(*axis));
    let shardings = || inputs.iter().map(|(_, sharding)| sharding).chain(outputs);
    let named = |axis: &usize| shardings().any(|it| it.dims().iter().flatten().any(|a| a == axis));
    let axes: Vec<usize> =
        (0..mesh.axes().len()).filter(|axis| is_automatic(axis) && named(axis)).collect();
    if axes.is_empty() {
        return function(inputs.iter().map(|(tensor, _)| (*tensor).clone()).collect());
    }
    // What is manual already no longer shards the tensors here.
    let here = |sharding: &Sharding| {
        let dims = sharding.dims().iter();
        let dims = dims.map(|axes| axes.iter().copied().filter(is_automatic).collect());
        mesh.sharding_over(dims.collect()).map_err(mesh_error)
    };
    let inputs = inputs.iter().map(|(tensor, sharding)| Ok((*tensor, here(sharding)?)));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let outputs = outputs.iter().map(here).collect::<Result<Vec<_>>>()?;
    region(mesh, &axes, &inputs, &outputs, function)
}

/// The names of axes by their positions.
pub(crate) fn names(mesh: &Mesh, axes: &[usize]) -> Vec<String> {
    axes.iter().map(|&axis| mesh.axis_name(axis).to_owned()).collect()
}

fn mesh_error(error: MeshError) -> Error {
    Error::new(MANUAL, error.to_string())
}

/// Checks a sharding of an input or result of a region that makes `axes` manual.
fn check_sharding(mesh: &Mesh, axes: &[usize], sharding: &Sharding) -> Result<()> {
    if sharding.mesh() != mesh {
        return Err(Error::new(MANUAL, "a sharding uses another mesh"));
    }
    check_automatic(MANUAL, sharding)?;
    let is_late = |dim: &&Vec<usize>| {
        dim.windows(2).any(|pair| !axes.contains(&pair[0]) && axes.contains(&pair[1]))
    };
    match sharding.dims().iter().position(|dim| is_late(&dim)) {
        Some(dim) => {
            let reason = format!("dimension {dim} of {sharding}: name manual axes first");
            Err(Error::new(MANUAL, reason))
        }
        None => Ok(()),
    }
}

/// Checks that a sharding names only axes that are automatic here.
fn check_automatic(op: &str, sharding: &Sharding) -> Result<()> {
    let axes = sharding.dims().iter().flatten().map(|&axis| sharding.mesh().axis_name(axis));
    match axes.into_iter().find(|axis| is_manual(axis)) {
        Some(axis) => {
            let reason =
                format!("{sharding} names axis `{axis}`, which is manual here; leave it out");
            Err(Error::new(op, reason))
        }
        None => Ok(()),
    }
}

impl Tensor {
    /// Constrains how the compiler shards this value over the automatic axes of a mesh: each
    /// dimension that the sharding names, over these axes and no others. The compiler chooses for
    /// the other dimensions. The gradient is constrained in the same way.
    pub fn constrain(&self, sharding: &Sharding) -> Result<Tensor> {
        self.constrained(sharding, true)
    }

    /// Constrains all dimensions: those that the sharding does not name are not sharded over any
    /// automatic axis. The gradient is constrained in the same way.
    pub fn constrain_exactly(&self, sharding: &Sharding) -> Result<Tensor> {
        self.constrained(sharding, false)
    }

    pub(crate) fn constrained(&self, sharding: &Sharding, open: bool) -> Result<Tensor> {
        if sharding.rank() != self.rank() {
            let reason = format!("{sharding} for {}", self.ty());
            return Err(Error::new("constrain", reason));
        }
        check_automatic("constrain", sharding)?;
        let constraint = Constraint { sharding: sharding.clone(), open };
        emit_one("constrain", Op::Constrain(constraint), &[self], self.ty().clone())
    }
}
