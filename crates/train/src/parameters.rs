//! The parameters of a model on devices, read by name.

use crate::error::{Error, mismatch};
use fullshard_pjrt::Array;
use fullshard_step::StepSpec;

/// The parameters of a model on devices, borrowed from a runner.
#[derive(Clone, Copy)]
pub struct Parameters<'a> {
    spec: &'a StepSpec,
    arrays: &'a [Array],
}

impl<'a> Parameters<'a> {
    pub(crate) fn new(spec: &'a StepSpec, arrays: &'a [Array]) -> Parameters<'a> {
        Parameters { spec, arrays }
    }

    /// The arrays, in the order of the placement.
    pub fn arrays(&self) -> &'a [Array] {
        self.arrays
    }

    /// The full values of a parameter by its name in the placement, with stacked layers
    /// concatenated.
    pub fn get(&self, name: &str) -> Result<Vec<f32>, Error> {
        let mut params = self.spec.placement.parameters.iter().zip(self.arrays);
        let found = params.find(|(param, _)| param.name == name);
        let Some((param, array)) = found else {
            return Err(mismatch(name, "no such parameter", "a parameter of the model"));
        };
        Ok(param.unpack(&array.to_host()?.values()?))
    }
}
