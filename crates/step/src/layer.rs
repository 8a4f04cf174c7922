//! Programs that take a layer out of the parameters, so that no host ever holds a stack of them.

use crate::error::Error;
use crate::layout::TensorSpec;
use crate::ordered::Ordered;
use crate::spec::StepSpec;
use fullshard_graph::{DType, MeshExt, Program, Result as GraphResult, Tensor, constant};
use fullshard_parallel::ShardedParam;

impl StepSpec {
    /// The program from a stacked parameter, by its position in the placement, and the number of a
    /// layer to that layer, sharded as the stack is; with its inputs.
    pub fn layer_program(&self, parameter: usize) -> Result<(Program, Vec<TensorSpec>), Error> {
        self.one_layer(parameter, false)
    }

    /// The program from a parameter, by its position in the placement, and the number of a layer,
    /// if layers are stacked, to that layer in full on every device; with its inputs.
    pub fn full_layer_program(
        &self,
        parameter: usize,
    ) -> Result<(Program, Vec<TensorSpec>), Error> {
        self.one_layer(parameter, true)
    }

    fn one_layer(&self, parameter: usize, full: bool) -> Result<(Program, Vec<TensorSpec>), Error> {
        let mesh = &self.placement.mesh;
        let stack = self.parameter_state()?.swap_remove(parameter).tensor;
        let param = &self.placement.parameters[parameter];
        let sharding = ShardedParam { stack: None, ..param.clone() }.sharding(mesh)?;
        let results = vec![if full { mesh.replicated(sharding.rank()) } else { sharding.clone() }];
        let number = param.stack.map(|_| self.init_inputs().layer);
        let inputs: Vec<TensorSpec> = [stack].into_iter().chain(number).collect();
        let arguments = inputs.map(TensorSpec::argument);
        let axes = self.placement.all_axes();
        let program = self.manual_program("layer", &axes, &arguments, &results, |tensors| {
            let layer = match &tensors[..] {
                [stack, index] => slice(stack, index)?,
                _ => tensors[0].clone(),
            };
            let layer = layer.convert(DType::F32)?;
            let sharded = sharding.dims().iter().enumerate();
            let sharded = sharded.filter(|(_, axes)| full && !axes.is_empty());
            let gather = |layer: Tensor, (dim, axes): (usize, &Vec<usize>)| {
                mesh.group(axes).all_gather(&layer, dim)
            };
            Ok(vec![sharded.into_iter().try_fold(layer, gather)?])
        })?;
        Ok((program, inputs))
    }
}

/// The layer of a stack with a number.
fn slice(stack: &Tensor, index: &Tensor) -> GraphResult<Tensor> {
    let zero = constant(&[], &[0_i32])?;
    let mut starts = vec![&zero; stack.rank()];
    starts[0] = index;
    let dims = &stack.dims()[1..];
    stack.dynamic_slice(&starts, &[&[1], dims].concat())?.reshape(dims)
}
