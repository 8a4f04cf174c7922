//! The FLOPs of a training step by the two common conventions, and the model FLOPs utilization
//! (MFU) and hardware FLOPs utilization (HFU) that follow.
//!
//! Both count what the model needs, whatever is recomputed, padded or left out, and both count
//! every parameter, N: tied weights once, embeddings and frozen parameters included.
//!
//! - The PyTorch/XLA FSDP blog post counts `6·N` per token: two FLOPs per parameter in the forward
//!   pass and four in the backward pass.
//! - PaLM (appendix B) adds attention, `12·L·H·Q·T` per token for L layers of H heads of width Q
//!   over T tokens, without a causal mask. That N includes the embeddings follows from the paper's
//!   figures: MFU is 46.2 % with them and 45.8 % without.

use crate::StepSpec;
use fullshard_models::Dimensions;
use fullshard_parallel::Remat;

/// The FLOPs of a step over all devices.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Flops {
    /// By the blog post's convention: `6·N` per token.
    pub flops_6n: f64,
    /// By PaLM's: `6·N + 12·L·H·Q·T` per token.
    pub palm: f64,
}

impl Flops {
    /// The FLOPs of `tokens` tokens in sequences of `sequence`, for a model of `parameters`
    /// parameters.
    pub fn new(parameters: usize, model: Dimensions, tokens: usize, sequence: usize) -> Flops {
        let weights = 6.0 * parameters as f64;
        let attention = 12.0 * (model.layers * model.heads * model.head * sequence) as f64;
        let tokens = tokens as f64;
        Flops { flops_6n: weights * tokens, palm: (weights + attention) * tokens }
    }
}

impl StepSpec {
    /// The FLOPs that the model needs in a step, which MFU counts.
    pub fn model_flops(&self) -> Flops {
        let (parameters, dimensions) = (self.parameter_count(), self.model.dimensions());
        Flops::new(parameters, dimensions, self.tokens_per_step(), self.batch.tokens)
    }

    /// The FLOPs with those of rematerialization, which HFU counts: `2·n` more per token for the n
    /// weights of matmuls that are recomputed in layers, and a third of what attention counts where
    /// its output is not saved. A layer that saves everything recomputes nothing.
    pub fn hardware_flops(&self) -> Flops {
        let model = self.model_flops();
        let Recomputed { weights, attention } = self.recomputed();
        let layers = self.model.dimensions().layers.max(1) as f64;
        let saved = if self.placement.saves_last_layer() { 1.0 } else { 0.0 };
        let weights = 2.0 * weights as f64 * (layers - saved) * self.tokens_per_step() as f64;
        let share = if attention { (layers - saved) / layers / 3.0 } else { 0.0 };
        let attention = share * (model.palm - model.flops_6n);
        Flops { flops_6n: model.flops_6n + weights, palm: model.palm + weights + attention }
    }

    /// The matmuls that a layer recomputes in the backward pass. The last one of a layer is not
    /// among them: the backward pass does not use its result. A layer that names nothing is assumed
    /// to recompute all.
    pub fn recomputed(&self) -> Recomputed {
        let remat = &self.placement.remat;
        let names = self.model.checkpoints();
        if *remat == Remat::None {
            return Recomputed::default();
        }
        if names.is_empty() {
            let params = self.placement.parameters.iter();
            let in_layers = params.filter(|param| param.stack.is_some() || param.layer.is_some());
            let weights: usize = in_layers.map(|param| param.elements()).sum();
            let weights = weights / self.model.dimensions().layers.max(1);
            return Recomputed { weights, attention: true };
        }
        let saved = remat.saved();
        let is_saved = |name: &str| saved.iter().any(|saved| saved.name == name);
        let lost = || names.iter().filter(|known| !is_saved(&known.name));
        Recomputed {
            weights: lost().map(|known| known.weights).sum(),
            attention: lost().any(|known| known.attention),
        }
    }
}

/// What one layer recomputes in the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recomputed {
    /// The elements of the weights of its matmuls.
    pub weights: usize,
    /// Whether attention is recomputed.
    pub attention: bool,
}

/// The fraction of the peak of all devices that FLOPs in a time are.
pub fn utilization(flops: f64, seconds: f64, devices: usize, peak: f64) -> f64 {
    flops / seconds / (devices as f64 * peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dimensions(layers: usize, heads: usize, head: usize) -> Dimensions {
        Dimensions {
            layers,
            hidden: heads * head,
            heads,
            head,
            inner: 4 * heads * head,
            vocabulary: 50257,
            positions: 2048,
        }
    }

    /// The blog post's model and batch; with its 4.191 s on four v4 chips.
    #[test]
    fn matches_the_blog_post() {
        let flops = Flops::new(2_196_691_968, dimensions(18, 24, 128), 131_072, 1024);
        // 6 · 2,196,691,968 · 131,072, and 12 · 18 · 24 · 128 · 1024 · 131,072 more.
        assert_eq!(flops.flops_6n, 1_727_548_857_778_176.0);
        assert_eq!(flops.palm - flops.flops_6n, 89_060_441_849_856.0);
        let share = utilization(flops.flops_6n, 4.191, 4, 275e12);
        assert!((share - 0.3747).abs() < 0.0001, "{share}");
    }

    /// 238.3 thousand tokens per second of 540.35 billion parameters on 6144 chips are 46.2 %.
    #[test]
    fn matches_palm() {
        let flops = Flops::new(540_350_000_000, dimensions(118, 48, 256), 238_300, 2048);
        let share = utilization(flops.palm, 1.0, 6144, 275e12);
        assert!((share - 0.462).abs() < 0.0005, "{share}");
    }
}
