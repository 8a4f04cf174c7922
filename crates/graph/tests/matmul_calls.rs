//! Matmuls and padding as custom calls: the same results as the compiler's.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, numbers, run};
use fullshard_graph::{
    Argument, DType, Dialect, MATMUL, Mesh, MeshExt, PAD, Program, Tensor, TensorType, einsum,
};
use fullshard_pjrt::HostTensor;

/// A matmul of two tensors, as a custom call or not.
fn matmul(spec: &str, lhs: &[usize], rhs: &[usize], dtype: DType, called: bool) -> Program {
    let arguments = [lhs, rhs].map(|dims| Argument::new(TensorType::new(DType::F32, dims)));
    let program = Program::trace("matmul", &arguments, |inputs| {
        let [lhs, rhs] = [&inputs[0], &inputs[1]].map(|input| input.convert(dtype));
        Ok(vec![einsum(spec, &lhs?, &rhs?)?.convert(DType::F32)?])
    });
    program.unwrap().in_dialect(Dialect { matmul_custom_calls: called, ..Dialect::default() })
}

fn random(dims: &[usize], seed: u64) -> HostTensor {
    let values: Vec<f32> =
        numbers(dims.iter().product(), seed).iter().map(|&number| number as f32).collect();
    HostTensor::from_values(dims, &values).unwrap()
}

fn check(spec: &str, lhs: &[usize], rhs: &[usize], dtype: DType, tolerance: f64) {
    let inputs = [random(lhs, 1), random(rhs, 2)];
    let [called, compiled] = [true, false].map(|called| {
        let program = matmul(spec, lhs, rhs, dtype, called);
        assert_eq!(program.to_text().contains(MATMUL), called, "{spec}");
        run(&program, &inputs)[0].to_f64().unwrap()
    });
    assert_close(&called, &compiled, tolerance);
}

#[test]
fn every_orientation_matches_the_compiler() {
    for (spec, lhs, rhs) in [
        ("mk,kn->mn", &[37, 41][..], &[41, 53][..]),
        ("mk,nk->mn", &[37, 41], &[53, 41]),
        ("km,kn->mn", &[41, 37], &[41, 53]),
        ("km,nk->mn", &[41, 37], &[53, 41]),
        ("btk,kn->btn", &[3, 16, 41], &[41, 53]),
        ("bti,bto->io", &[3, 40, 37], &[3, 40, 29]),
        ("bqhd,bkhd->bhqk", &[2, 48, 3, 32], &[2, 56, 3, 32]),
        ("bhqk,bkhd->bqhd", &[2, 3, 48, 56], &[2, 56, 3, 32]),
        ("bhqk,bqhd->bkhd", &[2, 3, 48, 56], &[2, 48, 3, 32]),
        ("bmk,bkn->bmn", &[5, 33, 34], &[5, 34, 35]),
    ] {
        check(spec, lhs, rhs, DType::F32, 1e-5);
    }
}

/// Heads sliced out of a projection, transposed and grouped are read in place.
#[test]
fn views_are_not_materialized() {
    let dims = [2, 48, 3 * 96];
    let attend = |called: bool| {
        let argument = Argument::new(TensorType::new(DType::F32, &dims));
        let program = Program::trace("heads", &[argument], |inputs| {
            let parts = inputs[0].split(2, 3)?;
            let heads = |part: &Tensor| {
                part.reshape(&[2, 48, 3, 32])?.transpose(&[0, 2, 1, 3])?.reshape(&[2, 3, 1, 48, 32])
            };
            let (query, key) = (heads(&parts[1])?, heads(&parts[2])?.reshape(&[2, 3, 48, 32])?);
            let scores = einsum("bgrqd,bgkd->bgrqk", &query, &key)?;
            Ok(vec![einsum("bgrqk,bgkd->bgrqd", &scores, &key)?])
        });
        program.unwrap().in_dialect(Dialect { matmul_custom_calls: called, ..Dialect::default() })
    };
    let text = attend(true).to_text();
    let call = text.lines().find(|line| line.contains(MATMUL)).unwrap();
    assert!(call.contains("(%arg0, %arg0)") && call.contains("[96, 192]"), "{call}");
    let inputs = [random(&dims, 3)];
    let [called, compiled] =
        [true, false].map(|called| run(&attend(called), &inputs)[0].to_f64().unwrap());
    assert_close(&called, &compiled, 1e-5);
}

/// Accumulated in `f32`, like the compiler's, and rounded once.
#[test]
fn low_precision_types_accumulate_in_f32() {
    check("mk,kn->mn", &[64, 128], &[128, 64], DType::Bf16, 0.01);
    check("mk,kn->mn", &[64, 128], &[128, 64], DType::F16, 0.002);
}

/// Operands and result of `bf16` stay what they are, and so take half of the memory traffic.
#[test]
fn bf16_is_not_converted() {
    for (dtype, operands) in [(DType::Bf16, "xbf16>"), (DType::F16, "xf32>")] {
        let text = matmul("mk,kn->mn", &[64, 128], &[128, 64], dtype, true).to_text();
        let call = text.lines().find(|line| line.contains(MATMUL)).unwrap();
        let types = call.rsplit(" : ").next().unwrap();
        assert_eq!(types.matches(operands).count(), 3, "{call}");
    }
}

#[test]
fn unsupported_matmuls_are_left_to_the_compiler() {
    for (spec, lhs, rhs, dtype) in [
        ("mk,kn->mn", &[8, 8][..], &[8, 8][..], DType::F32),
        ("mk,kn->mn", &[1, 512], &[512, 512], DType::F32),
        ("mk,kn->mn", &[64, 64], &[64, 64], DType::F64),
        ("akb,kn->abn", &[8, 64, 8], &[64, 64], DType::F32),
    ] {
        let program = matmul(spec, lhs, rhs, dtype, true);
        assert!(!program.to_text().contains(MATMUL), "{spec}");
    }
}

/// The compiler would lay out the result as the reduce-scatter prefers: by columns.
#[test]
fn results_are_row_major_whatever_uses_them() {
    let mesh = Mesh::new(&[("fsdp", 2)]).unwrap();
    let (tokens, columns) = (mesh.sharding(&[&["fsdp"], &[]]), mesh.sharding(&[&[], &["fsdp"]]));
    let (tokens, columns) = (tokens.unwrap(), columns.unwrap());
    let (inputs, outputs) = ([128, 24], [128, 48]);
    let gradient = |called: bool| {
        let argument = |dims: &[usize]| Argument::new(TensorType::new(DType::F32, dims));
        let arguments = [inputs, outputs].map(|dims| argument(&dims).sharded(&tokens));
        let program = Program::trace("gradient", &arguments, |inputs| {
            let shards = [(&inputs[0], tokens.clone()), (&inputs[1], tokens.clone())];
            mesh.manual(&["fsdp"], &shards, std::slice::from_ref(&columns), |locals| {
                let gradient = einsum("ti,to->io", &locals[0], &locals[1])?;
                Ok(vec![mesh.over(&["fsdp"])?.reduce_scatter(&gradient, 1)?])
            })
        });
        let program = program.unwrap().sharded_results(std::slice::from_ref(&columns)).unwrap();
        let dialect = Dialect { matmul_custom_calls: called, ..Dialect::default() };
        program.on_mesh(&mesh).unwrap().in_dialect(dialect)
    };
    assert!(gradient(true).to_text().contains(MATMUL));
    let values = [random(&inputs, 5), random(&outputs, 6)];
    let [called, compiled] =
        [true, false].map(|called| run(&gradient(called), &values)[0].to_f64().unwrap());
    assert_close(&called, &compiled, 1e-5);
}

/// Long vectors are padded by a call, at their end and in types that it supports.
#[test]
fn padding_matches_the_compiler() {
    let long = 1 << 16;
    for (dtype, size, low, high, is_call) in [
        (DType::F32, long, 0, 128, true),
        (DType::Bf16, long + 3, 0, 1, true),
        (DType::F32, long, 1, 0, false),
        (DType::F64, long, 0, 128, false),
        (DType::F32, 64, 0, 128, false),
    ] {
        let padded = |pad_custom_calls: bool| {
            let program = Program::trace(
                "pad",
                &[Argument::new(TensorType::new(DType::F32, &[size]))],
                |x| {
                    let padded = x[0].convert(dtype)?.pad(1.5, &[low], &[high], &[0])?;
                    Ok(vec![padded.convert(DType::F32)?])
                },
            );
            program.unwrap().in_dialect(Dialect { pad_custom_calls, ..Dialect::default() })
        };
        assert_eq!(padded(true).to_text().contains(PAD), is_call, "{dtype:?} {size} {low}");
        let inputs = [random(&[size], 7)];
        let [called, compiled] =
            [true, false].map(|called| run(&padded(called), &inputs)[0].to_f64().unwrap());
        assert_eq!(called, compiled, "{dtype:?} {size} {low}");
    }
}
