//! Models against torch and transformers: trees, logits, losses and every gradient.
#![allow(clippy::unwrap_used)]

mod common;

use common::{RECORDINGS, Recording, difference, eval, model, weights};
use fullshard_graph::{DType, Result, Tensor, value_and_grad};
use fullshard_models::{AnyModel, Plain, Scope};
use fullshard_pjrt::HostTensor;

/// The mean loss of the first batch and its gradient with respect to each weight.
fn loss_and_gradients(recording: &Recording) -> (f64, Vec<(String, Vec<f64>)>) {
    let model = model(recording);
    let (names, mut inputs): (Vec<_>, Vec<_>) = weights(recording).into_iter().unzip();
    inputs.push(recording.batch("tokens", 0));
    inputs.push(recording.batch("labels", 0));
    let results = eval(&inputs, |inputs| {
        let (weights, batch) = inputs.split_at(names.len());
        let weights: Vec<&Tensor> = weights.iter().collect();
        let (loss, mut gradients) =
            value_and_grad(&weights, |weights| mean_loss(&*model, &weights, batch))?;
        gradients.push(loss);
        Ok(gradients)
    });
    let mut values: Vec<Vec<f64>> = results.iter().map(|result| result.to_f64().unwrap()).collect();
    let loss = values.pop().unwrap()[0];
    (loss, names.into_iter().zip(values).collect())
}

fn mean_loss(model: &dyn AnyModel, weights: &[Tensor], batch: &[Tensor]) -> Result<Tensor> {
    let plain = Plain::new(&model.tree(), weights, DType::F32)?;
    let loss = Scope::root(&plain, |scope| {
        let loss = model.loss(scope, batch)?;
        Ok(vec![(loss.sum / loss.count)?])
    })?;
    Ok(loss[0].clone())
}

fn logits(recording: &Recording, dtype: DType) -> Vec<f64> {
    let model = model(recording);
    let mut inputs: Vec<HostTensor> =
        weights(recording).into_iter().map(|(_, values)| values).collect();
    inputs.push(recording.batch("tokens", 0));
    let results = eval(&inputs, |inputs| {
        let (weights, tokens) = inputs.split_at(inputs.len() - 1);
        let plain = Plain::new(&model.tree(), weights, dtype)?;
        let logits = Scope::root(&plain, |scope| Ok(vec![model.logits(scope, tokens)?]))?;
        assert_eq!(logits[0].dtype(), dtype);
        logits[0].convert(DType::F32).map(|logits| vec![logits])
    });
    results[0].to_f64().unwrap()
}

fn recorded(recording: &Recording, name: &str) -> Vec<f64> {
    recording.floats(name).into_iter().map(f64::from).collect()
}

fn tree_matches_transformers(case: &str) {
    let recording = Recording::load(case);
    let tree = model(&recording).tree();
    let names: Vec<String> = serde_json::from_str(&recording.metadata("names")).unwrap();
    let named = tree.named_parameters();
    let found: Vec<String> = named.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(found, names, "{case}");
    for (name, parameter) in named {
        let name_in_file = parameter.tied_to.as_deref().unwrap_or(&name);
        assert_eq!(parameter.dims, recording.dims(name_in_file), "{case}: {name}");
    }
    let modules: Vec<(String, String)> =
        serde_json::from_str(&recording.metadata("modules")).unwrap();
    let mut found = Vec::new();
    tree.visit(&mut |path, module| found.push((path.to_owned(), module.class.to_owned())));
    assert_eq!(found, modules, "{case}");
}

fn logits_are_those_of_transformers(case: &str) {
    let recording = Recording::load(case);
    let apart = difference(&logits(&recording, DType::F32), &recorded(&recording, "logits"));
    println!("{case}: {apart:.1e}");
    assert!(apart < 1e-5, "{case}: {apart}");
}

fn loss_and_gradients_match_torch(case: &str) {
    let recording = Recording::load(case);
    let (loss, gradients) = loss_and_gradients(&recording);
    let apart = difference(&[loss], &recorded(&recording, "loss"));
    assert!(apart < 1e-6, "{case}: the loss by {apart}");
    let mut worst: f64 = 0.0;
    for (name, gradient) in gradients {
        let apart = difference(&gradient, &recorded(&recording, &format!("grad.{name}")));
        worst = worst.max(apart);
        assert!(apart < 1e-5, "{case}: the gradient of {name} by {apart}");
    }
    println!("{case}: loss {apart:.1e}, gradients {worst:.1e}");
}

fn bf16_is_close(case: &str) {
    let recording = Recording::load(case);
    let apart = difference(&logits(&recording, DType::Bf16), &recorded(&recording, "logits"));
    println!("{case}: {apart:.1e}");
    // The precision of bf16 is 2^-8, and there are a few dozen roundings.
    assert!((1e-4..0.05).contains(&apart), "{case}: {apart}");
}

/// A module per recording with a test of each kind, so that one failure does not hide the next.
macro_rules! recordings {
    ($($case:ident),* $(,)?) => {
        $(mod $case {
            #[test]
            fn tree_matches_transformers() {
                super::tree_matches_transformers(stringify!($case));
            }

            #[test]
            fn logits_are_those_of_transformers() {
                super::logits_are_those_of_transformers(stringify!($case));
            }

            #[test]
            fn loss_and_gradients_match_torch() {
                super::loss_and_gradients_match_torch(stringify!($case));
            }

            #[test]
            fn bf16_is_close() {
                super::bf16_is_close(stringify!($case));
            }
        })*

        #[test]
        fn every_recording_is_tested() {
            assert_eq!(RECORDINGS, [$(stringify!($case)),*]);
        }
    };
}

recordings! {
    gpt2_plain, gpt2_odd, gpt2_untied, gpt2_upcast, gpt2_vocabulary, gpt2_inverse, llama_tied,
    llama_grouped, llama_linear, llama_yarn, llama_dynamic, llama_padded,
}

#[test]
fn rejects_sequences_longer_than_the_positions() {
    use fullshard_graph::{Argument, Program, TensorType};
    let recording = Recording::load("gpt2_odd");
    let model = model(&recording);
    let weights = weights(&recording).len();
    let tree = model.tree();
    let own = tree.named_parameters().into_iter().filter(|(_, p)| p.tied_to.is_none());
    let mut arguments: Vec<Argument> =
        own.map(|(_, p)| Argument::new(TensorType::new(DType::F32, &p.dims))).collect();
    arguments.push(Argument::new(TensorType::new(DType::I32, &[4, 20])));
    let error = Program::trace("long", &arguments, |inputs| {
        let plain = Plain::new(&tree, &inputs[..weights], DType::F32)?;
        Scope::root(&plain, |scope| Ok(vec![model.logits(scope, &inputs[weights..])?]))
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "embedding: a sequence of 20 is longer than the 19 positions (in transformer.wpe)"
    );
}
