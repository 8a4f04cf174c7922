//! The program by which the processes of a job agree on a number between two launches.

use crate::error::Error;
use crate::layout::TensorSpec;
use crate::ordered::Ordered;
use crate::spec::StepSpec;
use fullshard_graph::{DType, MeshExt, Program, Reduction, TensorType};

impl StepSpec {
    /// The program from an `i32` per device to the largest of them, with its inputs.
    pub fn agree_program(&self) -> Result<(Program, Vec<TensorSpec>), Error> {
        let (mesh, axes) = (&self.placement.mesh, self.placement.all_axes());
        let inputs = vec![TensorSpec {
            name: "flags".to_owned(),
            ty: TensorType::new(DType::I32, &[mesh.devices()]),
            sharding: mesh.sharding_over(vec![axes.clone()])?,
        }];
        let arguments = inputs.map(TensorSpec::argument);
        let results = vec![mesh.replicated(1)];
        let program = self.manual_program("agree", &axes, &arguments, &results, |flags| {
            Ok(vec![mesh.group(&axes).all_reduce(&flags[0], Reduction::Max)?])
        })?;
        Ok((program, inputs))
    }
}
