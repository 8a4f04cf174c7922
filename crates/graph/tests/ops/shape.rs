//! Shape ops.

use crate::check::{Input, check, config, dims, flat};
use crate::random::Random;
use fullshard_graph::concatenate;
use proptest::prelude::*;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn broadcast_to(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let own = random.broadcastable(&dims);
        let x = random.around_zero(&own);
        check(&[&x], |x| x[0].broadcast_to(&dims), |index| x.broadcast_at(index));
    }

    #[test]
    fn reshape(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let order = random.permutation(dims.len());
        let mut other: Vec<usize> = order.iter().map(|&dim| dims[dim]).collect();
        other.insert(random.below(dims.len() + 1), 1);
        let x = random.around_zero(&dims);
        check(&[&x], |x| x[0].reshape(&other), |index| x.values[flat(&other, index)]);
        let scalar = random.around_zero(&[1, 1]);
        check(&[&scalar], |x| x[0].reshape(&[]), |_| scalar.values[0]);
    }

    #[test]
    fn transpose(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let order = random.permutation(dims.len());
        let x = random.around_zero(&dims);
        check(&[&x], |x| x[0].transpose(&order), |index| {
            let mut from = vec![0; index.len()];
            order.iter().zip(index).for_each(|(&dim, &i)| from[dim] = i);
            x.at(&from)
        });
    }

    #[test]
    fn t(rank in 2..=4_usize, seed: u64) {
        let mut random = Random::new(seed);
        let dims = random.dims(rank);
        let x = random.around_zero(&dims);
        check(&[&x], |x| x[0].t(), |index| {
            let mut from = index.to_vec();
            from.swap(rank - 2, rank - 1);
            x.at(&from)
        });
    }

    #[test]
    fn expand(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let position = random.below(dims.len() + 1);
        let x = random.around_zero(&dims);
        check(&[&x], |x| x[0].expand(position), |index| {
            let mut from = index.to_vec();
            from.remove(position);
            x.at(&from)
        });
    }

    #[test]
    fn slice(dims in dims(), seed: u64) {
        let (x, start, limit, _) = sliced(&dims, seed);
        check(&[&x], |x| x[0].slice(&start, &limit), |index| {
            let from: Vec<usize> = index.iter().zip(&start).map(|(i, start)| i + start).collect();
            x.at(&from)
        });
    }

    #[test]
    fn slice_strided(dims in dims(), seed: u64) {
        let (x, start, limit, stride) = sliced(&dims, seed);
        check(&[&x], |x| x[0].slice_strided(&start, &limit, &stride), |index| {
            let from = (0..index.len()).map(|dim| start[dim] + index[dim] * stride[dim]);
            x.at(&from.collect::<Vec<_>>())
        });
    }

    #[test]
    fn narrow(dims in dims(), seed: u64) {
        let (x, start, limit, _) = sliced(&dims, seed);
        let dim = seed as usize % dims.len();
        check(&[&x], |x| x[0].narrow(dim, start[dim], limit[dim]), |index| {
            let mut from = index.to_vec();
            from[dim] += start[dim];
            x.at(&from)
        });
    }

    #[test]
    fn split(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let (dim, parts) = (random.below(dims.len()), 1 + random.below(3));
        let mut full = dims.clone();
        full[dim] *= parts;
        let x = random.around_zero(&full);
        let selected = random.below(parts);
        let scaled = |x: &[fullshard_graph::Tensor]| {
            // Every part is used, one of them with a larger weight.
            let split = x[0].split(dim, parts)?;
            let sum = split[1..].iter().try_fold(split[0].clone(), |sum, part| sum + part)?;
            sum + (&split[selected] * 2.0)?
        };
        check(&[&x], scaled, |index| {
            let part = |i: usize| {
                let mut from = index.to_vec();
                from[dim] += i * dims[dim];
                x.at(&from)
            };
            (0..parts).map(part).sum::<f64>() + 2.0 * part(selected)
        });
    }

    #[test]
    fn pad(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let (mut low, mut high, mut interior) = (vec![], vec![], vec![]);
        for &dim in &dims {
            let between = random.below(3);
            let inner = (dim + (dim - 1) * between) as i64;
            interior.push(between);
            low.push(random.within(1 - inner, 2));
            high.push(random.within((1 - inner - low[low.len() - 1]).min(2), 2));
        }
        let x = random.around_zero(&dims);
        check(&[&x], |x| x[0].pad(0.25, &low, &high, &interior), |index| {
            let from = |dim: usize| {
                let position = usize::try_from(index[dim] as i64 - low[dim]).ok()?;
                let step = interior[dim] + 1;
                (position % step == 0 && position / step < dims[dim]).then_some(position / step)
            };
            let from: Option<Vec<usize>> = (0..dims.len()).map(from).collect();
            from.map_or(0.25, |from| x.at(&from))
        });
    }

    #[test]
    fn reverse(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let reversed = random.some_of(dims.len());
        let x = random.around_zero(&dims);
        check(&[&x], |x| x[0].reverse(&reversed), |index| {
            let from = |dim: usize| {
                if reversed.contains(&dim) { dims[dim] - 1 - index[dim] } else { index[dim] }
            };
            x.at(&(0..dims.len()).map(from).collect::<Vec<_>>())
        });
    }

    #[test]
    fn concatenate_along(dims in dims(), count in 1..=3_usize, seed: u64) {
        let mut random = Random::new(seed);
        let dim = random.below(dims.len());
        let mut part = || {
            let mut dims = dims.clone();
            dims[dim] = 1 + random.below(3);
            random.around_zero(&dims)
        };
        let inputs: Vec<Input> = (0..count).map(|_| part()).collect();
        check(&inputs, |x| concatenate(&x.iter().collect::<Vec<_>>(), dim), |index| {
            let mut from = index.to_vec();
            for input in &inputs {
                match from[dim].checked_sub(input.dims[dim]) {
                    Some(rest) => from[dim] = rest,
                    None => return input.at(&from),
                }
            }
            unreachable!()
        });
    }
}

/// An input, and valid starts, limits and strides.
fn sliced(dims: &[usize], seed: u64) -> (Input, Vec<usize>, Vec<usize>, Vec<usize>) {
    let mut random = Random::new(seed);
    let start: Vec<usize> = dims.iter().map(|&dim| random.below(dim)).collect();
    let room = dims.iter().zip(&start).map(|(dim, start)| dim - start);
    let limit = room.zip(&start).map(|(room, start)| start + 1 + random.below(room)).collect();
    let stride = dims.iter().map(|_| 1 + random.below(3)).collect();
    (random.around_zero(dims), start, limit, stride)
}
