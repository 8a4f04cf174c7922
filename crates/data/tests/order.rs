//! The order of blocks: a permutation, different each epoch, and uniform.
#![allow(clippy::unwrap_used)]

use fullshard_data::Order;
use proptest::prelude::*;

fn epoch(order: &Order, epoch: u64) -> Vec<u64> {
    (0..order.length()).map(|position| order.block(epoch, position).unwrap()).collect()
}

proptest! {
    #[test]
    fn every_block_occurs_once(seed: u64, number: u64, length in 1u64..3000) {
        let mut blocks = epoch(&Order::shuffled(seed, length), number);
        blocks.sort_unstable();
        prop_assert!(blocks.into_iter().eq(0..length));
    }

    #[test]
    fn huge_corpora_stay_within_bounds(seed: u64, length in 1u64 << 40..1 << 62, part: f64) {
        let position = (part.abs().fract() * length as f64) as u64;
        let order = Order::shuffled(seed, length);
        prop_assert!(order.block(0, position.min(length - 1)).unwrap() < length);
        prop_assert_eq!(order.block(0, length), None);
    }
}

#[test]
fn all_small_lengths_are_permuted() {
    for length in 0..=600 {
        let mut blocks = epoch(&Order::shuffled(length, length), 7);
        blocks.sort_unstable();
        assert!(blocks.into_iter().eq(0..length), "{length}");
    }
}

#[test]
fn epochs_and_seeds_differ() {
    let order = Order::shuffled(42, 1000);
    let same = |a: &[u64], b: &[u64]| a.iter().zip(b).filter(|(a, b)| a == b).count();
    let first = epoch(&order, 0);
    assert_eq!(first, epoch(&Order::shuffled(42, 1000), 0));
    assert!(same(&first, &epoch(&order, 1)) < 10);
    assert!(same(&first, &epoch(&Order::shuffled(43, 1000), 0)) < 10);
    assert!(same(&first, &(0..1000).collect::<Vec<_>>()) < 10);
}

#[test]
fn sequential_is_the_same_each_epoch() {
    assert!(epoch(&Order::sequential(10), 3).into_iter().eq(0..10));
    assert_eq!(Order::sequential(10).block(0, 10), None);
}

/// Chi-squared of counts that should be equal, over its degrees of freedom: near 1.
fn reduced_chi_squared(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let squared: f64 = counts.iter().map(|&count| (count as f64 - expected).powi(2)).sum();
    squared / expected / (counts.len() - 1) as f64
}

#[test]
fn blocks_are_uniform_over_positions() {
    for length in [2, 3, 5, 16, 17, 100] {
        let order = Order::shuffled(9, length);
        let mut counts = vec![0; (length * length) as usize];
        let mut followers = counts.clone();
        for number in 0..200 * length {
            let blocks = epoch(&order, number);
            for (position, &block) in blocks.iter().enumerate() {
                counts[position * length as usize + block as usize] += 1;
            }
            for pair in blocks.windows(2) {
                followers[(pair[0] * length + pair[1]) as usize] += 1;
            }
        }
        let pairs: Vec<u64> = (0..length * length)
            .filter(|at| at / length != at % length)
            .map(|at| followers[at as usize])
            .collect();
        // Of the n² position counts (n-1)² are free; five standard deviations around 1.
        let free = ((length - 1) * (length - 1)) as f64;
        let spread = 5.0 * (2.0 / free).sqrt();
        let positions = reduced_chi_squared(&counts) * (length * length - 1) as f64 / free;
        assert!((positions - 1.0).abs() < spread, "{length}: {positions}");
        let pairs = reduced_chi_squared(&pairs);
        assert!(length < 4 || (pairs - 1.0).abs() < spread.max(0.1), "{length}: {pairs}");
    }
}

#[test]
fn order_is_stable() {
    // A resumed run must see the same order, so these must never change.
    let first: Vec<u64> = epoch(&Order::shuffled(42, 1000), 3).into_iter().take(8).collect();
    assert_eq!(first, [639, 834, 997, 833, 301, 248, 943, 529]);
}
