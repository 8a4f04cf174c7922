//! Neural network ops.

use crate::check::{Input, check, config, dims};
use crate::common::eval;
use crate::random::Random;
use fullshard_graph::{Result, Tensor, value_and_grad};
use proptest::prelude::*;

/// The elements along one dimension at an index.
fn row(x: &Input, dim: usize, index: &[usize]) -> Vec<f64> {
    let mut from = index.to_vec();
    let mut at = |i: usize| {
        from[dim] = i;
        x.at(&from)
    };
    (0..x.dims[dim]).map(&mut at).collect()
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

fn sum_of_exponentials(row: &[f64]) -> f64 {
    row.iter().map(|x| x.exp()).sum()
}

/// Checks a function of an element and of its row.
fn check_rows(
    dims: &[usize],
    dim: usize,
    seed: u64,
    op: impl Fn(&Tensor) -> Result<Tensor>,
    value: impl Fn(f64, &[f64]) -> f64,
) {
    let x = Random::new(seed).spaced(dims);
    check(&[&x], |x| op(&x[0]), |index| value(x.at(index), &row(&x, dim, index)));
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn softmax(dims in dims(), seed: u64) {
        let dim = seed as usize % dims.len();
        let value = |x: f64, row: &[f64]| x.exp() / sum_of_exponentials(row);
        check_rows(&dims, dim, seed, |x| x.softmax(dim), value);
    }

    #[test]
    fn log_softmax(dims in dims(), seed: u64) {
        let dim = seed as usize % dims.len();
        let value = |x: f64, row: &[f64]| x - sum_of_exponentials(row).ln();
        check_rows(&dims, dim, seed, |x| x.log_softmax(dim), value);
    }

    #[test]
    fn logsumexp(dims in dims(), seed: u64) {
        let dim = seed as usize % dims.len();
        let op = |x: &Tensor| x.logsumexp(dim)?.expand(dim)?.broadcast_to(x.dims());
        check_rows(&dims, dim, seed, op, |_, row| sum_of_exponentials(row).ln());
    }

    #[test]
    fn normalize(dims in dims(), seed: u64) {
        let value = |x: f64, row: &[f64]| {
            let middle = mean(row.iter().copied());
            let variance = mean(row.iter().map(|x| (x - middle).powi(2)));
            (x - middle) / (variance + 0.01).sqrt()
        };
        check_rows(&dims, dims.len() - 1, seed, |x| x.normalize(0.01), value);
    }

    #[test]
    fn rms_normalize(dims in dims(), seed: u64) {
        let value = |x: f64, row: &[f64]| x / (mean(row.iter().map(|x| x * x)) + 0.01).sqrt();
        check_rows(&dims, dims.len() - 1, seed, |x| x.rms_normalize(0.01), value);
    }
}

/// The value and gradient of a function of a vector.
fn gradient_at(x: &[f64], function: impl Fn(&Tensor) -> Result<Tensor>) -> Vec<Vec<f64>> {
    eval(&[(&[x.len()], x)], |inputs| {
        let (value, gradients) = value_and_grad(&[&inputs[0]], |x| function(&x[0])?.sum_all())?;
        Ok(vec![value, gradients[0].clone()])
    })
}

#[test]
fn stop_gradient_has_no_gradient() {
    let found = gradient_at(&[2.0, 3.0], |x| x.square()?.stop_gradient());
    assert_eq!(found, [vec![13.0], vec![0.0, 0.0]]);
    let found = gradient_at(&[2.0, 3.0], |x| x * x.stop_gradient()?);
    assert_eq!(found, [vec![13.0], vec![2.0, 3.0]]);
}

#[test]
fn ties_split_the_gradient_of_max() {
    let found = gradient_at(&[2.0, 1.0, 2.0], |x| x.max(&[0]));
    assert_eq!(found, [vec![2.0], vec![0.5, 0.0, 0.5]]);
    let found = gradient_at(&[2.0, 1.0], |x| x.maximum(&(x * 1.0)?));
    assert_eq!(found, [vec![3.0], vec![1.0, 1.0]]);
}

#[test]
fn large_numbers_do_not_overflow() {
    let found = gradient_at(&[1000.0, 1000.0], |x| x.logsumexp(0));
    assert_eq!(found, [vec![1000.0 + 2.0_f64.ln()], vec![0.5, 0.5]]);
    let found = gradient_at(&[1000.0, -1000.0], |x| x.softmax(0)?.narrow(0, 0, 1));
    assert_eq!(found, [vec![1.0], vec![0.0, 0.0]]);
}
