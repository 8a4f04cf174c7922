//! Attention by the custom calls of the CPU.

use super::*;
use fullshard_models::layers::attention::{Pattern, call_unsupported_reason};

/// By the call.
fn called(_: &Scope<'_>, heads: &Heads, scores: &Scores) -> Result<Tensor> {
    let tracer = TestTracer { has_call: true, ..TestTracer::new(heads.query.dtype()) };
    let mut results = Scope::root(&tracer, |scope| Ok(vec![attention(scope, heads, scores)?]))?;
    Ok(results.remove(0))
}

/// The largest differences of outputs and gradients to those of the definition, in a dtype.
fn apart(inputs: &[HostTensor], dtype: DType, mask: &dyn Fn() -> Mask) -> Vec<f64> {
    let [expected, found] = [false, true].map(|is_call| {
        let results = eval(inputs, |inputs| {
            let inputs: Result<Vec<Tensor>> = inputs.iter().map(|x| x.convert(dtype)).collect();
            let inputs = inputs?;
            let form = |scope: &Scope<'_>, heads: &Heads, scores: &Scores| {
                let scores = Scores { mask: mask(), ..scores.clone() };
                match is_call {
                    true => called(scope, heads, &scores),
                    false => reference(scope, heads, &scores),
                }
            };
            let results = traced(&inputs[..3], &inputs[3], 0.0, form)?;
            results.iter().map(|result| result.convert(DType::F32)).collect()
        });
        results.iter().map(|result| result.to_f64().unwrap()).collect::<Vec<_>>()
    });
    found.iter().zip(&expected).map(|(found, expected)| difference(found, expected)).collect()
}

/// One block of queries, several, a last one of one; heads that share keys; any head size.
#[test]
fn calls_match_the_definition() {
    for (heads, key_heads, sequence, head) in
        [(2, 2, 1, 4), (4, 2, 64, 16), (3, 1, 129, 20), (2, 2, 300, 64), (6, 2, 257, 7)]
    {
        let (query, key) = ([2, heads, sequence, head], [2, key_heads, sequence, head]);
        let inputs = [random(&query, 1), random(&key, 2), random(&key, 3), random(&query, 4)];
        for mask in [Mask::causal, Mask::full] {
            for (dtype, tolerance) in [(DType::F32, 2e-6), (DType::Bf16, 0.02)] {
                let apart = apart(&inputs, dtype, &mask);
                let case = format!("{heads} heads, {sequence} tokens, {dtype:?}");
                assert!(apart.iter().all(|&apart| apart < tolerance), "{case}: {apart:?}");
            }
        }
    }
}

/// Without a mask there may be more or fewer keys than queries.
#[test]
fn calls_attend_to_other_sequences() {
    for (queries, keys) in [(5, 140), (140, 5)] {
        let (query, key) = ([2, 4, queries, 8], [2, 2, keys, 8]);
        let inputs = [random(&query, 1), random(&key, 2), random(&key, 3), random(&query, 4)];
        let apart = apart(&inputs, DType::F32, &Mask::full);
        assert!(apart.iter().all(|&apart| apart < 2e-6), "{queries}, {keys}: {apart:?}");
    }
}

/// Scores far above and below zero neither overflow nor vanish.
#[test]
fn calls_do_not_overflow() {
    let scaled = |seed, factor: f64| {
        let values = random(&[1, 2, 40, 8], seed).to_f64().unwrap();
        let values: Vec<f64> = values.iter().map(|value| value * factor).collect();
        HostTensor::from_values(&[1, 2, 40, 8], &values).unwrap()
    };
    let inputs = [scaled(1, 100.0), scaled(2, 100.0), scaled(3, 1.0), scaled(4, 1.0)];
    let apart = apart(&inputs, DType::F32, &Mask::causal);
    assert!(apart.iter().all(|&apart| apart < 1e-3), "{apart:?}");
}

#[test]
fn calls_have_no_scores_in_the_program() {
    let argument = |heads| Argument::new(TensorType::new(DType::Bf16, &[2, heads, 64, 16]));
    let arguments = [argument(4), argument(2), argument(2), argument(4)];
    let program = Program::trace("called", &arguments, |inputs| {
        traced(&inputs[..3], &inputs[3], 0.0, called)
    });
    let text = program.unwrap().to_text();
    assert_eq!(text.matches("@fullshard.attention(").count(), 1);
    assert_eq!(text.matches("@fullshard.attention_gradients(").count(), 1);
    assert!(!text.contains("dot_general") && !text.contains("64x64"));
}

#[test]
fn calls_report_unsupported_reasons() {
    let program = Program::trace("scores", &[], |_| {
        let scores = Scores::scaled(Mask::causal(), DType::F32, 0.125)?;
        let form = scores.form();
        let found = |form| call_unsupported_reason(DType::F32, 64, form).unwrap_or_default();
        assert_eq!(found(form), "");
        assert_eq!(found(Form { pattern: Pattern::Full, upcast: true, ..form }), "");
        assert!(found(Form { pattern: Pattern::Window(4), ..form }).contains("mask"));
        assert!(found(Form { padding: true, ..form }).contains("padding"));
        assert!(found(Form { dropout: 0.1, ..form }).contains("dropout"));
        assert!(found(Form { factor: None, ..form }).contains("depends on the layer"));
        let upcast = Form { upcast: true, ..form };
        let reason = |dtype, head, form| call_unsupported_reason(dtype, head, form);
        assert!(reason(DType::Bf16, 64, upcast).unwrap().contains("f32 matmuls"));
        assert!(reason(DType::F64, 64, form).unwrap().contains("not f64"));
        assert!(reason(DType::F32, 0, form).unwrap().contains("no attention heads"));
        Ok(vec![])
    });
    program.unwrap();
}
