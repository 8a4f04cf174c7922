//! What suits which kind of device, where nobody says otherwise. Figures are in
//! `docs/performance.md`.

use fullshard_graph::Dialect;
use fullshard_models::LoweringOptions;
use fullshard_models::layers::attention::{Form, GRAPHS_WITHOUT_CUDNN};
use fullshard_pjrt::plugins::PluginKind;

/// Whether layers are a loop, where nobody says. On CPU always, since its compiler computes the
/// sum of all layers before anew in each layer when it sees them all; on TPU from nine layers on,
/// since a loop compiles in the time of one layer; on GPUs never, since XLA overlaps gathers and
/// computation better when it sees all layers.
pub fn loops_layers(kind: PluginKind, layers: usize) -> bool {
    match kind {
        PluginKind::Cpu => layers > 1,
        PluginKind::Tpu => layers > 8,
        PluginKind::Cuda => false,
    }
}

/// Which of several forms that agree a model is lowered to. On CPU the vocabulary is not padded:
/// matmuls of any width run equally well there, and padding copies the embedding. On GPUs attention
/// is cuDNN's; memory is ample for large chunks of logits, each of which adds to the full gradient
/// of the head, and for a layer beside one of them; parts of a projection are not split from it,
/// and sums and updates have kernels of their own, which alone run at the speed of memory. TPUs want
/// sequences in a dimension of their own, and activation functions where the matmuls are: by their
/// compiler's cycles the post's 2B step is 10 % longer otherwise.
pub fn lowering(kind: PluginKind) -> LoweringOptions {
    let gpu = kind == PluginKind::Cuda;
    LoweringOptions {
        padded_vocabulary: kind != PluginKind::Cpu,
        large_chunks: gpu,
        loss_custom_call: kind == PluginKind::Cpu,
        fused_attention: gpu,
        flatten_batch: kind != PluginKind::Tpu,
        recomputed_activations: kind != PluginKind::Tpu,
        last_layer_kept: gpu,
        split_projections: gpu,
        separate_sums: gpu,
        separate_updates: gpu,
    }
}

/// The compiler's flags for the steps of a model with such attention, before those that are given.
pub fn compiler_flags(kind: PluginKind, attention: Form) -> Vec<&'static str> {
    match kind {
        PluginKind::Cuda if attention.dropout > 0.0 => {
            [CUDA_FLAGS, &[GRAPHS_WITHOUT_CUDNN]].concat()
        }
        PluginKind::Cuda => CUDA_FLAGS.to_vec(),
        PluginKind::Cpu | PluginKind::Tpu => Vec::new(),
    }
}

/// What pays on GPUs, as `docs/performance.md` has it.
const CUDA_FLAGS: &[&str] = &[
    // Else what is rounded on purpose stays in f32 wherever it is used twice, and memory is what
    // the passes between products wait for.
    "xla_allow_excess_precision=false",
    // Products by Triton are no faster for large ones, and trying them out takes twice as long as
    // the rest of the compile.
    "xla_gpu_enable_triton_gemm=false",
    // Nor are other ways to emit the passes between products, for which it compiles each twice.
    "xla_gpu_experimental_enable_fusion_autotuner=false",
    // Small products of one input are made one by one: made as one, their results are cut apart,
    // and their gradients put together, in passes of their own.
    "xla_gpu_dot_merger_threshold_mb=0",
];

/// How programs are written. On CPU large matrix products are calls: the compiler's own are slow in
/// batches and in the orientation of the loss. On GPUs activations do not divide.
pub fn dialect(kind: PluginKind) -> Dialect {
    Dialect { called_products: kind == PluginKind::Cpu, rooted_logistic: kind == PluginKind::Cuda }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_called_is_registered_by_the_same_name() {
        assert_eq!(fullshard_graph::PRODUCT, fullshard_pjrt::PRODUCT);
        assert_eq!(fullshard_models::layers::loss::LOSS, fullshard_pjrt::LOSS);
    }

    #[test]
    fn kernels_that_drop_are_in_no_graph() {
        let form = |dropout| Form { dropout, ..Form::default() };
        let graphs = |kind, dropout| {
            let flags = compiler_flags(kind, form(dropout));
            flags.into_iter().find(|flag| flag.starts_with("xla_gpu_enable_command_buffer="))
        };
        assert_eq!(graphs(PluginKind::Cuda, 0.0), None);
        assert_eq!(graphs(PluginKind::Tpu, 0.1), None);
        let kinds = graphs(PluginKind::Cuda, 0.1).unwrap_or_default();
        assert!(kinds.contains(",FUSION") && !kinds.contains("CUDNN"), "{kinds}");
        assert!(!kinds.contains(' '), "{kinds}");
    }

    #[test]
    fn layers_loop_where_it_pays() {
        assert!(!loops_layers(PluginKind::Cpu, 1) && loops_layers(PluginKind::Cpu, 2));
        assert!(loops_layers(PluginKind::Tpu, 18) && !loops_layers(PluginKind::Cuda, 48));
    }
}
