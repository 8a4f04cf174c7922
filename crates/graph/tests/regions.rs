//! Scans, rematerialization, functions, branches: values and gradients against plain programs.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, eval, numbers};
use fullshard_graph::{
    Comparison, DType, Function, Policy, Result, Tensor, TensorType, barrier, cond, custom_vjp,
    module, remat, scan, value_and_grad, while_loop, zeros,
};

const LAYERS: usize = 5;
const WIDTH: usize = 4;

/// One layer: linear, tanh and a residual connection.
fn layer(x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    x + x.linear(weights)?.tanh()?
}

fn unrolled(x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let mut x = x.clone();
    for i in 0..LAYERS {
        x = layer(&x, &weights.narrow(0, i, i + 1)?.reshape(&[WIDTH, WIDTH])?)?;
    }
    Ok(x)
}

/// The value and both gradients of the sum of squares of a function of `x` and stacked weights.
fn gradients(function: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Vec<Vec<f64>> {
    let x = numbers(3 * WIDTH, 1);
    let weights = numbers(LAYERS * WIDTH * WIDTH, 2);
    eval(&[(&[3, WIDTH], &x), (&[LAYERS, WIDTH, WIDTH], &weights)], |inputs| {
        let (value, gradients) = value_and_grad(&[&inputs[0], &inputs[1]], |inputs| {
            function(&inputs[0], &inputs[1])?.square()?.sum_all()
        })?;
        Ok([value].into_iter().chain(gradients).collect())
    })
}

#[track_caller]
fn same(function: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) {
    let expected = gradients(unrolled);
    for (found, expected) in gradients(function).iter().zip(&expected) {
        assert_close(found, expected, 1e-12);
    }
}

fn scanned(x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let results = scan(&[x], &[weights])
        .run(|carries, slices| Ok((vec![layer(&carries[0], &slices[0])?], vec![])))?;
    Ok(results.carries[0].clone())
}

#[test]
fn scan_matches_unrolled() {
    same(scanned);
}

#[test]
fn reversed_scan_matches_unrolled() {
    same(|x, weights| {
        let results = scan(&[x], &[&weights.reverse(&[0])?])
            .reversed()
            .run(|carries, slices| Ok((vec![layer(&carries[0], &slices[0])?], vec![])))?;
        Ok(results.carries[0].clone())
    });
}

#[test]
fn prepared_scan_matches_unrolled() {
    same(|x, weights| {
        let results = scan(&[x], &[weights]).run_prepared(
            |slices| Ok(vec![(&slices[0] * 2.0)?]),
            |carries, prepared, _| Ok((vec![layer(&carries[0], &(&prepared[0] * 0.5)?)?], vec![])),
        )?;
        Ok(results.carries[0].clone())
    });
}

#[test]
fn scan_captures_outer_values() {
    let run = |scanned: bool| {
        let (a, b) = (numbers(4, 3), numbers(3 * 4, 4));
        eval(&[(&[4], &a), (&[3, 4], &b)], |inputs| {
            let (value, gradients) = value_and_grad(&[&inputs[0], &inputs[1]], |inputs| {
                let (scale, rows) = (&inputs[0], &inputs[1]);
                let start = (scale * 0.5)?;
                let step = |sum: &Tensor, row: &Tensor| ((sum * scale)? + row.sin()?)?.tanh();
                if scanned {
                    let results = scan(&[&start], &[rows]).run(|carries, slices| {
                        let next = step(&carries[0], &slices[0])?;
                        Ok((vec![next.clone()], vec![(next * scale)?]))
                    })?;
                    return (results.carries[0].sum_all()?
                        + results.stacked[0].square()?.sum_all()?)?
                        * 1.0;
                }
                let mut sum = start;
                let mut squares = zeros(DType::F64, &[])?;
                for i in 0..3 {
                    sum = step(&sum, &rows.narrow(0, i, i + 1)?.reshape(&[4])?)?;
                    squares = (squares + (&sum * scale)?.square()?.sum_all()?)?;
                }
                sum.sum_all()? + squares
            })?;
            Ok([value].into_iter().chain(gradients).collect())
        })
    };
    for (scanned, unrolled) in run(true).iter().zip(&run(false)) {
        assert_close(scanned, unrolled, 1e-12);
    }
}

#[test]
fn remat_matches_unrolled() {
    for policy in [Policy::Everything, Policy::Nothing, Policy::saving(&["tanh"])] {
        let block = |x: &Tensor, weights: &Tensor| {
            let results = remat(policy.clone(), &[x, weights], |inputs| {
                let hidden = inputs[0].linear(&inputs[1])?;
                Ok(vec![(&inputs[0] + hidden.tanh()?.named("tanh")?)?])
            })?;
            Ok(results[0].clone())
        };
        same(|x, weights| {
            let mut x = x.clone();
            for i in 0..LAYERS {
                x = block(&x, &weights.narrow(0, i, i + 1)?.reshape(&[WIDTH, WIDTH])?)?;
            }
            Ok(x)
        });
        same(|x, weights| {
            let results = scan(&[x], &[weights])
                .run(|carries, slices| Ok((vec![block(&carries[0], &slices[0])?], vec![])))?;
            Ok(results.carries[0].clone())
        });
    }
}

/// An iteration of the backward pass is apart from those of the forward pass, so that barriers
/// around what was saved would only make compilers copy it. Those inside of the body stay.
#[test]
fn scans_need_no_barriers_around_what_was_saved() {
    let barriers = |is_scanned: bool, is_tied: bool| {
        let block = |x: &Tensor, weights: &Tensor| {
            let results = remat(Policy::Nothing, &[x, weights], |inputs| {
                let hidden = inputs[0].linear(&inputs[1])?;
                let hidden = if is_tied { barrier(&[&hidden])?.remove(0) } else { hidden };
                Ok(vec![(&inputs[0] + hidden.tanh()?)?])
            })?;
            Ok(results[0].clone())
        };
        let arguments = [[3, WIDTH].as_slice(), &[LAYERS, WIDTH, WIDTH]]
            .map(|dims| fullshard_graph::Argument::new(TensorType::new(DType::F64, dims)));
        let program = fullshard_graph::Program::trace("barriers", &arguments, |inputs| {
            let (_, gradients) = value_and_grad(&[&inputs[0], &inputs[1]], |inputs| {
                let mut x = inputs[0].clone();
                if is_scanned {
                    let body = |carries: Vec<Tensor>, slices: Vec<Tensor>| {
                        Ok((vec![block(&carries[0], &slices[0])?], vec![]))
                    };
                    return scan(&[&x], &[&inputs[1]]).run(body)?.carries[0].sum_all();
                }
                for i in 0..LAYERS {
                    let weights = inputs[1].narrow(0, i, i + 1)?.reshape(&[WIDTH, WIDTH])?;
                    x = block(&x, &weights)?;
                }
                x.sum_all()
            })?;
            Ok(gradients)
        });
        program.unwrap().to_text().matches("stablehlo.optimization_barrier").count()
    };
    assert_eq!(barriers(false, false), LAYERS);
    assert_eq!(barriers(true, false), 0);
    // In the forward pass, recomputed, and of gradients.
    assert_eq!(barriers(true, true), 3);
}

#[test]
fn function_is_emitted_and_differentiated_once() {
    let call_layers = |x: &Tensor, weights: &Tensor| {
        let types = [
            TensorType::new(DType::F64, &[3, WIDTH]),
            TensorType::new(DType::F64, &[WIDTH, WIDTH]),
        ];
        let function =
            Function::new("layer", &types, |inputs| Ok(vec![layer(&inputs[0], &inputs[1])?]))?;
        let mut x = x.clone();
        for i in 0..LAYERS {
            let weights = weights.narrow(0, i, i + 1)?.reshape(&[WIDTH, WIDTH])?;
            x = function.call(&[&x, &weights])?.remove(0);
        }
        Ok(x)
    };
    same(call_layers);
    let arguments = [[3, WIDTH].as_slice(), &[LAYERS, WIDTH, WIDTH]]
        .map(|dims| fullshard_graph::Argument::new(TensorType::new(DType::F64, dims)));
    let program = fullshard_graph::Program::trace("calls", &arguments, |inputs| {
        let (_, gradients) = value_and_grad(&[&inputs[0], &inputs[1]], |inputs| {
            call_layers(&inputs[0], &inputs[1])?.sum_all()
        })?;
        Ok(gradients)
    });
    let text = program.unwrap().to_text();
    assert_eq!(text.matches("func.func private").count(), 2, "{text}");
    assert_eq!(text.matches("func.call @layer_forward(").count(), LAYERS);
    assert_eq!(text.matches("func.call @layer_backward(").count(), LAYERS);
}

#[test]
fn each_branch_has_its_own_gradient() {
    for (condition, slope) in [(1.0, 3.0), (-1.0, 10.0)] {
        let found = eval(&[(&[], &[condition]), (&[], &[5.0])], |inputs| {
            let (value, gradients) = value_and_grad(&[&inputs[1]], |x| {
                let positive = inputs[0].compare(Comparison::Greater, &zeros(DType::F64, &[])?)?;
                let results =
                    cond(&positive, || Ok(vec![(&x[0] * 3.0)?]), || Ok(vec![x[0].square()?]))?;
                Ok(results[0].clone())
            })?;
            Ok(vec![value, gradients[0].clone()])
        });
        assert_eq!(found[1], [slope]);
    }
}

#[test]
fn while_loop_runs_until_its_condition_fails() {
    let found = eval(&[(&[], &[3.0])], |inputs| {
        let limit = fullshard_graph::full(DType::F64, &[], 100.0)?;
        while_loop(
            &[&inputs[0]],
            |state| state[0].compare(Comparison::Less, &limit),
            |state| Ok(vec![(&state[0] * 2.0)?]),
        )
    });
    assert_eq!(found, [[192.0]]);
}

#[test]
fn custom_gradient_is_used() {
    let found = eval(&[(&[2], &[1.0, 2.0])], |inputs| {
        let (value, gradients) = value_and_grad(&[&inputs[0]], |x| {
            let results = custom_vjp(
                &[&x[0]],
                |inputs| Ok(vec![inputs[0].sin()?]),
                |inputs| Ok((vec![inputs[0].sin()?], vec![inputs[0].clone()])),
                |residuals, cotangents| Ok(vec![(&residuals[0] * &cotangents[0])?]),
            )?;
            (&results[0] * 10.0)?.sum_all()
        })?;
        Ok(vec![value, gradients[0].clone()])
    });
    assert_close(&found[0], &[10.0 * (1.0_f64.sin() + 2.0_f64.sin())], 1e-12);
    assert_eq!(found[1], [10.0, 20.0], "not the cosine");
}

#[test]
fn second_derivatives() {
    let found = eval(&[(&[3], &[0.5, 1.0, 2.0])], |inputs| {
        let (_, second) = value_and_grad(&[&inputs[0]], |x| {
            let (_, first) = value_and_grad(&[&x[0]], |x| x[0].pow(4.0)?.sum_all())?;
            first[0].sum_all()
        })?;
        Ok(second)
    });
    assert_close(&found[0], &[12.0 * 0.25, 12.0, 48.0], 1e-12);
}

#[test]
fn errors_name_the_op_the_types_and_the_module() {
    let arguments = [[2, 3].as_slice(), &[4, 5]]
        .map(|dims| fullshard_graph::Argument::new(TensorType::new(DType::F32, dims)));
    let error = fullshard_graph::Program::trace("wrong", &arguments, |inputs| {
        module("transformer", || module("h.3", || Ok(vec![inputs[0].matmul(&inputs[1])?])))
    });
    assert_eq!(
        error.unwrap_err().to_string(),
        "matmul: f32[2,3] times f32[4,5] (in transformer.h.3)"
    );
}

/// An unused result has no gradient, rather than zero times infinity.
#[test]
fn unused_results_of_a_function_have_no_gradient() {
    let found = eval(&[(&[2], &[0.0, 1.0])], |inputs| {
        let (_, gradients) = value_and_grad(&[&inputs[0]], |x| {
            let function = Function::new("pair", &[x[0].ty().clone()], |x| {
                Ok(vec![(&x[0] * 2.0)?, x[0].log()?])
            })?;
            function.call(&[&x[0]])?[0].sum_all()
        })?;
        Ok(gradients)
    });
    assert_eq!(found, [[2.0, 2.0]]);
}

#[test]
fn while_loop_is_rejected_only_if_its_gradient_is_needed() {
    let trace = |stopped: bool| {
        let argument = fullshard_graph::Argument::new(TensorType::new(DType::F64, &[]));
        fullshard_graph::Program::trace("loop", &[argument], |inputs| {
            let (_, gradients) = value_and_grad(&[&inputs[0]], |x| {
                let limit = fullshard_graph::full(DType::F64, &[], 9.0)?;
                let looped = while_loop(
                    &[&x[0]],
                    |state| state[0].compare(Comparison::Less, &limit),
                    |state| Ok(vec![(&state[0] * 2.0)?]),
                )?;
                let looped = if stopped { looped[0].stop_gradient()? } else { looped[0].clone() };
                &x[0] * looped
            })?;
            Ok(gradients)
        })
    };
    trace(true).unwrap();
    let error = trace(false).unwrap_err().to_string();
    assert!(error.contains("no gradient of a loop of unknown length"), "{error}");
}
