//! Slices of a matmul that go around a ring: each is a matmul of its own, unless the whole is
//! needed too.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, numbers, run};
use fullshard_graph::{
    Argument, DType, Group, Mesh, MeshExt, Program, Result, Tensor, TensorType, concatenate,
    einsum, full,
};
use fullshard_pjrt::HostTensor;

const DEVICES: usize = 4;
const TOKENS: usize = 6;
const INPUTS: usize = 8;
const OUTPUTS: usize = 12;
const CHUNK: usize = INPUTS / DEVICES;

/// This device's rows of the sum over devices of a part of the columns, added up around a ring.
fn ring(group: &Group, whole: &Tensor, columns: [usize; 2]) -> Result<Tensor> {
    let place = group.index()?;
    let pairs: Vec<(usize, usize)> = (0..DEVICES).map(|it| (it, (it + 1) % DEVICES)).collect();
    let chunk = |offset: usize| {
        let number = |value: usize| full(DType::I32, &[], value as f64);
        let device = (&place + number(offset)?)?.remainder(&number(DEVICES)?)?;
        let starts = [(device * number(CHUNK)?)?, number(columns[0])?];
        whole.dynamic_slice(&[&starts[0], &starts[1]], &[CHUNK, columns[1] - columns[0]])
    };
    (2..=DEVICES).try_fold(chunk(DEVICES - 1)?, |sum, passed| {
        group.permute(&sum, &pairs)? + chunk(2 * DEVICES - passed)?
    })
}

/// A program that reduces a gradient, given the tokens and the gradients of two outputs.
fn program(gradient: impl Fn(&Group, &[Tensor]) -> Result<Tensor>) -> Program {
    let mesh = Mesh::new(&[("fsdp", DEVICES)]).unwrap();
    let rows = mesh.sharding(&[&["fsdp"], &[]]).unwrap();
    let argument = |width| {
        Argument::new(TensorType::new(DType::F64, &[DEVICES * TOKENS, width])).sharded(&rows)
    };
    let arguments = [argument(INPUTS), argument(OUTPUTS / 2), argument(OUTPUTS / 2)];
    let traced = Program::trace("ring", &arguments, |inputs| {
        let shards: Vec<_> = inputs.iter().map(|input| (input, rows.clone())).collect();
        mesh.manual(&["fsdp"], &shards, std::slice::from_ref(&rows), |locals| {
            Ok(vec![gradient(&mesh.over(&["fsdp"])?, &locals)?])
        })
    });
    traced.unwrap().sharded_results(&[rows]).unwrap().on_mesh(&mesh).unwrap()
}

/// The gradient of a weight with two parts, each from a matmul of its own.
fn of_parts(inputs: &[Tensor]) -> Result<Tensor> {
    let part = |gradient, low: i64, high: i64| {
        einsum("ti,to->io", &inputs[0], gradient)?.pad(0.0, &[0, low], &[0, high], &[0, 0])
    };
    let half = (OUTPUTS / 2) as i64;
    (part(&inputs[1], 0, half)? + part(&inputs[2], half, 0)?)? / full(DType::F64, &[], 4.0)?
}

fn in_streams(group: &Group, inputs: &[Tensor]) -> Result<Tensor> {
    let (whole, half) = (of_parts(inputs)?, OUTPUTS / 2);
    let streams = [ring(group, &whole, [0, half])?, ring(group, &whole, [half, OUTPUTS])?];
    concatenate(&[&streams[0], &streams[1]], 1)
}

/// The sizes of the results of matmuls, in order.
fn matmuls(program: &Program) -> Vec<String> {
    let text = program.to_text();
    let dots = text.lines().filter(|line| line.contains("stablehlo.dot_general"));
    dots.map(|line| line.rsplit("tensor<").next().unwrap().replace('>', "")).collect()
}

#[test]
fn slices_are_matmuls_of_their_own() {
    assert_eq!(matmuls(&program(in_streams)), vec!["2x6xf64"; 2 * DEVICES]);
}

#[test]
fn values_are_those_of_a_reduce_scatter() {
    let values: Vec<Vec<f64>> = [INPUTS, OUTPUTS / 2, OUTPUTS / 2]
        .into_iter()
        .zip(1..)
        .map(|(width, seed)| numbers(DEVICES * TOKENS * width, seed))
        .collect();
    let inputs = [INPUTS, OUTPUTS / 2, OUTPUTS / 2].into_iter().zip(&values);
    let inputs = inputs.map(|(width, values)| {
        HostTensor::from_values(&[DEVICES * TOKENS, width], values).unwrap()
    });
    let inputs: Vec<HostTensor> = inputs.collect();
    let at_once = program(|group, inputs| group.reduce_scatter(&of_parts(inputs)?, 0));
    let [found, expected] =
        [program(in_streams), at_once].map(|program| run(&program, &inputs)[0].to_f64().unwrap());
    assert_close(&found, &expected, 1e-12);
}

#[test]
fn nothing_is_computed_twice() {
    // The whole is used as well.
    let also_whole = program(|group, inputs| {
        let whole = einsum("ti,to->io", &inputs[0], &inputs[1])?;
        let sum = ring(group, &whole, [0, OUTPUTS / 2])?;
        sum + whole.narrow(0, 0, CHUNK)?
    });
    assert_eq!(matmuls(&also_whole), ["8x6xf64"]);
    // Slices overlap.
    let overlapping = program(|group, inputs| {
        let whole = einsum("ti,to->io", &inputs[0], &inputs[1])?;
        ring(group, &whole, [0, 4])? + ring(group, &whole, [2, 6])?
    });
    assert_eq!(matmuls(&overlapping), ["8x6xf64"]);
    // A slice covers parts of two matmuls.
    let across = program(|group, inputs| ring(group, &of_parts(inputs)?, [2, 8]));
    assert_eq!(matmuls(&across), ["8x6xf64"; 2]);
}
