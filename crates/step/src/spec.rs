//! The definition of a run's programs.

use crate::error::Error;
use fullshard_models::layers::{attention, fp8};
use fullshard_models::{AnyModel, Parameter};
use fullshard_optim::{Optimizer, Shard, TensorSlice, decays};
use fullshard_parallel::{Layout, Placement, Remat, ShardedParam};

/// The shape of a step's batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    /// Sequences per microbatch, over all devices.
    pub sequences: usize,
    /// Tokens per sequence.
    pub tokens: usize,
    /// Number of microbatches accumulated before an update.
    pub accumulation: usize,
    /// Whether gradients are reduced after each microbatch. If not, parameters are gathered once
    /// and gradients reduced once per step, which needs memory for both unsharded.
    pub sync_each_microbatch: bool,
}

/// A model with its placement, optimizer and batches.
pub struct StepSpec {
    /// The model.
    pub model: Box<dyn AnyModel>,
    /// Its placement.
    pub placement: Placement,
    /// The optimizer.
    pub optimizer: Box<dyn Optimizer>,
    /// The batches.
    pub batch: BatchShape,
    /// The norm that gradients are clipped to, if they are.
    pub max_grad_norm: Option<f64>,
    /// Steps per launch; see [`StepSpec::with_iterations_per_loop`].
    pub iterations_per_loop: usize,
    /// Whether a step takes a limit of its loss; see [`StepSpec::with_loss_limit`].
    pub has_loss_limit: bool,
}

impl StepSpec {
    /// A spec, if its parts match.
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
        at_least("the number of accumulated microbatches", batch.accumulation, 1)?;
        at_least("the number of sequences in a batch", batch.sequences, 1)?;
        let devices = placement.batch_shards();
        if !batch.sequences.is_multiple_of(devices) {
            return Err(Error::Batch { batch: batch.sequences, devices });
        }
        check_tokens(model.as_ref(), &placement, batch)?;
        let positions = model.dimensions().positions;
        if batch.tokens > positions {
            return Err(Error::Sequence { sequence: batch.tokens, positions });
        }
        if !batch.sync_each_microbatch && placement.gathers_ahead() {
            return Err(Error::GatherAheadWithoutSync);
        }
        if let Some(limit) = max_grad_norm
            && !(limit.is_finite() && limit > 0.0)
        {
            return Err(Error::GradientNorm { limit });
        }
        if placement.trained().is_empty() {
            return Err(Error::AllFrozen);
        }
        check_names(model.as_ref(), &placement.remat)?;
        Ok(StepSpec {
            model,
            placement,
            optimizer,
            batch,
            max_grad_norm,
            iterations_per_loop: 1,
            has_loss_limit: false,
        })
    }

    /// The spec with steps that take a limit of their loss. One whose loss is above it, or that is
    /// not finite, updates nothing, and the next one goes on. Without a limit, none after a step
    /// that is not finite updates anything.
    pub fn with_loss_limit(mut self, has_limit: bool) -> StepSpec {
        self.has_loss_limit = has_limit;
        self
    }

    /// Which matmuls of layers run in FP8, if any should.
    pub fn fp8_matmuls(&self) -> Option<fp8::Matmuls> {
        let tokens = self.tokens_per_device();
        let requested = self.placement.options.config.settings.fp8;
        let local_dims = |parameter: &Parameter| self.placement.local_dims(parameter);
        requested.then(|| fp8::matmuls(&self.model.tree(), tokens, local_dims))
    }

    /// Why attention is not a kernel in a training step, if it is not: cuDNN's on NVIDIA GPUs, a
    /// custom call on CPU.
    pub fn attention_unsupported_reason(&self) -> Option<String> {
        let options = &self.placement.options;
        if options.lowering.eager_attention {
            return Some("--attn_implementation is eager".to_owned());
        }
        if options.lowering.attention_custom_call {
            return self.call_unsupported_reason();
        }
        if !options.lowering.fused_attention {
            return Some("only NVIDIA GPUs support it, without --full_determinism".to_owned());
        }
        let (head, form) = (self.model.dimensions().head, self.model.attention_form());
        let (dtype, tokens) = (self.placement.comm.compute, self.batch.tokens);
        match self.placement.context_shards() {
            1 => attention::unsupported_reason(dtype, tokens, head, form, options.scan_layers),
            shards => {
                let chunk = tokens / (2 * shards);
                attention::context::unsupported_reason(dtype, chunk, head, form)
            }
        }
    }

    fn call_unsupported_reason(&self) -> Option<String> {
        if self.placement.context_shards() > 1 {
            return Some("the call does not support a context axis".to_owned());
        }
        let (head, form) = (self.model.dimensions().head, self.model.attention_form());
        attention::call_unsupported_reason(self.placement.comm.compute, head, form)
    }

    /// Whether attention without a kernel is computed in blocks of queries.
    pub fn attends_in_blocks(&self) -> bool {
        let long = self.batch.tokens >= attention::BLOCKWISE_FROM;
        self.placement.context_shards() > 1
            || long && !self.placement.options.lowering.eager_attention
    }

    /// The tokens of a microbatch that each device computes.
    pub fn tokens_per_device(&self) -> usize {
        let sequences = self.batch.sequences / self.placement.batch_shards();
        sequences * self.batch.tokens / self.placement.context_shards()
    }

    /// The tokens of one step, over all devices and microbatches.
    pub fn tokens_per_step(&self) -> usize {
        self.batch.sequences * self.batch.tokens * self.batch.accumulation
    }

    /// A parameter, by its position in the placement, as the optimizer sees it.
    pub(crate) fn shard(&self, parameter: usize) -> Shard {
        let param = &self.placement.parameters[parameter];
        let sharded = param.layout != Layout::Replicated;
        Shard {
            dims: param.dims.clone(),
            stack: param.stack,
            layout: param.layout,
            slice: if param.layout == Layout::Flat { param.shard_dims()[0] } else { 0 },
            group: sharded.then(|| self.placement.group(&param.axes)),
            tensor: param.slice.as_ref().map(|slice| TensorSlice {
                dim: slice.dim,
                parts: slice.parts,
                group: self.placement.group(&slice.axes),
            }),
        }
    }

    /// Whether weight decay applies to a trained parameter.
    pub(crate) fn decays(&self, param: &ShardedParam) -> bool {
        decays(&param.template, param.class)
    }
}

/// Rejects sequences whose tokens cannot be sharded as the placement requires.
fn check_tokens(
    model: &dyn AnyModel,
    placement: &Placement,
    batch: BatchShape,
) -> Result<(), Error> {
    let context = placement.context_shards();
    let least = 2 * context;
    if context > 1 && !batch.tokens.is_multiple_of(least) {
        let below = batch.tokens / least * least;
        return Err(Error::Context { tokens: batch.tokens, context, below, above: below + least });
    }
    let Some(tensor) = placement.tensor.as_ref().filter(|it| it.sequence_parallel) else {
        return Ok(());
    };
    if !model.has_residual_stream() {
        return Err(Error::NoResidualStream { class: model.class() });
    }
    let devices = placement.mesh.group_size(&tensor.axes);
    let sequences = match placement.options.lowering.flatten_batch {
        true => batch.sequences / placement.batch_shards(),
        false => 1,
    };
    let tokens = sequences * batch.tokens / context;
    match tokens.is_multiple_of(devices) {
        true => Ok(()),
        false => Err(Error::SequenceParallel { tokens, devices }),
    }
}

/// Rejects a remat policy with a name that the model's layers do not have.
fn check_names(model: &dyn AnyModel, remat: &Remat) -> Result<(), Error> {
    let names = || model.checkpoints().iter().map(|checkpoint| checkpoint.name.as_str());
    let missing = remat.required().iter().find(|saved| !names().any(|name| name == saved.name));
    missing.map_or(Ok(()), |saved| {
        Err(Error::NotNamed {
            name: saved.name,
            class: model.class(),
            names: names().collect::<Vec<_>>().join(", "),
        })
    })
}
