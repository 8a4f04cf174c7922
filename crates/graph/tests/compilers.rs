//! Regions and collectives, compiled ahead of time by the TPU and GPU compilers: both reject some
//! text that the CPU compiler accepts.
//!
//! `tests/ops` does the same for single ops if FULLSHARD_TEST_COMPILERS is set.
#![allow(clippy::unwrap_used)]

use fullshard_graph::MeshExt;
use fullshard_graph::{
    Argument, Comparison, DType, Function, Group, Mesh, Policy, Program, Reduction, Result, Tensor,
    TensorType, barrier, cond, custom_vjp, full, remat, scan, value_and_grad, while_loop,
};
use fullshard_pjrt::CompileOptions;
use fullshard_pjrt::plugins::Platform;
use fullshard_testing::compile_ahead;

const LAYERS: usize = 3;
const WIDTH: usize = 4;
const DEVICES: usize = 8;

fn accepted(program: &Program) {
    let text = program.to_text();
    for kind in [Platform::Tpu, Platform::Cuda] {
        let executable = compile_ahead(kind, &text, &CompileOptions::new(program.devices()));
        let executable = executable.unwrap_or_else(|error| panic!("for {kind}: {error}\n{text}"));
        assert!(executable.memory().unwrap().total() > 0);
    }
}

/// Compiles the gradients of a function of `[3, WIDTH]` and stacked weights.
fn differentiated(dtype: DType, function: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) {
    let argument = |dims: &[usize]| Argument::new(TensorType::new(dtype, dims));
    let arguments = [argument(&[3, WIDTH]), argument(&[LAYERS, WIDTH, WIDTH])];
    let program = Program::trace("region", &arguments, |inputs| {
        let (value, gradients) = value_and_grad(&[&inputs[0], &inputs[1]], |inputs| {
            function(&inputs[0], &inputs[1])?.square()?.sum_all()
        })?;
        Ok([value].into_iter().chain(gradients).collect())
    });
    accepted(&program.unwrap());
}

fn layer(x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    x + x.linear(weights)?.named("matmul")?.tanh()?
}

fn unrolled(
    x: &Tensor,
    weights: &Tensor,
    layer: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    (0..LAYERS).try_fold(x.clone(), |x, i| {
        layer(&x, &weights.narrow(0, i, i + 1)?.reshape(&[WIDTH, WIDTH])?)
    })
}

#[test]
fn scan_forward_and_reversed() {
    differentiated(DType::Bf16, |x, weights| {
        let step = |carries: Vec<Tensor>, slices: Vec<Tensor>| {
            let next = layer(&carries[0], &slices[0])?;
            Ok((vec![next.clone()], vec![next]))
        };
        let forward = scan(&[x], &[weights]).run(step)?;
        let reversed = scan(&[&forward.carries[0]], &[weights]).reversed().run(step)?;
        &reversed.carries[0] + forward.stacked[0].sum(&[0])?
    });
}

#[test]
fn scan_with_prepared_slices() {
    differentiated(DType::F32, |x, weights| {
        let results = scan(&[x], &[weights]).run_prepared(
            |slices| Ok(vec![(&slices[0] * 2.0)?]),
            |carries, prepared, _| Ok((vec![layer(&carries[0], &prepared[0])?], vec![])),
        )?;
        Ok(results.carries[0].clone())
    });
}

#[test]
fn remat_by_every_policy() {
    for policy in [Policy::Everything, Policy::Nothing, Policy::saving(&["matmul"])] {
        let recomputed = |x: &Tensor, weights: &Tensor| {
            let body = |inputs: Vec<Tensor>| Ok(vec![layer(&inputs[0], &inputs[1])?]);
            Ok(remat(policy.clone(), &[x, weights], body)?.remove(0))
        };
        differentiated(DType::Bf16, |x, weights| unrolled(x, weights, recomputed));
        differentiated(DType::F32, |x, weights| {
            let results = scan(&[x], &[weights])
                .run(|carries, slices| Ok((vec![recomputed(&carries[0], &slices[0])?], vec![])))?;
            Ok(results.carries[0].clone())
        });
    }
}

#[test]
fn functions() {
    differentiated(DType::F32, |x, weights| {
        let types = [&[3, WIDTH], &[WIDTH, WIDTH]].map(|dims| TensorType::new(DType::F32, dims));
        let body = |inputs: Vec<Tensor>| Ok(vec![layer(&inputs[0], &inputs[1])?]);
        let function = Function::new("layer", &types, body)?;
        unrolled(x, weights, |x, weights| Ok(function.call(&[x, weights])?.remove(0)))
    });
}

#[test]
fn conditions_loops_and_barriers() {
    differentiated(DType::F32, |x, weights| {
        let zero = full(DType::F32, &[], 0.0)?;
        let positive = x.sum_all()?.compare(Comparison::Greater, &zero)?;
        let chosen =
            cond(&positive, || Ok(vec![layer(x, &weights.sum(&[0])?)?]), || Ok(vec![x.square()?]))?;
        Ok(barrier(&[&chosen[0], weights])?.remove(0))
    });
    let argument = Argument::new(TensorType::new(DType::F32, &[]));
    let program = Program::trace("while", &[argument], |inputs| {
        let limit = full(DType::F32, &[], 100.0)?;
        while_loop(
            &[&inputs[0]],
            |state| state[0].compare(Comparison::Less, &limit),
            |state| Ok(vec![(&state[0] * 2.0)?]),
        )
    });
    accepted(&program.unwrap());
}

#[test]
fn custom_gradients() {
    differentiated(DType::F32, |x, weights| {
        let results = custom_vjp(
            &[x],
            |inputs| Ok(vec![inputs[0].sin()?]),
            |inputs| Ok((vec![inputs[0].sin()?], vec![inputs[0].clone()])),
            |residuals, cotangents| Ok(vec![(residuals[0].cos()? * &cotangents[0])?]),
        )?;
        layer(&results[0], &weights.sum(&[0])?)
    });
}

/// Compiles the gradient of a collective over two of the three axes of eight devices.
fn collective(dtype: DType, function: impl Fn(&Group, &Tensor) -> Result<Tensor>) {
    let mesh = Mesh::new(&[("a", 2), ("b", 2), ("c", 2)]).unwrap();
    let rows = mesh.sharding(&[&["a", "b", "c"], &[]]).unwrap();
    let argument = Argument::new(TensorType::new(dtype, &[DEVICES * 8, WIDTH])).sharded(&rows);
    let program = Program::trace("collective", &[argument], |inputs| {
        let (shards, results) = ([(&inputs[0], rows.clone())], [rows.clone()]);
        mesh.manual(&["a", "b", "c"], &shards, &results, |locals| {
            let group = mesh.over(&["a", "c"])?;
            let loss = |x: Vec<Tensor>| function(&group, &x[0])?.square()?.sum_all();
            Ok(value_and_grad(&[&locals[0]], loss)?.1)
        })
    });
    let program = program.unwrap().sharded_results(&[rows]).unwrap();
    accepted(&program.on_mesh(&mesh).unwrap());
}

/// A test for each collective, in both types that a step communicates.
macro_rules! collectives {
    ($($name:ident: $function:expr;)*) => {$(
        #[test]
        fn $name() {
            for dtype in [DType::F32, DType::Bf16] {
                collective(dtype, $function);
            }
        }
    )*};
}

collectives! {
    all_gather: |group, x| group.all_gather(x, 0);
    reduce_scatter: |group, x| group.reduce_scatter(x, 0);
    sum_and_mean: |group, x| group.sum(x)? + group.mean(x)?;
    all_to_all: |group, x| group.all_to_all(x, 0, 1);
    permute: |group, x| group.permute(x, &[(0, 1), (1, 2), (2, 3), (3, 0)]);
    index: |group, x| x * group.index()?.convert(x.dtype())?;
}

/// A maximum over devices has no gradient, so it has its own test.
#[test]
fn maximum_over_devices() {
    let mesh = Mesh::new(&[("a", 4)]).unwrap();
    let rows = mesh.sharding(&[&["a"]]).unwrap();
    let argument = Argument::new(TensorType::new(DType::F32, &[8])).sharded(&rows);
    let program = Program::trace("maximum", &[argument], |inputs| {
        mesh.manual(&["a"], &[(&inputs[0], rows.clone())], std::slice::from_ref(&rows), |locals| {
            Ok(vec![mesh.over(&["a"])?.all_reduce(&locals[0], Reduction::Max)?])
        })
    });
    let program = program.unwrap().sharded_results(&[rows]).unwrap();
    accepted(&program.on_mesh(&mesh).unwrap());
}
