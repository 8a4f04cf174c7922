//! The arithmetic of a training step by the two conventions people quote, and the share of a
//! machine's peak that it comes to (MFU, model FLOPs utilisation).
//!
//! Both count what the model needs, whatever was computed again, padded or left out, and both
//! count every parameter, N: tied weights once, embeddings and frozen parameters included.
//!
//! - The post on FSDP for PyTorch/XLA counts `6·N` a token: two operations a parameter forward
//!   and four backward.
//! - PaLM (appendix B) adds attention, `12·L·H·Q·T` a token for L layers of H heads of width Q
//!   over T tokens, as if no token were hidden from another. That N has the embeddings in it
//!   follows from the paper's own figures: 46.2 % comes out with them and 45.8 % without.

use fullshard_models::Dimensions;

/// The arithmetic of a step, in floating-point operations over all devices.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Flops {
    /// By the post's convention: `6·N` a token.
    pub post: f64,
    /// By PaLM's: `6·N + 12·L·H·Q·T` a token.
    pub palm: f64,
}

impl Flops {
    /// The arithmetic of `tokens` tokens in sequences of `sequence`, for a model of so many
    /// parameters.
    pub fn new(parameters: usize, model: Dimensions, tokens: usize, sequence: usize) -> Flops {
        let weights = 6.0 * parameters as f64;
        let attention = 12.0 * (model.layers * model.heads * model.head * sequence) as f64;
        let tokens = tokens as f64;
        Flops { post: weights * tokens, palm: (weights + attention) * tokens }
    }
}

/// The share of the peak of all devices that an amount of arithmetic in a time comes to.
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

    /// The post's model and batch; with its 4.191 s on four v4 chips.
    #[test]
    fn the_arithmetic_of_the_post_comes_out() {
        let flops = Flops::new(2_196_691_968, dimensions(18, 24, 128), 131_072, 1024);
        // 6 · 2,196,691,968 · 131,072, and 12 · 18 · 24 · 128 · 1024 · 131,072 more.
        assert_eq!(flops.post, 1_727_548_857_778_176.0);
        assert_eq!(flops.palm - flops.post, 89_060_441_849_856.0);
        let share = utilization(flops.post, 4.191, 4, 275e12);
        assert!((share - 0.3747).abs() < 0.0001, "{share}");
    }

    /// 238.3 thousand tokens a second of 540.35 billion parameters on 6144 chips are 46.2 %.
    #[test]
    fn the_figure_of_palm_comes_out() {
        let flops = Flops::new(540_350_000_000, dimensions(118, 48, 256), 238_300, 2048);
        let share = utilization(flops.palm, 1.0, 6144, 275e12);
        assert!((share - 0.462).abs() < 0.0005, "{share}");
    }
}
