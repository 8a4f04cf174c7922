//! Units of module trees: by class, by size, with tied weights, frozen parameters and plans.
#![allow(clippy::unwrap_used)]

mod plans;
mod properties;

use fullshard_models::{Initializer, Module};
use fullshard_parallel::{Unit, WrapPolicy, frozen, units};
use std::collections::BTreeMap;

const NORMAL: Initializer = Initializer::Normal { std: 0.02 };

/// A module with a weight and an optional bias.
fn layer(class: &'static str, weight: &[usize], bias: Option<usize>) -> Module {
    let module = Module::new(class).parameter("weight", weight, NORMAL);
    match bias {
        Some(size) => module.parameter("bias", &[size], Initializer::Zeros),
        None => module,
    }
}

fn block(d: usize) -> Module {
    let attention = Module::new("GPT2Attention")
        .child("c_attn", layer("Conv1D", &[d, 3 * d], Some(3 * d)))
        .child("c_proj", layer("Conv1D", &[d, d], Some(d)));
    let mlp = Module::new("GPT2MLP")
        .child("c_fc", layer("Conv1D", &[d, 4 * d], Some(4 * d)))
        .child("c_proj", layer("Conv1D", &[4 * d, d], Some(d)));
    Module::new("GPT2Block")
        .child("ln_1", layer("LayerNorm", &[d], Some(d)))
        .child("attn", attention)
        .child("ln_2", layer("LayerNorm", &[d], Some(d)))
        .child("mlp", mlp)
}

/// A module tree like GPT-2's.
fn gpt2(vocabulary: usize, positions: usize, d: usize, layers: usize) -> Module {
    let transformer = Module::new("GPT2Model")
        .child("wte", layer("Embedding", &[vocabulary, d], None))
        .child("wpe", layer("Embedding", &[positions, d], None))
        .child("h", Module::list((0..layers).map(|_| block(d))))
        .child("ln_f", layer("LayerNorm", &[d], Some(d)));
    let head = Module::new("Linear").tied("weight", &[vocabulary, d], "transformer.wte.weight");
    Module::new("GPT2LMHeadModel").child("transformer", transformer).child("lm_head", head)
}

fn small() -> Module {
    gpt2(10, 6, 4, 2)
}

fn classes(names: &[&str]) -> WrapPolicy {
    WrapPolicy::Classes(names.iter().map(|name| (*name).to_owned()).collect())
}

fn paths(units: &[Unit]) -> Vec<&str> {
    units.iter().map(|unit| unit.path.as_str()).collect()
}

fn error(tree: &Module, policy: &WrapPolicy) -> String {
    units(tree, policy).unwrap_err().to_string()
}

#[test]
fn without_a_policy_the_root_owns_everything() {
    let tree = small();
    let units = units(&tree, &WrapPolicy::Root).unwrap();
    let own = tree.named_parameters().into_iter().filter(|(_, p)| p.tied_to.is_none());
    let root = Unit {
        path: String::new(),
        class: "GPT2LMHeadModel",
        parameters: own.map(|(name, _)| name).collect(),
        elements: tree.elements(),
    };
    assert_eq!(units, [root]);
}

/// By default every model has the units of the classes that `transformers` lists for it.
#[test]
fn blocks_are_wrapped_as_in_transformers() {
    let recorded: serde_json::Value =
        serde_json::from_str(include_str!("no_split_modules.json")).unwrap();
    for architecture in fullshard_models::architectures() {
        let config = (architecture.defaults)().to_string();
        let tree = fullshard_models::from_json(&config).unwrap().tree();
        let listed = &recorded[architecture.model_type];
        let listed: Vec<String> = serde_json::from_value(listed.clone()).unwrap();
        let by_class = units(&tree, &WrapPolicy::Classes(listed)).unwrap();
        assert_eq!(units(&tree, &WrapPolicy::default()).unwrap(), by_class);
        assert!(by_class.len() > 12, "{}", by_class.len());
    }
}

#[test]
fn the_root_owns_what_blocks_do_not() {
    let units = units(&small(), &classes(&["GPT2Block"])).unwrap();
    assert_eq!(paths(&units), ["", "transformer.h.0", "transformer.h.1"]);
    let in_block = [
        "ln_1.weight",
        "ln_1.bias",
        "attn.c_attn.weight",
        "attn.c_attn.bias",
        "attn.c_proj.weight",
        "attn.c_proj.bias",
        "ln_2.weight",
        "ln_2.bias",
        "mlp.c_fc.weight",
        "mlp.c_fc.bias",
        "mlp.c_proj.weight",
        "mlp.c_proj.bias",
    ];
    assert_eq!(units[2].parameters, in_block.map(|name| format!("transformer.h.1.{name}")));
    assert_eq!(units[2].class, "GPT2Block");
    assert_eq!(units[2].elements, 12 * 4 * 4 + 13 * 4);
    assert_eq!(
        units[0].parameters,
        [
            "transformer.wte.weight",
            "transformer.wpe.weight",
            "transformer.ln_f.weight",
            "transformer.ln_f.bias"
        ]
    );
    assert_eq!(units[0].elements, 10 * 4 + 6 * 4 + 2 * 4);
}

#[test]
fn units_nest() {
    let units = units(&small(), &classes(&["GPT2MLP", "GPT2Block"])).unwrap();
    assert_eq!(
        paths(&units),
        ["", "transformer.h.0", "transformer.h.0.mlp", "transformer.h.1", "transformer.h.1.mlp"]
    );
    assert_eq!(units[1].parameters.len(), 8);
    assert_eq!(units[2].parameters.len(), 4);
    assert_eq!(units[2].elements, 8 * 4 * 4 + 5 * 4);
}

#[test]
fn path_prefix_is_not_containment() {
    let linear = |size| layer("Linear", &[size], None);
    let tree = Module::new("Root")
        .child("h", Module::new("Block").child("a", linear(1)))
        .child("h1", Module::new("Other").child("a", linear(2)));
    let units = units(&tree, &classes(&["Block"])).unwrap();
    assert_eq!(units[0].parameters, ["h1.a.weight"]);
    assert_eq!(units[1].parameters, ["h.a.weight"]);
}

#[test]
fn unit_may_own_nothing() {
    let units = units(&small(), &classes(&["Embedding", "Linear"])).unwrap();
    assert_eq!(paths(&units), ["", "transformer.wte", "transformer.wpe", "lm_head"]);
    let owned: Vec<usize> = units[1..].iter().map(|unit| unit.parameters.len()).collect();
    assert_eq!(owned, [0, 1, 0]);
    assert_eq!(units[0].parameters[0], "transformer.wte.weight");
}

#[test]
fn by_size_never_splits_tied_weights() {
    // Both the embedding and the head, which is the same tensor, are larger than the minimum size.
    let tree = gpt2(1000, 6, 4, 2);
    let units = units(&tree, &WrapPolicy::MinSize(200)).unwrap();
    assert_eq!(paths(&units), ["", "transformer.h.0", "transformer.h.1"]);
    assert_eq!(
        units[0].parameters,
        [
            "transformer.wte.weight",
            "transformer.wpe.weight",
            "transformer.ln_f.weight",
            "transformer.ln_f.bias"
        ]
    );
    assert_eq!(units.iter().map(|unit| unit.elements).sum::<usize>(), tree.elements());
}

#[test]
fn tied_weights_inside_a_unit_stay_inside() {
    let pair = |at: &str| {
        let other = format!("{at}.a.weight");
        Module::new("Pair")
            .child("a", layer("Linear", &[8], None))
            .child("b", Module::new("Linear").tied("weight", &[8], &other))
    };
    let tree = Module::new("Root").child("x", pair("x")).child("y", pair("y"));
    let units = units(&tree, &classes(&["Pair", "Linear"])).unwrap();
    assert_eq!(paths(&units), ["", "x", "x.a", "x.b", "y", "y.a", "y.b"]);
    assert_eq!(units[1].parameters, ["x.a.weight"]);
    assert_eq!(units[4].parameters, ["y.a.weight"]);
    assert_eq!(units[0].elements, 0);
}

#[test]
fn by_size_wraps_inner_modules_first() {
    let linear = |size| layer("Linear", &[size], None);
    let tree = Module::new("Root")
        .child("big", linear(100))
        .child(
            "mixed",
            Module::new("Mixed")
                .child("large", linear(50))
                .child("small_a", linear(30))
                .child("small_b", linear(20)),
        )
        .child(
            "leftover",
            Module::new("Mixed").child("large", linear(50)).child("small", linear(49)),
        )
        .child("list", Module::list([linear(30), linear(30)]))
        .child("attention", Module::new("MultiheadAttention").child("out", linear(60)));
    let by_size = |min_size| units(&tree, &WrapPolicy::MinSize(min_size)).unwrap();
    assert_eq!(
        paths(&by_size(50)),
        ["", "big", "mixed", "mixed.large", "leftover.large", "attention"]
    );
    assert_eq!(paths(&by_size(100)), ["", "big", "mixed"]);
    assert_eq!(paths(&by_size(99)), ["", "big", "mixed", "leftover"]);
    assert_eq!(paths(&by_size(1000)), [""]);
    assert_eq!(
        by_size(50)[0].parameters,
        ["leftover.small.weight", "list.0.weight", "list.1.weight"]
    );
}

#[test]
fn by_size_matches_torch_without_tied_weights() {
    let recorded: BTreeMap<usize, Vec<String>> =
        serde_json::from_str(include_str!("by_size.json")).unwrap();
    let mut tree = gpt2(25, 6, 4, 2);
    tree.children.pop();
    let tree = tree.child("lm_head", layer("Linear", &[25, 4], None));
    for (min_size, wrapped) in recorded {
        let units = units(&tree, &WrapPolicy::MinSize(min_size)).unwrap();
        assert_eq!(paths(&units)[1..], wrapped, "from {min_size} elements");
    }
}

#[test]
fn rejects_classes_that_cannot_be_wrapped() {
    let model =
        "GPT2Model, Embedding, GPT2Block, LayerNorm, GPT2Attention, Conv1D, GPT2MLP, Linear";
    for (class, message) in [
        ("GPT2Blok", "no module is a `GPT2Blok` (did you mean `GPT2Block`?); the model has "),
        ("gpt2block", "no module is a `gpt2block` (did you mean `GPT2Block`?); the model has "),
        ("LlamaDecoderLayer", "no module is a `LlamaDecoderLayer`; the model has "),
        ("ModuleDict", "no module is a `ModuleDict`; the model has "),
        (
            "GPT2LMHeadModel",
            "`GPT2LMHeadModel` is the model itself, which is always the outermost unit: name the \
             class of its layers; it has ",
        ),
    ] {
        assert_eq!(error(&small(), &classes(&["GPT2Block", class])), format!("{message}{model}"));
    }
    assert_eq!(
        error(&small(), &classes(&["ModuleList"])),
        "`ModuleList` is a list of modules without a forward pass: wrap the modules in it, \
         GPT2Block"
    );
}

#[test]
fn root_class_is_wrapped_inside() {
    let tree = Module::new("Block").child("inner", layer("Block", &[3], None));
    assert_eq!(paths(&units(&tree, &classes(&["Block"])).unwrap()), ["", "inner"]);
}

#[test]
fn rejects_invalid_trees() {
    let with_head = |head: Module| {
        Module::new("Root").child("wte", layer("Embedding", &[4, 2], None)).child("head", head)
    };
    let tied = |dims: &[usize], other| Module::new("Linear").tied("weight", dims, other);
    for (tree, message) in [
        (
            with_head(tied(&[4, 2], "wte.wait")),
            "`head.weight` is tied to `wte.wait`, which the model does not have",
        ),
        (
            with_head(tied(&[2, 4], "wte.weight")),
            "`head.weight` is tied to `wte.weight`, which is [4, 2] and not [2, 4]",
        ),
        (
            with_head(tied(&[4, 2], "head.weight")),
            "`head.weight` is tied to `head.weight`, which is itself tied to `head.weight`: tie \
             both to the same parameter",
        ),
        (
            with_head(tied(&[4, 2], "wte.weight")).child("last", tied(&[4, 2], "head.weight")),
            "`last.weight` is tied to `head.weight`, which is itself tied to `wte.weight`: tie \
             both to the same parameter",
        ),
        (
            with_head(layer("Linear", &[1], None)).child("head", layer("Linear", &[1], None)),
            "two parameters of the model are named `head.weight`: each needs a unique name",
        ),
    ] {
        assert_eq!(error(&tree, &WrapPolicy::Root), message);
        assert!(frozen(&tree, &[]).is_err());
    }
}
