//! The program that takes one layer out of a stack of them, so that no host ever holds the stack.

use crate::error::Error;
use crate::layout::TensorSpec;
use crate::ordered::Ordered;
use crate::spec::StepSpec;
use fullshard_graph::{DType, Program, constant};
use fullshard_parallel::ShardedParam;

impl StepSpec {
    /// The program from a stacked parameter, by its position in the placement, and the number of a
    /// layer to that layer; with its inputs.
    pub fn layer_program(&self, parameter: usize) -> Result<(Program, Vec<TensorSpec>), Error> {
        let stack = self.parameter_state()?.swap_remove(parameter).tensor;
        let param = &self.placement.parameters[parameter];
        let layer = ShardedParam { stack: None, ..param.clone() };
        let results = vec![layer.sharding(&self.placement.mesh)?];
        let inputs = vec![stack, self.init_inputs().layer];
        let arguments = inputs.map(TensorSpec::argument);
        let axes = self.placement.all_axes();
        let program = self.manual_program("layer", &axes, &arguments, &results, |tensors| {
            let (stack, index) = (&tensors[0], &tensors[1]);
            let zero = constant(&[], &[0_i32])?;
            let mut starts = vec![&zero; stack.rank()];
            starts[0] = index;
            let dims = &stack.dims()[1..];
            let slice = stack.dynamic_slice(&starts, &[&[1], dims].concat())?;
            Ok(vec![slice.reshape(dims)?.convert(DType::F32)?])
        })?;
        Ok((program, inputs))
    }
}
