//! Every kind of mask in every form, in values and gradients, against its definition: a softmax
//! over the scores of the visible keys.

use super::{TestTracer, assert_close};
use crate::common::{eval, random};
use fullshard_graph::{
    Argument, DType, Program, Result, Tensor, TensorType, constant, einsum, select,
    value_aux_and_grad, zeros,
};
use fullshard_models::Scope;
use fullshard_models::layers::attention::{
    Form, Heads, Mask, Pattern, Scores, blockwise, reference, unsupported_reason,
};
use fullshard_pjrt::HostTensor;

const BATCH: usize = 2;
const QUERIES: usize = 13;
const SCALE: f64 = 0.7;

/// The valid keys of each row. The second row begins with padding, so that its first queries see no
/// key under a causal mask.
const KEYS: [&[usize]; BATCH] = [&[0, 1, 2, 3, 4, 5, 6, 7, 8], &[2, 3, 5, 6, 7, 10, 11, 12]];

/// The definition of [`Pattern`].
fn sees(pattern: Pattern, query: usize, key: usize) -> bool {
    match pattern {
        Pattern::Causal => key <= query,
        Pattern::Full => true,
        Pattern::Window(size) => key <= query && query - key < size,
        Pattern::Prefix(length) => key <= query || key < length,
    }
}

/// Attention by its definition, with a full mask.
fn definition(heads: &Heads, seen: &[bool]) -> Result<Tensor> {
    let (query, key) = (heads.query.dims(), heads.key.dims());
    let groups = [query[0], key[1], query[1] / key[1], query[2], query[3]];
    let scores = einsum("bgrqd,bgkd->bgrqk", &heads.query.reshape(&groups)?, &heads.key)?;
    let seen = constant(&[query[0], 1, 1, query[2], key[2]], seen)?;
    let exponentials = select(&seen, &(scores * SCALE)?.exp()?, &zeros(DType::F64, &[])?)?;
    let sums = exponentials.sum(&[4])?.expand(4)?;
    // A query that sees no key has a sum of zero, and its output is zero.
    let probabilities = (exponentials / sums.maximum(&constant(&[], &[1e-300])?)?)?;
    einsum("bgrqk,bgkd->bgrqd", &probabilities, &heads.value)?.reshape(query)
}

/// The output and gradients of a form of attention.
fn traced(
    inputs: &[Tensor],
    form: impl Fn(&Scope<'_>, &Heads) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let tracer = TestTracer::new(DType::F64);
    let (weights, inputs) = (&inputs[3], [&inputs[0], &inputs[1], &inputs[2]]);
    let (_, mut results, gradients) = value_aux_and_grad(&inputs, |inputs| {
        let [query, key, value] = inputs.try_into().unwrap();
        let heads = Heads { query, key, value };
        let found = Scope::root(&tracer, |scope| Ok(vec![form(scope, &heads)?]))?;
        Ok(((&found[0] * weights)?.sum_all()?, found))
    })?;
    results.extend(gradients);
    Ok(results)
}

/// Checks both forms with a pattern, with and without padding.
#[track_caller]
fn check(pattern: Pattern, keys: usize) {
    let (query, key) = ([BATCH, 4, QUERIES, 6], [BATCH, 2, keys, 6]);
    let inputs: Vec<HostTensor> =
        vec![random(&query, 1), random(&key, 2), random(&key, 3), random(&query, 4)];
    for padded in [false, true] {
        let is_key = |row: usize, key: usize| !padded || KEYS[row].contains(&key);
        let mut seen = Vec::new();
        for row in 0..BATCH {
            for query in 0..QUERIES {
                seen.extend((0..keys).map(|key| sees(pattern, query, key) && is_key(row, key)));
            }
        }
        let results = eval(&inputs, |inputs| {
            let mask = || {
                let mask = Mask { pattern, keys: None };
                let keys: Vec<i32> =
                    (0..BATCH * keys).map(|i| is_key(i / keys, i % keys).into()).collect();
                match padded {
                    true => mask.without_padding(&constant(&[BATCH, keys.len() / BATCH], &keys)?),
                    false => Ok(mask),
                }
            };
            let scores = || Scores::scaled(mask()?, DType::F64, SCALE);
            let mut results = traced(inputs, |_, heads| definition(heads, &seen))?;
            results.extend(traced(inputs, |scope, heads| reference(scope, heads, &scores()?))?);
            for block in [5, 32] {
                let blocks =
                    |scope: &Scope<'_>, heads: &Heads| blockwise(scope, heads, &scores()?, block);
                results.extend(traced(inputs, blocks)?);
            }
            Ok(results)
        });
        let values: Vec<Vec<f64>> = results.iter().map(|found| found.to_f64().unwrap()).collect();
        let (expected, found) = values.split_at(4);
        found.chunks(4).for_each(|found| assert_close(found, expected));
    }
}

#[test]
fn causal_masks_match_definition() {
    check(Pattern::Causal, QUERIES);
}

#[test]
fn full_masks_match_definition() {
    check(Pattern::Full, QUERIES);
}

#[test]
fn cross_attention_matches_definition() {
    check(Pattern::Full, 9);
}

#[test]
fn window_masks_match_definition() {
    check(Pattern::Window(4), QUERIES);
    check(Pattern::Window(1), QUERIES);
}

#[test]
fn prefix_masks_match_definition() {
    check(Pattern::Prefix(7), QUERIES);
    check(Pattern::Prefix(99), QUERIES);
}

#[test]
fn lengths_become_key_masks() {
    let results = eval(&[random(&[1], 1)], |_| {
        let lengths = constant(&[3], &[0_i32, 2, 4])?;
        let mask = Mask::full().with_lengths(&lengths, 4)?;
        Ok(vec![mask.keys.unwrap().convert(DType::F32)?])
    });
    let expected = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0];
    assert_eq!(results[0].to_f64().unwrap(), expected);
}

/// A block of queries gets no key that none of them sees.
#[test]
fn excluded_keys_are_not_computed() {
    let arguments = [Argument::new(TensorType::new(DType::F64, &[1, 1, 1024, 8]))];
    let text = |mask: fn() -> Mask| {
        let program = Program::trace("window", &arguments, |inputs| {
            let [query, key, value] = [0, 0, 0].map(|i: usize| inputs[i].clone());
            let heads = Heads { query, key, value };
            let scores = Scores::scaled(mask(), DType::F64, SCALE)?;
            let tracer = TestTracer::new(DType::F64);
            Scope::root(&tracer, |scope| Ok(vec![blockwise(scope, &heads, &scores, 256)?]))
        });
        program.unwrap().to_text()
    };
    let window = text(|| Mask::window(101));
    assert!(window.contains("256x256xf64") && window.contains("256x356xf64"));
    assert!(!window.contains("256x512xf64") && !window.contains("256x1024xf64"));
    let prefix = text(|| Mask::prefix(600));
    assert!(prefix.contains("256x600xf64") && prefix.contains("256x1024xf64"));
    assert!(!prefix.contains("256x256xf64") && !prefix.contains("256x512xf64"));
}

#[test]
fn rejects_masks_of_wrong_size() {
    let argument = |sequence| Argument::new(TensorType::new(DType::F32, &[2, 1, sequence, 8]));
    let error = |keys: usize, mask: fn() -> Result<Mask>| {
        let program = Program::trace("rejected", &[argument(6), argument(keys)], |inputs| {
            let (query, key) = (inputs[0].clone(), inputs[1].clone());
            let heads = Heads { query, value: key.clone(), key };
            let scores = Scores::scaled(mask()?, DType::F32, SCALE)?;
            let tracer = TestTracer::new(DType::F32);
            Scope::root(&tracer, |scope| Ok(vec![reference(scope, &heads, &scores)?]))
        });
        program.unwrap_err().to_string()
    };
    let causal = error(5, || Ok(Mask::causal()));
    assert!(causal.contains("a causal mask of 6 queries and 5 keys"), "{causal}");
    let window = error(6, || Ok(Mask::window(0)));
    assert!(window.contains("a window of 0 keys"), "{window}");
    let padding = || Mask::full().with_lengths(&constant(&[2], &[1_i32, 2])?, 4);
    let padding = error(6, padding);
    assert!(padding.contains("a key mask") && padding.contains("[2, 6]"), "{padding}");
}

#[test]
fn kernel_reports_unsupported_masks() {
    let found =
        |form: Form| unsupported_reason(DType::Bf16, 1024, 64, form, false).unwrap_or_default();
    let of = |pattern| found(Form { pattern, ..Form::default() });
    assert_eq!(of(Pattern::Causal), "");
    assert!(of(Pattern::Full).contains("the mask is full"));
    assert!(of(Pattern::Window(64)).contains("the mask is window of 64"));
    assert!(of(Pattern::Prefix(3)).contains("the mask is prefix of 3"));
    assert!(found(Form { padding: true, ..Form::default() }).contains("keys can be padding"));
    let both = Form::default().and(Form { pattern: Pattern::Full, ..Form::default() });
    assert_eq!(both.pattern, Pattern::Full);
}
