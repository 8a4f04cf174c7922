//! Gradient clipping by the global norm over all parameters and devices.

use crate::shard::Shard;
use crate::sums::sum_over_devices;
use fullshard_graph::{DType, Result, Tensor, concatenate, zeros};

/// The global norm of all gradients, the same on every device. Replicated gradients count once. It
/// takes one all-reduce per group that gradients are sharded over.
pub fn global_norm(gradients: &[(&Tensor, &Shard)]) -> Result<Tensor> {
    let squares = gradients
        .iter()
        .map(|(gradient, shard)| {
            shard.check("global_norm", "gradient", gradient)?;
            Ok((vec![gradient.square()?.sum_all()?.reshape(&[1])?], *shard))
        })
        .collect::<Result<Vec<_>>>()?;
    if squares.is_empty() {
        return zeros(DType::F32, &[]);
    }
    let sums = sum_over_devices(&squares)?;
    concatenate(&sums.iter().flatten().collect::<Vec<_>>(), 0)?.sum_all()?.sqrt()
}

/// The factor that clips gradients of a norm to `max_norm`: `max_norm / (norm + 1e-6)`, at most
/// one.
pub fn clip_factor(norm: &Tensor, max_norm: f64) -> Result<Tensor> {
    (max_norm / &(norm + 1e-6)?)?.clamp(0.0, 1.0)
}
