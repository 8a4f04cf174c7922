//! A model's weights between files, where every tensor has its own name, and the state, where
//! those of equal layers may be stacked.

use crate::compiler::Compiler;
use crate::error::Error;
use crate::eval_runner::EvalRunner;
use crate::runner::Runner;
use fullshard_checkpoint::{TensorEntry, Weights};
use fullshard_parallel::Stored;
use fullshard_step::StepSpec;

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
}

impl<'a> EvalRunner<'a> {
    /// Compiles the evaluation of so many sequences at once, and takes its parameters from files,
    /// one at a time.
    pub fn with_weights(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        sequences: usize,
        weights: &Weights,
    ) -> Result<EvalRunner<'a>, Error> {
        let reader = reader(spec, weights)?;
        EvalRunner::with_parameters(compiler, spec, sequences, reader)
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
