//! The parameters of a model on devices, read by name.

use crate::error::{Error, mismatch};
use fullshard_pjrt::Array;
use fullshard_step::{SavedTensors, StepSpec};

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
        let states = self.spec.parameter_state()?;
        let found = states.iter().zip(self.arrays).find(|(state, _)| state.tensor.name == name);
        let Some((state, array)) = found else {
            return Err(mismatch(name, "no such parameter", "a parameter of the model"));
        };
        full_values(&self.spec.saved(state), array)
    }
}

/// The full values of a tensor of the state, with stacked layers concatenated.
pub(crate) fn full_values(saved: &SavedTensors, array: &Array) -> Result<Vec<f32>, Error> {
    Ok(saved.unpad(&array.ty().dims, &array.to_host()?.values::<f32>()?))
}
