//! Select and stop-gradient.

use crate::error::{Error, Result};
use crate::op::Op;
use crate::ops::elementwise::broadcast_pair;
use crate::tensor::Tensor;
use crate::trace::emit_one;
use fullshard_core::DType;

/// `yes` where the condition holds, else `no`.
pub fn select(condition: &Tensor, yes: &Tensor, no: &Tensor) -> Result<Tensor> {
    let (yes, no) = broadcast_pair("select", yes, no)?;
    let fail = || {
        let reason = format!("{} is not a valid condition for {}", condition.ty(), yes.ty());
        Error::new("select", reason)
    };
    if condition.dtype() != DType::Bool {
        return Err(fail());
    }
    let condition = condition.broadcast_to(yes.dims()).map_err(|_| fail())?;
    emit_one("select", Op::Select, &[&condition, &yes, &no], yes.ty().clone())
}

impl Tensor {
    /// The same value, with no gradient.
    pub fn stop_gradient(&self) -> Result<Tensor> {
        emit_one("stop_gradient", Op::StopGradient, &[self], self.ty().clone())
    }
}
