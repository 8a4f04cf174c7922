//! Norms with gradients of their own agree with their definitions, in values and gradients.
#![allow(clippy::unwrap_used)]

mod common;

use common::{difference, eval, random};
use fullshard_graph::{DType, Result, Tensor, value_aux_and_grad};
use fullshard_models::layers::{layer_norm, rms_norm};
use fullshard_pjrt::HostTensor;

const EPSILON: f64 = 1e-5;

/// Rows that are not centred, a gain, a shift, and what the results are weighed by.
fn inputs() -> Vec<HostTensor> {
    vec![random(&[2, 5, 24], 1), random(&[24], 2), random(&[24], 3), random(&[2, 5, 24], 4)]
}

/// The results and the gradients of their weighed sum, computed in a type.
fn results(dtype: DType, norm: impl Fn(&[Tensor]) -> Result<Tensor>) -> Vec<Vec<f64>> {
    let results = eval(&inputs(), |inputs| {
        let rows = ((&inputs[0] * 3.0)? + 5.0)?.convert(dtype)?;
        let (gain, shift) = (inputs[1].convert(dtype)?, inputs[2].convert(dtype)?);
        let (_, mut values, gradients) = value_aux_and_grad(&[&rows, &gain, &shift], |values| {
            let result = norm(&values)?;
            let weighed = (result.convert(inputs[3].dtype())? * &inputs[3])?;
            Ok((weighed.sum_all()?, vec![result]))
        })?;
        values.extend(gradients);
        values.iter().map(|value| value.convert(DType::F64)).collect()
    });
    results.iter().map(|result| result.to_f64().unwrap()).collect()
}

fn check(
    own: impl Fn(&[Tensor]) -> Result<Tensor>,
    definition: impl Fn(&[Tensor]) -> Result<Tensor>,
) {
    let right = results(DType::F64, definition);
    // f32 squares rows whose mean is far from zero; bf16 rounds results and rows to 8 bits.
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::Bf16, 5e-2)] {
        let own = results(dtype, &own);
        for (own, right) in own.iter().zip(&right) {
            let worst = difference(own, right);
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
