//! Which form of attention a step has, and why.

use fullshard_models::layers::attention::BLOCKWISE_FROM;
use fullshard_pjrt::hlo::{Module, runs_per_launch};
use fullshard_step::StepSpec;
use serde::Serialize;
use std::fmt;

/// Which form of attention a step has.
#[derive(Debug, Serialize)]
pub struct AttentionReport {
    /// The form.
    pub form: Form,
    /// Why it is not cuDNN's kernel.
    pub reason: Option<String>,
    /// How often a compiled step calls cuDNN's kernels, forwards and backwards.
    pub calls: Option<u64>,
}

/// A form of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// cuDNN's kernel.
    Cudnn,
    /// In blocks of queries.
    Blocks,
    /// All probabilities at once.
    Whole,
}

/// What the targets of calls of cuDNN's attention begin with.
const CUDNN: &str = "__cudnn$fmha";

impl AttentionReport {
    /// What a step is traced with.
    pub fn new(spec: &StepSpec) -> AttentionReport {
        let reason = spec.attention_unsupported_reason();
        let form = match reason {
            None => Form::Cudnn,
            Some(_) if spec.batch.tokens >= BLOCKWISE_FROM => Form::Blocks,
            Some(_) => Form::Whole,
        };
        AttentionReport { form, reason, calls: None }
    }

    /// Counts what a compiled step calls.
    pub fn compiled(&mut self, module: &Module) {
        let runs = runs_per_launch(module);
        let is_kernel = |target: &str| target.starts_with(CUDNN);
        let calls = module
            .instructions()
            .filter(|it| it.custom_call_target.as_deref().is_some_and(is_kernel))
            .map(|it| runs.count(it.computation).unwrap_or(1));
        self.calls = Some(calls.sum()).filter(|&calls| calls > 0 || self.form == Form::Cudnn);
    }
}

impl fmt::Display for AttentionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match self.form {
            Form::Cudnn => "by cuDNN's kernel",
            Form::Blocks => "in blocks",
            Form::Whole => "with all probabilities at once",
        };
        write!(f, "attention {form}")?;
        match &self.reason {
            Some(reason) => write!(f, ", not by cuDNN's kernel: {reason}"),
            None => Ok(()),
        }
    }
}
