//! Indexing and sorting.

use crate::check::{Input, check, config, dims, flat};
use crate::common::eval;
use crate::random::Random;
use fullshard_graph::{DType, Result, Tensor, constant, value_and_grad};
use proptest::prelude::*;

/// Random indices below a limit, with their dimensions.
fn random_indices(random: &mut Random, rank: usize, limit: usize) -> (Vec<usize>, Vec<i32>) {
    let dims = random.dims(rank);
    let count = dims.iter().product::<usize>();
    let picks = (0..count).map(|_| random.below(limit) as i32).collect();
    (dims, picks)
}

/// The starts of a slice, as tensors.
fn starts(values: &[i32]) -> Result<Vec<Tensor>> {
    values.iter().map(|&start| constant(&[], &[start])).collect()
}

/// Sizes of a slice, and starts within bounds.
fn random_slice(random: &mut Random, dims: &[usize]) -> (Vec<usize>, Vec<i32>) {
    let sizes: Vec<usize> = dims.iter().map(|&dim| 1 + random.below(dim)).collect();
    let room = dims.iter().zip(&sizes).map(|(dim, size)| dim - size + 1);
    let starts = room.map(|room| random.below(room) as i32).collect();
    (sizes, starts)
}

/// The order that sorts the elements along a dimension.
fn order(x: &Input, dim: usize, index: &[usize], descending: bool) -> Vec<usize> {
    let at = |i: usize| {
        let mut from = index.to_vec();
        from[dim] = i;
        x.at(&from)
    };
    let mut order: Vec<usize> = (0..x.dims[dim]).collect();
    order.sort_by(|&a, &b| at(a).total_cmp(&at(b)));
    if descending {
        order.reverse();
    }
    order
}

fn sorted_at(x: &Input, dim: usize, index: &[usize], descending: bool) -> f64 {
    let mut from = index.to_vec();
    from[dim] = order(x, dim, index, descending)[index[dim]];
    x.at(&from)
}

/// A dimension, and indices along it that match the others.
fn random_indices_along(random: &mut Random, dims: &[usize]) -> (usize, Vec<usize>, Vec<i32>) {
    let dim = random.below(dims.len());
    let mut index_dims = dims.to_vec();
    index_dims[dim] = 1 + random.below(5);
    let picks = (0..index_dims.iter().product()).map(|_| random.below(dims[dim]) as i32).collect();
    (dim, index_dims, picks)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn take(dims in dims(), rank in 0..=2_usize, seed: u64) {
        let mut random = Random::new(seed);
        let (index_dims, picks) = random_indices(&mut random, rank, dims[0]);
        let x = random.around_zero(&dims);
        check(&[&x], |x| x[0].take(&constant(&index_dims, &picks)?), |index| {
            let (pick, rest) = index.split_at(rank);
            let row = picks[flat(&index_dims, pick)] as usize;
            x.at(&[&[row], rest].concat())
        });
    }

    #[test]
    fn take_along(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let (dim, index_dims, picks) = random_indices_along(&mut random, &dims);
        let x = random.around_zero(&dims);
        check(&[&x], |x| x[0].take_along(&constant(&index_dims, &picks)?, dim), |index| {
            let mut from = index.to_vec();
            from[dim] = picks[flat(&index_dims, index)] as usize;
            x.at(&from)
        });
    }

    #[test]
    fn add_along(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let (dim, index_dims, picks) = random_indices_along(&mut random, &dims);
        let (x, added) = (random.around_zero(&dims), random.around_zero(&index_dims));
        check(
            &[&x, &added],
            |x| x[0].add_along(&constant(&index_dims, &picks)?, dim, &x[1]),
            |index| {
                let from = (0..index_dims[dim]).map(|i| {
                    let mut from = index.to_vec();
                    from[dim] = i;
                    from
                });
                let pick = |from: &Vec<usize>| picks[flat(&index_dims, from)] as usize;
                let here = from.filter(|from| pick(from) == index[dim]);
                here.map(|from| added.at(&from)).sum::<f64>() + x.at(index)
            },
        );
    }

    #[test]
    fn add_rows(dims in dims(), rank in 0..=2_usize, seed: u64) {
        let mut random = Random::new(seed);
        let (index_dims, picks) = random_indices(&mut random, rank, dims[0]);
        let table = random.around_zero(&dims);
        let rows = random.around_zero(&[&index_dims[..], &dims[1..]].concat());
        let row = dims[1..].iter().product::<usize>();
        check(
            &[&table, &rows],
            |x| x[0].add_rows(&constant(&index_dims, &picks)?, &x[1]),
            |index| {
                let offset = flat(&dims[1..], &index[1..]);
                let here = picks.iter().enumerate().filter(|(_, pick)| **pick as usize == index[0]);
                here.map(|(i, _)| rows.values[i * row + offset]).sum::<f64>() + table.at(index)
            },
        );
    }

    #[test]
    fn dynamic_slice(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let (sizes, offsets) = random_slice(&mut random, &dims);
        let x = random.around_zero(&dims);
        let op = |x: &[Tensor]| {
            x[0].dynamic_slice(&starts(&offsets)?.iter().collect::<Vec<_>>(), &sizes)
        };
        check(&[&x], op, |index| {
            let from = index.iter().zip(&offsets).map(|(i, start)| i + *start as usize);
            x.at(&from.collect::<Vec<_>>())
        });
    }

    #[test]
    fn dynamic_update_slice(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let (sizes, offsets) = random_slice(&mut random, &dims);
        let (x, update) = (random.around_zero(&dims), random.around_zero(&sizes));
        let op = |x: &[Tensor]| {
            x[0].dynamic_update_slice(&x[1], &starts(&offsets)?.iter().collect::<Vec<_>>())
        };
        check(&[&x, &update], op, |index| {
            let inside = |dim: usize| {
                let i = index[dim].checked_sub(offsets[dim] as usize)?;
                (i < sizes[dim]).then_some(i)
            };
            let inside: Option<Vec<usize>> = (0..dims.len()).map(inside).collect();
            inside.map_or_else(|| x.at(index), |index| update.at(&index))
        });
    }

    #[test]
    fn at(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let dim = random.below(dims.len());
        let offset = random.below(dims[dim]);
        let x = random.around_zero(&dims);
        check(&[&x], |x| x[0].at(dim, &constant(&[], &[offset as i64])?), |index| {
            let mut from = index.to_vec();
            from.insert(dim, offset);
            x.at(&from)
        });
    }

    #[test]
    fn sort(dims in dims(), descending: bool, seed: u64) {
        let mut random = Random::new(seed);
        let dim = random.below(dims.len());
        let x = random.spaced(&dims);
        check(&[&x], |x| x[0].sort(dim, descending), |index| {
            sorted_at(&x, dim, index, descending)
        });
    }

    #[test]
    fn argsort(dims in dims(), descending: bool, seed: u64) {
        let mut random = Random::new(seed);
        let dim = random.below(dims.len());
        let x = random.spaced(&dims);
        let op = |x: &[Tensor]| x[0].argsort(dim, descending)?.convert(DType::F64);
        check(&[&x], op, |index| order(&x, dim, index, descending)[index[dim]] as f64);
    }

    #[test]
    fn top_k(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let last = dims.len() - 1;
        let k = 1 + random.below(dims[last]);
        let x = random.spaced(&dims);
        let value = |index: &[usize]| sorted_at(&x, last, index, true);
        check(&[&x], |x| Ok(x[0].top_k(k)?.0), value);
        let offsets = |x: &[Tensor]| x[0].top_k(k)?.1.convert(DType::F64);
        check(&[&x], offsets, |index| order(&x, last, index, true)[index[last]] as f64);
    }
}

#[test]
fn out_of_range_indices_are_clamped_in_forward_and_backward() {
    let found = eval(&[(&[3], &[1.0, 2.0, 4.0])], |inputs| {
        let (value, gradients) = value_and_grad(&[&inputs[0]], |x| {
            x[0].take(&constant(&[4], &[-1, 0, 3, 9])?)?.sum_all()
        })?;
        Ok(vec![value, gradients[0].clone()])
    });
    assert_eq!(found, [vec![10.0], vec![2.0, 0.0, 2.0]]);
    let found = eval(&[(&[2], &[1.0, 2.0]), (&[2], &[10.0, 20.0])], |inputs| {
        let (value, gradients) = value_and_grad(&[&inputs[0], &inputs[1]], |x| {
            let table = x[0].add_rows(&constant(&[2], &[5, -5])?, &x[1])?;
            (table * constant(&[2], &[1.0, 3.0])?)?.sum_all()
        })?;
        Ok([value].into_iter().chain(gradients).collect())
    });
    assert_eq!(found, [vec![57.0], vec![1.0, 3.0], vec![3.0, 1.0]]);
}

#[test]
fn out_of_range_starts_are_clamped_in_forward_and_backward() {
    let found = eval(&[(&[4], &[1.0, 2.0, 4.0, 8.0])], |inputs| {
        let (value, gradients) = value_and_grad(&[&inputs[0]], |x| {
            x[0].dynamic_slice(&[&constant(&[], &[7])?], &[2])?.sum_all()
        })?;
        Ok(vec![value, gradients[0].clone()])
    });
    assert_eq!(found, [vec![12.0], vec![0.0, 0.0, 1.0, 1.0]]);
}

#[test]
fn sort_is_stable() {
    let found = eval(&[(&[4], &[2.0, 1.0, 2.0, 1.0])], |x| {
        [false, true].map(|down| x[0].argsort(0, down)?.convert(DType::F64)).into_iter().collect()
    });
    assert_eq!(found, [[1.0, 3.0, 0.0, 2.0], [0.0, 2.0, 1.0, 3.0]]);
}
