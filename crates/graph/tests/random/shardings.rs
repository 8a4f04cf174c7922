//! The same numbers under any sharding over a mesh.

use super::common::run;
use super::results;
use fullshard_graph::{DType, Draw, Key, Mesh, MeshExt, Program, Result, Tensor, constant};

pub const ROWS: usize = 24;
pub const COLUMNS: usize = 40;

/// A sharding of a matrix: the sizes of a mesh, and the axes of each dimension.
pub type Case = (&'static [(&'static str, usize)], [&'static [&'static str]; 2]);

pub const CASES: [Case; 9] = [
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

/// A draw of a matrix, sharded like the tensor.
pub fn sharded_draw(key: &Key, mesh: &Mesh, dims: [&[&str]; 2]) -> Result<Draw> {
    let mut draw = key.draw(&[ROWS, COLUMNS]);
    for (dim, axes) in dims.into_iter().enumerate().filter(|(_, axes)| !axes.is_empty()) {
        draw = draw.shard(dim, &mesh.over(axes)?)?;
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
fn numbers_are_the_same_on_every_mesh() {
    let unsharded = results(|| kinds(&Key::constant(11)?.named("w")?.draw(&[ROWS, COLUMNS])));
    for (axes, dims) in CASES {
        let mesh = Mesh::new(axes).unwrap();
        let sharding = mesh.sharding(&dims).unwrap();
        let names: Vec<&str> = mesh.axes().map(|(name, _)| name).collect();
        let program = Program::trace("sharded", &[], |_| {
            let key = Key::constant(11)?.named("w")?;
            mesh.manual(&names, &[], &vec![sharding.clone(); unsharded.len()], |_| {
                kinds(&sharded_draw(&key, &mesh, dims)?)
            })
        });
        let program = program.unwrap().on_mesh(&mesh).unwrap();
        let program = program.sharded_results(&vec![sharding.clone(); unsharded.len()]).unwrap();
        for (i, (found, unsharded)) in run(&program, &[]).iter().zip(&unsharded).enumerate() {
            assert!(found == unsharded, "kind {i} sharded {dims:?} over {axes:?}");
        }
    }
}

#[test]
fn positions_have_the_numbers_of_the_full_tensor() {
    let rows = [5_i32, 0, 23, 7];
    let unsharded = results(|| Ok(vec![Key::constant(11)?.draw(&[ROWS, COLUMNS]).bits()?]));
    let found = results(|| {
        let key = Key::new(&Key::constant(11)?.seed()?)?;
        let draw = key.draw(&[ROWS, COLUMNS]).at(0, &constant(&[4], &rows)?)?;
        Ok(vec![draw.bits()?])
    });
    let (all, found) = (unsharded[0].to_f64().unwrap(), found[0].to_f64().unwrap());
    let expected = rows.map(|row| &all[row as usize * COLUMNS..(row as usize + 1) * COLUMNS]);
    assert_eq!(found, expected.concat());
}

#[test]
fn automatic_sharding_has_the_same_numbers() {
    let unsharded = results(|| kinds(&Key::constant(11)?.draw(&[ROWS, COLUMNS])));
    let mesh = Mesh::new(&[("x", 4), ("y", 2)]).unwrap();
    let sharding = mesh.sharding(&[&["x"], &["y"]]).unwrap();
    let program = Program::trace("automatic", &[], |_| {
        let kinds = kinds(&Key::constant(11)?.draw(&[ROWS, COLUMNS]))?;
        kinds.iter().map(|kind| kind.constrain(&sharding)).collect()
    });
    let program = program.unwrap().on_mesh(&mesh).unwrap();
    let program = program.sharded_results(&vec![sharding; unsharded.len()]).unwrap();
    assert!(run(&program, &[]) == unsharded);
}

#[test]
fn partly_manual_regions_have_the_same_numbers() {
    let unsharded = results(|| kinds(&Key::constant(11)?.draw(&[ROWS, COLUMNS])));
    let mesh = Mesh::new(&[("x", 4), ("y", 2)]).unwrap();
    for dims in [[&["x"][..], &[]], [&[], &["x"]]] {
        let shardings = vec![mesh.sharding(&dims).unwrap(); unsharded.len()];
        let program = Program::trace("partly", &[], |_| {
            let key = Key::constant(11)?;
            mesh.manual(&["x"], &[], &shardings, |_| kinds(&sharded_draw(&key, &mesh, dims)?))
        });
        let program = program.unwrap().on_mesh(&mesh).unwrap().sharded_results(&shardings).unwrap();
        assert!(run(&program, &[]) == unsharded, "{dims:?}");
    }
}
