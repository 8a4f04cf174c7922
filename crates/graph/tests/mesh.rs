//! Collectives over every subset of the axes of a 2x2x2 mesh, values and gradients, against the
//! same computation on one device; and meshes with some automatic axes.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, eval, numbers, run};
use fullshard_graph::{
    Argument, DType, Group, Mesh, MeshExt, Program, Reduction, Result, Tensor, TensorType,
    concatenate, value_and_grad,
};
use fullshard_pjrt::HostTensor;

const AXES: [&str; 3] = ["a", "b", "c"];
const DEVICES: usize = 8;
const ROWS: usize = 8;
const COLUMNS: usize = 3;

/// The devices of `device`'s group over axes, in order, found by comparing coordinates.
fn members(axes: &[&str], device: usize) -> Vec<usize> {
    let coordinate = |device: usize, axis: &str| {
        let index = AXES.iter().position(|known| *known == axis).unwrap();
        device >> (2 - index) & 1
    };
    let same = |other: &usize| {
        AXES.iter()
            .all(|axis| axes.contains(axis) || coordinate(*other, axis) == coordinate(device, axis))
    };
    let mut members: Vec<usize> = (0..DEVICES).filter(same).collect();
    members.sort_by_key(|&member| {
        axes.iter().map(|axis| coordinate(member, axis)).collect::<Vec<_>>()
    });
    members
}

/// Each device's term of the loss, which depends on every element of the result.
fn local_loss(result: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let weights: Vec<f64> = numbers(result.ty().elements(), 9);
    let weights = fullshard_graph::constant(result.dims(), &weights)?;
    ((result.sin()? * weights)? * scale)?.sum_all()
}

/// Loss and gradient on the mesh: every device has its own rows and its own scale.
fn on_mesh(axes: &[&str], collective: impl Fn(&Group, &Tensor) -> Result<Tensor>) -> Vec<Vec<f64>> {
    let mesh = Mesh::new(&[("a", 2), ("b", 2), ("c", 2)]).unwrap();
    let rows = mesh.sharding(&[&AXES, &[]]).unwrap();
    let scales = mesh.sharding(&[&AXES]).unwrap();
    let argument = |dims: &[usize]| Argument::new(TensorType::new(DType::F64, dims));
    let arguments = [
        argument(&[DEVICES * ROWS, COLUMNS]).sharded(&rows),
        argument(&[DEVICES]).sharded(&scales),
    ];
    let program = Program::trace("mesh", &arguments, |inputs| {
        let shards = [(&inputs[0], rows.clone()), (&inputs[1], scales.clone())];
        mesh.manual(&AXES, &shards, &[scales.clone(), rows.clone()], |locals| {
            let group = mesh.over(axes)?;
            let scale = locals[1].reshape(&[])?;
            let (loss, gradients) =
                value_and_grad(&[&locals[0]], |x| local_loss(&collective(&group, &x[0])?, &scale))?;
            Ok(vec![loss.reshape(&[1])?, gradients[0].clone()])
        })
    });
    let program =
        program.unwrap().sharded_results(&[scales.clone(), rows]).unwrap().on_mesh(&mesh).unwrap();
    let (x, scales) = inputs();
    let tensors = [
        HostTensor::from_values(&[DEVICES * ROWS, COLUMNS], &x).unwrap(),
        HostTensor::from_values(&[DEVICES], &scales).unwrap(),
    ];
    run(&program, &tensors).iter().map(|tensor| tensor.to_f64().unwrap()).collect()
}

/// The same on one device, which has all rows.
fn on_one_device(
    axes: &[&str],
    collective: impl Fn(&[Tensor], &[usize], usize) -> Result<Tensor>,
) -> Vec<Vec<f64>> {
    let (x, scales) = inputs();
    let dims = [DEVICES * ROWS, COLUMNS];
    eval(&[(&dims, &x), (&[DEVICES], &scales)], |inputs| {
        let losses = |x: &Tensor| {
            let shards = x.split(0, DEVICES)?;
            let scales = inputs[1].split(0, DEVICES)?;
            let loss = |(device, scale): (usize, &Tensor)| {
                let group = members(axes, device);
                let rank = group.iter().position(|&member| member == device).unwrap();
                let result = collective(&shards, &group, rank)?;
                local_loss(&result, &scale.reshape(&[])?)?.reshape(&[1])
            };
            let losses = scales.iter().enumerate().map(loss).collect::<Result<Vec<_>>>()?;
            concatenate(&losses.iter().collect::<Vec<_>>(), 0)
        };
        let (_, gradients) = value_and_grad(&[&inputs[0]], |x| losses(&x[0])?.sum_all())?;
        Ok(vec![losses(&inputs[0])?, gradients[0].clone()])
    })
}

fn inputs() -> (Vec<f64>, Vec<f64>) {
    (numbers(DEVICES * ROWS * COLUMNS, 5), numbers(DEVICES, 6))
}

fn same(
    axes: &[&str],
    on_group: impl Fn(&Group, &Tensor) -> Result<Tensor>,
    expected: impl Fn(&[Tensor], &[usize], usize) -> Result<Tensor>,
) {
    let found = on_mesh(axes, &on_group);
    let expected = on_one_device(axes, &expected);
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_close(found, expected, 1e-12);
    }
}

/// Tests a collective over every non-empty subset of the axes, and over one in another order: the
/// collective, and its expected result.
macro_rules! over_subsets {
    ($collective:ident, $on_group:expr, $expected:expr) => {
        over_subsets! { $collective, $on_group, $expected;
            a: ["a"], b: ["b"], c: ["c"], ab: ["a", "b"], ac: ["a", "c"], bc: ["b", "c"],
            abc: ["a", "b", "c"], ca: ["c", "a"]
        }
    };
    ($collective:ident, $on_group:expr, $expected:expr; $($name:ident: $axes:expr),*) => {
        mod $collective {
            use super::*;

            $(#[test]
            fn $name() {
                same(&$axes, $on_group, $expected);
            })*
        }
    };
}

fn of_group<'a>(shards: &'a [Tensor], group: &[usize]) -> Vec<&'a Tensor> {
    group.iter().map(|&member| &shards[member]).collect()
}

fn sum(tensors: &[&Tensor]) -> Result<Tensor> {
    tensors[1..].iter().try_fold(tensors[0].clone(), |sum, tensor| sum + *tensor)
}

over_subsets!(all_gather, |group, x| group.all_gather(x, 0), |shards, group, _| concatenate(
    &of_group(shards, group),
    0
));

over_subsets!(all_reduce_sum, |group, x| group.sum(x), |shards, group, _| sum(&of_group(
    shards, group
)));

over_subsets!(all_reduce_mean, |group, x| group.mean(x), |shards, group, _| sum(&of_group(
    shards, group
))? * (1.0
    / group.len() as f64));

over_subsets!(reduce_scatter, |group, x| group.reduce_scatter(x, 0), |shards, group, rank| {
    Ok(sum(&of_group(shards, group))?.split(0, group.len())?.swap_remove(rank))
});

over_subsets!(all_to_all, |group, x| group.all_to_all(x, 0, 1), |shards, group, rank| {
    let parts = group
        .iter()
        .map(|&member| Ok(shards[member].split(0, group.len())?.swap_remove(rank)))
        .collect::<Result<Vec<Tensor>>>()?;
    concatenate(&parts.iter().collect::<Vec<_>>(), 1)
});

over_subsets!(
    permute,
    |group, x| {
        let size = group.size();
        let around: Vec<_> = (0..size).map(|i| (i, (i + 1) % size)).collect();
        group.permute(x, &around)
    },
    |shards, group, rank| Ok(shards[group[(rank + group.len() - 1) % group.len()]].clone())
);

over_subsets!(
    index,
    |group, x| x * (group.index()?.convert(DType::F64)? + 1.0)?,
    |shards, group, rank| &shards[group[rank]] * (rank as f64 + 1.0)
);

/// A maximum over devices has no gradient.
#[test]
fn max_all_reduce_has_no_gradient() {
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    let replicated = mesh.replicated(1);
    let argument = Argument::new(TensorType::new(DType::F64, &[4]));
    let error = Program::trace("max", &[argument], |inputs| {
        mesh.manual(
            &["a"],
            &[(&inputs[0], replicated.clone())],
            std::slice::from_ref(&replicated),
            |locals| {
                let (_, gradients) = value_and_grad(&[&locals[0]], |x| {
                    mesh.over(&["a"])?.all_reduce(&x[0], Reduction::Max)?.sum_all()
                })?;
                Ok(gradients)
            },
        )
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no gradient of an all-reduce by Max"), "{error}");
}

/// FSDP over a manual axis, with the other axis automatic.
#[test]
fn manual_and_automatic_axes() {
    let mesh = Mesh::new(&[("fsdp", 2), ("model", 4)]).unwrap();
    let batch = mesh.sharding(&[&["fsdp"], &[]]).unwrap();
    let weights = mesh.sharding(&[&["fsdp"], &["model"]]).unwrap();
    let argument = |dims: &[usize]| Argument::new(TensorType::new(DType::F64, dims));
    let step = |x: &Tensor, w: &Tensor| x.linear(w)?.tanh()?.square()?.sum_all();
    let arguments = [argument(&[4, 8]).sharded(&batch), argument(&[8, 16]).sharded(&weights)];
    let program = Program::trace("partly_manual", &arguments, |inputs| {
        let shards =
            [(&inputs[0], batch.clone()), (&inputs[1], mesh.sharding(&[&["fsdp"], &[]]).unwrap())];
        let outputs = [mesh.sharding(&[&["fsdp"], &[]]).unwrap()];
        mesh.manual(&["fsdp"], &shards, &outputs, |locals| {
            let group = mesh.over(&["fsdp"])?;
            let (_, gradients) = value_and_grad(&[&locals[1]], |shard| {
                step(&locals[0], &group.all_gather(&shard[0], 0)?)
            })?;
            Ok(gradients)
        })
    });
    let program = program.unwrap().sharded_results(&[weights]).unwrap().on_mesh(&mesh).unwrap();
    let (x, w) = (numbers(4 * 8, 1), numbers(8 * 16, 2));
    let found = run(
        &program,
        &[
            HostTensor::from_values(&[4, 8], &x).unwrap(),
            HostTensor::from_values(&[8, 16], &w).unwrap(),
        ],
    );
    let expected = eval(&[(&[4, 8], &x), (&[8, 16], &w)], |inputs| {
        Ok(value_and_grad(&[&inputs[1]], |w| step(&inputs[0], &w[0]))?.1)
    });
    assert_close(&found[0].to_f64().unwrap(), &expected[0], 1e-12);
}

#[test]
fn collectives_outside_manual_regions_are_rejected() {
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    let argument = Argument::new(TensorType::new(DType::F64, &[4]));
    let error = Program::trace("outside", &[argument], |inputs| {
        Ok(vec![mesh.over(&["a"])?.all_gather(&inputs[0], 0)?])
    });
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "all_gather: axis `a` is not manual here; use MeshExt::manual");
}
