//! The forms of the loss match, in values and gradients.
#![allow(clippy::unwrap_used)]

mod common;

use common::{difference, eval, numbers, random};
use fullshard_graph::{
    Argument, DType, Dialect, Program, Result, Tensor, TensorType, value_and_grad,
    value_aux_and_grad,
};
use fullshard_models::layers::loss::{TILE, chunk_size, chunked, loss_custom_call, reference};
use fullshard_models::{IGNORED, Loss, label_count};
use fullshard_pjrt::HostTensor;

const WIDTH: usize = 7;

/// The sum, the count, and the gradients of three times the sum with respect to hidden states and
/// head, computed in a dtype.
fn losses(
    inputs: &[HostTensor],
    dtype: DType,
    form: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Loss>,
) -> Vec<Vec<f64>> {
    let results = eval(inputs, |inputs| {
        let (hidden, head) = (inputs[0].convert(dtype)?, inputs[1].convert(dtype)?);
        let (_, mut values, gradients) = value_aux_and_grad(&[&hidden, &head], |values| {
            let loss = form(&values[0], &values[1], &inputs[2])?;
            Ok(((&loss.sum * 3.0)?, vec![loss.sum, loss.count]))
        })?;
        values.extend(gradients);
        values.iter().map(|value| value.convert(DType::F64)).collect()
    });
    results.iter().map(|result| result.to_f64().unwrap()).collect()
}

fn from_logits(hidden: &Tensor, head: &Tensor, labels: &Tensor) -> Result<Loss> {
    reference(&hidden.linear(&head.t()?)?, labels)
}

fn inputs(vocabulary: usize, label: impl Fn(usize, i32) -> i32) -> Vec<HostTensor> {
    let (batch, sequence) = (3, 11);
    let labels: Vec<i32> = numbers(batch * sequence, 5)
        .iter()
        .enumerate()
        .map(|(i, number)| label(i, ((number + 1.0) / 2.0 * vocabulary as f64) as i32))
        .collect();
    vec![
        random(&[batch, sequence, WIDTH], 1),
        random(&[vocabulary, WIDTH], 2),
        HostTensor::from_values(&[batch, sequence], &labels).unwrap(),
    ]
}

fn some_ignored(i: usize, label: i32) -> i32 {
    if i % 4 == 1 { IGNORED } else { label }
}

#[test]
fn chunked_matches_reference() {
    // A vocabulary smaller than a tile, a multiple of the tile, and neither; chunks that divide the
    // 33 tokens, that do not, and one chunk.
    for (vocabulary, size) in [(50, 11), (256, 8), (301, 33), (301, 5)] {
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
            let inputs = inputs(vocabulary, some_ignored);
            let expected = losses(&inputs, dtype, from_logits);
            let found = losses(&inputs, dtype, |hidden, head, labels| {
                chunked(hidden, head, labels, size, TILE)
            });
            for (found, expected) in found.iter().zip(&expected) {
                let apart = difference(found, expected);
                assert!(apart < tolerance, "{vocabulary} by {size} in {dtype}: {apart}");
            }
        }
    }
}

#[test]
fn the_call_matches_reference() {
    // Vocabularies smaller than the columns that are computed at once, twice as large, and larger;
    // chunks that divide the 33 tokens, one chunk, and chunks that do not.
    for (vocabulary, size) in [(50, 11), (2048, 33), (2500, 8)] {
        let inputs = inputs(vocabulary, some_ignored);
        let expected = losses(&inputs, DType::F64, from_logits);
        for (dtype, tolerance) in [(DType::F32, 2e-6), (DType::Bf16, 0.02)] {
            let found = losses(&inputs, dtype, |hidden, head, labels| {
                loss_custom_call(hidden, head, labels, size)
            });
            for (found, expected) in found.iter().zip(&expected) {
                let apart = difference(found, expected);
                assert!(apart < tolerance, "{vocabulary} by {size} in {dtype}: {apart}");
            }
        }
    }
}

#[test]
fn the_call_does_not_overflow() {
    // Later logits are far above the first, in steps that one shift cannot handle.
    let mut inputs = inputs(3000, some_ignored);
    let head: Vec<f64> = inputs[1].to_f64().unwrap();
    let rows = head.chunks_exact(WIDTH).enumerate();
    let head: Vec<f64> =
        rows.flat_map(|(i, row)| row.iter().map(move |x| x * (1 + i / 700 * 15) as f64)).collect();
    inputs[1] = HostTensor::from_values(&[3000, WIDTH], &head).unwrap();
    let expected = losses(&inputs, DType::F64, from_logits);
    let found = losses(&inputs, DType::F32, |hidden, head, labels| {
        loss_custom_call(hidden, head, labels, 33)
    });
    for (found, expected) in found.iter().zip(&expected) {
        let apart = difference(found, expected);
        assert!(apart < 1e-5, "{apart}");
    }
}

#[test]
fn bf16_is_close() {
    let inputs = inputs(301, some_ignored);
    let expected = losses(&inputs, DType::F64, from_logits);
    let found =
        losses(&inputs, DType::Bf16, |hidden, head, labels| chunked(hidden, head, labels, 8, TILE));
    for (found, expected) in found.iter().zip(&expected) {
        let apart = difference(found, expected);
        assert!(apart < 0.02, "{apart}");
    }
    assert_eq!(found[1], expected[1], "counts are exact");
}

#[test]
fn ignored_labels_have_no_loss() {
    let inputs = inputs(130, |_, _| IGNORED);
    let forms = [
        losses(&inputs, DType::F64, from_logits),
        losses(&inputs, DType::F64, |hidden, head, labels| chunked(hidden, head, labels, 8, TILE)),
    ];
    for values in forms.iter().flatten() {
        assert!(values.iter().all(|&value| value == 0.0));
    }
}

#[test]
fn the_call_has_no_loss_for_ignored_labels() {
    let inputs = inputs(130, |_, _| IGNORED);
    let found = losses(&inputs, DType::F32, |hidden, head, labels| {
        loss_custom_call(hidden, head, labels, 8)
    });
    assert!(found.iter().flatten().all(|&value| value == 0.0));
}

#[test]
fn labels_outside_the_vocabulary_are_ignored() {
    // A vocabulary of 301 is padded to 384.
    let outside = [-1, 301, 383, 384, i32::MIN, i32::MAX];
    let invalid = |i: usize, label| if i % 4 == 1 { outside[i / 4 % 6] } else { label };
    let invalid = inputs(301, invalid);
    let expected = losses(&inputs(301, some_ignored), DType::F64, from_logits);
    let both = [
        losses(&invalid, DType::F64, from_logits),
        losses(&invalid, DType::F64, |hidden, head, labels| chunked(hidden, head, labels, 8, TILE)),
    ];
    for found in both {
        for (found, expected) in found.iter().zip(&expected) {
            let apart = difference(found, expected);
            assert!(apart < 1e-12, "{apart}");
        }
    }
}

#[test]
fn label_count_matches_loss() {
    let labels = [5, 1, IGNORED, 9, 10, 0, -1, 3, 2, 2, 2, 2];
    let labels = [HostTensor::from_values(&[1, 3, 4], &labels).unwrap()];
    let found = eval(&labels, |labels| Ok(vec![label_count(&labels[0], 10)?]));
    // Each sequence of four, without the first.
    assert_eq!(found[0].to_f64().unwrap(), [f64::from(2 + 2 + 3)]);

    let inputs = inputs(301, some_ignored);
    let expected = &losses(&inputs, DType::F64, from_logits)[1];
    let found = eval(&inputs[2..], |labels| Ok(vec![label_count(&labels[0], 301)?]));
    assert_eq!(&found[0].to_f64().unwrap(), expected);
}

#[test]
fn loss_without_gradient_matches() {
    let inputs = inputs(301, some_ignored);
    let expected = losses(&inputs, DType::F64, from_logits);
    let found = eval(&inputs, |inputs| {
        let loss = chunked(&inputs[0], &inputs[1], &inputs[2], 8, TILE)?;
        Ok(vec![loss.sum, loss.count])
    });
    for (found, expected) in found.iter().zip(&expected) {
        assert!(difference(&found.to_f64().unwrap(), expected) < 1e-12);
    }
}

#[test]
fn each_token_predicts_the_next() {
    // An identity head: the logits are the hidden states.
    let head: Vec<f64> = (0..WIDTH * WIDTH).map(|i| f64::from(i / WIDTH == i % WIDTH)).collect();
    let hidden: Vec<f64> = (0..3 * WIDTH).map(|i| (i % 5) as f64).collect();
    let labels = [6, 2, 4];
    let inputs = [
        HostTensor::from_values(&[1, 3, WIDTH], &hidden).unwrap(),
        HostTensor::from_values(&[WIDTH, WIDTH], &head).unwrap(),
        HostTensor::from_values(&[1, 3], &labels).unwrap(),
    ];
    let cross_entropy = |row: usize, label: usize| {
        let row = &hidden[row * WIDTH..(row + 1) * WIDTH];
        row.iter().map(|logit| logit.exp()).sum::<f64>().ln() - row[label]
    };
    let found = losses(&inputs, DType::F64, from_logits);
    assert!(difference(&found[0], &[cross_entropy(0, 2) + cross_entropy(1, 4)]) < 1e-12);
    assert_eq!(found[1], [2.0]);
}

#[test]
fn logits_are_computed_once_in_chunks() {
    let argument = |dtype, dims: &[usize]| Argument::new(TensorType::new(dtype, dims));
    let arguments = [
        argument(DType::F32, &[3, 11, WIDTH]),
        argument(DType::F32, &[301, WIDTH]),
        argument(DType::I32, &[3, 11]),
    ];
    let program = Program::trace("loss", &arguments, |inputs| {
        let (loss, mut results) = value_and_grad(&[&inputs[0], &inputs[1]], |values| {
            Ok(chunked(&values[0], &values[1], &inputs[2], 8, TILE)?.sum)
        })?;
        results.push(loss);
        Ok(results)
    });
    let text = program.unwrap().to_text();
    // One matmul for the logits, one for each gradient.
    assert_eq!(text.matches("stablehlo.dot_general").count(), 3);
    assert!(text.contains("tensor<8x384xf32>"));
    assert!(!["33x301x", "33x384x", "40x384x", "5x8x384x"].iter().any(|dims| text.contains(dims)));
}

#[test]
fn the_call_takes_the_head_as_a_prefix_of_a_buffer() {
    let argument = |dtype, dims: &[usize]| Argument::new(TensorType::new(dtype, dims));
    let arguments = [
        argument(DType::F32, &[3, 11, WIDTH]),
        argument(DType::F32, &[301 * WIDTH + 5]),
        argument(DType::I32, &[3, 11]),
    ];
    let program = Program::trace("loss", &arguments, |inputs| {
        let head = inputs[1].narrow(0, 0, 301 * WIDTH)?.reshape(&[301, WIDTH])?;
        let (loss, mut results) = value_and_grad(&[&inputs[0], &head], |values| {
            Ok(loss_custom_call(&values[0], &values[1], &inputs[2], 8)?.sum)
        })?;
        results.push(loss);
        Ok(results)
    });
    let program = program.unwrap();
    let operands = |program: &Program| {
        let text = program.to_text();
        let call = text.lines().find(|line| line.contains("@fullshard.loss")).unwrap().to_owned();
        call[call.rfind(" : (").unwrap()..call.rfind(" -> ").unwrap()].to_owned()
    };
    assert!(operands(&program).contains("tensor<301x7xf32>"));
    let dialect = Dialect { matmul_custom_calls: true, ..Dialect::default() };
    assert!(operands(&program.in_dialect(dialect)).contains("tensor<2112xf32>"));
}

#[test]
fn chunk_sizes() {
    for (tokens, vocabulary, size) in [
        // 2560 rows fit.
        (32 * 1024, 50257, 2560),
        (8192, 50257, 2048),
        (2561, 50257, 1408),
        (2560, 50257, 2560),
        (32 * 1024, 32000, 4096),
        (4097, 32000, 2176),
        (300, 32000, 300),
        (32 * 1024, 1_000_000, 128),
        (1, 1_000_000, 1),
        (0, 50257, 0),
    ] {
        assert_eq!(chunk_size(tokens, vocabulary, None), size, "{tokens} of {vocabulary}");
    }
}

#[test]
fn chunks_have_less_than_a_tile_of_padding() {
    for tokens in (1..50_000).step_by(97) {
        let size = chunk_size(tokens, 50257, None);
        let chunks = tokens.div_ceil(size);
        assert!(size <= 2560 && chunks == tokens.div_ceil(2560), "{tokens} by {size}");
        assert!(chunks * size - tokens < chunks * 128, "{tokens} by {size}");
    }
}
