//! Values of ops without a gradient, and of constants of every type.

use crate::common::run;
use fullshard_graph::{
    Comparison, DType, Program, Reduction, Result, Scalar, Tensor, barrier, constant, full, iota,
};
use fullshard_pjrt::{Element, HostTensor};
use half::{bf16, f16};

/// Runs a program without arguments.
fn outputs(function: impl FnOnce() -> Result<Vec<Tensor>>) -> Vec<HostTensor> {
    run(&Program::trace("values", &[], |_| function()).unwrap(), &[])
}

fn bools(function: impl FnOnce() -> Result<Vec<Tensor>>) -> Vec<Vec<bool>> {
    outputs(function).iter().map(|tensor| tensor.bools().unwrap()).collect()
}

fn numbers<T: Element>(function: impl FnOnce() -> Result<Vec<Tensor>>) -> Vec<Vec<T>> {
    outputs(function).iter().map(|tensor| tensor.values().unwrap()).collect()
}

/// Values behind a barrier, so that the compiler does not fold constants.
fn hidden<T: Scalar>(values: &[T]) -> Result<Tensor> {
    Ok(barrier(&[&constant(&[values.len()], values)?])?.remove(0))
}

const COMPARISONS: [Comparison; 6] = [
    Comparison::Equal,
    Comparison::NotEqual,
    Comparison::Less,
    Comparison::LessEqual,
    Comparison::Greater,
    Comparison::GreaterEqual,
];

fn holds<T: PartialOrd>(comparison: Comparison, a: &T, b: &T) -> bool {
    match comparison {
        Comparison::Equal => a == b,
        Comparison::NotEqual => a != b,
        Comparison::Less => a < b,
        Comparison::LessEqual => a <= b,
        Comparison::Greater => a > b,
        Comparison::GreaterEqual => a >= b,
    }
}

#[track_caller]
fn check_comparisons<T: Scalar + PartialOrd>(a: &[T], b: &[T]) {
    let found = bools(|| {
        let (a, b) = (hidden(a)?, hidden(b)?);
        COMPARISONS.iter().map(|&comparison| a.compare(comparison, &b)).collect()
    });
    for (comparison, found) in COMPARISONS.into_iter().zip(found) {
        let expected: Vec<bool> = a.iter().zip(b).map(|(a, b)| holds(comparison, a, b)).collect();
        assert_eq!(found, expected, "{comparison:?} of {}", T::DTYPE);
    }
}

#[test]
fn comparisons() {
    let nan = f64::NAN;
    check_comparisons(&[1.0, 2.0, 2.0, nan, nan, -0.0], &[2.0, 1.0, 2.0, 1.0, nan, 0.0]);
    check_comparisons(&[1.0_f32, 2.0, 2.0], &[2.0, 1.0, 2.0]);
    check_comparisons(&[-1, 1, 5, i32::MIN], &[1, -1, 5, i32::MAX]);
    check_comparisons(&[200_u8, 1, 5], &[1, 200, 5]);
    check_comparisons(&[u64::MAX, 1, 5], &[1, u64::MAX, 5]);
    check_comparisons(&[true, false, true, false], &[true, false, false, true]);
}

#[test]
fn rounding_and_signs() {
    let values = [-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 2.6, -7.2];
    let found = numbers::<f64>(|| {
        let x = hidden(&values)?;
        Ok(vec![x.floor()?, x.round()?, x.sign()?])
    });
    assert_eq!(found[0], values.map(f64::floor));
    assert_eq!(found[1], values.map(f64::round_ties_even));
    assert_eq!(found[2], values.map(|x| if x == 0.0 { 0.0 } else { x.signum() }));
    let found = numbers::<i32>(|| {
        let x = hidden(&[-7, 0, 7])?;
        Ok(vec![x.sign()?, x.abs()?, (-&x)?, x.remainder(&full(DType::I32, &[], 3.0)?)?])
    });
    assert_eq!(found, [[-1, 0, 1], [7, 0, 7], [7, 0, -7], [-1, 0, 1]]);
}

#[test]
fn is_finite() {
    let values = [1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MAX];
    let found = bools(|| Ok(vec![hidden(&values)?.is_finite()?]));
    assert_eq!(found[0], values.map(f64::is_finite));
}

#[test]
fn logical_ops() {
    let (a, b) = ([true, true, false, false], [true, false, true, false]);
    let found = bools(|| {
        let (a, b) = (hidden(&a)?, hidden(&b)?);
        Ok(vec![a.and(&b)?, a.or(&b)?, a.xor(&b)?, a.not()?])
    });
    let pairs = |op: fn(bool, bool) -> bool| [0, 1, 2, 3].map(|i| op(a[i], b[i]));
    assert_eq!(found[0], pairs(|a, b| a && b));
    assert_eq!(found[1], pairs(|a, b| a || b));
    assert_eq!(found[2], pairs(|a, b| a != b));
    assert_eq!(found[3], a.map(|a| !a));
}

#[test]
fn bitwise_ops_and_shifts() {
    let (a, b) = ([0xF0F0_1234_u32, 1, u32::MAX], [0x0FF0_00FF_u32, 31, 4]);
    let found = numbers::<u32>(|| {
        let (a, b) = (hidden(&a)?, hidden(&b)?);
        let by = hidden(&[4_u32, 31, 8])?;
        Ok(vec![
            a.and(&b)?,
            a.or(&b)?,
            a.xor(&b)?,
            a.not()?,
            a.shift_left(&by)?,
            a.shift_right(&by)?,
        ])
    });
    let pairs = |op: fn(u32, u32) -> u32| [0, 1, 2].map(|i| op(a[i], b[i]));
    assert_eq!(found[0], pairs(|a, b| a & b));
    assert_eq!(found[1], pairs(|a, b| a | b));
    assert_eq!(found[2], pairs(|a, b| a ^ b));
    assert_eq!(found[3], a.map(|a| !a));
    assert_eq!(found[4], [a[0] << 4, 1 << 31, u32::MAX << 8]);
    assert_eq!(found[5], [a[0] >> 4, 0, u32::MAX >> 8]);
    let found = numbers::<i32>(|| {
        let (a, by) = (hidden(&[-1, 6])?, hidden(&[28, 1])?);
        Ok(vec![a.shift_right(&by)?])
    });
    assert_eq!(found[0], [15, 3], "the shift is logical");
}

#[test]
fn bitcasts() {
    let values = [1.0_f32, -0.0, f32::INFINITY, 3.5e-41];
    let found = numbers::<u32>(|| Ok(vec![hidden(&values)?.bitcast(DType::U32)?]));
    assert_eq!(found[0], values.map(f32::to_bits));
    let found = numbers::<bf16>(|| Ok(vec![hidden(&[0x3F80_u16, 0xC000])?.bitcast(DType::Bf16)?]));
    assert_eq!(found[0], [1.0, -2.0].map(bf16::from_f32));
    let found = numbers::<i64>(|| Ok(vec![hidden(&[1.0_f64])?.bitcast(DType::I64)?]));
    assert_eq!(found[0], [0x3FF0_0000_0000_0000]);
}

#[test]
fn conversions() {
    let values = [0.0, 1.0, -2.7, 250.9];
    let found = outputs(|| {
        let x = hidden(&values)?;
        let dtypes = [DType::Bool, DType::I32, DType::F32, DType::Bf16];
        dtypes.iter().map(|&dtype| x.convert(dtype)).collect()
    });
    assert_eq!(found[0].bools().unwrap(), [false, true, true, true]);
    assert_eq!(found[1].values::<i32>().unwrap(), values.map(|x| x as i32));
    assert_eq!(found[2].values::<f32>().unwrap(), values.map(|x| x as f32));
    assert_eq!(found[3].values::<bf16>().unwrap(), values.map(bf16::from_f64));
    let found = numbers::<f64>(|| {
        Ok(vec![
            hidden(&[true, false])?.convert(DType::F64)?,
            hidden(&[200_u8, 1])?.convert(DType::F64)?,
        ])
    });
    assert_eq!(found, [[1.0, 0.0], [200.0, 1.0]]);
}

/// The types that every platform supports. The rest are FP8 formats of some platforms.
fn dtypes() -> impl Iterator<Item = &'static DType> + Clone {
    DType::ALL.iter().filter(|&&dtype| dtype <= DType::F8E4M3FN)
}

#[test]
fn iota_of_every_type() {
    let dtypes = dtypes().filter(|&&dtype| dtype != DType::Bool);
    let found = numbers::<f32>(|| {
        let counts = dtypes.clone().flat_map(|&dtype| [0, 1].map(|dim| iota(dtype, &[2, 3], dim)));
        counts.map(|count| count?.convert(DType::F32)).collect()
    });
    for (dtype, pair) in dtypes.zip(found.chunks(2)) {
        assert_eq!(pair[0], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], "{dtype}");
        assert_eq!(pair[1], [0.0, 1.0, 2.0, 0.0, 1.0, 2.0], "{dtype}");
    }
}

#[test]
fn full_of_every_type() {
    for value in [0.0, 1.0, 3.0] {
        let found = numbers::<f32>(|| {
            let full = |&dtype: &DType| full(dtype, &[2, 2], value)?.convert(DType::F32);
            dtypes().map(full).collect()
        });
        for (&dtype, found) in dtypes().zip(&found) {
            let expected =
                if dtype == DType::Bool { f32::from(value != 0.0) } else { value as f32 };
            assert_eq!(found, &[expected; 4], "{dtype}");
        }
    }
}

#[test]
fn full_of_special_values() {
    for value in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-300, -1.5, 65504.0] {
        let found = numbers::<f64>(|| {
            let dtypes = [DType::F64, DType::F32, DType::F16, DType::Bf16];
            dtypes.iter().map(|&dtype| full(dtype, &[1], value)?.convert(DType::F64)).collect()
        });
        let expected = [
            value,
            f64::from(value as f32),
            f16::from_f64(value).to_f64(),
            bf16::from_f64(value).to_f64(),
        ];
        for (found, expected) in found.iter().zip(expected) {
            assert!(found[0] == expected || found[0].is_nan() && expected.is_nan(), "{value}");
        }
    }
}

/// Checks constants of few elements, which are written as lists, and of more, written as bytes.
#[track_caller]
fn check_constants<T: Scalar + Element + PartialEq + std::fmt::Debug>(values: &[T]) {
    let many: Vec<T> = values.iter().copied().cycle().take(35).collect();
    let found = numbers::<T>(|| {
        Ok(vec![
            constant(&[values.len()], values)?,
            constant(&[values.len(), 1], values)?,
            constant(&[], &values[1..2])?,
            constant(&[5, 7], &many)?,
            constant(&[2, 0], &[] as &[T])?,
            constant(&[0], &[] as &[T])?,
        ])
    });
    assert_eq!(found, [values, values, &values[1..2], &many, &[], &[]], "{}", <T as Scalar>::DTYPE);
}

#[test]
fn constants_of_every_type() {
    check_constants(&[i8::MIN, -1, 5, i8::MAX]);
    check_constants(&[i16::MIN, -1, 5, i16::MAX]);
    check_constants(&[i32::MIN, -1, 5, i32::MAX]);
    check_constants(&[i64::MIN, -1, 5, i64::MAX]);
    check_constants(&[0, 1, 5, u8::MAX]);
    check_constants(&[0, 1, 5, u16::MAX]);
    check_constants(&[0, 1, 5, u32::MAX]);
    check_constants(&[0, 1, 5, u64::MAX]);
    check_constants(&[0.1_f32, -0.0, f32::MIN_POSITIVE, f32::MAX, f32::NEG_INFINITY]);
    check_constants(&[0.1_f64, -1e-300, f64::MAX, f64::INFINITY]);
    check_constants(&[0.1, -2.0, 65504.0, f32::INFINITY].map(f16::from_f32));
    check_constants(&[0.1, -2.0, 1e30, f32::NEG_INFINITY].map(bf16::from_f32));
}

#[test]
fn bool_constants() {
    let values: Vec<bool> = (0..35).map(|i| i % 3 == 0 || i % 7 == 2).collect();
    for dims in
        [&[35][..], &[5, 7], &[16], &[17], &[2, 2], &[2, 4], &[4, 2, 2], &[1], &[0], &[2, 0]]
    {
        let count = dims.iter().product();
        for values in [&values[..count], &vec![true; count], &vec![false; count]] {
            let found = bools(|| Ok(vec![constant(dims, values)?]));
            assert_eq!(found[0], values, "{dims:?}");
        }
    }
}

#[test]
fn reductions_start_from_the_identity() {
    fn check<T: Scalar + Element + PartialEq + std::fmt::Debug>(values: [T; 2], expected: [T; 4]) {
        let kinds = [Reduction::Sum, Reduction::Product, Reduction::Max, Reduction::Min];
        let found = numbers::<T>(|| {
            let x = hidden(&values)?;
            kinds.iter().map(|&kind| x.reduce(kind, &[0])).collect()
        });
        assert_eq!(found.concat(), expected);
    }
    check([-3_i8, -5], [-8, 15, -3, -5]);
    check([-3_i64, -5], [-8, 15, -3, -5]);
    check([200_u8, 210], [154, 16, 210, 200]);
    check([3_u64, 1 << 63], [(1 << 63) + 3, 1 << 63, 1 << 63, 3]);
    check([-3.0_f32, -5.0], [-8.0, 15.0, -3.0, -5.0]);
    check([-3.0, -5.0].map(f16::from_f32), [-8.0, 15.0, -3.0, -5.0].map(f16::from_f32));
    check([-3.0, -5.0].map(bf16::from_f32), [-8.0, 15.0, -3.0, -5.0].map(bf16::from_f32));
}
