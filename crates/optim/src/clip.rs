//! Clipping gradients by their norm over all parameters and devices.

use crate::shard::Shard;
use crate::sums::sum_over_devices;
use fullshard_graph::{DType, Result, Tensor, concatenate, zeros};

/// The norm of all gradients together, the same on every device. Gradients that are whole on
/// every device count once. It takes one all-reduce, for each group that gradients are cut over.
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

/// What gradients of a norm are to be multiplied by so that the norm is at most `max_norm`:
/// `max_norm / (norm + 1e-6)`, and never more than one.
pub fn clip_factor(norm: &Tensor, max_norm: f64) -> Result<Tensor> {
    (max_norm / &(norm + 1e-6)?)?.clamp(0.0, 1.0)
}
