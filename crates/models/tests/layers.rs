//! Activation functions and rotary frequencies against transformers.
#![allow(clippy::unwrap_used)]

mod common;

use common::{difference, eval};
use fullshard_graph::value_and_grad;
use fullshard_models::layers::activation;
use fullshard_models::llama::LlamaConfig;
use fullshard_pjrt::HostTensor;
use serde_json::Value;

/// See `data/record_layers.py`.
fn recorded() -> Value {
    serde_json::from_str(include_str!("data/layers.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[test]
fn activations_match_transformers() {
    let recorded = recorded();
    let points = numbers(&recorded["points"]);
    let points = HostTensor::from_values(&[points.len()], &points).unwrap();
    let results = eval(&[points], |points| {
        let mut results = Vec::new();
        for activation in activation::ALL {
            results.push(activation.of(&points[0])?);
            let (_, gradients) =
                value_and_grad(&[&points[0]], |x| activation.of(&x[0])?.sum_all())?;
            results.extend(gradients);
        }
        Ok(results)
    });
    let known = recorded["activations"].as_object().unwrap();
    assert_eq!(known.len(), activation::ALL.len());
    for (activation, results) in activation::ALL.iter().zip(results.chunks(2)) {
        let expected = &known[activation.name];
        assert_eq!(activation.class, expected["class"], "{}", activation.name);
        for (found, key) in results.iter().zip(["values", "slopes"]) {
            let apart = difference(&found.to_f64().unwrap(), &numbers(&expected[key]));
            // In transformers a constant of `gelu_fast` has only ten digits.
            let tolerance = if activation.name == "gelu_fast" { 1e-9 } else { 1e-12 };
            assert!(apart < tolerance, "{key} of {}: {apart}", activation.name);
        }
    }
}

#[test]
fn gelu_tanh_derivative_matches() {
    let recorded = recorded();
    let points = numbers(&recorded["points"]);
    let points = HostTensor::from_values(&[points.len()], &points).unwrap();
    let gradients = eval(&[points], |points| Ok(vec![points[0].gelu_tanh_grad()?]));
    let expected = numbers(&recorded["activations"]["gelu_new"]["slopes"]);
    assert!(difference(&gradients[0].to_f64().unwrap(), &expected) < 1e-12);

    // Far from zero it is 0 or 1, without overflow.
    let far = [-1e4, -300.0, -40.0, 40.0, 300.0, 1e4].map(|x: f64| x as f32);
    let far = HostTensor::from_values(&[far.len()], &far).unwrap();
    let gradients = eval(&[far], |points| Ok(vec![points[0].gelu_tanh_grad()?]));
    assert_eq!(gradients[0].to_f64().unwrap(), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
}

#[test]
fn rotary_frequencies_match_transformers() {
    for case in recorded()["rotary"].as_array().unwrap() {
        let config = LlamaConfig::from_json(&case["config"].to_string()).unwrap();
        let sequence = case["sequence"].as_u64().unwrap() as usize;
        let expected = numbers(&case["frequencies"]);
        let found = config.rotary.frequencies(sequence);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            // They are recorded in f32.
            assert!((found / expected - 1.0).abs() < 1e-6, "{found} for {expected} of {case}");
        }
        let scaling = case["stretch"].as_f64().unwrap();
        assert!((config.rotary.attention_scaling() - scaling).abs() < 1e-12, "{case}");
    }
}
