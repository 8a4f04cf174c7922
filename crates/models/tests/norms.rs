//! Norms with custom gradients match their definitions, in values and gradients.
#![allow(clippy::unwrap_used)]

mod common;

use common::{difference, eval, random};
use fullshard_graph::{DType, Result, Tensor, concatenate, full, ones, value_aux_and_grad, zeros};
use fullshard_models::layers::{layer_norm, rms_norm};
use fullshard_pjrt::HostTensor;

const EPSILON: f64 = 1e-5;

/// Rows that are not centered, a weight, a bias, and the weights of the outputs.
fn inputs() -> Vec<HostTensor> {
    vec![random(&[2, 5, 24], 1), random(&[24], 2), random(&[24], 3), random(&[2, 5, 24], 4)]
}

/// The outputs and the gradients of their weighted sum, computed in a dtype.
fn results(dtype: DType, norm: impl Fn(&[Tensor]) -> Result<Tensor>) -> Vec<Vec<f64>> {
    let results = eval(&inputs(), |inputs| {
        let rows = ((&inputs[0] * 3.0)? + 5.0)?.convert(dtype)?;
        let (weight, bias) = (inputs[1].convert(dtype)?, inputs[2].convert(dtype)?);
        let (_, mut values, gradients) = value_aux_and_grad(&[&rows, &weight, &bias], |values| {
            let result = norm(&values)?;
            let weighted = (result.convert(inputs[3].dtype())? * &inputs[3])?;
            Ok((weighted.sum_all()?, vec![result]))
        })?;
        values.extend(gradients);
        values.iter().map(|value| value.convert(DType::F64)).collect()
    });
    results.iter().map(|result| result.to_f64().unwrap()).collect()
}

fn check(
    found: impl Fn(&[Tensor]) -> Result<Tensor>,
    definition: impl Fn(&[Tensor]) -> Result<Tensor>,
) {
    let expected = results(DType::F64, definition);
    // f32 squares rows whose mean is far from zero; bf16 rounds results and rows to 8 bits.
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::Bf16, 5e-2)] {
        let found = results(dtype, &found);
        for (found, expected) in found.iter().zip(&expected) {
            let worst = difference(found, expected);
            assert!(worst < tolerance, "{worst} in {}", dtype.name());
        }
    }
}

#[test]
fn layer_norm_has_the_gradient_of_its_definition() {
    check(
        |values| layer_norm::layer_norm(&values[0], &values[1], &values[2], EPSILON),
        |values| layer_norm::reference(&values[0], &values[1], &values[2], EPSILON),
    );
}

#[test]
fn rms_norm_has_the_gradient_of_its_definition() {
    check(
        |values| rms_norm::rms_norm(&values[0], &values[1], EPSILON)? + &values[2],
        |values| rms_norm::reference(&values[0], &values[1], EPSILON)? + &values[2],
    );
}

#[test]
fn variance_is_accurate_with_large_mean_and_outliers() {
    // In f32 no worse than the definition: for rows a thousand standard deviations from zero, and
    // rows whose first element is that far from the rest.
    let far = |inputs: &[Tensor]| (&inputs[0] * 1e-2)? + 10.0;
    let first = |inputs: &[Tensor]| {
        let rows = inputs[0].narrow(2, 1, 24)?;
        concatenate(&[&full(rows.dtype(), &[2, 5, 1], 1000.0)?, &rows], 2)
    };
    for rows in [&far as &dyn Fn(&[Tensor]) -> Result<Tensor>, &first] {
        let [found, expected] = normal(rows, DType::F32, DType::F64);
        assert!(difference(&found, &expected) < 1e-10);
        let [found, by_definition] = normal(rows, DType::F32, DType::F32);
        let [found, by_definition] =
            [found, by_definition].map(|found| difference(&found, &expected));
        assert!(found < by_definition.max(1e-5), "{found}, by the definition {by_definition}");
    }
    // In bf16, whose rows are not shifted, no worse than the rounding of the result: fifty standard
    // deviations from zero.
    let fifty = |inputs: &[Tensor]| (&inputs[0] * 0.02)? + 1.0;
    let [_, expected] = normal(&fifty, DType::Bf16, DType::F64);
    let [found, _] = normal(&fifty, DType::Bf16, DType::Bf16);
    let found = difference(&found, &expected);
    assert!(found < 1e-2, "{found}");
}

/// Rows that are rounded to a dtype, normalized in another one by the layer and by its definition.
fn normal(
    rows: &dyn Fn(&[Tensor]) -> Result<Tensor>,
    rounded: DType,
    dtype: DType,
) -> [Vec<f64>; 2] {
    let results = eval(&inputs(), |inputs| {
        let x = rows(inputs)?.convert(rounded)?.convert(dtype)?;
        let (weight, bias) = (ones(dtype, &[24])?, zeros(dtype, &[24])?);
        let (_, values, _) = value_aux_and_grad(&[&x, &weight, &bias], |values| {
            let result = layer_norm::layer_norm(&values[0], &values[1], &values[2], 0.0)?;
            Ok((result.sum_all()?, vec![result]))
        })?;
        let definition = layer_norm::reference(&x, &weight, &bias, 0.0)?;
        Ok(vec![values[0].convert(DType::F64)?, definition.convert(DType::F64)?])
    });
    [0, 1].map(|i| results[i].to_f64().unwrap())
}
