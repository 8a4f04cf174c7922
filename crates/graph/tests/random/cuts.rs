//! The same numbers however a tensor is cut over a mesh.

use super::common::run;
use super::results;
use fullshard_graph::{DType, Draw, Key, Mesh, MeshExt, Program, Result, Tensor};

pub const ROWS: usize = 24;
pub const COLUMNS: usize = 40;

/// How a tensor of rows and columns is cut: the sizes of a mesh, and the axes of each dimension.
pub type Cut = (&'static [(&'static str, usize)], [&'static [&'static str]; 2]);

pub const CUTS: [Cut; 9] = [
    (&[("x", 2)], [&["x"], &[]]),
    (&[("x", 2)], [&[], &["x"]]),
    (&[("x", 4)], [&["x"], &[]]),
    (&[("x", 4)], [&[], &["x"]]),
    (&[("x", 8)], [&["x"], &[]]),
    (&[("x", 8)], [&[], &["x"]]),
    (&[("x", 2), ("y", 2), ("z", 2)], [&["x"], &["y"]]),
    (&[("x", 2), ("y", 2), ("z", 2)], [&["z", "x"], &["y"]]),
    (&[("x", 2), ("y", 2), ("z", 2)], [&["y"], &["x", "z"]]),
];

/// A draw of rows and columns, cut as the tensor is.
pub fn cut_draw(key: &Key, mesh: &Mesh, dims: [&[&str]; 2]) -> Result<Draw> {
    let mut draw = key.draw(&[ROWS, COLUMNS]);
    for (dim, axes) in dims.into_iter().enumerate().filter(|(_, axes)| !axes.is_empty()) {
        draw = draw.cut(dim, &mesh.over(axes)?)?;
    }
    Ok(draw)
}

fn kinds(draw: &Draw) -> Result<Vec<Tensor>> {
    Ok(vec![
        draw.bits()?,
        draw.uniform(DType::F32)?,
        draw.normal(DType::F32)?,
        draw.truncated_normal(DType::F32, -2.0, 2.0)?,
        draw.bernoulli(0.3)?,
    ])
}

#[test]
fn every_mesh_has_the_same_numbers() {
    let whole = results(|| kinds(&Key::constant(11)?.named("w")?.draw(&[ROWS, COLUMNS])));
    for (axes, dims) in CUTS {
        let mesh = Mesh::new(axes).unwrap();
        let sharding = mesh.sharding(&dims).unwrap();
        let names: Vec<&str> = mesh.axes().map(|(name, _)| name).collect();
        let program = Program::trace("cut", &[], |_| {
            let key = Key::constant(11)?.named("w")?;
            mesh.manual(&names, &[], &vec![sharding.clone(); whole.len()], |_| {
                kinds(&cut_draw(&key, &mesh, dims)?)
            })
        });
        let program = program.unwrap().on_mesh(&mesh).unwrap();
        let program = program.sharded_results(&vec![sharding.clone(); whole.len()]).unwrap();
        for (i, (found, whole)) in run(&program, &[]).iter().zip(&whole).enumerate() {
            assert!(found == whole, "kind {i} cut {dims:?} over {axes:?}");
        }
    }
}

#[test]
fn the_compiler_may_cut_too() {
    let whole = results(|| kinds(&Key::constant(11)?.draw(&[ROWS, COLUMNS])));
    let mesh = Mesh::new(&[("x", 4), ("y", 2)]).unwrap();
    let sharding = mesh.sharding(&[&["x"], &["y"]]).unwrap();
    let program = Program::trace("automatic", &[], |_| {
        let kinds = kinds(&Key::constant(11)?.draw(&[ROWS, COLUMNS]))?;
        kinds.iter().map(|kind| kind.constrain(&sharding)).collect()
    });
    let program = program.unwrap().on_mesh(&mesh).unwrap();
    let program = program.sharded_results(&vec![sharding; whole.len()]).unwrap();
    assert!(run(&program, &[]) == whole);
}

#[test]
fn a_region_may_be_manual_over_some_axes_only() {
    let whole = results(|| kinds(&Key::constant(11)?.draw(&[ROWS, COLUMNS])));
    let mesh = Mesh::new(&[("x", 4), ("y", 2)]).unwrap();
    for dims in [[&["x"][..], &[]], [&[], &["x"]]] {
        let shardings = vec![mesh.sharding(&dims).unwrap(); whole.len()];
        let program = Program::trace("partly", &[], |_| {
            let key = Key::constant(11)?;
            mesh.manual(&["x"], &[], &shardings, |_| kinds(&cut_draw(&key, &mesh, dims)?))
        });
        let program = program.unwrap().on_mesh(&mesh).unwrap().sharded_results(&shardings).unwrap();
        assert!(run(&program, &[]) == whole, "{dims:?}");
    }
}
