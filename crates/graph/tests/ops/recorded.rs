//! Values and gradients computed by JAX in `f32`, recorded by `tests/data/ops_jax.py`.
//!
//! The `bf16` cases have inputs that are exact in `bf16`. Our results in `bf16` are compared with
//! the results in `f32`, which do not depend on intermediate rounding.

use crate::common::run;
use fullshard_graph::{
    Argument, Convolution, DType, Program, Result, Tensor, TensorType, constant, einsum, vjp,
};
use fullshard_pjrt::HostTensor;
use half::bf16;
use serde_json::Value;

const RECORDED: &str = include_str!("../data/ops_jax.json");

/// Relative tolerance, of the value or, if that is small, of a fraction of the largest value: a
/// small sum of large terms is only as accurate as the terms.
struct Tolerance {
    relative: f64,
    floor: f64,
}

/// Single precision has 24 bits, of which another summation order costs a few.
const F32: Tolerance = Tolerance { relative: 1e-5, floor: 0.1 };

/// One and a half units in the last of eight bits of the largest value: results rounded at every
/// op, half a unit each time, are compared with exact ones.
const BF16: Tolerance = Tolerance { relative: 1.5 / 128.0, floor: 1.0 };

fn op(name: &str, x: &[Tensor], indices: &Value) -> Result<Tensor> {
    match name {
        "softmax" => x[0].softmax(1),
        "log_softmax" => x[0].log_softmax(0),
        "logsumexp" => x[0].logsumexp(1),
        "layer_norm" => (x[0].normalize(1e-5)? * &x[1])? + &x[2],
        "rms_norm" => x[0].rms_normalize(1e-5)? * &x[1],
        "gelu" => x[0].gelu(),
        "gelu_tanh" => x[0].gelu_tanh(),
        "gelu_sigmoid" => x[0].gelu_sigmoid(),
        "silu" => x[0].silu(),
        "matmul" => x[0].matmul(&x[1]),
        "attention_scores" => einsum("bqhd,bkhd->bhqk", &x[0], &x[1]),
        "take" => {
            let picks: Vec<i32> = values(indices).iter().map(|&index| index as i32).collect();
            x[0].take(&constant(&dims(indices), &picks)?)
        }
        "conv2d" => {
            Convolution::new(2).stride(&[2, 1]).padding(&[(1, 1), (0, 2)]).apply(&x[0], &x[1])
        }
        "max_pool" => x[0].max_pool(&[3, 2], &[2, 2], &[(1, 1), (0, 0)]),
        "top_k" => Ok(x[0].top_k(3)?.0),
        "erf" => x[0].erf(),
        "pow" => x[0].pow(1.7),
        "reduce_max" => x[0].max(&[0, 2]),
        "mixed" => mixed(&x[0], &x[1]),
        other => panic!("no op for the recorded `{other}`"),
    }
}

/// A cumulative sum over rows, as a matmul with a triangular matrix of ones.
fn mixed(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let rows = x.dims()[0];
    let ones: Vec<f32> =
        (0..rows * rows).map(|i| if i % rows <= i / rows { 1.0 } else { 0.0 }).collect();
    let triangle = constant(&[rows, rows], &ones)?.convert(x.dtype())?;
    let terms = (x.tanh()? * (-&y.square()?)?.exp()?)?;
    triangle.matmul(&terms)? / (1.0 + &x.abs()?)?
}

fn dims(tensor: &Value) -> Vec<usize> {
    let dims = tensor["dims"].as_array().unwrap();
    dims.iter().map(|dim| dim.as_u64().unwrap() as usize).collect()
}

fn values(tensor: &Value) -> Vec<f64> {
    let values = tensor["values"].as_array().unwrap();
    values.iter().map(|value| value.as_f64().unwrap()).collect()
}

fn host(dtype: DType, tensor: &Value) -> HostTensor {
    let (dims, values) = (dims(tensor), values(tensor));
    if dtype == DType::Bf16 {
        let values: Vec<bf16> = values.iter().map(|&value| bf16::from_f64(value)).collect();
        return HostTensor::from_values(&dims, &values).unwrap();
    }
    let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
    HostTensor::from_values(&dims, &values).unwrap()
}

/// The output and gradients of a recorded case.
fn replay(case: &Value, dtype: DType) -> Vec<HostTensor> {
    let name = case["name"].as_str().unwrap();
    let inputs = case["inputs"].as_array().unwrap();
    let tensors: Vec<&Value> = inputs.iter().chain([&case["cotangent"]]).collect();
    let argument = |tensor: &&Value| Argument::new(TensorType::new(dtype, &dims(tensor)));
    let arguments: Vec<Argument> = tensors.iter().map(argument).collect();
    let program = Program::trace("recorded", &arguments, |mut tensors| {
        let cotangent = tensors.pop();
        let (mut results, pullback) = vjp(&tensors.iter().collect::<Vec<_>>(), |x| {
            Ok(vec![op(name, &x, &case["indices"])?])
        })?;
        results.extend(pullback.apply(&[cotangent])?.into_iter().flatten());
        Ok(results)
    });
    let hosts: Vec<HostTensor> = tensors.iter().map(|tensor| host(dtype, tensor)).collect();
    run(&program.unwrap(), &hosts)
}

/// The largest difference, relative to the value or to the fraction `floor` of the largest value.
fn distance(found: &[f64], expected: &[f64], floor: f64) -> f64 {
    let smallest = floor * expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let pairs = found.iter().zip(expected);
    let differences = pairs.map(|(found, expected)| {
        assert!(found.is_finite());
        (found - expected).abs() / expected.abs().max(smallest).max(f64::MIN_POSITIVE)
    });
    differences.fold(0.0, f64::max)
}

fn check_recorded(dtype: DType, tolerance: &Tolerance) {
    let recorded: Value = serde_json::from_str(RECORDED).unwrap();
    let cases = recorded["cases"].as_array().unwrap();
    let cases: Vec<&Value> =
        cases.iter().filter(|case| case["dtype"].as_str() == Some(dtype.name())).collect();
    assert_eq!(cases.len(), 19);
    let mut wrong = Vec::new();
    for case in cases {
        let gradients = case["gradients"].as_array().unwrap();
        let expected: Vec<&Value> = [&case["output"]].into_iter().chain(gradients).collect();
        let found = replay(case, dtype);
        assert_eq!(found.len(), expected.len(), "{}", case["name"]);
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert_eq!(found.dims(), dims(expected), "{}", case["name"]);
            let distance = distance(&found.to_f64().unwrap(), &values(expected), tolerance.floor);
            if distance > tolerance.relative {
                wrong.push(format!("{} result {i}: off by {distance:e}", case["name"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn single_precision() {
    check_recorded(DType::F32, &F32);
}

#[test]
fn bf16_precision() {
    check_recorded(DType::Bf16, &BF16);
}
