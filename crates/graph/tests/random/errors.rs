//! Error messages of invalid draws.

use fullshard_graph::{DType, Key, Mesh, MeshExt, Program, Result, Tensor, ones};

#[test]
fn invalid_draws_are_rejected() {
    let error = |trace: &dyn Fn(&Key, &Mesh) -> Result<Tensor>| {
        let mesh = Mesh::new(&[("x", 2)]).unwrap();
        let program = Program::trace("wrong", &[], |_| Ok(vec![trace(&Key::constant(0)?, &mesh)?]));
        program.unwrap_err().to_string()
    };
    let long = |_: &Key, _: &Mesh| Key::new(&ones(DType::U32, &[3])?)?.draw(&[]).bits();
    assert_eq!(error(&long), "key: a seed must be u32[2], got u32[3]");
    let fold = |key: &Key, _: &Mesh| key.fold(&ones(DType::F32, &[])?)?.draw(&[]).bits();
    assert_eq!(error(&fold), "fold: f32[] is not an integer scalar");
    let odd = |key: &Key, mesh: &Mesh| key.draw(&[3, 2]).shard(0, &mesh.over(&["x"])?)?.bits();
    assert_eq!(error(&odd), "draw: cannot shard dimension 0 of [3, 2] 2 ways");
    let twice = |key: &Key, mesh: &Mesh| {
        let group = mesh.over(&["x"])?;
        key.draw(&[4, 2]).shard(0, &group)?.shard(1, &group)?.bits()
    };
    assert!(error(&twice).ends_with("dimension 1 of [4, 2] 2 ways: an axis is already used"));
    let matrix = |key: &Key, _: &Mesh| key.draw(&[4]).at(0, &ones(DType::I32, &[2, 2])?)?.bits();
    assert_eq!(error(&matrix), "draw: cannot draw positions s32[2,2] of dimension 0 of [4]");
    let integer = |key: &Key, _: &Mesh| key.draw(&[2]).uniform(DType::I32);
    assert_eq!(error(&integer), "uniform: cannot draw s32; draw f32 and convert");
    let limits = |key: &Key, _: &Mesh| key.draw(&[2]).truncated_normal(DType::F32, 2.0, -2.0);
    assert_eq!(error(&limits), "truncated_normal: invalid limits 2 and -2");
    let probability = |key: &Key, _: &Mesh| key.draw(&[2]).bernoulli(1.5);
    assert_eq!(error(&probability), "bernoulli: 1.5 is not a probability");
    let mask = |key: &Key, _: &Mesh| key.draw(&[2]).dropout(&ones(DType::F32, &[3])?, 0.1);
    assert_eq!(error(&mask), "dropout: 0.1 of f32[3] with a mask of [2]");
}
