//! The two forms of attention agree, in values and gradients.
#![allow(clippy::unwrap_used)]

mod common;

use common::{difference, eval, random};
use fullshard_graph::{DType, Result, Tensor, concatenate, value_aux_and_grad};
use fullshard_models::layers::attention::{Heads, Scores, blockwise, reference};
use fullshard_models::{Module, Plain, Scope};
use fullshard_pjrt::HostTensor;

/// The result of attention over given queries, keys, values and weights of the result, and the
/// gradients of the sum of the weighed result with regard to the first three.
fn attend(
    inputs: &[HostTensor],
    form: impl Fn(&Heads, &Scores) -> Result<Tensor>,
) -> Vec<Vec<f64>> {
    let results = eval(inputs, |inputs| {
        let (_, mixed, mut gradients) =
            value_aux_and_grad(&[&inputs[0], &inputs[1], &inputs[2]], |qkv| {
                let heads =
                    Heads { query: qkv[0].clone(), key: qkv[1].clone(), value: qkv[2].clone() };
                let mixed = form(&heads, &Scores::scaled(DType::F64, 0.7)?)?;
                Ok(((&mixed * &inputs[3])?.sum_all()?, vec![mixed]))
            })?;
        gradients.extend(mixed);
        Ok(gradients)
    });
    results.iter().map(|result| result.to_f64().unwrap()).collect()
}

fn plain_reference(heads: &Heads, scores: &Scores) -> Result<Tensor> {
    let plain = Plain::new(&Module::new("none"), &[], DType::F64)?;
    let mixed = Scope::root(&plain, |scope| Ok(vec![reference(scope, heads, scores)?]))?;
    Ok(mixed[0].clone())
}

fn inputs(heads: usize, key_heads: usize, sequence: usize) -> Vec<HostTensor> {
    let (query, key) = ([2, heads, sequence, 6], [2, key_heads, sequence, 6]);
    vec![random(&query, 1), random(&key, 2), random(&key, 3), random(&query, 4)]
}

#[test]
fn the_forms_agree() {
    // Whole blocks, a shorter last block, a last block of one, a block longer than the sequence.
    for (sequence, block) in [(12, 4), (13, 5), (9, 4), (7, 16)] {
        let inputs = inputs(4, 4, sequence);
        let expected = attend(&inputs, plain_reference);
        let found = attend(&inputs, |heads, scores| blockwise(heads, scores, block));
        for (found, expected) in found.iter().zip(&expected) {
            let apart = difference(found, expected);
            assert!(apart < 1e-12, "{sequence} in blocks of {block}: {apart}");
        }
    }
}

#[test]
fn grouped_queries_share_keys_and_values() {
    let grouped = inputs(6, 2, 11);
    let repeated = |heads: &Heads| -> Result<Heads> {
        let repeat = |x: &Tensor| {
            let [one, other] = [x.narrow(1, 0, 1)?, x.narrow(1, 1, 2)?];
            concatenate(&[&one, &one, &one, &other, &other, &other], 1)
        };
        let (key, value) = (repeat(&heads.key)?, repeat(&heads.value)?);
        Ok(Heads { key, value, ..heads.clone() })
    };
    let expected = attend(&grouped, |heads, scores| plain_reference(&repeated(heads)?, scores));
    let whole = attend(&grouped, plain_reference);
    let blocks = attend(&grouped, |heads, scores| blockwise(heads, scores, 4));
    for ((whole, blocks), expected) in whole.iter().zip(&blocks).zip(&expected) {
        assert!(difference(whole, expected) < 1e-12);
        assert!(difference(blocks, expected) < 1e-12);
    }
}

#[test]
fn the_future_is_not_seen() {
    let mut inputs = inputs(2, 1, 10);
    let before = attend(&inputs, |heads, scores| blockwise(heads, scores, 4)).pop().unwrap();
    // Other keys and values from the eighth position on.
    for i in [1, 2] {
        let (mut values, other) = (inputs[i].to_f64().unwrap(), random(&[2, 1, 10, 6], 9));
        for (j, value) in values.iter_mut().enumerate().filter(|(j, _)| j / 6 % 10 >= 7) {
            *value = other.to_f64().unwrap()[j];
        }
        inputs[i] = HostTensor::from_values(&[2, 1, 10, 6], &values).unwrap();
    }
    let after = attend(&inputs, |heads, scores| blockwise(heads, scores, 4)).pop().unwrap();
    for (j, (before, after)) in before.iter().zip(&after).enumerate() {
        assert_eq!(before == after, j / 6 % 10 < 7, "at position {}", j / 6 % 10);
    }
}

#[test]
fn probabilities_are_not_kept() {
    // The backward pass of blocks is given queries, keys and values, so that no value of the
    // size of a whole row of blocks' probabilities is alive between the passes.
    use fullshard_graph::{Argument, Program, TensorType};
    let argument = |heads| Argument::new(TensorType::new(DType::F32, &[2, heads, 512, 6]));
    let program = Program::trace("t", &[argument(4), argument(2), argument(2)], |qkv| {
        let (value, _, mut gradients) = value_aux_and_grad(&[&qkv[0], &qkv[1], &qkv[2]], |qkv| {
            let heads = Heads { query: qkv[0].clone(), key: qkv[1].clone(), value: qkv[2].clone() };
            let plain = Plain::new(&Module::new("none"), &[], DType::F32)?;
            let mixed = Scope::root(&plain, |scope| {
                let scores = Scores::scaled(DType::F32, 1.0)?;
                let mixed = fullshard_models::layers::attention::attention(scope, &heads, &scores)?;
                Ok(vec![mixed])
            })?;
            Ok((mixed[0].sum_all()?, vec![]))
        })?;
        gradients.push(value);
        Ok(gradients)
    })
    .unwrap();
    let text = program.to_text();
    assert!(!text.contains("512x512x"), "the upper triangle is computed");
    assert!(text.contains("256x512x"), "the last block sees the whole sequence");
    assert!(text.contains("optimization_barrier"), "blocks are computed again");
}
