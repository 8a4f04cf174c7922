//! The attention implementation of a step, and why it was chosen.

use fullshard_models::layers::attention::ATTENTION;
use fullshard_pjrt::hlo::{Module, runs_per_launch};
use fullshard_step::StepSpec;
use serde::Serialize;
use std::fmt;

/// The attention implementation of a step.
#[derive(Debug, Serialize)]
pub struct AttentionReport {
    /// The implementation.
    pub form: Form,
    /// Why it is not a kernel.
    pub reason: Option<String>,
    /// Number of kernel calls in a compiled step, forward and backward.
    pub calls: Option<u64>,
}

/// An attention implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// cuDNN's fused kernel.
    Cudnn,
    /// Custom calls on CPU.
    CustomCall,
    /// Blockwise over queries.
    Blockwise,
    /// Unfused, with all probabilities at once.
    Unfused,
}

/// The prefixes of custom calls of attention.
const CALLS: [&str; 2] = ["__cudnn$fmha", ATTENTION];

impl AttentionReport {
    /// The implementation that a step is traced with.
    pub fn new(spec: &StepSpec) -> AttentionReport {
        let reason = spec.attention_unsupported_reason();
        let form = match reason {
            None if spec.placement.options.lowering.attention_custom_call => Form::CustomCall,
            None => Form::Cudnn,
            Some(_) if spec.attends_in_blocks() => Form::Blockwise,
            Some(_) => Form::Unfused,
        };
        AttentionReport { form, reason, calls: None }
    }

    /// Counts the kernel calls per step of a compiled program of one or several steps.
    pub fn compiled(&mut self, module: &Module, steps: usize) {
        let runs = runs_per_launch(module);
        let is_kernel = |target: &str| CALLS.iter().any(|call| target.starts_with(call));
        let calls = module
            .instructions()
            .filter(|it| it.custom_call_target.as_deref().is_some_and(is_kernel))
            .map(|it| runs.count(it.computation).unwrap_or(1));
        self.calls = Some(calls.sum::<u64>() / steps as u64)
            .filter(|&calls| calls > 0 || self.reason.is_none());
    }
}

impl fmt::Display for AttentionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match self.form {
            Form::Cudnn => "cuDNN",
            Form::CustomCall => "custom call",
            Form::Blockwise => "blockwise",
            Form::Unfused => "unfused",
        };
        write!(f, "attention: {form}")?;
        match &self.reason {
            Some(reason) => write!(f, ", not a kernel: {reason}"),
            None => Ok(()),
        }
    }
}
