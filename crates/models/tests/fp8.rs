//! Products in 8 bits: the rounding against torch's, products and gradients against sums of the
//! rounded numbers, and what happens at the edges.
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

/// Casts of torch, recorded by `data/record_fp8.py`.
fn recorded() -> Value {
    serde_json::from_str(include_str!("data/fp8.json")).unwrap()
}

fn floats(values: &Value) -> Vec<f64> {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

/// The bits and the scale that values are rounded to.
fn rounded(values: &[f64], dtype: DType) -> (Vec<u8>, f32) {
    let values = HostTensor::from_values(&[values.len()], values).unwrap();
    let results = eval(&[values], |values| {
        let quantized = quantize(&values[0].convert(DType::Bf16)?, dtype)?;
        Ok(vec![quantized.values.bitcast(DType::U8)?, quantized.scale])
    });
    (results[0].values().unwrap(), results[1].values().unwrap()[0])
}

#[test]
fn numbers_are_rounded_as_torch_casts_them() {
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

/// Nothing overflows: the largest number of a tensor stays within a sixteenth of itself.
#[test]
fn the_largest_number_always_fits() {
    for dtype in [DType::F8E4M3FN, DType::F8E5M2] {
        let largest: Vec<f64> = (0..256).map(|i| 1.0 + f64::from(i) / 256.0).collect();
        let values = HostTensor::from_values(&[256, 1], &largest).unwrap();
        let results = eval(&[values], |values| {
            let each = scan(&[], &[&values[0].convert(DType::Bf16)?]).run(|_, slices| {
                let whole = quantize(&slices[0], dtype)?.dequantize(DType::F32)?;
                Ok((vec![], vec![whole]))
            })?;
            Ok(each.stacked)
        });
        let found: Vec<f32> = results[0].values().unwrap();
        for (found, expected) in found.into_iter().zip(largest) {
            let share = f64::from(found) / expected;
            assert!((share - 1.0).abs() < 0.125, "{expected} became {found} in {dtype}");
        }
    }
}

/// What is infinite breaks the scale and with it everything; what is not a number stays where it
/// is, at least.
#[test]
fn what_is_not_finite_is_not_rounded_away() {
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

/// How a layer is run.
#[derive(Clone, Debug)]
enum Way {
    Plain,
    Remembered(Policy),
    Looped,
}

/// Input, weight, bias and the gradient of the result.
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

/// The result and the gradients of input, weight and bias, in `f32`.
fn layer(order: Order, way: &Way, inputs: &[HostTensor; 4]) -> Vec<Vec<f64>> {
    let results = eval(inputs, |inputs| {
        let half = inputs.iter().map(|input| input.convert(DType::Bf16));
        let half = half.collect::<Result<Vec<Tensor>>>()?;
        let linear = |inputs: &[Tensor]| {
            let result = fp8_linear(&inputs[0], &inputs[1], Some(&inputs[2]), order)?;
            Ok(vec![result.named(MLP_IN)?])
        };
        let (_, results, gradients) =
            value_aux_and_grad(&[&half[0], &half[1], &half[2]], |inputs| {
                let result = match way {
                    Way::Plain => linear(&inputs)?,
                    Way::Remembered(policy) => {
                        remat(policy.clone(), &inputs.iter().collect::<Vec<_>>(), |i| linear(&i))?
                    }
                    Way::Looped => {
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

/// What a tensor is rounded to, or with no type to `bf16`.
fn as_rounded(values: &HostTensor, dtype: Option<DType>) -> Vec<f64> {
    let results = eval(std::slice::from_ref(values), |values| {
        let half = values[0].convert(DType::Bf16)?;
        let rounded = dtype.map(|dtype| quantize(&half, dtype)?.dequantize(DType::F64));
        Ok(vec![rounded.unwrap_or_else(|| half.convert(DType::F64))?])
    });
    results[0].values().unwrap()
}

/// The result and gradients, by sums in `f64` over numbers rounded to these types or to `bf16`.
fn expected(order: Order, inputs: &[HostTensor; 4], rounded: bool) -> Vec<Vec<f64>> {
    let eight = |dtype| rounded.then_some(dtype);
    let x = as_rounded(&inputs[0], eight(DType::F8E4M3FN));
    let weight = as_rounded(&inputs[1], eight(DType::F8E4M3FN));
    let bias = as_rounded(&inputs[2], None);
    let rough = as_rounded(&inputs[3], eight(DType::F8E5M2));
    let gradient = as_rounded(&inputs[3], None);
    let at = |i: usize, o: usize| match order {
        Order::InputFirst => i * OUTPUT + o,
        Order::OutputFirst => o * INPUT + i,
    };
    let mut y = vec![0.0; TOKENS * OUTPUT];
    let mut to_x = vec![0.0; TOKENS * INPUT];
    let mut to_weight = vec![0.0; INPUT * OUTPUT];
    let mut to_bias = vec![0.0; OUTPUT];
    for t in 0..TOKENS {
        for o in 0..OUTPUT {
            for i in 0..INPUT {
                y[t * OUTPUT + o] += x[t * INPUT + i] * weight[at(i, o)];
                to_x[t * INPUT + i] += rough[t * OUTPUT + o] * weight[at(i, o)];
                to_weight[at(i, o)] += x[t * INPUT + i] * rough[t * OUTPUT + o];
            }
            y[t * OUTPUT + o] += bias[o];
            to_bias[o] += gradient[t * OUTPUT + o];
        }
    }
    vec![y, to_x, to_weight, to_bias]
}

/// Half a step of `bf16`, twice for the result, which is rounded before and after the bias.
const HALF_STEP: f64 = 1.0 / 256.0;

#[test]
fn results_and_gradients_are_those_of_the_rounded_numbers() {
    let named = Policy::Named(vec![MLP_IN.into()]);
    let ways = [Way::Plain, Way::Remembered(Policy::Nothing), Way::Remembered(named), Way::Looped];
    for order in [Order::InputFirst, Order::OutputFirst] {
        let inputs = arguments(order);
        let exact = expected(order, &inputs, true);
        let unrounded = expected(order, &inputs, false);
        for way in &ways {
            let found = layer(order, way, &inputs);
            for (i, what) in ["result", "input", "weight", "bias"].iter().enumerate() {
                let apart = difference(&found[i], &exact[i]);
                assert!(apart < 2.0 * HALF_STEP, "{what} of {order:?}, {way:?}: {apart}");
                // Had the compiler left the rounding out, this would hold against the other.
                let rounding = difference(&found[i], &unrounded[i]);
                let is_rounded = *what != "bias";
                assert_eq!(rounding > 3.0 * HALF_STEP, is_rounded, "{what}: {rounding}");
            }
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    let order = Order::InputFirst;
    let [x, weight, bias, gradient] = arguments(order);
    let zeros = |like: &HostTensor| {
        let count: usize = like.dims().iter().product();
        HostTensor::from_values(like.dims(), &vec![0.0_f64; count]).unwrap()
    };
    let found = layer(order, &Way::Plain, &[zeros(&x), weight, zeros(&bias), gradient.clone()]);
    assert!(found[0].iter().chain(&found[2]).all(|&value| value == 0.0));
    let [x, weight, bias, _] = arguments(order);
    let found = layer(order, &Way::Plain, &[x, weight, bias, zeros(&gradient)]);
    assert!(found[1..].iter().flatten().all(|&value| value == 0.0));
}

/// A gradient that is not finite must not be rounded away: the norm of all gradients finds it.
#[test]
fn a_gradient_that_is_not_finite_is_seen_in_all_gradients() {
    let order = Order::OutputFirst;
    for bad in [f64::NAN, f64::INFINITY] {
        let [x, weight, bias, gradient] = arguments(order);
        let mut values: Vec<f64> = gradient.values().unwrap();
        values[17] = bad;
        let gradient = HostTensor::from_values(gradient.dims(), &values).unwrap();
        let found = layer(order, &Way::Plain, &[x, weight, bias, gradient]);
        for (i, what) in ["input", "weight", "bias"].iter().enumerate() {
            assert!(found[i + 1].iter().any(|value| !value.is_finite()), "{what} with {bad}");
        }
    }
}

#[test]
fn only_layers_whose_sizes_fit_run_in_eight_bits() {
    let model = |inner: usize| {
        let config = format!(
            r#"{{"model_type": "gpt2", "vocab_size": 160, "n_positions": 32, "n_embd": 32,
                "n_layer": 2, "n_head": 2, "n_inner": {inner}}}"#
        );
        from_json(&config).unwrap().tree()
    };
    let fits = matmuls(&model(128), 64);
    assert_eq!((fits.fp8, fits.others.len()), (8, 0));
    let partly = matmuls(&model(120), 64);
    assert_eq!(partly.fp8, 4);
    let others = ["0.mlp.c_fc", "0.mlp.c_proj", "1.mlp.c_fc", "1.mlp.c_proj"];
    assert_eq!(partly.others, others.map(|name| format!("transformer.h.{name}")));
    assert_eq!(matmuls(&model(128), 40).fp8, 0);
}

#[test]
fn other_types_are_refused() {
    eval(&[], |_| {
        let x = constant(&[2], &[1.0_f32, 2.0])?;
        let error = quantize(&x, DType::F16).unwrap_err().to_string();
        assert!(error.contains("f16 is not a type of 8 bits"), "{error}");
        Ok(vec![x])
    });
}
