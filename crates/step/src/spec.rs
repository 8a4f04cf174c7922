//! Everything that the programs of a run follow from.

use crate::error::Error;
use fullshard_graph::{Argument, DType, Group, Sharding, TensorType};
use fullshard_models::CausalLm;
use fullshard_models::layers::{attention, fp8};
use fullshard_optim::{Optimizer, Shard, SlotKind, decays};
use fullshard_parallel::{AXIS, Layout, Placement, Stored};

/// The batches of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Sequences that all devices together compute at once.
    pub sequences: usize,
    /// Tokens in a sequence.
    pub tokens: usize,
    /// How many such batches are added up before an update.
    pub accumulation: usize,
    /// Whether gradients are reduced after each of them. If not, parameters are gathered once
    /// and gradients reduced once a step, which takes memory for both whole.
    pub reduce_each: bool,
}

/// A model, where it lives, how it is updated and on what.
pub struct StepSpec {
    /// The mathematics.
    pub model: Box<dyn CausalLm>,
    /// Where everything lives.
    pub placement: Placement,
    /// The update.
    pub optimizer: Box<dyn Optimizer>,
    /// The batches.
    pub batch: Batch,
    /// What gradients are clipped to, if they are.
    pub max_grad_norm: Option<f64>,
}

/// A tensor of the state: its type over all devices and how it is cut.
#[derive(Debug, Clone)]
pub struct StateTensor {
    /// Its type over all devices.
    pub ty: TensorType,
    /// How it is sharded.
    pub sharding: Sharding,
}

impl StepSpec {
    /// Puts a spec together, if its parts fit.
    pub fn new(
        model: Box<dyn CausalLm>,
        placement: Placement,
        optimizer: Box<dyn Optimizer>,
        batch: Batch,
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
        if !batch.reduce_each && placement.gathers_ahead() {
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
    pub fn eight_bit_products(&self) -> Option<fp8::Products> {
        let tokens = self.batch.sequences / self.placement.devices() * self.batch.tokens;
        let asked = self.placement.options.config.settings.fp8;
        asked.then(|| fp8::products(&self.model.tree(), tokens))
    }

    /// Why attention is not cuDNN's kernel in a training step, if it is not.
    pub fn attention_obstacle(&self) -> Option<String> {
        let options = &self.placement.options;
        if !options.forms.fused_attention {
            return Some("only NVIDIA's GPUs have it".to_owned());
        }
        let (head, form) = (self.model.dimensions().head, self.model.attention_form());
        let (dtype, tokens) = (self.placement.wire.compute, self.batch.tokens);
        attention::obstacle(dtype, tokens, head, form, options.scan_layers)
    }

    /// The tokens of one step, over all devices and accumulated batches.
    pub fn tokens_per_step(&self) -> usize {
        self.batch.sequences * self.batch.tokens * self.batch.accumulation
    }

    /// The part of the state that is parameters, with which it begins.
    pub fn parameter_state(&self) -> Result<Vec<StateTensor>, Error> {
        let tensor = |(stored, sharding): (&Stored, Sharding)| StateTensor {
            ty: TensorType::new(DType::F32, &stored.stored_dims()),
            sharding,
        };
        let shardings = self.placement.shardings()?;
        Ok(self.placement.parameters.iter().zip(shardings).map(tensor).collect())
    }

    /// The state: parameters, then the optimizer's slots of those that are trained.
    pub fn state(&self) -> Result<Vec<StateTensor>, Error> {
        let mut state = self.parameter_state()?;
        for i in self.placement.trained() {
            let stored = &self.placement.parameters[i];
            for slot in self.optimizer.slots(&shard(stored, None)) {
                let (dims, sharding) = match slot.kind {
                    SlotKind::Like => (stored.stored_dims(), state[i].sharding.clone()),
                    SlotKind::Replicated(dims) => {
                        let whole = self.placement.mesh.replicated(dims.len());
                        (dims, whole)
                    }
                };
                state.push(StateTensor { ty: TensorType::new(DType::F32, &dims), sharding });
            }
        }
        Ok(state)
    }

    /// The batches of a step as an argument: `[accumulation, sequences, tokens]`.
    pub(crate) fn tokens_type(&self) -> Result<(TensorType, Sharding), Error> {
        let Batch { sequences, tokens, accumulation, .. } = self.batch;
        let ty = TensorType::new(DType::I32, &[accumulation, sequences, tokens]);
        Ok((ty, self.placement.mesh.sharding(&[&[], &[AXIS], &[]])?))
    }

    /// A batch of evaluation as an argument: `[sequences, tokens]`.
    pub(crate) fn eval_tokens_type(
        &self,
        sequences: usize,
    ) -> Result<(TensorType, Sharding), Error> {
        let devices = self.placement.devices();
        if !sequences.is_multiple_of(devices) {
            return Err(Error::Batch { batch: sequences, devices });
        }
        let ty = TensorType::new(DType::I32, &[sequences, self.batch.tokens]);
        Ok((ty, self.placement.mesh.sharding(&[&[AXIS], &[]])?))
    }

    /// An argument that is whole on every device.
    pub(crate) fn whole(&self, dtype: DType, dims: &[usize]) -> (Argument, Sharding) {
        let sharding = self.placement.mesh.replicated(dims.len());
        (Argument::new(TensorType::new(dtype, dims)).sharded(&sharding), sharding)
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
