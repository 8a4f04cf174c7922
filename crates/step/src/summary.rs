//! A step in the words of the command line: what reports say of its model and settings.

use crate::spec::StepSpec;
use fullshard_graph::DType;
use serde::Serialize;

/// The model of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelSummary {
    /// The class at its root.
    pub class: String,
    /// Parameters; tied ones once.
    pub parameters: u64,
    /// Parameters that are trained.
    pub trained_parameters: u64,
    /// Layers.
    pub layers: usize,
    /// The width between layers.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// The longest sequence.
    pub positions: usize,
}

/// The settings of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepSettings {
    /// Devices.
    pub devices: usize,
    /// The sharding strategy.
    pub fsdp: String,
    /// Sequences per micro-batch, over all devices.
    pub batch: usize,
    /// Tokens per sequence.
    pub sequence: usize,
    /// Micro-batches per step.
    pub gradient_accumulation_steps: usize,
    /// Whether gradients are reduced once per step.
    pub no_sync: bool,
    /// Tokens per step, over all devices.
    pub tokens_per_step: usize,
    /// The optimizer.
    pub optimizer: String,
    /// What gradients are clipped to.
    pub max_grad_norm: Option<f64>,
    /// The type computed in.
    pub compute_dtype: String,
    /// How many matmuls of layers run in FP8, if they should.
    pub eight_bit_products: Option<usize>,
    /// The modules of those that should but do not.
    pub not_in_eight_bits: Vec<String>,
    /// The type that gradients are reduced in.
    pub reduce_dtype: String,
    /// What is saved for the backward pass.
    pub remat: String,
    /// Whether layers are scanned.
    pub scan_layers: bool,
    /// Whether the next layer is all-gathered ahead.
    pub gather_ahead: bool,
    /// Parameters that are not trained, as they were given.
    pub frozen: Vec<String>,
}

impl StepSpec {
    /// What reports say of the model.
    pub fn model_summary(&self) -> ModelSummary {
        let dimensions = self.model.dimensions();
        ModelSummary {
            class: self.model.class().to_owned(),
            parameters: self.parameter_count() as u64,
            trained_parameters: self.trained_count() as u64,
            layers: dimensions.layers,
            hidden: dimensions.hidden,
            heads: dimensions.heads,
            vocabulary: dimensions.vocabulary,
            positions: dimensions.positions,
        }
    }

    /// What reports say of the settings.
    pub fn settings(&self) -> StepSettings {
        let (placement, batch) = (&self.placement, self.batch);
        let products = self.eight_bit_products();
        StepSettings {
            devices: placement.devices(),
            fsdp: placement.options.strategy.name().to_owned(),
            batch: batch.sequences,
            sequence: batch.tokens,
            gradient_accumulation_steps: batch.accumulation,
            no_sync: !batch.sync_each_microbatch,
            tokens_per_step: self.tokens_per_step(),
            optimizer: self.optimizer.name().to_owned(),
            max_grad_norm: self.max_grad_norm,
            compute_dtype: placement.wire.compute.torch_name().to_owned(),
            eight_bit_products: products.as_ref().map(|products| products.fp8),
            not_in_eight_bits: products.map_or_else(Vec::new, |products| products.others),
            reduce_dtype: placement.wire.reduce.torch_name().to_owned(),
            remat: placement.remat.name().to_owned(),
            scan_layers: placement.options.scan_layers,
            gather_ahead: placement.options.gather_ahead,
            frozen: placement.options.frozen.clone(),
        }
    }
}

impl StepSettings {
    /// The type computed in, with what is in FP8 of it.
    pub fn compute_name(&self) -> String {
        match self.eight_bit_products {
            Some(_) => format!("{} and {}", self.compute_dtype, DType::F8E4M3FN.torch_name()),
            None => self.compute_dtype.clone(),
        }
    }
}
