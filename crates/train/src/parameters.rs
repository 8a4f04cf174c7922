//! The parameters of a model on devices, read by name.

use crate::error::{Error, mismatch};
use crate::weights::model_tensors;
use fullshard_checkpoint::{ExportOptions, Exported, export};
use fullshard_pjrt::Array;
use fullshard_step::StepSpec;
use std::collections::VecDeque;
use std::path::Path;

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

    /// Writes the parameters into a folder, in Hugging Face's format.
    pub fn export(&self, folder: &Path) -> Result<Exported, Error> {
        let mut parameters = self.spec.placement.parameters.iter();
        // The remaining layers of a stack, in order.
        let mut layers: VecDeque<Vec<f32>> = VecDeque::new();
        let mut next = |name: &str| -> Result<Vec<f32>, Error> {
            if layers.is_empty()
                && let Some(param) = parameters.next()
            {
                let values = self.get(&param.name)?;
                let length = values.len() / param.stack.unwrap_or(1);
                layers = values.chunks(length.max(1)).map(<[f32]>::to_vec).collect();
            }
            layers.pop_front().ok_or_else(|| mismatch(name, "no parameter", "a parameter"))
        };
        let options = ExportOptions::default();
        Ok(export(folder, &model_tensors(self.spec), &mut next, &options)?)
    }
}
