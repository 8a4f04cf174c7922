//! Dropout: its mean, its gradient, and a mask that is the same when sharded or recomputed.

use super::common::{assert_close, run};
use super::results;
use super::shardings::{CASES, COLUMNS, ROWS, sharded_draw};
use super::statistics::{COUNT, assert_near, mean};
use fullshard_graph::{
    Argument, DType, Draw, Key, Mesh, MeshExt, Policy, Program, Result, Tensor, TensorType, ones,
    remat, value_and_grad, value_aux_and_grad,
};
use fullshard_pjrt::HostTensor;

#[test]
fn dropout_preserves_the_mean_and_its_gradient_is_its_mask() {
    let found = results(|| {
        let x = ones(DType::F32, &[COUNT])?;
        let key = Key::constant(4)?;
        let (_, dropped, gradients) = value_aux_and_grad(&[&x], |x| {
            let dropped = key.draw(&[COUNT]).dropout(&x[0], 0.25)?;
            Ok((dropped.sum_all()?, vec![dropped]))
        })?;
        Ok(vec![dropped[0].clone(), gradients[0].clone()])
    });
    assert_eq!(found[0], found[1]);
    let values = found[0].to_f64().unwrap();
    let deviation = (0.25 / 0.75 / COUNT as f64).sqrt();
    assert_near("dropout", mean(&values, |x| x), 1.0, deviation);
    let kept = f64::from(1.0_f32 / 0.75);
    assert!(values.iter().all(|&x| x == 0.0 || x == kept));
}

/// Two layers with dropout: the value, the first layer's mask, and the gradients.
fn layers(
    x: &Tensor,
    weights: &Tensor,
    draws: &[Draw; 2],
    policy: Option<Policy>,
) -> Result<Vec<Tensor>> {
    let layer = |inputs: &[Tensor]| {
        let projected = inputs[0].linear(&inputs[1])?.named("matmul")?;
        let hidden = draws[0].dropout(&projected.tanh()?, 0.3)?;
        draws[1].dropout(&(hidden * &inputs[0])?, 0.1)
    };
    let (value, gradients) = value_and_grad(&[x, weights], |inputs| {
        let out = match &policy {
            None => layer(&inputs)?,
            Some(policy) => {
                let inputs = [&inputs[0], &inputs[1]];
                remat(policy.clone(), &inputs, |inputs| Ok(vec![layer(&inputs)?]))?.remove(0)
            }
        };
        out.square()?.sum_all()
    })?;
    let mask = draws[0].dropout(&ones(x.dtype(), x.dims())?, 0.3)?;
    Ok([value, mask].into_iter().chain(gradients).collect())
}

/// Traces `layers` with random inputs.
fn trace_layers(policy: Option<Policy>) -> Vec<HostTensor> {
    let seed = Argument::new(TensorType::new(DType::U32, &[2]));
    let program = Program::trace("layers", &[seed], |seed| {
        let key = Key::new(&seed[0])?;
        let x = key.named("x")?.draw(&[ROWS, COLUMNS]).normal(DType::F32)?;
        let weights = key.named("w")?.draw(&[COLUMNS, COLUMNS]).normal(DType::F32)?;
        let draw = |name| Ok(key.named(name)?.draw(&[ROWS, COLUMNS]));
        layers(&x, &weights, &[draw("a")?, draw("b")?], policy)
    });
    run(&program.unwrap(), &[HostTensor::from_values(&[2], &[8_u32, 9]).unwrap()])
}

#[test]
fn recomputed_mask_is_the_same() {
    let plain = trace_layers(None);
    let matmuls = Policy::saving(&["matmul"]);
    for policy in [Policy::Nothing, matmuls, Policy::Everything] {
        assert!(trace_layers(Some(policy.clone())) == plain, "{policy:?}");
    }
    // Exactly the elements dropped in the forward pass have no gradient.
    let gradient = results(|| {
        let key = Key::constant(6)?;
        let x = key.named("x")?.draw(&[COUNT]).normal(DType::F32)?;
        let draw = key.named("mask")?.draw(&[COUNT]);
        let (_, forward, gradients) = value_aux_and_grad(&[&x], |x| {
            let dropped =
                remat(Policy::Nothing, &[&x[0]], |x| Ok(vec![draw.dropout(&x[0].tanh()?, 0.5)?]))?;
            Ok((dropped[0].sum_all()?, dropped))
        })?;
        Ok(vec![forward[0].clone(), gradients[0].clone()])
    });
    let [forward, backward] = [0, 1].map(|i| gradient[i].to_f64().unwrap());
    let differ = forward.iter().zip(&backward).filter(|(f, b)| (**f == 0.0) != (**b == 0.0));
    assert_eq!(differ.count(), 0);
}

#[test]
fn dropout_is_the_same_on_one_two_and_eight_devices() {
    let plain = trace_layers(None);
    for (axes, dims) in [CASES[0], CASES[4]] {
        let mesh = Mesh::new(axes).unwrap();
        let sharded = mesh.sharding(&dims).unwrap();
        let replicated = mesh.replicated(2);
        let shardings = [mesh.replicated(0), sharded.clone(), sharded.clone(), replicated.clone()];
        let seed = Argument::new(TensorType::new(DType::U32, &[2]));
        let program = Program::trace("layers", &[seed], |seed| {
            let key = Key::new(&seed[0])?;
            mesh.manual(&["x"], &[], &shardings, |_| {
                let x = sharded_draw(&key.named("x")?, &mesh, dims)?.normal(DType::F32)?;
                let weights = key.named("w")?.draw(&[COLUMNS, COLUMNS]).normal(DType::F32)?;
                let draw = |name| sharded_draw(&key.named(name)?, &mesh, dims);
                let draws = [draw("a")?, draw("b")?];
                let mut results = layers(&x, &weights, &draws, Some(Policy::Nothing))?;
                let data = mesh.over(&["x"])?;
                results[0] = data.sum(&results[0])?;
                results[3] = data.sum(&results[3])?;
                Ok(results)
            })
        });
        let program = program.unwrap().on_mesh(&mesh).unwrap().sharded_results(&shardings).unwrap();
        let found = run(&program, &[HostTensor::from_values(&[2], &[8_u32, 9]).unwrap()]);
        assert!(found[1] == plain[1], "the mask over {axes:?}");
        for (found, plain) in found.iter().zip(&plain) {
            assert_close(&found.to_f64().unwrap(), &plain.to_f64().unwrap(), 2e-5);
        }
    }
}
