//! Axes that the compiler shards: constraints, manual regions inside others, custom calls in them,
//! and the gradients of all of these, against the same computation on one device.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, compile, eval, numbers, run};
use fullshard_graph::{
    Argument, DType, Dialect, Error, Function, MATMUL, Mesh, MeshExt, Policy, Program, Result,
    Sharding, Tensor, TensorType, concatenate, custom_vjp, remat, scan, transient, value_and_grad,
};
use fullshard_pjrt::hlo::{CollectiveKind, collectives};
use fullshard_pjrt::{CompileOptions, HostTensor};
use fullshard_testing::CLIENT;

const BATCH: usize = 4;
const WIDTH: usize = 8;
const LAYERS: usize = 3;

fn mesh() -> Mesh {
    Mesh::new(&[("fsdp", 2), ("tensor", 4)]).unwrap()
}

fn sharding(dims: &[&[&str]]) -> Sharding {
    mesh().sharding(dims).unwrap()
}

/// A layer of weights `[WIDTH, WIDTH]`, a bias and a scalar.
type Layer<'a> = dyn Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor> + 'a;
/// A stack of layers: from `x`, stacked weights and stacked biases.
type Stack<'a> = dyn Fn(&Layer<'_>, &Tensor, &[Tensor]) -> Result<Tensor> + 'a;

/// The layer on one device.
fn plain(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let hidden = (x.linear(weight)? + bias)?.tanh()?;
    // A sum over what `tensor` shards, of which every shard then uses the whole.
    let total = hidden.square()?.sum(&[1])?.expand(1)?;
    x + (hidden * total)?
}

/// The layer with `tensor` manual: columns of the weight and bias are sharded, `x` is not.
fn nested(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let mesh = mesh();
    let (columns, replicated) = (sharding(&[&[], &["tensor"]]), mesh.replicated(2));
    let inputs =
        [(x, replicated.clone()), (weight, columns.clone()), (bias, sharding(&[&["tensor"]]))];
    let outputs = [columns, replicated, mesh.replicated(0)];
    let results = mesh.manual(&["tensor"], &inputs, &outputs, |locals| {
        let group = mesh.over(&["tensor"])?;
        let hidden = (locals[0].linear(&locals[1])? + &locals[2])?.tanh()?;
        let total = group.sum(&hidden.square()?.sum(&[1])?.expand(1)?)?;
        // A scalar that differs per device, and must be saved for the backward pass.
        let local = hidden.square()?.sum_all()?;
        let zero = group.sum(&(local.exp()?.log()? - &local)?)?;
        Ok(vec![hidden, total, zero])
    })?;
    (x + (&results[0] * &results[1])?)? + &results[2]
}

fn unrolled(layer: &Layer<'_>, x: &Tensor, stacked: &[Tensor]) -> Result<Tensor> {
    (0..LAYERS).try_fold(x.clone(), |x, i| {
        let of_layer = |tensor: &Tensor| tensor.narrow(0, i, i + 1)?.reshape(&tensor.dims()[1..]);
        layer(&x, &of_layer(&stacked[0])?, &of_layer(&stacked[1])?)
    })
}

fn scanned(layer: &Layer<'_>, x: &Tensor, stacked: &[Tensor]) -> Result<Tensor> {
    let results = scan(&[x], &[&stacked[0], &stacked[1]])
        .run(|carries, slices| Ok((vec![layer(&carries[0], &slices[0], &slices[1])?], vec![])))?;
    Ok(results.carries[0].clone())
}

fn recomputed(layer: &Layer<'_>, x: &Tensor, stacked: &[Tensor]) -> Result<Tensor> {
    let layer = |x: &Tensor, weight: &Tensor, bias: &Tensor| {
        let body = |inputs: Vec<Tensor>| Ok(vec![layer(&inputs[0], &inputs[1], &inputs[2])?]);
        Ok(remat(Policy::Nothing, &[x, weight, bias], body)?.remove(0))
    };
    scanned(&layer, x, stacked)
}

fn called(layer: &Layer<'_>, x: &Tensor, stacked: &[Tensor]) -> Result<Tensor> {
    let types = [x.ty().clone()]
        .into_iter()
        .chain(stacked.iter().map(|it| TensorType::new(it.dtype(), &it.dims()[1..])));
    let types: Vec<TensorType> = types.collect();
    let function = Function::new("layer", &types, |inputs| {
        Ok(vec![layer(&inputs[0], &inputs[1], &inputs[2])?])
    })?;
    unrolled(&|x, weight, bias| Ok(function.call(&[x, weight, bias])?.remove(0)), x, stacked)
}

/// The loss and the gradients of `x`, weights and biases of a stack, as `f64`.
fn gradients(stack: &Stack<'_>, layer: &Layer<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let (loss, gradients) = value_and_grad(&inputs, |inputs| {
        stack(layer, &inputs[0], &inputs[1..])?.square()?.sum_all()
    })?;
    Ok([loss].into_iter().chain(gradients).collect())
}

const DIMS: [&[usize]; 3] = [&[BATCH, WIDTH], &[LAYERS, WIDTH, WIDTH], &[LAYERS, WIDTH]];

fn values() -> Vec<Vec<f64>> {
    let values = DIMS.iter().zip(1..);
    values.map(|(dims, seed)| numbers(dims.iter().product(), seed)).collect()
}

/// A stack with rows of `x` over `fsdp`, weights gathered over it, and `tensor` automatic.
fn on_mesh(stack: &Stack<'_>, layer: &Layer<'_>) -> Program {
    let rows = sharding(&[&["fsdp"], &[]]);
    let weights = sharding(&[&[], &["fsdp"], &["tensor"]]);
    let local_weights = sharding(&[&[], &["fsdp"], &[]]);
    let biases = sharding(&[&[], &["tensor"]]);
    let arguments = DIMS
        .iter()
        .zip([&rows, &weights, &biases])
        .map(|(dims, sharding)| Argument::new(TensorType::new(DType::F64, dims)).sharded(sharding));
    let arguments: Vec<Argument> = arguments.collect();
    let program = Program::trace("stack", &arguments, |inputs| {
        let replicated = mesh().replicated(2);
        let shards = [
            (&inputs[0], rows.clone()),
            (&inputs[1], local_weights.clone()),
            (&inputs[2], replicated.clone()),
        ];
        let outputs = [mesh().replicated(0), rows.clone(), local_weights.clone(), replicated];
        mesh().manual(&["fsdp"], &shards, &outputs, |locals| {
            let group = mesh().over(&["fsdp"])?;
            let columns = sharding(&[&[], &["tensor"]]);
            let layer = |x: &Tensor, shard: &Tensor, bias: &Tensor| {
                let full = transient(&[shard], |shard| {
                    mesh().per_shard(
                        &[(&shard[0], columns.clone())],
                        std::slice::from_ref(&columns),
                        |shard| Ok(vec![group.all_gather(&shard[0], 0)?]),
                    )
                })?;
                layer(x, &full[0].constrain(&columns)?, bias)
            };
            let mut results = gradients(stack, &layer, &locals)?;
            results[0] = group.sum(&results[0])?;
            results[3] = group.sum(&results[3])?;
            Ok(results)
        })
    });
    let results = [mesh().replicated(0), rows, weights, biases];
    program.unwrap().sharded_results(&results).unwrap()
}

fn same(stack: &Stack<'_>, layer: &Layer<'_>) {
    let tensors: Vec<HostTensor> = DIMS
        .iter()
        .zip(values())
        .map(|(dims, values)| HostTensor::from_values(dims, &values).unwrap())
        .collect();
    let found = run(&on_mesh(stack, layer), &tensors);
    let values = values();
    let inputs: Vec<(&[usize], &[f64])> =
        DIMS.iter().zip(&values).map(|(dims, values)| (*dims, &values[..])).collect();
    let expected = eval(&inputs, |inputs| gradients(&unrolled, &plain, inputs));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_close(&found.to_f64().unwrap(), expected, 1e-11);
    }
}

/// A test of nested regions in each kind of stack.
macro_rules! nested_in {
    ($($name:ident: $stack:expr, $layer:expr;)*) => {$(
        #[test]
        fn $name() {
            same(&$stack, &$layer);
        }
    )*};
}

/// The plain layer with its hidden units annotated, or exactly so.
fn annotated(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let x = x.constrain_exactly(&mesh().replicated(2))?;
    let columns = sharding(&[&[], &["tensor"]]);
    let hidden = (x.linear(weight)? + bias)?.constrain(&columns)?.tanh()?;
    let total = hidden.square()?.sum(&[1])?.expand(1)?;
    x + (hidden * total)?
}

/// The plain layer with its activation as a kernel would be: with a custom gradient, per shard.
fn with_kernel(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let columns = sharding(&[&[], &["tensor"]]);
    let hidden = (x.linear(weight)? + bias)?;
    let shards = [(&hidden, columns.clone())];
    let hidden = mesh().per_shard(&shards, &[columns], |hidden| {
        custom_vjp(
            &[&hidden[0]],
            |x| Ok(vec![x[0].tanh()?]),
            |x| Ok((vec![x[0].tanh()?], vec![x[0].tanh()?])),
            |tanh, gradients| Ok(vec![(&gradients[0] * (1.0 - &tanh[0].square()?)?)?]),
        )
    })?;
    let total = hidden[0].square()?.sum(&[1])?.expand(1)?;
    x + (&hidden[0] * total)?
}

nested_in! {
    nested_regions_unrolled: unrolled, nested;
    nested_regions_in_scans: scanned, nested;
    nested_regions_recomputed: recomputed, nested;
    nested_regions_in_functions: called, nested;
    kernels_with_custom_gradients_per_shard: recomputed, with_kernel;
    constraints_unrolled: unrolled, annotated;
    constraints_in_scans: scanned, annotated;
    constraints_recomputed: recomputed, annotated;
}

/// The gradient of a region that nothing surrounds, with an input that only one axis shards.
#[test]
fn gradient_of_an_outermost_region() {
    let values = [numbers(BATCH * WIDTH, 1), numbers(WIDTH, 2)];
    let arguments = [&[BATCH, WIDTH][..], &[WIDTH]]
        .map(|dims| Argument::new(TensorType::new(DType::F64, dims)));
    let program = Program::trace("outer", &arguments, |inputs| {
        let (loss, gradients) = value_and_grad(&[&inputs[0], &inputs[1]], |inputs| {
            let shards = [
                (&inputs[0], sharding(&[&["fsdp"], &["tensor"]])),
                (&inputs[1], sharding(&[&["tensor"]])),
            ];
            let outputs = [mesh().replicated(0)];
            let results = mesh().manual(&["fsdp", "tensor"], &shards, &outputs, |locals| {
                let sum = (&locals[0] * &locals[1])?.sin()?.sum_all()?;
                Ok(vec![mesh().over(&["tensor", "fsdp"])?.sum(&sum)?])
            })?;
            results[0].square()
        })?;
        Ok([loss].into_iter().chain(gradients).collect())
    });
    let tensors = [
        HostTensor::from_values(&[BATCH, WIDTH], &values[0]).unwrap(),
        HostTensor::from_values(&[WIDTH], &values[1]).unwrap(),
    ];
    let found = run(&program.unwrap(), &tensors);
    let expected = eval(&[(&[BATCH, WIDTH], &values[0]), (&[WIDTH], &values[1])], |inputs| {
        let (loss, gradients) = value_and_grad(&[&inputs[0], &inputs[1]], |inputs| {
            (&inputs[0] * &inputs[1])?.sin()?.sum_all()?.square()
        })?;
        Ok([loss].into_iter().chain(gradients).collect())
    });
    for (found, expected) in found.iter().zip(&expected) {
        assert_close(&found.to_f64().unwrap(), expected, 1e-12);
    }
}

/// Traces a function of a tensor, sharded so, inside a region that is manual over `fsdp`.
fn inside(
    dims: &[usize],
    sharding: &Sharding,
    function: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Program> {
    let argument = Argument::new(TensorType::new(DType::F32, dims)).sharded(sharding);
    let replicated = mesh().replicated(2);
    Program::trace("inside", &[argument], |inputs| {
        let shards = [(&inputs[0], replicated.clone())];
        mesh().manual(&["fsdp"], &shards, std::slice::from_ref(&replicated), |locals| {
            Ok(vec![function(&locals[0])?])
        })
    })
}

#[test]
fn constraints_leave_other_dims_open_unless_exact() {
    let columns = sharding(&[&[], &["tensor"]]);
    let text = |exact: bool| {
        let program = inside(&[8, 8], &columns, |x| match exact {
            true => x.constrain_exactly(&columns),
            false => x.constrain(&columns),
        });
        program.unwrap().to_text()
    };
    assert!(text(false).contains("sharding_constraint %0 <@mesh, [{?}, {\"tensor\"}]>"));
    assert!(text(true).contains("sharding_constraint %0 <@mesh, [{}, {\"tensor\"}]>"));
}

/// Where every axis is manual, or there is one device, nothing is left to constrain.
#[test]
fn constraints_of_local_tensors_are_not_written() {
    let one = Mesh::new(&[("tensor", 1)]).unwrap();
    let argument = Argument::new(TensorType::new(DType::F32, &[8]));
    let program = Program::trace("one", &[argument], |inputs| {
        Ok(vec![inputs[0].constrain(&one.sharding(&[&["tensor"]]).unwrap())?])
    });
    assert!(!program.unwrap().to_text().contains("sharding_constraint"));
}

fn error_of(function: impl FnOnce(&Tensor) -> Result<Tensor>) -> Error {
    inside(&[8, 8], &mesh().replicated(2), function).unwrap_err()
}

#[test]
fn rejects_constraints_over_manual_axes() {
    let error = error_of(|x| x.constrain(&sharding(&[&["fsdp"], &["tensor"]])));
    let expected = "constrain: [{\"fsdp\"}, {\"tensor\"}] names axis `fsdp`, which is manual here; \
                    leave it out";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn rejects_regions_over_manual_axes() {
    let region = |axes: &'static [&'static str], dims: &[&[&str]]| {
        let (mesh, sharding) = (mesh(), sharding(dims));
        error_of(move |x| {
            let result = mesh.manual(axes, &[(x, sharding.clone())], &[sharding], Ok);
            Ok(result?.remove(0))
        })
    };
    let again = region(&["fsdp"], &[&[], &[]]).to_string();
    assert_eq!(again, "manual: axis `fsdp` is manual already; name automatic axes only");
    let named = region(&["tensor"], &[&["fsdp"], &[]]).to_string();
    assert!(named.starts_with("manual: [{\"fsdp\"}, {}] names axis `fsdp`"), "{named}");
}

#[test]
fn rejects_automatic_axes_before_manual_ones() {
    let mesh = mesh();
    let both = sharding(&[&["fsdp", "tensor"], &[]]);
    let argument = Argument::new(TensorType::new(DType::F32, &[8, 8]));
    let error = Program::trace("late", &[argument], |inputs| {
        mesh.manual(&["tensor"], &[(&inputs[0], both.clone())], std::slice::from_ref(&both), Ok)
    });
    let error = error.unwrap_err().to_string();
    let expected = "manual: dimension 0 of [{\"fsdp\", \"tensor\"}, {}]: name manual axes first";
    assert_eq!(error, expected);
}

/// A matmul of rows that `tensor` shards, as the compiler's or as a custom call per shard.
fn rows_of_matmul(per_shard: bool) -> Program {
    let rows = sharding(&[&["tensor"], &[]]);
    let program = inside(&[256, 128], &rows, |x| {
        let x = x.constrain(&rows)?;
        let square = |x: &Tensor| x.linear(&concatenate(&[&x.narrow(0, 0, 64)?; 2], 0)?);
        if !per_shard {
            return square(&x);
        }
        let shards = [(&x, rows.clone())];
        let results =
            mesh().per_shard(&shards, std::slice::from_ref(&rows), |x| Ok(vec![square(&x[0])?]));
        Ok(results?.remove(0))
    });
    let dialect = Dialect { matmul_custom_calls: true, ..Dialect::default() };
    program.unwrap().in_dialect(dialect).sharded_results(&[rows]).unwrap()
}

/// Over an automatic axis a custom call would be gathered, so there matmuls are the compiler's.
#[test]
fn matmuls_are_custom_calls_only_where_every_axis_is_manual() {
    assert!(!rows_of_matmul(false).to_text().contains(MATMUL));
    assert!(rows_of_matmul(true).to_text().contains(MATMUL));
}

#[test]
fn custom_calls_per_shard_gather_nothing() {
    let program = rows_of_matmul(true);
    let options = CompileOptions::new(program.devices());
    let loaded = CLIENT.compile(&program.to_text(), &options).unwrap();
    let module = loaded.executable().optimized_program().unwrap().module().unwrap();
    assert_eq!(collectives(&module), []);
}

/// A weight that a constraint follows is still gathered again rather than saved.
#[test]
fn annotated_transient_weights_are_not_saved() {
    let loaded = compile(&on_mesh(&scanned, &annotated));
    let module = loaded.executable().optimized_program().unwrap().module().unwrap();
    let in_loops = collectives(&module).into_iter().filter(|row| {
        row.kind == CollectiveKind::AllGather && row.in_loop && row.group_size == Some(2)
    });
    assert_eq!(in_loops.map(|row| row.count).sum::<u64>(), 2);
}
