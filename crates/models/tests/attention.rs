//! All forms of attention match, in values and gradients. The fused kernel needs a GPU:
//! `./check --gpu`.
#![allow(clippy::unwrap_used)]

#[path = "attention/calls.rs"]
mod calls;
mod common;
#[path = "attention/context.rs"]
mod context;
#[path = "attention/context_programs.rs"]
mod context_programs;
#[path = "attention/dropout.rs"]
mod dropout;
#[path = "attention/masks.rs"]
mod masks;

use common::{difference, eval, random};
use fullshard_graph::{
    Argument, DType, Program, Result, Tensor, TensorType, concatenate, constant, value_aux_and_grad,
};
use fullshard_models::layers::attention::{
    Form, Heads, Mask, Scores, attention, blockwise, fused, reference, unsupported_reason,
};
use fullshard_models::{
    Activations, Body, Layer, LayerBody, LoweringOptions, Parameter, Place, Scope, Tracer,
};
use fullshard_pjrt::HostTensor;

/// A tracer without parameters whose dropout multiplies by the keep probability, or by a mask.
struct TestTracer {
    dtype: DType,
    mask: Option<Tensor>,
    is_training: bool,
    is_scanned: bool,
    has_kernel: bool,
    has_call: bool,
}

impl TestTracer {
    fn new(dtype: DType) -> TestTracer {
        TestTracer {
            dtype,
            mask: None,
            is_training: true,
            is_scanned: false,
            has_kernel: false,
            has_call: false,
        }
    }
}

impl Tracer for TestTracer {
    fn module(&self, _: &Place, body: Body<'_>) -> Result<Vec<Tensor>> {
        body()
    }

    fn layers(
        &self,
        place: &Place,
        count: usize,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>> {
        (0..count).try_fold(carries, |carries, index| {
            let layer = match self.is_scanned {
                true => Layer::Traced(constant(&[], &[index as i32])?),
                false => Layer::Known(index),
            };
            body(&place.layer(layer), carries)
        })
    }

    fn parameter(&self, place: &Place, parameter: &Parameter) -> Result<Tensor> {
        Err(fullshard_graph::Error::new("parameter", place.name(parameter.name)))
    }

    fn dropout(
        &self,
        _: &Place,
        _: &str,
        x: &Tensor,
        _: Activations,
        probability: f64,
    ) -> Result<Tensor> {
        match &self.mask {
            Some(mask) => x * &mask.reshape(x.dims())?,
            None => x * (1.0 - probability),
        }
    }

    fn is_training(&self) -> bool {
        self.is_training
    }

    fn compute_dtype(&self) -> DType {
        self.dtype
    }

    fn lowering(&self) -> LoweringOptions {
        LoweringOptions {
            fused_attention: self.has_kernel,
            attention_custom_call: self.has_call,
            ..LoweringOptions::default()
        }
    }
}

/// The output of a form of attention and the gradients of its weighted sum with respect to queries,
/// keys and values.
fn traced(
    inputs: &[Tensor],
    weights: &Tensor,
    dropout: f64,
    form: impl Fn(&Scope<'_>, &Heads, &Scores) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let tracer = TestTracer::new(inputs[0].dtype());
    let attend = |inputs: Vec<Tensor>| {
        let [query, key, value] = inputs.try_into().unwrap();
        let heads = Heads { query, key, value };
        let scores =
            Scores { dropout, ..Scores::scaled(Mask::causal(), tracer.compute_dtype(), 0.7)? };
        let attn_out = Scope::root(&tracer, |scope| Ok(vec![form(scope, &heads, &scores)?]))?;
        Ok(((&attn_out[0] * weights)?.sum_all()?, attn_out))
    };
    let (_, mut results, gradients) =
        value_aux_and_grad(&[&inputs[0], &inputs[1], &inputs[2]], attend)?;
    results.extend(gradients);
    Ok(results)
}

fn attend(
    inputs: &[HostTensor],
    dropout: f64,
    form: impl Fn(&Scope<'_>, &Heads, &Scores) -> Result<Tensor>,
) -> Vec<Vec<f64>> {
    let results = eval(inputs, |inputs| traced(&inputs[..3], &inputs[3], dropout, form));
    results.iter().map(|result| result.to_f64().unwrap()).collect()
}

/// Queries, keys, values, and weights of the output.
fn inputs(heads: usize, key_heads: usize, sequence: usize) -> Vec<HostTensor> {
    let (query, key) = ([2, heads, sequence, 6], [2, key_heads, sequence, 6]);
    vec![random(&query, 1), random(&key, 2), random(&key, 3), random(&query, 4)]
}

#[track_caller]
fn assert_close(found: &[Vec<f64>], expected: &[Vec<f64>]) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let apart = difference(found, expected);
        assert!(apart < 1e-12, "result {i}: {apart}");
    }
}

#[test]
fn blockwise_matches_reference() {
    // Whole blocks, a shorter last block, a last block of one, a block longer than the sequence.
    for (sequence, block) in [(12, 4), (13, 5), (9, 4), (7, 16)] {
        let inputs = inputs(4, 4, sequence);
        let expected = attend(&inputs, 0.0, reference);
        let found =
            attend(&inputs, 0.0, |scope, heads, scores| blockwise(scope, heads, scores, block));
        assert_close(&found, &expected);
    }
}

#[test]
fn both_forms_apply_dropout() {
    let inputs = inputs(4, 2, 9);
    let full = attend(&inputs, 0.0, reference);
    let scaled: Vec<Vec<f64>> =
        full.iter().map(|values| values.iter().map(|value| 0.75 * value).collect()).collect();
    let dropped = attend(&inputs, 0.25, reference);
    assert_close(&dropped, &scaled);
    let dropped = attend(&inputs, 0.25, |scope, heads, scores| blockwise(scope, heads, scores, 4));
    assert_close(&dropped, &scaled);
}

#[test]
fn grouped_queries_share_keys_and_values() {
    let inputs = inputs(6, 2, 11);
    let expected = attend(&inputs, 0.0, |scope, heads, scores| {
        let repeat = |x: &Tensor| {
            let [one, other] = [x.narrow(1, 0, 1)?, x.narrow(1, 1, 2)?];
            concatenate(&[&one, &one, &one, &other, &other, &other], 1)
        };
        let (key, value) = (repeat(&heads.key)?, repeat(&heads.value)?);
        reference(scope, &Heads { key, value, ..heads.clone() }, scores)
    });
    assert_close(&attend(&inputs, 0.0, reference), &expected);
    let blocks = attend(&inputs, 0.0, |scope, heads, scores| blockwise(scope, heads, scores, 4));
    assert_close(&blocks, &expected);
}

#[test]
fn causal_mask_hides_future_tokens() {
    let mut inputs = inputs(2, 1, 10);
    let form =
        |scope: &Scope<'_>, heads: &Heads, scores: &Scores| blockwise(scope, heads, scores, 4);
    let before = attend(&inputs, 0.0, form)[0].clone();
    // Other keys and values from the eighth position on.
    let other = random(&[2, 1, 10, 6], 9).to_f64().unwrap();
    for input in &mut inputs[1..3] {
        let mut values = input.to_f64().unwrap();
        for (j, value) in values.iter_mut().enumerate().filter(|(j, _)| j / 6 % 10 >= 7) {
            *value = other[j];
        }
        *input = HostTensor::from_values(&[2, 1, 10, 6], &values).unwrap();
    }
    let after = attend(&inputs, 0.0, form)[0].clone();
    for (j, (before, after)) in before.iter().zip(&after).enumerate() {
        assert_eq!(before == after, j / 6 % 10 < 7, "at position {}", j / 6 % 10);
    }
}

#[test]
fn long_sequences_are_blockwise() {
    let argument = |heads| Argument::new(TensorType::new(DType::F32, &[2, heads, 512, 6]));
    let arguments = [argument(4), argument(2), argument(2), argument(4)];
    let program = Program::trace("long", &arguments, |inputs| {
        traced(&inputs[..3], &inputs[3], 0.0, attention)
    })
    .unwrap();
    let text = program.to_text();
    assert!(!text.contains("512x512x"), "the upper triangle is computed");
    assert!(text.contains("256x512x"), "the last block attends to the full sequence");
    assert!(text.contains("optimization_barrier"), "blocks are recomputed");
}

/// The reason why the kernel is not used is reported; otherwise it is used.
#[test]
fn kernel_reports_unsupported_reasons() {
    let program = Program::trace("scores", &[], |_| {
        let scores = Scores::scaled(Mask::causal(), DType::Bf16, 0.125)?;
        let found = |dtype, sequence, head, scores: &Scores| {
            unsupported_reason(dtype, sequence, head, scores.form(), false).unwrap_or_default()
        };
        assert_eq!(unsupported_reason(DType::Bf16, 1024, 128, scores.form(), false), None);
        assert_eq!(unsupported_reason(DType::F16, 2, 8, scores.form(), true), None);
        assert!(found(DType::F32, 1024, 128, &scores).contains("not f32"));
        assert!(found(DType::Bf16, 1024, 12, &scores).contains("the head dimension is 12"));
        assert!(found(DType::Bf16, 1024, 256, &scores).contains("at most 128"));
        assert!(found(DType::Bf16, 1023, 64, &scores).contains("odd"));
        let dropping = Scores { dropout: 0.1, ..scores.clone() };
        assert_eq!(unsupported_reason(DType::Bf16, 1024, 64, dropping.form(), false), None);
        let scanned =
            unsupported_reason(DType::Bf16, 1024, 64, dropping.form(), true).unwrap_or_default();
        assert!(scanned.contains("with scanned layers"), "{scanned}");
        let upcast = Scores { upcast: true, ..scores.clone() };
        assert!(found(DType::Bf16, 1024, 64, &upcast).contains("f32 matmuls are requested"));
        let by_layer = Scores { factor: None, ..scores };
        assert!(found(DType::Bf16, 1024, 64, &by_layer).contains("depends on the layer"));
        Ok(vec![])
    });
    program.unwrap();
}

#[test]
fn kernel_is_called_if_available() {
    let argument = |heads| Argument::new(TensorType::new(DType::Bf16, &[2, heads, 64, 16]));
    let arguments = [argument(4), argument(2), argument(2), argument(4)];
    let program = Program::trace("called", &arguments, |inputs| {
        traced(&inputs[..3], &inputs[3], 0.0, |_, heads, scores| {
            let tracer = TestTracer { has_kernel: true, ..TestTracer::new(DType::Bf16) };
            let attn_out =
                Scope::root(&tracer, |scope| Ok(vec![attention(scope, heads, scores)?]))?;
            Ok(attn_out[0].clone())
        })
    });
    let text = program.unwrap().to_text();
    assert_eq!(text.matches("@__cudnn$fmhaSoftmax(").count(), 1);
    assert_eq!(text.matches("@__cudnn$fmhaSoftmaxBackward(").count(), 1);
    assert!(!text.contains("dot_general"));
}

#[test]
#[ignore = "gpu: needs an NVIDIA GPU"]
fn gpu_kernel_matches_reference() {
    for (heads, key_heads, sequence, head) in [(4, 4, 256, 64), (6, 2, 190, 128), (3, 3, 1024, 80)]
    {
        let (query, key) = ([2, heads, sequence, head], [2, key_heads, sequence, head]);
        let inputs = [random(&query, 1), random(&key, 2), random(&key, 3), random(&query, 4)];
        for dtype in [DType::Bf16, DType::F16] {
            let [expected, found] = [false, true].map(|kernel| {
                let results = eval(&inputs, |inputs| {
                    let short: Result<Vec<Tensor>> =
                        inputs.iter().map(|input| input.convert(dtype)).collect();
                    let short = short?;
                    let form = |scope: &Scope<'_>, heads: &Heads, scores: &Scores| match kernel {
                        true => fused(heads, scores.form(), ""),
                        false => reference(scope, heads, scores),
                    };
                    let results = traced(&short[..3], &short[3], 0.0, form)?;
                    results.iter().map(|result| result.convert(DType::F32)).collect()
                });
                results.iter().map(|result| result.to_f64().unwrap()).collect::<Vec<_>>()
            });
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let apart = difference(found, expected);
                println!("{heads} heads of {head}, {sequence} tokens, {dtype:?}: {i}: {apart:.1e}");
                assert!(apart < 0.02, "result {i}: {apart}");
            }
        }
    }
}
