//! A model's weights between files, where every tensor has its own name, and the state, where
//! those of equal layers may be stacked.

use crate::compiler::Compiler;
use crate::error::{Error, mismatch};
use crate::evaluator::Evaluator;
use crate::runner::Runner;
use fullshard_checkpoint::{ExportOptions, Exported, TensorEntry, Weights, export};
use fullshard_parallel::Stored;
use fullshard_step::StepSpec;
use std::collections::VecDeque;
use std::path::Path;

/// The tensors of a step's model, those of stacked layers one after another; tied ones once.
pub fn model_tensors(spec: &StepSpec) -> Vec<TensorEntry> {
    let of = |stored: &Stored| {
        let dims = stored.dims.clone();
        layer_names(stored).into_iter().map(move |name| TensorEntry::new(name, dims.clone()))
    };
    spec.placement.parameters.iter().flat_map(of).collect()
}

impl<'a> Runner<'a> {
    /// Compiles the programs of a spec and takes its parameters from files, one at a time. The
    /// seed is for dropout.
    pub fn with_weights(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
        weights: &Weights,
    ) -> Result<Runner<'a>, Error> {
        let reader = reader(spec, weights)?;
        Runner::with_parameters(compiler, spec, seed, reader)
    }

    /// Writes the parameters into a folder, as Hugging Face keeps them.
    pub fn export(&self, folder: &Path) -> Result<Exported, Error> {
        let mut parameters = self.spec().placement.parameters.iter();
        // The layers that are left of a stack; they follow each other.
        let mut layers: VecDeque<Vec<f32>> = VecDeque::new();
        let mut next = |name: &str| -> Result<Vec<f32>, Error> {
            if layers.is_empty()
                && let Some(stored) = parameters.next()
            {
                let wholes = self.parameter(&stored.name)?;
                let length = wholes.len() / stored.stack.unwrap_or(1);
                layers = wholes.chunks(length.max(1)).map(<[f32]>::to_vec).collect();
            }
            layers.pop_front().ok_or_else(|| mismatch(name, "no parameter", "a parameter"))
        };
        let options = ExportOptions::default();
        Ok(export(folder, &model_tensors(self.spec()), &mut next, &options)?)
    }
}

impl<'a> Evaluator<'a> {
    /// Compiles the evaluation of so many sequences at once, and takes its parameters from files,
    /// one at a time.
    pub fn with_weights(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        sequences: usize,
        weights: &Weights,
    ) -> Result<Evaluator<'a>, Error> {
        let reader = reader(spec, weights)?;
        Evaluator::with_parameters(compiler, spec, sequences, reader)
    }
}

/// Reads parameters from files, if these are of the spec's model.
fn reader<'w>(
    spec: &StepSpec,
    weights: &'w Weights,
) -> Result<impl Fn(&Stored) -> Result<Vec<f32>, Error> + use<'w>, Error> {
    weights.check(&model_tensors(spec))?;
    Ok(|stored: &Stored| {
        let mut wholes = Vec::with_capacity(stored.elements());
        for name in layer_names(stored) {
            wholes.extend(weights.read_f32(&name)?);
        }
        Ok(wholes)
    })
}

/// The names of a parameter's tensors, layer by layer if it is stacked.
fn layer_names(stored: &Stored) -> Vec<String> {
    match stored.stack {
        Some(layers) => {
            (0..layers).map(|layer| stored.name.replacen('*', &layer.to_string(), 1)).collect()
        }
        None => vec![stored.name.clone()],
    }
}
