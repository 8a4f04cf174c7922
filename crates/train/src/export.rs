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
    /// A program that returns one of them, given its number if they are stacked.
    OnDevices(Box<Compiled>, Option<Argument>),
}

impl Runner<'_> {
    /// Writes the parameters into a folder, in Hugging Face's format. In a job every process calls
    /// it, and the first one writes; the others return nothing.
    pub fn export(
        &self,
        folder: &Path,
        options: &ExportOptions,
    ) -> Result<Option<Exported>, Error> {
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
        let job = &self.compiler().job;
        let exported = match job.is_first() {
            true => export(folder, &model_tensors(spec), &mut next, options).map(Some),
            false => Ok(None),
        };
        if !job.is_alone() {
            // Every process launches the same programs, also those of tensors that were not written.
            while next("").is_ok() {}
        }
        Ok(exported?)
    }

    fn layers(&self, index: usize, saved: &SavedTensors) -> Result<Layers, Error> {
        let array = &self.state().parameters[index];
        let alone = self.compiler().job.is_alone();
        if alone && (!saved.stacked || array.ty().bytes() <= SMALL_STACK) {
            return Ok(Layers::OnHost(full_values(saved, array)?));
        }
        // No process has all shards of a layer unless it is alone.
        let (program, inputs) = match alone {
            true => self.spec().layer_program(index)?,
            false => self.spec().full_layer_program(index)?,
        };
        let compiled = self.compiler().compile(&program)?;
        let arguments = Argument::of_program(&compiled.program, &inputs)?;
        Ok(Layers::OnDevices(Box::new(compiled), arguments.into_iter().nth(1)))
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
                let number = number.as_ref().map(|number| number.upload(self.client(), &layer));
                let number = number.transpose()?;
                let inputs: Vec<&Array> = [stack].into_iter().chain(&number).collect();
                let results = compiled.program.execute_arrays(&inputs)?;
                let layer =
                    results.first().ok_or_else(|| mismatch("a layer", "no result", "one"))?;
                full_values(&SavedTensors { stacked: false, ..saved.clone() }, layer)
            }
        }
    }
}
