//! What suits which kind of device, where nobody says otherwise. Figures are in
//! `docs/performance.md`.

use fullshard_core::Platform;
use fullshard_graph::Dialect;
use fullshard_models::LoweringOptions;
use fullshard_models::layers::attention::{Form, GRAPHS_WITHOUT_CUDNN};

/// Whether layers are a loop, where nobody says. On CPU always, since its compiler computes the
/// sum of all layers before anew in each layer when it sees them all; on TPU from nine layers on,
/// since a loop compiles in the time of one layer; on GPUs never, since XLA overlaps gathers and
/// computation better when it sees all layers.
pub fn loops_layers(platform: Platform, layers: usize) -> bool {
    match platform {
        Platform::Cpu => layers > 1,
        Platform::Tpu => layers > 8,
        Platform::Cuda => false,
    }
}

/// Which of several forms that agree a model is lowered to. On CPU the vocabulary is not padded:
/// matmuls of any width run equally well there, and padding copies the embedding. On GPUs attention
/// is cuDNN's; memory is ample for large chunks of logits, each of which adds to the full gradient
/// of the head, and for a layer beside one of them; parts of a projection are not split from it,
/// and sums and updates have kernels of their own, which alone run at the speed of memory. TPUs want
/// sequences in a dimension of their own, and activation functions where the matmuls are: by their
/// compiler's cycles the post's 2B step is 10 % longer otherwise.
pub fn lowering(platform: Platform) -> LoweringOptions {
    let gpu = platform == Platform::Cuda;
    LoweringOptions {
        padded_vocabulary: platform != Platform::Cpu,
        large_chunks: gpu,
        loss_custom_call: platform == Platform::Cpu,
        fused_attention: gpu,
        flatten_batch: platform != Platform::Tpu,
        recomputed_activations: platform != Platform::Tpu,
        last_layer_kept: gpu,
        split_projections: gpu,
        separate_sums: gpu,
        separate_updates: gpu,
    }
}

/// The compiler's flags for the steps of a model with such attention, before those that are given.
pub fn compiler_flags(platform: Platform, attention: Form) -> Vec<&'static str> {
    match platform {
        Platform::Cuda if attention.dropout > 0.0 => [CUDA_FLAGS, &[GRAPHS_WITHOUT_CUDNN]].concat(),
        Platform::Cuda => CUDA_FLAGS.to_vec(),
        Platform::Cpu | Platform::Tpu => Vec::new(),
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
pub fn dialect(platform: Platform) -> Dialect {
    Dialect {
        called_products: platform == Platform::Cpu,
        rooted_logistic: platform == Platform::Cuda,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_drop_are_in_no_graph() {
        let form = |dropout| Form { dropout, ..Form::default() };
        let graphs = |platform, dropout| {
            let flags = compiler_flags(platform, form(dropout));
            flags.into_iter().find(|flag| flag.starts_with("xla_gpu_enable_command_buffer="))
        };
        assert_eq!(graphs(Platform::Cuda, 0.0), None);
        assert_eq!(graphs(Platform::Tpu, 0.1), None);
        let kinds = graphs(Platform::Cuda, 0.1).unwrap_or_default();
        assert!(kinds.contains(",FUSION") && !kinds.contains("CUDNN"), "{kinds}");
        assert!(!kinds.contains(' '), "{kinds}");
    }

    #[test]
    fn layers_loop_where_it_pays() {
        assert!(!loops_layers(Platform::Cpu, 1) && loops_layers(Platform::Cpu, 2));
        assert!(loops_layers(Platform::Tpu, 18) && !loops_layers(Platform::Cuda, 48));
    }
}
