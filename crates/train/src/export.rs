//! Writes the parameters of a runner in Hugging Face's format, one layer at a time.

use crate::checkpoint::saved_tensors;
use crate::compiler::Compiled;
use crate::error::{Error, mismatch};
use crate::parameters::full_values;
use crate::runner::Runner;
use crate::state::Argument;
use crate::weights::model_tensors;
use fullshard_checkpoint::{ExportOptions, Exported, export};
use fullshard_pjrt::{Array, HostTensor};
use fullshard_step::SavedTensors;
use std::path::Path;

/// Stacks with fewer bytes are read at once, which needs no program.
const SMALL_STACK: usize = 128 << 20;

/// The layers of a parameter on devices.
enum Layers {
    /// All values, on the host.
    OnHost(Vec<f32>),
    /// A program that takes one of them out of the stack.
    OnDevices(Box<Compiled>, Argument),
}

impl Runner<'_> {
    /// Writes the parameters into a folder, in Hugging Face's format.
    pub fn export(&self, folder: &Path, options: &ExportOptions) -> Result<Exported, Error> {
        let spec = self.spec();
        let saved = saved_tensors(spec, &spec.parameter_state()?);
        let mut tensors = saved.iter().enumerate().flat_map(|(index, saved)| {
            (0..saved.names.len()).map(move |layer| (index, saved, layer))
        });
        let mut layers = None;
        let mut next = |name: &str| -> Result<Vec<f32>, Error> {
            let missing = || mismatch(name, "no parameter", "a parameter");
            let (index, saved, layer) = tensors.next().ok_or_else(missing)?;
            if layer == 0 {
                layers = Some(self.layers(index, saved)?);
            }
            let layers = layers.as_ref().ok_or_else(missing)?;
            self.layer(layers, &self.state().parameters[index], saved, layer)
        };
        Ok(export(folder, &model_tensors(spec), &mut next, options)?)
    }

    fn layers(&self, index: usize, saved: &SavedTensors) -> Result<Layers, Error> {
        let array = &self.state().parameters[index];
        if !saved.stacked || array.ty().bytes() <= SMALL_STACK {
            return Ok(Layers::OnHost(full_values(saved, array)?));
        }
        let (program, inputs) = self.spec().layer_program(index)?;
        let compiled = self.compiler().compile(&program)?;
        let mut arguments = Argument::of_program(&compiled.program, &inputs)?;
        let number = arguments.pop().ok_or_else(|| mismatch("a layer", "no input", "a number"))?;
        Ok(Layers::OnDevices(Box::new(compiled), number))
    }

    /// The full values of one layer.
    fn layer(
        &self,
        layers: &Layers,
        stack: &Array,
        saved: &SavedTensors,
        layer: usize,
    ) -> Result<Vec<f32>, Error> {
        match layers {
            Layers::OnHost(values) => {
                let length = saved.elements();
                Ok(values[layer * length..][..length].to_vec())
            }
            Layers::OnDevices(compiled, number) => {
                let layer = HostTensor::from_values(&[], &[layer as i32])?;
                let layer = number.upload(self.client(), &layer)?;
                let results = compiled.program.execute_arrays(&[stack, &layer])?;
                let layer =
                    results.first().ok_or_else(|| mismatch("a layer", "no result", "one"))?;
                full_values(&SavedTensors { stacked: false, ..saved.clone() }, layer)
            }
        }
    }
}
