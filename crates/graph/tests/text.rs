//! Snapshots of the text of some programs.
#![allow(clippy::unwrap_used)]

mod common;

use common::compile;
use fullshard_graph::{
    Argument, Attribute, DType, Function, Mesh, MeshExt, Policy, Program, TensorType, constant,
    custom_call, custom_vjp, module, remat, scan, value_and_grad,
};

fn argument(dims: &[usize]) -> Argument {
    Argument::new(TensorType::new(DType::F32, dims))
}

#[test]
fn regression_step() {
    let arguments = [argument(&[3, 1]).donated_to(0), argument(&[8, 3]), argument(&[8, 1])];
    let program = Program::trace("regression", &arguments, |inputs| {
        let (loss, gradients) = value_and_grad(&[&inputs[0]], |weights| {
            let predicted = module("model", || inputs[1].matmul(&weights[0]))?;
            module("loss", || (predicted - &inputs[2])?.square()?.mean_all())
        })?;
        Ok(vec![(&inputs[0] - (&gradients[0] * 0.1)?)?, loss])
    })
    .unwrap();
    compile(&program);
    insta::assert_snapshot!(program.to_text());
}

#[test]
fn loop_over_layers_gathered_one_ahead() {
    let mesh = Mesh::new(&[("fsdp", 4)]).unwrap();
    let rows = mesh.sharding(&[&["fsdp"], &[]]).unwrap();
    let weights = mesh.sharding(&[&[], &["fsdp"], &[]]).unwrap();
    let arguments = [argument(&[8, 4]).sharded(&rows), argument(&[6, 4, 4]).sharded(&weights)];
    let program = Program::trace("layers", &arguments, |inputs| {
        let shards = [(&inputs[0], rows.clone()), (&inputs[1], weights.clone())];
        mesh.manual(&["fsdp"], &shards, std::slice::from_ref(&rows), |locals| {
            let group = mesh.over(&["fsdp"])?;
            let results = scan(&[&locals[0]], &[&locals[1]]).run_prepared(
                |slices| Ok(vec![group.all_gather(&slices[0], 0)?]),
                |carries, gathered, _| {
                    module("block", || Ok((vec![carries[0].linear(&gathered[0])?.tanh()?], vec![])))
                },
            )?;
            Ok(results.carries)
        })
    });
    let program = program.unwrap().sharded_results(&[rows]).unwrap().on_mesh(&mesh).unwrap();
    compile(&program);
    insta::assert_snapshot!(program.to_text());
}

#[test]
fn functions_constants_and_custom_calls() {
    let program = Program::trace("parts", &[argument(&[2])], |inputs| {
        let ty = inputs[0].ty().clone();
        let double = Function::new("double", std::slice::from_ref(&ty), |inputs| {
            Ok(vec![(&inputs[0] + &inputs[0])?])
        })?;
        let doubled = double.call(&[&double.call(&[&inputs[0]])?[0]])?.remove(0);
        let small = constant(&[2], &[0.1_f32, f32::INFINITY])?;
        let large: Vec<i32> = (0..20).collect();
        let large = constant(&[20], &large)?;
        let mask: Vec<bool> = (0..20).map(|i| i % 3 == 0).collect();
        let mask = constant(&[4, 5], &mask)?;
        let called = custom_call("my.kernel")
            .attribute("scale", Attribute::Float(0.5))
            .attribute("name", Attribute::Text("a \"b\"".into()))
            .call(&[&doubled], &[ty])?;
        Ok(vec![(&called[0] + small)?, large, mask])
    })
    .unwrap();
    insta::assert_snapshot!(program.to_text());
}

/// The paths of all ops of a kind, in order.
fn paths_of(text: &str, op: &str) -> Vec<String> {
    let table = text.lines().filter_map(|line| line.strip_prefix('#')?.split_once(" = loc(\""));
    let table: Vec<(&str, &str)> = table.collect();
    let path = |line: &str| {
        let number = line.rsplit_once("loc(#").map_or("", |(_, end)| end.trim_end_matches(')'));
        let found = table.iter().find(|(known, _)| *known == number);
        found.map_or(String::new(), |(_, path)| path.trim_end_matches("\")").to_owned())
    };
    text.lines().filter(|line| line.contains(op)).map(path).collect()
}

/// Recomputed ops and custom gradients have paths of the backward pass.
#[test]
fn backward_pass_is_named() {
    let program = Program::trace("paths", &[argument(&[4])], |inputs| {
        let (_, gradients) = value_and_grad(&[&inputs[0]], |x| {
            let recomputed = remat(Policy::Nothing, &[&x[0]], |x| {
                module("recomputed", || Ok(vec![x[0].exp()?.tanh()?]))
            })?;
            let custom = module("custom", || {
                custom_vjp(
                    &[&recomputed[0]],
                    |x| Ok(vec![x[0].sin()?]),
                    |x| Ok((vec![x[0].sin()?], vec![x[0].clone()])),
                    |residuals, cotangents| Ok(vec![(residuals[0].cos()? * &cotangents[0])?]),
                )
            })?;
            custom[0].sum_all()
        })?;
        Ok(gradients)
    });
    let text = program.unwrap().to_text();
    assert_eq!(paths_of(&text, "stablehlo.cosine"), ["backward.custom"], "{text}");
    let paths = paths_of(&text, "stablehlo.exponential");
    assert_eq!(paths, ["recomputed", "backward.recomputed"], "{text}");
}

#[test]
fn collectives_across_processes() {
    let mesh = Mesh::new(&[("fsdp", 4)]).unwrap().across_processes(2).unwrap();
    let names = ["fsdp_0", "fsdp_1"];
    let rows = mesh.sharding(&[&names, &[]]).unwrap();
    let program = Program::trace("across", &[argument(&[8, 4]).sharded(&rows)], |inputs| {
        mesh.manual(
            &names,
            &[(&inputs[0], rows.clone())],
            &[rows.clone(), rows.clone()],
            |locals| {
                let group = mesh.over(&names)?;
                let gathered = group.all_gather(&locals[0], 0)?;
                let scattered = group.reduce_scatter(&gathered, 0)?;
                let moved = group.permute(&scattered, &[(0, 1), (1, 2), (2, 3), (3, 0)])?;
                let columns = mesh.over(&["fsdp_0"])?.all_gather(&moved, 1)?.narrow(1, 0, 4)?;
                let index = group.index()?.convert(DType::F32)?;
                Ok(vec![
                    (group.sum(&columns)? + index)?,
                    group.all_to_all(&gathered, 0, 1)?.narrow(1, 0, 4)?,
                ])
            },
        )
    });
    let program = program.unwrap().sharded_results(&[rows.clone(), rows]).unwrap();
    insta::assert_snapshot!(program.to_text());
}

#[test]
fn axes_across_processes_are_manual() {
    let mesh = Mesh::new(&[("data", 2), ("tensor", 2)]).unwrap().across_processes(4).unwrap();
    let rows = mesh.sharding(&[&["data"]]).unwrap();
    let error = Program::trace("partly", &[argument(&[8]).sharded(&rows)], |inputs| {
        mesh.manual(&["data"], &[(&inputs[0], rows.clone())], std::slice::from_ref(&rows), Ok)
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("`tensor` is across processes"), "{error}");
}
