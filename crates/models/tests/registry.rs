//! Architectures of other crates, defaults and overrides, and trees from tracing.
#![allow(clippy::unwrap_used)]

use fullshard_graph::{DType, Result, Tensor};
use fullshard_models::{
    Architecture, CausalLm, Dimensions, Initializer, InputSpec, Model, NameTaken, Scope,
    architectures, boxed, declare, default_config, from_json, register,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Bigram {
    vocabulary: usize,
}

impl Model for Bigram {
    fn class(&self) -> &'static str {
        "BigramForCausalLM"
    }

    fn task(&self) -> CausalLm {
        CausalLm { vocabulary: self.vocabulary }
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions { vocabulary: self.vocabulary, positions: 8, ..Dimensions::default() }
    }

    fn forward(&self, nn: &Scope<'_>, tokens: &Tensor) -> Result<Tensor> {
        nn.embedding("table", tokens, self.vocabulary, self.vocabulary)
    }
}

const BIGRAM: Architecture = Architecture {
    model_type: "bigram",
    class: "BigramForCausalLM",
    defaults: || json!({"model_type": "bigram", "vocab_size": 11, "flag": false}),
    read: |fields| Ok(boxed(Bigram { vocabulary: fields.size(&["vocab_size"], 11)? })?),
};

#[test]
fn other_crates_register_architectures() {
    register(BIGRAM).unwrap();
    assert_eq!(register(BIGRAM), Err(NameTaken { name: "bigram" }));
    let other = Architecture { model_type: "other", class: "GPT2LMHeadModel", ..BIGRAM };
    let error = register(other).unwrap_err().to_string();
    assert!(error.contains("`GPT2LMHeadModel` is already registered"), "{error}");
    assert_eq!(architectures().iter().filter(|known| known.model_type == "bigram").count(), 1);

    for config in [
        json!({"model_type": "bigram", "vocab_size": 7}),
        json!({"architectures": ["BigramForCausalLM"], "vocab_size": 7}),
    ] {
        assert_eq!(from_json(&config.to_string()).unwrap().tree().elements(), 49);
    }
    let error = from_json("{\"model_type\": \"bigram\", \"vocab_size\": 0}").unwrap_err();
    assert!(error.to_string().starts_with("`vocab_size` is 0, but must be an integer"));
    let error = from_json("{\"model_type\": \"trigram\"}").unwrap_err().to_string();
    assert!(error.contains("gpt2 (GPT2LMHeadModel)"), "{error}");
    assert!(error.contains("bigram (BigramForCausalLM)"), "{error}");
    let config = default_config("bigram", "vocab_size=5,flag=yes").unwrap();
    assert_eq!(config, json!({"model_type": "bigram", "vocab_size": 5, "flag": true}));
}

#[test]
fn defaults_are_valid_configs() {
    for known in architectures() {
        let model = from_json(&(known.defaults)().to_string()).unwrap();
        assert_eq!(model.class(), known.class);
        assert_eq!(model.tree().class, known.class);
    }
}

#[test]
fn overrides_have_the_type_of_the_default() {
    let config = default_config("gpt2", "n_layer=2, n_inner=7,embd_pdrop=0").unwrap();
    let found = ["n_layer", "n_inner", "embd_pdrop"].map(|key| config[key].clone());
    assert_eq!(found, [json!(2), json!(7), json!(0.0)]);
    let error = |overrides| default_config("gpt2", overrides).unwrap_err().to_string();
    assert_eq!(
        error("n_layers=2"),
        "the override `n_layers=2` is invalid: the config has no `n_layers` (did you mean \
         `n_layer`?)"
    );
    assert!(error("n_layer=many").contains("`many` has another type than the default, 12"));
    assert!(error("n_layer").contains("expected key=value"));
    let error = default_config("bert", "").unwrap_err().to_string();
    assert!(
        error.starts_with("`model_type` is \"bert\", but the supported models are gpt2"),
        "{error}"
    );
}

#[test]
fn identical_layers_are_traced_once() {
    let config = default_config("llama", "num_hidden_layers=100000,hidden_size=64").unwrap();
    let started = Instant::now();
    let model = from_json(&config.to_string()).unwrap();
    let tree = model.tree();
    assert_eq!(tree.named_parameters().len(), 3 + 9 * 100_000);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(config["num_hidden_layers"], Value::from(100_000));
}

/// The parameters that a model function declares, or the error.
fn declared(model: impl FnOnce(&Scope<'_>, &Tensor) -> Result<Tensor>) -> Result<Vec<String>> {
    let input = InputSpec::new("x", DType::F32, &[4]);
    let declared = declare("Root", &[input], 1, |nn, inputs| model(nn, &inputs[0]))?;
    Ok(declared.tree.named_parameters().into_iter().map(|(name, _)| name).collect())
}

#[test]
fn modules_are_in_order_of_use_or_as_listed() {
    let two = |nn: &Scope<'_>, x: &Tensor| nn.linear("b", &nn.linear("a", x, 4)?, 4);
    assert_eq!(declared(two).unwrap(), ["a.weight", "a.bias", "b.weight", "b.bias"]);
    let ordered = declared(|nn, x| {
        nn.children(&["b"])?;
        two(nn, x)
    });
    assert_eq!(ordered.unwrap(), ["b.weight", "b.bias", "a.weight", "a.bias"]);
    let error = declared(|nn, x| {
        nn.children(&["c"])?;
        two(nn, x)
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the order of Root has `c`, which is not a child"), "{error}");
}

#[test]
fn modules_can_be_reused_if_identical() {
    let twice = declared(|nn, x| nn.linear("a", &nn.linear("a", x, 4)?, 4));
    assert_eq!(twice.unwrap(), ["a.weight", "a.bias"]);
    let error = declared(|nn, x| nn.linear("a", &nn.linear("a", x, 5)?, 5));
    assert!(error.unwrap_err().to_string().contains("`a.weight` is declared as"));
    let error = declared(|nn, x| nn.layer_norm("a", &nn.linear("a", x, 4)?));
    assert!(error.unwrap_err().to_string().contains("`a` is both a Linear and a LayerNorm"));
    let layers = declared(|nn, x| {
        nn.layers("h", "Block", 3, x, |nn, x| x * nn.parameter("scale", &[4], Initializer::Ones)?)
    });
    assert_eq!(layers.unwrap(), ["h.0.scale", "h.1.scale", "h.2.scale"]);
}
