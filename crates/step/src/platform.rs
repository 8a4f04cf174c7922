//! Default options per platform. Figures are in `docs/performance.md`.

use crate::error::Error;
use fullshard_core::{Chip, Platform};
use fullshard_graph::Dialect;
use fullshard_models::LoweringOptions;
use fullshard_models::layers::attention::{Form, GRAPHS_WITHOUT_CUDNN};
use fullshard_parallel::{GatherAhead, Remat};

/// Whether layers are scanned by default. On CPU always, since its compiler recomputes the sum of
/// all previous layers in each layer when they are unrolled; on TPU from nine layers on, since a
/// scan compiles in the time of one layer; on GPUs never, since XLA overlaps all-gathers and
/// computation better when layers are unrolled.
pub fn scans_layers(platform: Platform, layers: usize) -> bool {
    match platform {
        Platform::Cpu => layers > 1,
        Platform::Tpu => layers > 8,
        Platform::Cuda => false,
    }
}

/// The logits of a chunk where memory is ample.
const LARGE_CHUNK_BYTES: usize = 2 << 30;

/// Which of several equivalent forms a model is lowered to. On CPU the vocabulary is not padded:
/// matmuls of any width run equally well there, and padding copies the embedding. On GPUs attention
/// is cuDNN's; memory is ample for large chunks of logits, each of which adds to the full gradient
/// of the head, and for a saved layer beside one of them; a fused projection is one matmul per
/// part, and sums and updates are separate kernels, which only then run at memory bandwidth. TPUs
/// need a separate sequence dimension and activation functions next to the matmuls: otherwise the
/// blog post's 2B step is 10 % longer by their compiler's cycles.
pub fn lowering(platform: Platform) -> LoweringOptions {
    let gpu = platform == Platform::Cuda;
    LoweringOptions {
        padded_vocabulary: platform != Platform::Cpu,
        chunk_bytes: gpu.then_some(LARGE_CHUNK_BYTES),
        loss_custom_call: platform == Platform::Cpu,
        fused_attention: gpu,
        attention_custom_call: platform == Platform::Cpu,
        kernels: gpu,
        eager_attention: false,
        flatten_batch: platform != Platform::Tpu,
        recomputed_activations: platform != Platform::Tpu,
        save_last_layer: gpu,
        split_projections: platform != Platform::Cpu,
        separate_norms: platform == Platform::Tpu,
        separate_sums: gpu,
        separate_updates: gpu,
    }
}

/// The compiler flags for the steps of a model with such attention, before those of the user.
pub fn compiler_flags(platform: Platform, attention: Form) -> Vec<&'static str> {
    match platform {
        Platform::Cuda if attention.dropout > 0.0 => [CUDA_FLAGS, &[GRAPHS_WITHOUT_CUDNN]].concat(),
        Platform::Cuda => CUDA_FLAGS.to_vec(),
        Platform::Cpu | Platform::Tpu => Vec::new(),
    }
}

/// What helps on GPUs: see `docs/performance.md`.
const CUDA_FLAGS: &[&str] = &[
    // Otherwise values rounded on purpose stay in f32 wherever they are used twice, and the kernels
    // between matmuls are memory-bound.
    "xla_allow_excess_precision=false",
    // Triton is no faster for large matmuls, and autotuning it takes twice as long as the rest of
    // the compilation.
    "xla_gpu_enable_triton_gemm=false",
    // Nor are other fusion emitters between matmuls, for which it compiles each fusion twice.
    "xla_gpu_experimental_enable_fusion_autotuner=false",
    // Small matmuls of one input stay separate: merged, their results are split and their gradients
    // concatenated in separate kernels.
    "xla_gpu_dot_merger_threshold_mb=0",
];

/// What makes collectives of a TPU generation overlap with compute, by the schedules that its
/// compiler makes: figures are in `docs/performance.md`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Compiler flags.
    pub flags: &'static [&'static str],
    /// Whether large gradients are reduced around rings of permutes, since permutes are
    /// asynchronous and reduce-scatters are not.
    pub rings: bool,
    /// What is all-gathered for scanned layers before they need it, if they can.
    pub ahead: GatherAhead,
}

/// One row per generation. Steps are those of Llama 8B in `docs/performance.md`, except for v4, whose
/// steps are those of the blog post.
const OVERLAP: &[(&str, Overlap)] = &[
    // 32B hides 2.68 s of 2.81 s; without either the compiler hides nothing.
    (
        "v4",
        Overlap {
            flags: &[
                "xla_enable_async_all_gather=true",
                // The scheduler starts gathers too late otherwise: 128B took 19.95 s, not 19.34 s.
                "xla_lhs_output_fusion_latency_multiplier=0.5",
            ],
            rings: true,
            ahead: GatherAhead::Vectors,
        },
    ),
    // The compiler hides half by itself, 2.72 s; with rings 2.94 s.
    ("v5e", Overlap { flags: &[], rings: false, ahead: GatherAhead::Nothing }),
    // 2.29 s, with rings 2.24 s on this step alone; collectives on SparseCores do nothing to scans.
    ("v5p", Overlap { flags: &[], rings: false, ahead: GatherAhead::Nothing }),
    // 2.10 s, with rings 2.21 s, with collectives on SparseCores 2.12 s.
    ("v6e", Overlap { flags: &[], rings: false, ahead: GatherAhead::Nothing }),
];

/// What makes collectives overlap on a chip.
pub fn overlap(chip: &Chip) -> Overlap {
    let row = OVERLAP.iter().find(|(generation, _)| *generation == chip.short);
    row.map_or(Overlap::default(), |(_, overlap)| *overlap)
}

/// The program dialect. On CPU large matmuls are custom calls: the compiler's own are slow in
/// batches and in the orientation of the loss. On GPUs activations do not divide. The CPU compiler
/// rejects values in host memory on a mesh.
pub fn dialect(platform: Platform) -> Dialect {
    Dialect {
        matmul_custom_calls: platform == Platform::Cpu,
        sigmoid_via_rsqrt: platform == Platform::Cuda,
        pad_custom_calls: platform == Platform::Cpu,
        host_memory: platform != Platform::Cpu,
    }
}

/// Rejects a policy that moves activations to host memory on a platform that has none.
pub fn check_offload(platform: Platform, remat: &Remat) -> Result<(), Error> {
    match remat.offloads() && !dialect(platform).host_memory {
        true => Err(Error::NoHostMemory { remat: remat.clone(), platform }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_graphs_exclude_attention_with_dropout() {
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
    fn scans_layers_where_it_helps() {
        assert!(!scans_layers(Platform::Cpu, 1) && scans_layers(Platform::Cpu, 2));
        assert!(scans_layers(Platform::Tpu, 18) && !scans_layers(Platform::Cuda, 48));
    }
}
