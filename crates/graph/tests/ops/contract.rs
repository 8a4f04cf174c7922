//! Matmuls and `einsum`.

use crate::check::{check, config, indices};
use crate::common::{CLIENT, call, numbers};
use crate::random::Random;
use fullshard_graph::{Argument, DType, Program, Result, Tensor, TensorType, einsum};
use fullshard_pjrt::{CompileOptions, Flag, HostTensor};
use half::bf16;
use proptest::prelude::*;

/// Attention, matmuls, outer products, and contractions with several batch and several contracted
/// indices in different orders.
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
    let contracted: String = left.chars().filter(|&name| !result.contains(name)).collect();
    check(
        &inputs,
        |x| einsum(spec, &x[0], &x[1]),
        |index| {
            let term = |inner: Vec<usize>| {
                let position = |name: char| match result.chars().position(|n| n == name) {
                    Some(i) => index[i],
                    None => inner[contracted.chars().position(|n| n == name).unwrap()],
                };
                let at = |part: &str| part.chars().map(position).collect::<Vec<_>>();
                inputs[0].at(&at(left)) * inputs[1].at(&at(right))
            };
            indices(&dims(&contracted)).into_iter().map(term).sum()
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

/// Attention scores in a type, compiled at an optimization level, from concatenated queries and
/// keys.
fn scores(dtype: DType, level: i64, dims: [usize; 3], values: &[f64]) -> Vec<f64> {
    let [sequences, tokens, width] = dims;
    let heads = |part: &Tensor| -> Result<Tensor> {
        part.reshape(&[sequences, tokens, 3, width / 6])?.transpose(&[0, 2, 1, 3])
    };
    let argument = Argument::new(TensorType::new(dtype, &dims));
    let program = Program::trace("scores", &[argument], |x| {
        let parts = x[0].split(2, 2)?;
        Ok(vec![einsum("bhqd,bhkd->bhqk", &heads(&parts[0])?, &heads(&parts[1])?)?])
    });
    let input = match dtype {
        DType::Bf16 => {
            let rounded: Vec<bf16> = values.iter().map(|&x| bf16::from_f64(x)).collect();
            HostTensor::from_values(&dims, &rounded)
        }
        _ => HostTensor::from_values(&dims, values),
    };
    let options = CompileOptions::new(1).flag("xla_backend_optimization_level", Flag::Int(level));
    let loaded = CLIENT.compile(&program.unwrap().to_text(), &options).unwrap();
    call(&loaded, &[input.unwrap()])[0].to_f64().unwrap()
}

/// The CPU compiler turns the heads of one sequence into a concatenation, whose kernel returns
/// zeros in `bf16` at level 0. This checks the levels in use, the default and the fast one.
#[test]
fn bf16_scores_of_one_sequence() {
    for dims in [[1, 11, 42], [2, 11, 42]] {
        // Quarters, which are exact in `bf16`, so that only the result is rounded.
        let values = numbers(dims.iter().product(), 3);
        let values: Vec<f64> = values.iter().map(|x| (x * 8.0).round() / 4.0).collect();
        let expected = scores(DType::F64, 3, dims, &values);
        for level in [1, 3] {
            let found = scores(DType::Bf16, level, dims, &values);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let rounding = expected.abs() / 256.0;
                let off = (found - expected).abs();
                assert!(off <= rounding, "{dims:?}, level {level}, at {i}: {found} for {expected}");
            }
        }
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
            let (batch, position) = index.split_at(batches);
            let term = |k: usize| {
                left.at(&[batch, &[position[0], k]].concat())
                    * right.at(&[batch, &[k, position[1]]].concat())
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
            let (batch, position) = index.split_at(batches);
            let term = |k: usize| left.at(&[batch, &[k]].concat()) * right.at(&[k, position[0]]);
            (0..sizes[0]).map(term).sum()
        });
    }
}
