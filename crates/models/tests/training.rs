//! A hundred steps of SGD match torch.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Recording, call, compile, model, weights};
use fullshard_graph::{DType, Tensor, value_and_grad};
use fullshard_models::{Plain, Scope};
use fullshard_pjrt::HostTensor;

#[test]
fn sgd_with_momentum_matches_torch() {
    let recording = Recording::load("gpt2_plain");
    let model = model(&recording);
    let tree = model.tree();
    let weights: Vec<HostTensor> = weights(&recording).into_iter().map(|(_, w)| w).collect();
    let count = weights.len();
    let zeros = |w: &HostTensor| {
        HostTensor::from_values(w.dims(), &vec![0_f32; w.dims().iter().product()]).unwrap()
    };
    let mut state: Vec<HostTensor> =
        weights.iter().cloned().chain(weights.iter().map(zeros)).collect();
    let batch = |step: usize| ["tokens", "labels"].map(|name| recording.batch(name, step));
    state.extend(batch(0));
    let step = compile(&state, |inputs| {
        let (weights, rest) = inputs.split_at(count);
        let (momenta, batch) = rest.split_at(count);
        let (loss, gradients) = value_and_grad(&weights.iter().collect::<Vec<_>>(), |weights| {
            let plain = Plain::new(&tree, &weights, DType::F32)?;
            let loss = Scope::root(&plain, |scope| {
                let loss = model.loss(scope, batch)?;
                Ok(vec![(loss.sum / loss.count)?])
            })?;
            Ok(loss[0].clone())
        })?;
        let mut next: Vec<Tensor> = Vec::new();
        let mut moved: Vec<Tensor> = Vec::new();
        for ((weight, momentum), gradient) in weights.iter().zip(momenta).zip(&gradients) {
            let momentum = ((momentum * 0.9)? + gradient)?;
            next.push((weight - (&momentum * 0.01)?)?);
            moved.push(momentum);
        }
        Ok(next.into_iter().chain(moved).chain([loss]).collect())
    });
    for (i, expected) in recording.floats("losses.sgd").into_iter().enumerate() {
        state.truncate(2 * count);
        state.extend(batch(i));
        state = call(&step, &state);
        let found = state[2 * count].to_f64().unwrap()[0];
        let apart = (found / f64::from(expected) - 1.0).abs();
        assert!(apart < 1e-5, "step {i}: {found} for {expected}");
    }
}
