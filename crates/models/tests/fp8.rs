//! FP8 matmuls: rounding against torch, results and gradients against sums of the rounded numbers,
//! and edge cases.
#![allow(clippy::unwrap_used)]

mod common;

use common::{difference, eval, random};
use fullshard_graph::{DType, Policy, Result, Tensor, constant, remat, scan, value_aux_and_grad};
use fullshard_models::from_json;
use fullshard_models::layers::checkpoint::MLP_IN;
use fullshard_models::layers::fp8::{fp8_linear, matmuls, quantize};
use fullshard_models::layers::linear::Order;
use fullshard_pjrt::HostTensor;
use serde_json::Value;

/// Casts by torch, recorded by `data/record_fp8.py`.
fn recorded() -> Value {
    serde_json::from_str(include_str!("data/fp8.json")).unwrap()
}

fn floats(values: &Value) -> Vec<f64> {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

/// The bits and the scale of quantized values.
fn rounded(values: &[f64], dtype: DType) -> (Vec<u8>, f32) {
    let values = HostTensor::from_values(&[values.len()], values).unwrap();
    let results = eval(&[values], |values| {
        let quantized = quantize(&values[0].convert(DType::Bf16)?, dtype)?;
        Ok(vec![quantized.values.bitcast(DType::U8)?, quantized.scale])
    });
    (results[0].values().unwrap(), results[1].values().unwrap()[0])
}

#[test]
fn rounding_matches_torch() {
    for (name, case) in recorded().as_object().unwrap() {
        for dtype in [DType::F8E4M3FN, DType::F8E5M2] {
            let expected = &case[dtype.mlir_name()];
            let (bits, scale) = rounded(&floats(&case["values"]), dtype);
            let bits: String = bits.iter().map(|bits| format!("{bits:02x}")).collect();
            let exponent = expected["exponent"].as_i64().unwrap() as i32;
            assert_eq!(f64::from(scale), 2.0_f64.powi(exponent), "{name}, {dtype}");
            assert_eq!(bits, expected["bits"].as_str().unwrap(), "{name}, {dtype}");
        }
    }
}

/// Nothing overflows: the largest number of a tensor stays within a sixteenth of its value.
#[test]
fn largest_number_always_fits() {
    for dtype in [DType::F8E4M3FN, DType::F8E5M2] {
        let largest: Vec<f64> = (0..256).map(|i| 1.0 + f64::from(i) / 256.0).collect();
        let values = HostTensor::from_values(&[256, 1], &largest).unwrap();
        let results = eval(&[values], |values| {
            let each = scan(&[], &[&values[0].convert(DType::Bf16)?]).run(|_, slices| {
                let dequantized = quantize(&slices[0], dtype)?.dequantize(DType::F32)?;
                Ok((vec![], vec![dequantized]))
            })?;
            Ok(each.stacked)
        });
        let found: Vec<f32> = results[0].values().unwrap();
        for (found, expected) in found.into_iter().zip(largest) {
            let ratio = f64::from(found) / expected;
            assert!((ratio - 1.0).abs() < 0.125, "{expected} became {found} in {dtype}");
        }
    }
}

/// An infinity makes the scale NaN and with it everything; a NaN stays at least in its place.
#[test]
fn non_finite_values_are_preserved() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for dtype in [DType::F8E4M3FN, DType::F8E5M2] {
            let values = HostTensor::from_values(&[3], &[1.0, bad, -2.0]).unwrap();
            let results = eval(&[values], |values| {
                let x = values[0].convert(DType::Bf16)?;
                Ok(vec![quantize(&x, dtype)?.dequantize(DType::F32)?])
            });
            let found: Vec<f32> = results[0].values().unwrap();
            let count = found.iter().filter(|value| value.is_nan()).count();
            let least = if bad.is_nan() { 1 } else { 3 };
            assert!(found[1].is_nan() && count >= least, "{bad} in {dtype}: {found:?}");
        }
    }
}

const TOKENS: usize = 48;
const INPUT: usize = 32;
const OUTPUT: usize = 64;

/// How a layer is traced.
#[derive(Clone, Debug)]
enum Mode {
    Plain,
    Remat(Policy),
    Scanned,
}

/// Input, weight, bias and the gradient of the output.
fn arguments(order: Order) -> [HostTensor; 4] {
    let weight = match order {
        Order::InputFirst => [INPUT, OUTPUT],
        Order::OutputFirst => [OUTPUT, INPUT],
    };
    [
        random(&[2, TOKENS / 2, INPUT], 1),
        random(&weight, 2),
        random(&[OUTPUT], 3),
        random(&[2, TOKENS / 2, OUTPUT], 4),
    ]
}

/// The output and the gradients of input, weight and bias, in `f32`.
fn layer(order: Order, mode: &Mode, inputs: &[HostTensor; 4]) -> Vec<Vec<f64>> {
    let results = eval(inputs, |inputs| {
        let half = inputs.iter().map(|input| input.convert(DType::Bf16));
        let half = half.collect::<Result<Vec<Tensor>>>()?;
        let linear = |inputs: &[Tensor]| {
            let result = fp8_linear(&inputs[0], &inputs[1], Some(&inputs[2]), order, false)?;
            Ok(vec![result.named(MLP_IN)?])
        };
        let (_, results, gradients) =
            value_aux_and_grad(&[&half[0], &half[1], &half[2]], |inputs| {
                let result = match mode {
                    Mode::Plain => linear(&inputs)?,
                    Mode::Remat(policy) => {
                        remat(policy.clone(), &inputs.iter().collect::<Vec<_>>(), |i| linear(&i))?
                    }
                    Mode::Scanned => {
                        let weights = inputs[1].expand(0)?;
                        let step = |_: Vec<Tensor>, slices: Vec<Tensor>| {
                            let inputs = [inputs[0].clone(), slices[0].clone(), inputs[2].clone()];
                            Ok((vec![], linear(&inputs)?))
                        };
                        let mut outputs = scan(&[], &[&weights]).run(step)?.stacked;
                        vec![outputs.remove(0).reshape(half[3].dims())?]
                    }
                };
                let gradient = half[3].convert(DType::F32)?;
                let sum = (result[0].convert(DType::F32)? * gradient)?.sum_all()?;
                Ok((sum, result))
            })?;
        results.iter().chain(&gradients).map(|result| result.convert(DType::F64)).collect()
    });
    results.iter().map(|result| result.values().unwrap()).collect()
}

/// A tensor rounded to an FP8 type, or to `bf16` if none.
fn as_rounded(values: &HostTensor, dtype: Option<DType>) -> Vec<f64> {
    let results = eval(std::slice::from_ref(values), |values| {
        let half = values[0].convert(DType::Bf16)?;
        let rounded = dtype.map(|dtype| quantize(&half, dtype)?.dequantize(DType::F64));
        Ok(vec![rounded.unwrap_or_else(|| half.convert(DType::F64))?])
    });
    results[0].values().unwrap()
}

/// The output and gradients, by `f64` sums over numbers rounded to FP8 or to `bf16`.
fn expected(order: Order, inputs: &[HostTensor; 4], rounded: bool) -> Vec<Vec<f64>> {
    let fp8 = |dtype| rounded.then_some(dtype);
    let x = as_rounded(&inputs[0], fp8(DType::F8E4M3FN));
    let weight = as_rounded(&inputs[1], fp8(DType::F8E4M3FN));
    let bias = as_rounded(&inputs[2], None);
    let fp8_gradient = as_rounded(&inputs[3], fp8(DType::F8E5M2));
    let gradient = as_rounded(&inputs[3], None);
    let at = |i: usize, o: usize| match order {
        Order::InputFirst => i * OUTPUT + o,
        Order::OutputFirst => o * INPUT + i,
    };
    let mut y = vec![0.0; TOKENS * OUTPUT];
    let mut x_grad = vec![0.0; TOKENS * INPUT];
    let mut weight_grad = vec![0.0; INPUT * OUTPUT];
    let mut bias_grad = vec![0.0; OUTPUT];
    for t in 0..TOKENS {
        for o in 0..OUTPUT {
            for i in 0..INPUT {
                y[t * OUTPUT + o] += x[t * INPUT + i] * weight[at(i, o)];
                x_grad[t * INPUT + i] += fp8_gradient[t * OUTPUT + o] * weight[at(i, o)];
                weight_grad[at(i, o)] += x[t * INPUT + i] * fp8_gradient[t * OUTPUT + o];
            }
            y[t * OUTPUT + o] += bias[o];
            bias_grad[o] += gradient[t * OUTPUT + o];
        }
    }
    vec![y, x_grad, weight_grad, bias_grad]
}

/// Half a step of `bf16`, twice for the output, which is rounded before and after the bias.
const HALF_STEP: f64 = 1.0 / 256.0;

#[test]
fn output_and_gradients_match_rounded_numbers() {
    let named = Policy::saving(&[MLP_IN]);
    let modes = [Mode::Plain, Mode::Remat(Policy::Nothing), Mode::Remat(named), Mode::Scanned];
    for order in [Order::InputFirst, Order::OutputFirst] {
        let inputs = arguments(order);
        let exact = expected(order, &inputs, true);
        let unrounded = expected(order, &inputs, false);
        for mode in &modes {
            let found = layer(order, mode, &inputs);
            for (i, what) in ["result", "input", "weight", "bias"].iter().enumerate() {
                let apart = difference(&found[i], &exact[i]);
                assert!(apart < 2.0 * HALF_STEP, "{what} of {order:?}, {mode:?}: {apart}");
                // If the compiler removed the rounding, the unrounded numbers would match instead.
                let rounding = difference(&found[i], &unrounded[i]);
                let is_rounded = *what != "bias";
                assert_eq!(rounding > 3.0 * HALF_STEP, is_rounded, "{what}: {rounding}");
            }
        }
    }
}

#[test]
fn zeros_stay_zero() {
    let order = Order::InputFirst;
    let [x, weight, bias, gradient] = arguments(order);
    let zeros = |like: &HostTensor| {
        let count: usize = like.dims().iter().product();
        HostTensor::from_values(like.dims(), &vec![0.0_f64; count]).unwrap()
    };
    let found = layer(order, &Mode::Plain, &[zeros(&x), weight, zeros(&bias), gradient.clone()]);
    assert!(found[0].iter().chain(&found[2]).all(|&value| value == 0.0));
    let [x, weight, bias, _] = arguments(order);
    let found = layer(order, &Mode::Plain, &[x, weight, bias, zeros(&gradient)]);
    assert!(found[1..].iter().flatten().all(|&value| value == 0.0));
}

/// A non-finite gradient must be preserved: the global gradient norm detects it.
#[test]
fn non_finite_gradients_propagate() {
    let order = Order::OutputFirst;
    for bad in [f64::NAN, f64::INFINITY] {
        let [x, weight, bias, gradient] = arguments(order);
        let mut values: Vec<f64> = gradient.values().unwrap();
        values[17] = bad;
        let gradient = HostTensor::from_values(gradient.dims(), &values).unwrap();
        let found = layer(order, &Mode::Plain, &[x, weight, bias, gradient]);
        for (i, what) in ["input", "weight", "bias"].iter().enumerate() {
            assert!(found[i + 1].iter().any(|value| !value.is_finite()), "{what} with {bad}");
        }
    }
}

#[test]
fn fp8_needs_sizes_that_are_multiples() {
    let model = |inner: usize| {
        let config = format!(
            r#"{{"model_type": "gpt2", "vocab_size": 160, "n_positions": 32, "n_embd": 32,
                "n_layer": 2, "n_head": 2, "n_inner": {inner}}}"#
        );
        from_json(&config).unwrap().tree()
    };
    let fits = matmuls(&model(128), 64, |parameter| parameter.dims.clone());
    assert_eq!((fits.fp8, fits.others.len()), (8, 0));
    let partly = matmuls(&model(120), 64, |parameter| parameter.dims.clone());
    assert_eq!(partly.fp8, 4);
    let others = ["0.mlp.c_fc", "0.mlp.c_proj", "1.mlp.c_fc", "1.mlp.c_proj"];
    assert_eq!(partly.others, others.map(|name| format!("transformer.h.{name}")));
    assert_eq!(matmuls(&model(128), 40, |parameter| parameter.dims.clone()).fp8, 0);
}

#[test]
fn rejects_other_types() {
    eval(&[], |_| {
        let x = constant(&[2], &[1.0_f32, 2.0])?;
        let error = quantize(&x, DType::F16).unwrap_err().to_string();
        assert!(error.contains("f16 is not an FP8 type"), "{error}");
        Ok(vec![x])
    });
}
