//! Summaries of a step's model and settings for reports, in the terms of the command line.

use crate::spec::StepSpec;
use fullshard_graph::DType;
use fullshard_parallel::GatherAhead;
use serde::Serialize;

/// The model of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelSummary {
    /// The class of its root module.
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
    /// Sequences per microbatch, over all devices.
    pub batch: usize,
    /// Tokens per sequence.
    pub sequence: usize,
    /// Microbatches per step.
    pub gradient_accumulation_steps: usize,
    /// Whether gradients are reduced once per step.
    pub no_sync: bool,
    /// Steps per launch.
    pub iterations_per_loop: usize,
    /// Tokens per step, over all devices.
    pub tokens_per_step: usize,
    /// The optimizer.
    pub optimizer: String,
    /// The norm that gradients are clipped to.
    pub max_grad_norm: Option<f64>,
    /// The compute type.
    pub compute_dtype: String,
    /// Number of matmuls of layers that run in FP8, if they should.
    pub fp8_matmuls: Option<usize>,
    /// The modules of those that should but do not.
    pub not_fp8: Vec<String>,
    /// The type that gradients are reduced in.
    pub reduce_dtype: String,
    /// What is saved for the backward pass.
    pub remat: String,
    /// Whether layers are scanned.
    pub scan_layers: bool,
    /// What is all-gathered before scanned layers need it.
    pub gather_ahead: GatherAhead,
    /// Parameters that are not trained, as they were given.
    pub frozen: Vec<String>,
}

impl StepSpec {
    /// The model for reports.
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

    /// The settings for reports.
    pub fn settings(&self) -> StepSettings {
        let (placement, batch) = (&self.placement, self.batch);
        let matmuls = self.fp8_matmuls();
        StepSettings {
            devices: placement.devices(),
            fsdp: placement.options.strategy.name().to_owned(),
            batch: batch.sequences,
            sequence: batch.tokens,
            gradient_accumulation_steps: batch.accumulation,
            no_sync: !batch.sync_each_microbatch,
            iterations_per_loop: self.iterations_per_loop,
            tokens_per_step: self.tokens_per_step(),
            optimizer: self.optimizer.name().to_owned(),
            max_grad_norm: self.max_grad_norm,
            compute_dtype: placement.comm.compute.torch_name().to_owned(),
            fp8_matmuls: matmuls.as_ref().map(|matmuls| matmuls.fp8),
            not_fp8: matmuls.map_or_else(Vec::new, |matmuls| matmuls.others),
            reduce_dtype: placement.comm.reduce.torch_name().to_owned(),
            remat: placement.remat.to_string(),
            scan_layers: placement.options.scan_layers,
            gather_ahead: placement.options.gather_ahead,
            frozen: placement.options.frozen.clone(),
        }
    }
}

impl StepSettings {
    /// The compute type, with FP8 if matmuls use it.
    pub fn compute_name(&self) -> String {
        match self.fp8_matmuls {
            Some(_) => format!("{} and {}", self.compute_dtype, DType::F8E4M3FN.torch_name()),
            None => self.compute_dtype.clone(),
        }
    }
}
