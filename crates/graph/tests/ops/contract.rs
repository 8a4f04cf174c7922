//! Matrix products and `einsum`.

use crate::check::{check, config, indices};
use crate::random::Random;
use fullshard_graph::einsum;
use proptest::prelude::*;

/// Attention, matrix products, outer products, and products with several batches and several
/// summed indices in different orders.
const SPECS: &[&str] = &[
    "bqhd,bkhd->bhqk",
    "bhqk,bkhd->bqhd",
    "ij,jk->ik",
    "ij,jk->ki",
    "ij,kj->ik",
    "abc,cba->",
    "a,b->ba",
    "ab,ba->ab",
    "ab,ba->ba",
    "abcd,dbce->ae",
    "abcd,dbce->ea",
    "abcd,dbce->edba",
    "abcd,dcbe->bdae",
    "abcd,cdab->ba",
    "abc,dcb->adb",
];

fn check_einsum(spec: &str, random: &mut Random) {
    let (operands, result) = spec.split_once("->").unwrap();
    let (left, right) = operands.split_once(',').unwrap();
    let names: Vec<char> = ('a'..='z').collect();
    let sizes = random.dims(names.len());
    let size = |name: char| sizes[names.iter().position(|&n| n == name).unwrap()];
    let dims = |part: &str| part.chars().map(size).collect::<Vec<_>>();
    let inputs = [random.around_zero(&dims(left)), random.around_zero(&dims(right))];
    let summed: String = left.chars().filter(|&name| !result.contains(name)).collect();
    check(
        &inputs,
        |x| einsum(spec, &x[0], &x[1]),
        |index| {
            let term = |inner: Vec<usize>| {
                let place = |name: char| match result.chars().position(|n| n == name) {
                    Some(i) => index[i],
                    None => inner[summed.chars().position(|n| n == name).unwrap()],
                };
                let at = |part: &str| part.chars().map(place).collect::<Vec<_>>();
                inputs[0].at(&at(left)) * inputs[1].at(&at(right))
            };
            indices(&dims(&summed)).into_iter().map(term).sum()
        },
    );
}

#[test]
fn einsum_in_every_order() {
    let mut random = Random::new(5);
    for spec in SPECS {
        check_einsum(spec, &mut random);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn einsum_of_random_sizes(spec in proptest::sample::select(SPECS), seed: u64) {
        check_einsum(spec, &mut Random::new(seed));
    }

    #[test]
    fn matmul(batches in 0..=2_usize, seed: u64) {
        let mut random = Random::new(seed);
        let batch = random.dims(batches);
        let sizes = random.dims(3);
        let left = random.around_zero(&[&batch[..], &[sizes[0], sizes[1]]].concat());
        let right = random.around_zero(&[&batch[..], &[sizes[1], sizes[2]]].concat());
        check(&[&left, &right], |x| x[0].matmul(&x[1]), |index| {
            let (batch, place) = index.split_at(batches);
            let term = |k: usize| {
                left.at(&[batch, &[place[0], k]].concat())
                    * right.at(&[batch, &[k, place[1]]].concat())
            };
            (0..sizes[1]).map(term).sum()
        });
    }

    #[test]
    fn linear(batches in 0..=3_usize, seed: u64) {
        let mut random = Random::new(seed);
        let batch = random.dims(batches);
        let sizes = random.dims(2);
        let left = random.around_zero(&[&batch[..], &[sizes[0]]].concat());
        let right = random.around_zero(&sizes);
        check(&[&left, &right], |x| x[0].linear(&x[1]), |index| {
            let (batch, place) = index.split_at(batches);
            let term = |k: usize| left.at(&[batch, &[k]].concat()) * right.at(&[k, place[0]]);
            (0..sizes[0]).map(term).sum()
        });
    }
}
