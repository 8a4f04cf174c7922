//! Reductions over dimensions.

use crate::check::{Input, check, config, dims, indices};
use crate::random::Random;
use fullshard_graph::{Result, Tensor};
use proptest::prelude::*;

/// The elements of an input that are reduced to the one at an index.
fn reduced(input: &Input, dims: &[usize], index: &[usize]) -> Vec<f64> {
    let kept: Vec<usize> = (0..input.dims.len()).filter(|dim| !dims.contains(dim)).collect();
    let here = |from: &&Vec<usize>| kept.iter().zip(index).all(|(&dim, &i)| from[dim] == i);
    indices(&input.dims).iter().filter(here).map(|from| input.at(from)).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn check_reduction(
    dims: &[usize],
    seed: u64,
    op: impl Fn(&Tensor, &[usize]) -> Result<Tensor>,
    value: impl Fn(&[f64]) -> f64,
) {
    let mut random = Random::new(seed);
    let over = random.some_of(dims.len());
    let x = random.spaced(dims);
    check(&[&x], |x| op(&x[0], &over), |index| value(&reduced(&x, &over, index)));
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn sum(dims in dims(), seed: u64) {
        check_reduction(&dims, seed, Tensor::sum, |values| values.iter().sum());
    }

    #[test]
    fn mean_over(dims in dims(), seed: u64) {
        check_reduction(&dims, seed, Tensor::mean, mean);
    }

    #[test]
    fn max(dims in dims(), seed: u64) {
        check_reduction(&dims, seed, Tensor::max, |values| {
            values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
        });
    }

    #[test]
    fn min(dims in dims(), seed: u64) {
        check_reduction(&dims, seed, Tensor::min, |values| {
            values.iter().copied().fold(f64::INFINITY, f64::min)
        });
    }

    #[test]
    fn over_all_dims(dims in dims(), seed: u64) {
        let x = Random::new(seed).around_zero(&dims);
        check(&[&x], |x| x[0].sum_all()? * x[0].mean_all()?, |_| {
            x.values.iter().sum::<f64>() * mean(&x.values)
        });
    }

    #[test]
    fn moments(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let dim = random.below(dims.len());
        let x = random.around_zero(&dims);
        let values = |index: &[usize]| {
            let mut index = index.to_vec();
            index.remove(dim);
            reduced(&x, &[dim], &index)
        };
        check(&[&x], |x| Ok(x[0].moments(dim)?.0), |index| mean(&values(index)));
        check(&[&x], |x| Ok(x[0].moments(dim)?.1), |index| {
            let values = values(index);
            let middle = mean(&values);
            mean(&values.iter().map(|x| (x - middle).powi(2)).collect::<Vec<_>>())
        });
    }
}
