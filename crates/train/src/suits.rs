//! What suits which kind of device, where nobody says otherwise. Figures are in
//! `docs/performance.md`.

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

/// Whether the vocabulary is padded to whole tiles in large products. On CPU it is not: products
/// of any width run equally well there, and padding copies the embedding.
pub fn pads_vocabulary(kind: PluginKind) -> bool {
    kind != PluginKind::Cpu
}

/// Whether attention is a kernel: cuDNN's on NVIDIA's GPUs.
pub fn fuses_attention(kind: PluginKind) -> bool {
    kind == PluginKind::Cuda
}

/// Whether large matrix products, and the loss with its gradients, are called rather than left to
/// the compiler. On CPU they are: its own are slow in batches and in the orientation of the loss,
/// and it goes through all logits many times.
pub fn calls_products(kind: PluginKind) -> bool {
    kind == PluginKind::Cpu
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
    fn layers_loop_where_it_pays() {
        assert!(!loops_layers(PluginKind::Cpu, 1) && loops_layers(PluginKind::Cpu, 2));
        assert!(loops_layers(PluginKind::Tpu, 18) && !loops_layers(PluginKind::Cuda, 48));
    }
}
