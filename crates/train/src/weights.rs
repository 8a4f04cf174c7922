//! The tensors of a model by the names that files have, where every layer has its own.

use fullshard_checkpoint::TensorEntry;
use fullshard_parallel::ShardedParam;
use fullshard_step::StepSpec;

/// The tensors of a step's model, with stacked layers listed in order; tied ones once.
pub fn model_tensors(spec: &StepSpec) -> Vec<TensorEntry> {
    let of = |param: &ShardedParam| {
        let dims = param.dims.clone();
        param.layer_names().into_iter().map(move |name| TensorEntry::new(name, dims.clone()))
    };
    spec.placement.parameters.iter().flat_map(of).collect()
}
