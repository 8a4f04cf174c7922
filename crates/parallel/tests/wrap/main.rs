//! Units of module trees: by class, by size, with tied weights, frozen parameters and plans.
#![allow(clippy::unwrap_used)]

mod plans;
mod properties;

use fullshard_models::{Initializer, Module};
use fullshard_parallel::{Unit, WrapPolicy, frozen, units};
use std::collections::BTreeMap;

const NORMAL: Initializer = Initializer::Normal { deviation: 0.02 };

/// A module with a weight, and a bias if it is to have one.
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

/// A tree like that of GPT-2.
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

fn refusal(tree: &Module, policy: &WrapPolicy) -> String {
    units(tree, policy).unwrap_err().to_string()
}

#[test]
fn without_a_policy_the_root_owns_everything() {
    let tree = small();
    let units = units(&tree, &WrapPolicy::None).unwrap();
    let own = tree.named_parameters().into_iter().filter(|(_, p)| p.tied_to.is_none());
    let root = Unit {
        path: String::new(),
        class: "GPT2LMHeadModel",
        parameters: own.map(|(name, _)| name).collect(),
        elements: tree.elements(),
    };
    assert_eq!(units, [root]);
}

#[test]
fn blocks_are_units_and_the_root_has_the_rest() {
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
fn a_path_that_begins_like_another_is_not_inside_it() {
    let linear = |size| layer("Linear", &[size], None);
    let tree = Module::new("Root")
        .child("h", Module::new("Block").child("a", linear(1)))
        .child("h1", Module::new("Other").child("a", linear(2)));
    let units = units(&tree, &classes(&["Block"])).unwrap();
    assert_eq!(units[0].parameters, ["h1.a.weight"]);
    assert_eq!(units[1].parameters, ["h.a.weight"]);
}

#[test]
fn a_unit_may_own_nothing() {
    let units = units(&small(), &classes(&["Embedding", "Linear"])).unwrap();
    assert_eq!(paths(&units), ["", "transformer.wte", "transformer.wpe", "lm_head"]);
    let owned: Vec<usize> = units[1..].iter().map(|unit| unit.parameters.len()).collect();
    assert_eq!(owned, [0, 1, 0]);
    assert_eq!(units[0].parameters[0], "transformer.wte.weight");
}

#[test]
fn by_size_never_splits_tied_weights() {
    // Both the embedding and the head, which is the same tensor, are larger than the least size.
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
fn by_size_from_the_inside_out() {
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
    let by_size = |least| units(&tree, &WrapPolicy::MinSize(least)).unwrap();
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
fn by_size_wraps_what_torch_does_where_nothing_is_tied() {
    let recorded: BTreeMap<usize, Vec<String>> =
        serde_json::from_str(include_str!("by_size.json")).unwrap();
    let mut tree = gpt2(25, 6, 4, 2);
    tree.children.pop();
    let tree = tree.child("lm_head", layer("Linear", &[25, 4], None));
    for (least, wrapped) in recorded {
        let units = units(&tree, &WrapPolicy::MinSize(least)).unwrap();
        assert_eq!(paths(&units)[1..], wrapped, "from {least} elements");
    }
}

#[test]
fn classes_that_cannot_be_wrapped() {
    let model =
        "GPT2Model, Embedding, GPT2Block, LayerNorm, GPT2Attention, Conv1D, GPT2MLP, Linear";
    for (class, message) in [
        ("GPT2Blok", "no module is a `GPT2Blok`, perhaps `GPT2Block` was meant; the model has "),
        ("gpt2block", "no module is a `gpt2block`, perhaps `GPT2Block` was meant; the model has "),
        ("LlamaDecoderLayer", "no module is a `LlamaDecoderLayer`; the model has "),
        ("ModuleDict", "no module is a `ModuleDict`; the model has "),
        (
            "GPT2LMHeadModel",
            "`GPT2LMHeadModel` is the whole model, which is the outermost unit in any case: name \
             the class of its layers; it has ",
        ),
    ] {
        assert_eq!(refusal(&small(), &classes(&["GPT2Block", class])), format!("{message}{model}"));
    }
    assert_eq!(
        refusal(&small(), &classes(&["ModuleList"])),
        "`ModuleList` only lists modules and computes nothing: wrap what it lists, GPT2Block"
    );
}

#[test]
fn a_class_of_the_root_and_of_others_is_wrapped_inside() {
    let tree = Module::new("Block").child("inner", layer("Block", &[3], None));
    assert_eq!(paths(&units(&tree, &classes(&["Block"])).unwrap()), ["", "inner"]);
}

#[test]
fn trees_that_cannot_be() {
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
             both to one",
        ),
        (
            with_head(tied(&[4, 2], "wte.weight")).child("last", tied(&[4, 2], "head.weight")),
            "`last.weight` is tied to `head.weight`, which is itself tied to `wte.weight`: tie \
             both to one",
        ),
        (
            with_head(layer("Linear", &[1], None)).child("head", layer("Linear", &[1], None)),
            "two parameters of the model are named `head.weight`: each needs a name of its own",
        ),
    ] {
        assert_eq!(refusal(&tree, &WrapPolicy::None), message);
        assert!(frozen(&tree, &[]).is_err());
    }
}
