//! Everything that the programs of a run follow from.

use crate::error::Error;
use fullshard_graph::Group;
use fullshard_models::AnyModel;
use fullshard_models::layers::{attention, fp8};
use fullshard_optim::{Optimizer, Shard, decays};
use fullshard_parallel::{Layout, Placement, Stored};

/// The shape of a step's batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    /// Sequences that all devices together compute at once.
    pub sequences: usize,
    /// Tokens in a sequence.
    pub tokens: usize,
    /// How many such microbatches are accumulated before an update.
    pub accumulation: usize,
    /// Whether gradients are reduced after each microbatch. If not, parameters are gathered once
    /// and gradients reduced once per step, which takes memory for both unsharded.
    pub sync_each_microbatch: bool,
}

/// A model, where it lives, how it is updated and on what.
pub struct StepSpec {
    /// The mathematics.
    pub model: Box<dyn AnyModel>,
    /// Where everything lives.
    pub placement: Placement,
    /// The update.
    pub optimizer: Box<dyn Optimizer>,
    /// The batches.
    pub batch: BatchShape,
    /// What gradients are clipped to, if they are.
    pub max_grad_norm: Option<f64>,
}

impl StepSpec {
    /// Puts a spec together, if its parts fit.
    pub fn new(
        model: Box<dyn AnyModel>,
        placement: Placement,
        optimizer: Box<dyn Optimizer>,
        batch: BatchShape,
        max_grad_norm: Option<f64>,
    ) -> Result<StepSpec, Error> {
        let at_least = |what, found, least| match found >= least {
            true => Ok(()),
            false => Err(Error::TooFew { what, found, least }),
        };
        at_least("the number of tokens in a sequence", batch.tokens, 2)?;
        at_least("the number of accumulated batches", batch.accumulation, 1)?;
        at_least("the number of sequences in a batch", batch.sequences, 1)?;
        let devices = placement.devices();
        if !batch.sequences.is_multiple_of(devices) {
            return Err(Error::Batch { batch: batch.sequences, devices });
        }
        let positions = model.dimensions().positions;
        if batch.tokens > positions {
            return Err(Error::Sequence { sequence: batch.tokens, positions });
        }
        if !batch.sync_each_microbatch && placement.gathers_ahead() {
            return Err(Error::GatheredAlready);
        }
        if let Some(limit) = max_grad_norm
            && !(limit.is_finite() && limit > 0.0)
        {
            return Err(Error::GradientNorm { limit });
        }
        if placement.trained().is_empty() {
            return Err(Error::AllFrozen);
        }
        Ok(StepSpec { model, placement, optimizer, batch, max_grad_norm })
    }

    /// Which products of layers run in 8 bits, if any should.
    pub fn eight_bit_products(&self) -> Option<fp8::Matmuls> {
        let tokens = self.batch.sequences / self.placement.devices() * self.batch.tokens;
        let asked = self.placement.options.config.settings.fp8;
        asked.then(|| fp8::matmuls(&self.model.tree(), tokens))
    }

    /// Why attention is not cuDNN's kernel in a training step, if it is not.
    pub fn attention_unsupported_reason(&self) -> Option<String> {
        let options = &self.placement.options;
        if !options.lowering.fused_attention {
            return Some("only NVIDIA's GPUs have it".to_owned());
        }
        let (head, form) = (self.model.dimensions().head, self.model.attention_form());
        let (dtype, tokens) = (self.placement.wire.compute, self.batch.tokens);
        attention::unsupported_reason(dtype, tokens, head, form, options.scan_layers)
    }

    /// The tokens of one step, over all devices and accumulated batches.
    pub fn tokens_per_step(&self) -> usize {
        self.batch.sequences * self.batch.tokens * self.batch.accumulation
    }

    /// Which of the trained parameters weight decay is for.
    pub(crate) fn decays(&self, stored: &Stored) -> bool {
        decays(&stored.template, stored.class)
    }
}

/// A stored parameter as the optimizer sees it.
pub(crate) fn shard(stored: &Stored, group: Option<&Group>) -> Shard {
    let group = group.filter(|_| stored.layout != Layout::Replicated).cloned();
    Shard {
        dims: stored.dims.clone(),
        stack: stored.stack,
        layout: stored.layout,
        slice: if stored.layout == Layout::Flat { stored.part_dims()[0] } else { 0 },
        group,
    }
}
