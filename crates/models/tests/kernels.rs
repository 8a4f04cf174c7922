//! Kernels compile for NVIDIA GPUs, and match their definitions there: `./check --gpu`.
#![allow(clippy::unwrap_used)]

mod common;

use common::{difference, eval, random};
use fullshard_graph::{Argument, DType, Program, Result, Tensor, TensorType, value_aux_and_grad};
use fullshard_models::layers::fp8::fp8_linear;
use fullshard_models::layers::kernels::norm::{Norm, unsupported_reason};
use fullshard_models::layers::kernels::tiles;
use fullshard_models::layers::linear::Order;
use fullshard_models::layers::{layer_norm, rms_norm};
use fullshard_pjrt::plugins::Platform;
use fullshard_pjrt::{CompileOptions, HostTensor};
use fullshard_testing::compile_ahead;

const EPSILON: f64 = 1e-5;

/// The residual stream and the normalized rows, from rows, weight and bias.
type Form<'a> = &'a dyn Fn(&[Tensor]) -> Result<[Tensor; 2]>;

fn by_kernel(norm: Norm, values: &[Tensor]) -> Result<[Tensor; 2]> {
    let [x, weight, bias] = values else { panic!("three values") };
    match norm.centered {
        true => norm.apply_residual(x, &[weight, bias]),
        false => norm.apply_residual(x, &[weight]),
    }
}

/// The same without the residual stream.
fn alone(norm: Norm, values: &[Tensor]) -> Result<[Tensor; 2]> {
    let [x, weight, bias] = values else { panic!("three values") };
    let normalized = match norm.centered {
        true => norm.apply(x, &[weight, bias])?,
        false => norm.apply(x, &[weight])?,
    };
    Ok([x.clone(), normalized])
}

fn by_definition(norm: Norm, values: &[Tensor]) -> Result<[Tensor; 2]> {
    let [x, weight, bias] = values else { panic!("three values") };
    let normalized = match norm.centered {
        true => layer_norm::reference(x, weight, bias, EPSILON)?,
        false => rms_norm::reference(x, weight, EPSILON)?,
    };
    Ok([x.clone(), normalized])
}

/// The normalized rows and the gradients of rows, weight and bias, in a dtype. The inputs are rows,
/// weight, bias, and what the results are multiplied by.
fn results(dtype: DType, inputs: &[Tensor], form: Form<'_>) -> Result<Vec<Tensor>> {
    let rows = ((&inputs[0] * 3.0)? + 5.0)?.convert(dtype)?;
    let (weight, bias) = (inputs[1].convert(dtype)?, inputs[2].convert(dtype)?);
    let factors = [&inputs[3], &inputs[4]];
    let (_, mut values, gradients) = value_aux_and_grad(&[&rows, &weight, &bias], |values| {
        let [residual, normalized] = form(&values)?;
        let weighted =
            |x: &Tensor, factors: &Tensor| (x.convert(factors.dtype())? * factors)?.sum_all();
        let sum = (weighted(&residual, factors[0])? + weighted(&normalized, factors[1])?)?;
        Ok((sum, vec![normalized]))
    })?;
    values.extend(gradients);
    values.iter().map(|value| value.convert(DType::F64)).collect()
}

fn inputs(rows: &[usize], width: usize) -> Vec<HostTensor> {
    let dims = [rows, &[width]].concat();
    vec![
        random(&dims, 1),
        random(&[width], 2),
        random(&[width], 3),
        random(&dims, 4),
        random(&dims, 5),
    ]
}

/// Widths of models, of which some fill no block, and rows that divide into no programs.
const SHAPES: [(&[usize], usize); 5] =
    [(&[2, 5], 64), (&[1187], 768), (&[3, 401], 1280), (&[700], 3072), (&[90], 8192)];

const NORMS: [Norm; 2] =
    [Norm { centered: true, epsilon: EPSILON }, Norm { centered: false, epsilon: EPSILON }];

#[test]
#[ignore = "needs a GPU: ./check --gpu"]
fn gpu_kernels_match_their_definitions() {
    for (rows, width) in SHAPES {
        for norm in NORMS {
            let inputs = inputs(rows, width);
            let run = |dtype, form: Form<'_>| -> Vec<Vec<f64>> {
                let found = eval(&inputs, |inputs| results(dtype, inputs, form));
                found.iter().map(|result| result.to_f64().unwrap()).collect()
            };
            let expected = run(DType::F64, &|values| by_definition(norm, values));
            // Rows, parameters, gradients and results are rounded to 8 or 11 bits.
            for (dtype, tolerance) in [(DType::Bf16, 2e-2), (DType::F16, 3e-3)] {
                for form in [by_kernel, alone] {
                    let found = run(dtype, &|values| form(norm, values));
                    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        let apart = difference(found, expected);
                        assert!(
                            apart < tolerance,
                            "{norm:?} of {rows:?} x {width} in {dtype:?}: result {i} is {apart} off"
                        );
                    }
                }
            }
        }
    }
}

/// The value of GELU of `x + bias`, the gradients of both, and the sums of `x` over its rows.
fn gelu_and_sums(dtype: DType, inputs: &[Tensor], kernels: bool) -> Result<Vec<Tensor>> {
    let (x, bias) = ((&inputs[0] * 4.0)?.convert(dtype)?, inputs[1].convert(dtype)?);
    let (_, mut values, gradients) = value_aux_and_grad(&[&x, &bias], |values| {
        let [x, bias] = &values[..] else { panic!("two values") };
        let sum = (x.stop_gradient()? + bias.stop_gradient()?)?;
        let results = match kernels {
            true => vec![tiles::gelu_tanh(x)?, tiles::biased_gelu_tanh(x, bias, &sum)?],
            false => vec![x.gelu_tanh()?, (x + bias)?.gelu_tanh()?],
        };
        let weighted = |x: &Tensor| (x.convert(inputs[3].dtype())? * &inputs[3])?.sum_all();
        Ok(((weighted(&results[0])? + weighted(&results[1])?)?, results))
    })?;
    let rows: Vec<usize> = (0..x.rank() - 1).collect();
    values.push(if kernels { tiles::column_sums(&x)? } else { x.sum(&rows)? });
    values.extend(gradients);
    values.iter().map(|value| value.convert(DType::F64)).collect()
}

#[test]
#[ignore = "needs a GPU: ./check --gpu"]
fn gpu_gelu_and_sums_match_their_definitions() {
    for (rows, width) in SHAPES {
        let inputs = inputs(rows, width);
        let run = |dtype, kernels| -> Vec<Vec<f64>> {
            let found = eval(&inputs, |inputs| gelu_and_sums(dtype, inputs, kernels));
            found.iter().map(|result| result.to_f64().unwrap()).collect()
        };
        let expected = run(DType::F64, false);
        for (dtype, tolerance) in [(DType::Bf16, 2e-2), (DType::F16, 3e-3)] {
            for (i, (found, expected)) in run(dtype, true).iter().zip(&expected).enumerate() {
                let apart = difference(found, expected);
                assert!(
                    apart < tolerance,
                    "{rows:?} x {width} in {dtype:?}: result {i} is {apart} off"
                );
            }
        }
    }
}

/// A linear layer in FP8 on matrices of these sizes: output and gradients.
fn linear_in_fp8(inputs: &[Tensor], order: Order, kernels: bool) -> Result<Vec<Tensor>> {
    let [x, weight, bias] = [0, 1, 2].map(|i| inputs[i].convert(DType::Bf16));
    let (_, mut values, gradients) = value_aux_and_grad(&[&x?, &weight?, &bias?], |values| {
        let output = fp8_linear(&values[0], &values[1], Some(&values[2]), order, kernels)?;
        let weighted = (output.convert(inputs[3].dtype())? * &inputs[3])?;
        Ok((weighted.sum_all()?, vec![output]))
    })?;
    values.extend(gradients);
    values.iter().map(|value| value.convert(DType::F64)).collect()
}

/// Sizes that are multiples of the tile and that are not.
fn linear_inputs(order: Order, [tokens, input, output]: [usize; 3]) -> Vec<HostTensor> {
    let weight = match order {
        Order::InputFirst => [input, output],
        Order::OutputFirst => [output, input],
    };
    let x = random(&[tokens, input], 1);
    vec![x, random(&weight, 2), random(&[output], 3), random(&[tokens, output], 4)]
}

const LINEAR: [[usize; 3]; 2] = [[256, 128, 384], [208, 48, 176]];

/// Rounding is the same to the bit, so only sums of matmuls may differ in their order.
#[test]
#[ignore = "needs a GPU: ./check --gpu"]
fn gpu_fp8_rounds_as_without_kernels() {
    for order in [Order::InputFirst, Order::OutputFirst] {
        for sizes in LINEAR {
            let inputs = linear_inputs(order, sizes);
            let [expected, found] = [false, true].map(|kernels| {
                let found = eval(&inputs, |inputs| linear_in_fp8(inputs, order, kernels));
                found.iter().map(|it| it.to_f64().unwrap()).collect::<Vec<_>>()
            });
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let apart = difference(found, expected);
                assert!(apart < 4e-3, "{order:?} {sizes:?}: result {i} is {apart} off");
            }
        }
    }
}

#[test]
fn fp8_kernels_compile_for_gpus() {
    for order in [Order::InputFirst, Order::OutputFirst] {
        for sizes in LINEAR {
            let arguments = linear_inputs(order, sizes);
            let arguments: Vec<Argument> = arguments
                .iter()
                .map(|it| Argument::new(TensorType::new(DType::F32, &it.ty().dims)))
                .collect();
            let program = Program::trace("fp8", &arguments, |it| linear_in_fp8(&it, order, true));
            let text = program.unwrap().to_text();
            assert_eq!(text.matches("name = \"quantize_e4m3\"").count(), 3);
            assert_eq!(text.matches("name = \"quantize_e5m2\"").count(), 1);
            let options = CompileOptions::new(1).flag_text("xla_gpu_enable_triton_gemm=false");
            let compiled = compile_ahead(Platform::Cuda, &text, &options.unwrap()).unwrap();
            let program = compiled.optimized_program().unwrap().module().unwrap();
            let calls = program.instructions().filter_map(|it| it.custom_call_target.clone());
            let matmuls = calls.filter(|it| it == "__cublas$lt$matmul$f8").count();
            assert_eq!(matmuls, 3, "{order:?} {sizes:?}");
        }
    }
}

#[test]
fn kernels_compile_for_gpus() {
    for (rows, width) in SHAPES {
        for norm in NORMS {
            let inputs: Vec<Argument> = inputs(rows, width)
                .iter()
                .map(|it| Argument::new(TensorType::new(DType::F32, &it.ty().dims)))
                .collect();
            let program = Program::trace("norms", &inputs, |inputs| {
                let with_residual = results(DType::Bf16, &inputs, &|it| by_kernel(norm, it))?;
                let alone = results(DType::F16, &inputs, &|it| alone(norm, it))?;
                let others = gelu_and_sums(DType::Bf16, &inputs, true)?;
                Ok([with_residual, alone, others].concat())
            });
            let text = program.unwrap().to_text();
            assert_eq!(text.matches("@__gpu$xla.gpu.triton").count(), 9);
            compile_ahead(Platform::Cuda, &text, &CompileOptions::new(1)).unwrap();
        }
    }
}

#[test]
fn says_what_kernels_do_not_take() {
    let reason = |dtype, width| unsupported_reason(&TensorType::new(dtype, &[16, width]));
    assert_eq!(reason(DType::Bf16, 768), None);
    assert_eq!(reason(DType::F16, 8), None);
    let says = |dtype, width, part: &str| {
        assert!(reason(dtype, width).is_some_and(|reason| reason.contains(part)), "{part}");
    };
    says(DType::F32, 768, "f32");
    says(DType::Bf16, 100, "aligned");
    says(DType::Bf16, 32_768, "16384");
}
