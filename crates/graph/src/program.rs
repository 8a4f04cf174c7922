//! Programs: a traced function with its arguments, ready to be written as text.

use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::op::Op;
use crate::tensor::Tensor;
use crate::text::ProcessCall;
use crate::trace::trace_graph;
use fullshard_core::{Mesh, Sharding, TensorType};
use std::rc::Rc;

/// An argument of a program.
#[derive(Debug, Clone)]
pub struct Argument {
    pub(crate) ty: TensorType,
    pub(crate) sharding: Option<Sharding>,
    pub(crate) donation: Donation,
}

/// The donation of an argument's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Donation {
    NotDonated,
    /// The compiler may alias it to any result.
    Donated,
    /// It is aliased to this result.
    Result(usize),
}

impl Argument {
    /// An argument of a type.
    pub fn new(ty: TensorType) -> Argument {
        Argument { ty, sharding: None, donation: Donation::NotDonated }
    }

    /// Sharded over the devices of a mesh.
    pub fn sharded(mut self, sharding: &Sharding) -> Argument {
        self.sharding = Some(sharding.clone());
        self
    }

    /// Donates its buffer to any result.
    pub fn donated(mut self) -> Argument {
        self.donation = Donation::Donated;
        self
    }

    /// Donates its buffer to a result, which must have the same type.
    pub fn donated_to(mut self, result: usize) -> Argument {
        self.donation = Donation::Result(result);
        self
    }
}

/// A program's inputs and outputs as the compiler sees them: those of one process.
pub(crate) struct Interface {
    pub arguments: Vec<Argument>,
    pub results: Vec<(TensorType, Option<Sharding>)>,
    /// None without devices to shard over.
    pub mesh: Option<Mesh>,
}

/// The part of a tensor that a process has.
pub(crate) fn process_part(ty: &TensorType, sharding: Option<&Sharding>) -> TensorType {
    // Shardings are checked when they are given.
    let part = sharding.and_then(|sharding| sharding.process_part(ty).ok());
    part.unwrap_or_else(|| ty.clone())
}

/// How a program is written for a platform, where there are equivalent forms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dialect {
    /// Large matmuls are custom calls to [`MATMUL`](crate::MATMUL) instead of being left to the
    /// compiler.
    pub matmul_custom_calls: bool,
    /// Logistic functions in `f32` are the square of an `rsqrt`, `1 / (1 + e)` without a division:
    /// GPUs take one instruction for `rsqrt` and a dozen for a division.
    pub sigmoid_via_rsqrt: bool,
    /// Large padding at the end of a vector is a custom call to [`PAD`](crate::PAD): the CPU compiler
    /// computes what it fuses with padding one element at a time.
    pub pad_custom_calls: bool,
    /// Offloaded values are moved to host memory; else they stay on the device.
    pub host_memory: bool,
}

/// A traced program.
#[derive(Debug)]
pub struct Program {
    pub(crate) graph: Graph,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) results: Vec<Option<Sharding>>,
    pub(crate) mesh: Option<Mesh>,
    pub(crate) dialect: Dialect,
}

impl Program {
    /// Traces a program with the given arguments.
    pub fn trace(
        name: &str,
        arguments: &[Argument],
        trace: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Program> {
        let types: Vec<_> = arguments.iter().map(|argument| Rc::new(argument.ty.clone())).collect();
        let traced = trace_graph(name, &types, trace);
        crate::grad::clear_functions();
        let traced = traced?;
        if let Some(tensor) = traced.captured.first() {
            let reason = format!("captures {} from another program", tensor.ty());
            return Err(Error::new(name, reason));
        }
        let results = vec![None; traced.graph.results.len()];
        let mut program = Program {
            graph: crate::sink::sink_slices(traced.graph.pruned()),
            arguments: arguments.to_vec(),
            results,
            mesh: None,
            dialect: Dialect::default(),
        };
        program.check_donations()?;
        let mut meshes: Vec<Mesh> = Vec::new();
        program.graph.visit(&mut |node| meshes.extend(node.op.mesh().cloned()));
        let shardings = arguments.iter().filter_map(|argument| argument.sharding.as_ref());
        meshes.extend(shardings.map(|sharding| sharding.mesh().clone()));
        for mesh in &meshes {
            program = program.on_mesh(mesh)?;
        }
        for argument in arguments {
            program.check_sharding(&argument.ty, argument.sharding.as_ref())?;
        }
        Ok(program)
    }

    /// Sets the shardings of the results.
    pub fn sharded_results(mut self, shardings: &[Sharding]) -> Result<Program> {
        if shardings.len() != self.results.len() {
            let reason =
                format!("{} shardings for {} results", shardings.len(), self.results.len());
            return Err(Error::new(&self.graph.name, reason));
        }
        for (ty, sharding) in self.graph.result_types().iter().zip(shardings) {
            self.check_sharding(ty, Some(sharding))?;
            self = self.on_mesh(sharding.mesh())?;
        }
        self.results = shardings.iter().cloned().map(Some).collect();
        Ok(self)
    }

    /// Runs over the devices of a mesh, which must be the mesh of its shardings and regions, if
    /// they have one. Tensors without a sharding are replicated.
    pub fn on_mesh(mut self, mesh: &Mesh) -> Result<Program> {
        match &self.mesh {
            Some(known) if known != mesh => {
                let reason = format!("uses two meshes, {known:?} and {mesh:?}");
                Err(Error::new(&self.graph.name, reason))
            }
            _ => {
                self.mesh = Some(mesh.clone());
                self.check_across(mesh)?;
                Ok(self)
            }
        }
    }

    /// Over several processes everything must be in regions that are manual over the axes across
    /// them: the compiler does not know of those.
    fn check_across(&self, mesh: &Mesh) -> Result<()> {
        let across: Vec<usize> =
            (0..mesh.axes().len()).filter(|&axis| mesh.is_across(axis)).collect();
        if mesh.processes() == 1 {
            return Ok(());
        }
        for node in &self.graph.nodes {
            let manual: &[usize] = match &node.op {
                Op::Manual(manual) => &manual.axes,
                _ => &[],
            };
            if let Some(&axis) = across.iter().find(|axis| !manual.contains(axis)) {
                let name = mesh.axis_name(axis);
                let reason = format!(
                    "axis `{name}` is across processes and cannot be automatic; keep automatic \
                     axes inside a process, where they come last in the mesh"
                );
                return Err(Error::new(&self.graph.name, reason));
            }
        }
        Ok(())
    }

    fn check_sharding(&self, ty: &TensorType, sharding: Option<&Sharding>) -> Result<()> {
        let fits = |sharding: &Sharding| {
            sharding.rank() == ty.rank()
                && sharding.parts().zip(&ty.dims).all(|(parts, dim)| dim.is_multiple_of(parts))
        };
        match sharding.filter(|sharding| !fits(sharding)) {
            Some(sharding) => {
                Err(Error::new(&self.graph.name, format!("{ty} cannot be sharded by {sharding}")))
            }
            None => Ok(()),
        }
    }

    /// The number of devices it runs on that the compiler sees: those of one process, if axes of
    /// its mesh are marked as across processes.
    pub fn devices(&self) -> usize {
        self.mesh.as_ref().map_or(1, |mesh| mesh.in_process().devices())
    }

    /// The types of the results.
    pub fn result_types(&self) -> Vec<TensorType> {
        self.graph.result_types().iter().map(|ty| (**ty).clone()).collect()
    }

    /// Sets the dialect to write it in.
    pub fn in_dialect(mut self, dialect: Dialect) -> Program {
        self.dialect = dialect;
        self
    }

    /// The types and shardings of the arguments, over all processes.
    pub fn arguments(&self) -> Vec<(TensorType, Option<&Sharding>)> {
        let arguments = self.arguments.iter();
        arguments.map(|argument| (argument.ty.clone(), argument.sharding.as_ref())).collect()
    }

    /// The types and shardings of the results, over all processes.
    pub fn results(&self) -> Vec<(TensorType, Option<&Sharding>)> {
        let shardings = self.results.iter().map(Option::as_ref);
        self.result_types().into_iter().zip(shardings).collect()
    }

    pub(crate) fn interface(&self) -> Interface {
        let in_process = |sharding: Option<&Sharding>| sharding.map(Sharding::in_process);
        let argument = |argument: &Argument| Argument {
            ty: process_part(&argument.ty, argument.sharding.as_ref()),
            sharding: in_process(argument.sharding.as_ref()),
            donation: argument.donation,
        };
        let result = |(ty, sharding): (TensorType, Option<&Sharding>)| {
            (process_part(&ty, sharding), in_process(sharding))
        };
        let mut interface = Interface {
            arguments: self.arguments.iter().map(argument).collect(),
            results: self.results().into_iter().map(result).collect(),
            mesh: self.mesh.as_ref().map(Mesh::in_process),
        };
        let is_across = self.mesh.as_ref().is_some_and(|mesh| mesh.processes() > 1);
        if is_across && interface.mesh.as_ref().is_some_and(|mesh| mesh.devices() == 1) {
            interface.mesh = None;
            interface.arguments.iter_mut().for_each(|argument| argument.sharding = None);
            interface.results.iter_mut().for_each(|(_, sharding)| *sharding = None);
        }
        interface
    }

    /// The program as StableHLO text.
    pub fn to_text(&self) -> String {
        crate::text::write(self).0
    }

    /// The program as StableHLO text, and the collectives between processes that it calls.
    pub fn to_text_and_calls(&self) -> (String, Vec<ProcessCall>) {
        crate::text::write(self)
    }

    fn check_donations(&self) -> Result<()> {
        let results = self.graph.result_types();
        for (i, argument) in self.arguments.iter().enumerate() {
            if let Donation::Result(result) = argument.donation {
                let fits = results.get(result).is_some_and(|ty| **ty == argument.ty);
                let earlier = &self.arguments[..i];
                let fits = fits && earlier.iter().all(|other| other.donation != argument.donation);
                if !fits {
                    let reason =
                        format!("argument {i}, {}, cannot alias result {result}", argument.ty);
                    return Err(Error::new(&self.graph.name, reason));
                }
            }
        }
        Ok(())
    }
}
