//! Programs: a traced function with its arguments, ready to be written as text.

use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::tensor::Tensor;
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

/// How a program is written for a platform, where there are equivalent forms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dialect {
    /// Large matmuls are custom calls to [`MATMUL`](crate::MATMUL) instead of being left to the
    /// compiler.
    pub matmul_custom_calls: bool,
    /// Logistic functions in `f32` are the square of an `rsqrt`, `1 / (1 + e)` without a division:
    /// GPUs take one instruction for `rsqrt` and a dozen for a division.
    pub sigmoid_via_rsqrt: bool,
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
            graph: traced.graph.pruned(),
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
                Ok(self)
            }
        }
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

    /// The number of devices it runs on.
    pub fn devices(&self) -> usize {
        self.mesh.as_ref().map_or(1, Mesh::devices)
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

    /// The program as StableHLO text.
    pub fn to_text(&self) -> String {
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
