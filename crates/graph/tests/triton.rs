//! Kernels in Triton's language: their text, and what is rejected before a compiler sees it.
#![allow(clippy::unwrap_used)]

use fullshard_graph::triton::{Builder, Grid, Pointer, kernel, split_rows};
use fullshard_graph::{Argument, DType, Program, Result, TensorType};

const GRID: Grid = Grid { programs: 4, warps: 4 };

/// Traces a kernel from a bf16 matrix to one like it.
fn traced(
    dims: &[usize],
    grid: Grid,
    trace: impl FnOnce(&Builder, &[Pointer], &[Pointer]),
) -> Result<String> {
    let matrix = TensorType::new(DType::Bf16, dims);
    let program = Program::trace("test", &[Argument::new(matrix.clone())], |x| {
        kernel("own", grid, &[&x[0]], &[matrix], trace)
    })?;
    Ok(program.to_text())
}

#[test]
fn a_loop_carries_its_values() {
    let text = traced(&[32, 64], GRID, |k, x, y| {
        let column = k.range(64);
        let first = k.program() * 8;
        let sums = k.for_each(&first, &(&first + 8), &[k.zeros(&[64])], |row, sums| {
            let at = row * 64 + &column;
            vec![&sums[0] + x[0].at(&at).load().float()]
        });
        y[0].at(&(first * 64 + &column)).store(&sums[0]);
    })
    .unwrap();
    for part in [
        "@__gpu$xla.gpu.triton",
        "num_warps = 4 : i32",
        "grid_x = 4 : i32",
        "scf.for",
        "iter_args(",
        "scf.yield",
        "arith.extf",
        "arith.truncf",
        "tt.divisibility = 16 : i32",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert_eq!(text.matches("tt.func public @own").count(), 1);
}

#[test]
fn masks_load_zeros_and_store_nothing() {
    let text = traced(&[1, 48], GRID, |k, x, y| {
        let column = k.range(64);
        let mask = column.less_than(48);
        let values = x[0].at(&column).only_if(Some(&mask)).load();
        y[0].at(&column).only_if(Some(&mask)).store(&values);
    })
    .unwrap();
    let line = |op: &str| text.split("\\0A").find(|line| line.contains(op)).unwrap().to_owned();
    assert_eq!(line("tt.load").matches(", %").count(), 2, "{text}");
    assert_eq!(line("tt.store").matches(", %").count(), 2, "{text}");
}

#[track_caller]
fn rejects(reason: &str, result: Result<String>) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn rejects_what_compilers_crash_on_or_get_wrong() {
    let nothing = |_: &Builder, _: &[Pointer], _: &[Pointer]| {};
    rejects("0 programs", traced(&[8, 8], Grid { programs: 0, ..GRID }, nothing));
    rejects("3 warps", traced(&[8, 8], Grid { warps: 3, ..GRID }, nothing));
    rejects("32 bits", traced(&[1 << 16, 1 << 16], GRID, nothing));
    let range = |k: &Builder, _: &[Pointer], _: &[Pointer]| {
        k.range(48);
    };
    rejects("48 is no power of two", traced(&[8, 8], GRID, range));
    let mixed = |k: &Builder, _: &[Pointer], _: &[Pointer]| {
        let _ = k.float(1.0) + k.int(1);
    };
    rejects("f32 and i32 differ", traced(&[8, 8], GRID, mixed));
    let shapes = |k: &Builder, _: &[Pointer], _: &[Pointer]| {
        let _ = k.range(8) + k.range(16);
    };
    rejects("does not fit", traced(&[8, 8], GRID, shapes));
    let uncarried = |k: &Builder, _: &[Pointer], _: &[Pointer]| {
        let first = k.int(0);
        k.for_each(&first, &k.int(4), &[k.float(0.0)], |_, _| vec![first.clone()]);
    };
    rejects("does not carry", traced(&[8, 8], GRID, uncarried));
}

#[test]
fn rows_are_split_into_about_as_many_programs() {
    assert_eq!(split_rows(16384, 512), (32, 512));
    assert_eq!(split_rows(1187, 512), (3, 396));
    assert_eq!(split_rows(10, 512), (1, 10));
    for (rows, programs) in [(1, 1), (7, 3), (100, 99), (4096, 512)] {
        let (each, programs) = split_rows(rows, programs);
        assert!(each * programs >= rows && each * (programs - 1) < rows);
    }
}

#[test]
fn transposes_and_sums_have_the_dims_of_their_operands() {
    let text = traced(&[64, 32], GRID, |k, x, y| {
        let at = k.range(64).with_dim(1) * 32 + k.range(32).with_dim(0);
        let block = x[0].at(&at).load().float();
        let total: [_; 2] = [block.sum(1), block.transposed().sum(0)];
        let both = (&total[0] + &total[1]).with_dim(1).expanded(&[64, 32]);
        y[0].at(&at).store(&(both * block));
    });
    let text = text.unwrap();
    assert!(text.contains("tensor<64x32xf32> -> tensor<32x64xf32>"), "{text}");
    assert!(text.contains("(tensor<32x64xf32>) -> tensor<64xf32>"), "{text}");
}

#[test]
fn operands_are_row_major() {
    let text = traced(&[64, 32], GRID, |_, _, _| {}).unwrap();
    assert!(text.contains("operand_layouts = [dense<[1, 0]>"), "{text}");
}
