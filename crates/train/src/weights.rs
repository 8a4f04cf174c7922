//! Weights between files, where every tensor has its own name, and the state, where equal layers
//! may be stacked.

use crate::compiler::Compiler;
use crate::error::Error;
use crate::eval_runner::EvalRunner;
use crate::runner::Runner;
use fullshard_checkpoint::{TensorEntry, Weights};
use fullshard_parallel::ShardedParam;
use fullshard_step::StepSpec;

/// The tensors of a step's model, with stacked layers listed in order; tied ones once.
pub fn model_tensors(spec: &StepSpec) -> Vec<TensorEntry> {
    let of = |param: &ShardedParam| {
        let dims = param.dims.clone();
        layer_names(param).into_iter().map(move |name| TensorEntry::new(name, dims.clone()))
    };
    spec.placement.parameters.iter().flat_map(of).collect()
}

impl<'a> Runner<'a> {
    /// Compiles the programs of a spec and reads its parameters from files, one at a time. The
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
    /// Compiles the evaluation of batches of `sequences`, and reads its parameters from files, one
    /// at a time.
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

/// A reader of parameters from files, if these match the spec's model.
fn reader<'w>(
    spec: &StepSpec,
    weights: &'w Weights,
) -> Result<impl Fn(&ShardedParam) -> Result<Vec<f32>, Error> + use<'w>, Error> {
    weights.check(&model_tensors(spec))?;
    Ok(|param: &ShardedParam| {
        let mut values = Vec::with_capacity(param.elements());
        for name in layer_names(param) {
            values.extend(weights.read_f32(&name)?);
        }
        Ok(values)
    })
}

/// The names of a parameter's tensors, layer by layer if it is stacked.
fn layer_names(param: &ShardedParam) -> Vec<String> {
    match param.stack {
        Some(layers) => {
            (0..layers).map(|layer| param.name.replacen('*', &layer.to_string(), 1)).collect()
        }
        None => vec![param.name.clone()],
    }
}
