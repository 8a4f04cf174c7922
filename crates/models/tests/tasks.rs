//! Models of other crates with custom tasks: a masked language model with bidirectional attention
//! and padding, and an image classifier. Both are traced like any other, and learn.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "tasks/images.rs"]
mod images;
#[path = "tasks/masked.rs"]
mod masked;

use common::{call, compile, numbers};
use fullshard_graph::{DType, Tensor, value_and_grad};
use fullshard_models::{AnyModel, Initializer, Plain, Scope};
use fullshard_pjrt::HostTensor;

/// The initial parameters of a tree.
fn initial(model: &dyn AnyModel) -> Vec<HostTensor> {
    let tree = model.tree();
    let own = tree.named_parameters().into_iter().filter(|(_, p)| p.tied_to.is_none());
    own.enumerate()
        .map(|(i, (_, p))| {
            let values: Vec<f32> = match p.initializer {
                Initializer::Zeros => vec![0.0; p.elements()],
                Initializer::Ones => vec![1.0; p.elements()],
                // Uniform numbers suffice here; these are from -0.5 to 0.5.
                Initializer::Normal { std: deviation } => numbers(p.elements(), i as u64)
                    .into_iter()
                    .map(|x| (x * deviation * 12_f64.sqrt()) as f32)
                    .collect(),
            };
            HostTensor::from_values(&p.dims, &values).unwrap()
        })
        .collect()
}

/// The mean losses of steps of gradient descent on one batch.
fn losses(model: &dyn AnyModel, batch: Vec<HostTensor>, rate: f64, steps: usize) -> Vec<f64> {
    let (tree, mut state) = (model.tree(), initial(model));
    let count = state.len();
    state.extend(batch.iter().cloned());
    let step = compile(&state, |inputs| {
        let (weights, batch) = inputs.split_at(count);
        let labels = model.label_count(batch)?;
        let (loss, gradients) = value_and_grad(&weights.iter().collect::<Vec<_>>(), |weights| {
            let plain = Plain::new(&tree, &weights, DType::F32)?;
            let loss = Scope::root(&plain, |nn| Ok(vec![model.loss(nn, batch)?.sum]))?;
            &loss[0] / &labels
        })?;
        let moved =
            weights.iter().zip(&gradients).map(|(weight, gradient)| weight - (gradient * rate)?);
        moved.chain([Ok(loss)]).collect::<fullshard_graph::Result<Vec<Tensor>>>()
    });
    let mut losses = Vec::new();
    for _ in 0..steps {
        let mut next = call(&step, &state);
        losses.push(next.pop().unwrap().to_f64().unwrap()[0]);
        next.extend(batch.iter().cloned());
        state = next;
    }
    losses
}
