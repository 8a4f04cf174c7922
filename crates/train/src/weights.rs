//! A model's weights between files, where every tensor has its own name, and the state, where
//! those of equal layers may be stacked.

use crate::compiler::Compiler;
use crate::error::{Error, mismatch};
use crate::evaluator::Evaluator;
use crate::recipe::Recipe;
use crate::runner::Runner;
use fullshard_checkpoint::{ExportOptions, Exported, TensorEntry, Weights, export};
use fullshard_parallel::Stored;
use std::collections::VecDeque;
use std::path::Path;

impl Recipe {
    /// The tensors of the model, those of stacked layers one after another; tied ones once.
    pub fn tensors(&self) -> Vec<TensorEntry> {
        let of = |stored: &Stored| {
            let dims = stored.dims.clone();
            layer_names(stored).into_iter().map(move |name| TensorEntry::new(name, dims.clone()))
        };
        self.placement.parameters.iter().flat_map(of).collect()
    }
}

impl<'a> Runner<'a> {
    /// Compiles the programs of a recipe and takes its parameters from files, one at a time. The
    /// seed is for dropout.
    pub fn with_weights(
        compiler: &'a Compiler<'a>,
        recipe: &'a Recipe,
        seed: u64,
        weights: &Weights,
    ) -> Result<Runner<'a>, Error> {
        let reader = reader(recipe, weights)?;
        Runner::with_parameters(compiler, recipe, seed, reader)
    }

    /// Writes the parameters into a folder, as Hugging Face keeps them.
    pub fn export(&self, folder: &Path) -> Result<Exported, Error> {
        let mut parameters = self.recipe().placement.parameters.iter();
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
        Ok(export(folder, &self.recipe().tensors(), &mut next, &options)?)
    }
}

impl<'a> Evaluator<'a> {
    /// Compiles the evaluation of so many sequences at once, and takes its parameters from files,
    /// one at a time.
    pub fn with_weights(
        compiler: &'a Compiler<'a>,
        recipe: &'a Recipe,
        sequences: usize,
        weights: &Weights,
    ) -> Result<Evaluator<'a>, Error> {
        let reader = reader(recipe, weights)?;
        Evaluator::with_parameters(compiler, recipe, sequences, reader)
    }
}

/// Reads parameters from files, if these are of the recipe's model.
fn reader<'w>(
    recipe: &Recipe,
    weights: &'w Weights,
) -> Result<impl Fn(&Stored) -> Result<Vec<f32>, Error> + use<'w>, Error> {
    weights.check(&recipe.tensors())?;
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
