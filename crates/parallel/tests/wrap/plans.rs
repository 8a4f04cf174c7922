//! Frozen parameters, and plans as printed.

use crate::{classes, gpt2, layer, small};
use fullshard_models::Module;
use fullshard_parallel::wrap::{Column, UnitGroup};
use fullshard_parallel::{WrapError, WrapPlan, frozen};

/// The model of the PyTorch/XLA FSDP blog post.
fn blog_post_model() -> Module {
    gpt2(50257, 1024, 3072, 18)
}

fn patterns(patterns: &[&str]) -> Vec<String> {
    patterns.iter().map(|pattern| (*pattern).to_owned()).collect()
}

#[test]
fn patterns_freeze() {
    let tree = small();
    let freeze = |list: &[&str]| frozen(&tree, &patterns(list)).unwrap();
    assert_eq!(freeze(&[]), Vec::<String>::new());
    assert_eq!(freeze(&["transformer.wpe.weight"]), ["transformer.wpe.weight"]);
    assert_eq!(
        freeze(&["transformer.h.*.ln_1.bias", "*.wpe.*"]),
        ["transformer.wpe.weight", "transformer.h.0.ln_1.bias", "transformer.h.1.ln_1.bias"]
    );
    assert_eq!(freeze(&["*mlp*bias", "*.mlp.c_fc.bias"]).len(), 4);
    assert_eq!(freeze(&["*"]).len(), 28);
    assert_eq!(freeze(&["lm_head.*"]), ["transformer.wte.weight"]);
}

#[test]
fn rejects_patterns_that_match_nothing() {
    for (pattern, near) in [
        (
            "transformers.h.*.attn.*",
            "transformer.h.*.attn.c_attn.weight, transformer.h.*.attn.c_attn.bias, \
             transformer.h.*.attn.c_proj.weight",
        ),
        (
            "transformer.wte",
            "transformer.wte.weight, transformer.wpe.weight, transformer.ln_f.bias",
        ),
        ("lm_haed.*", "lm_head.weight, transformer.wte.weight, transformer.wpe.weight"),
        // Text that one part of a pattern matched is not available to the next.
        (
            "*.wpe.weight*weight",
            "transformer.wpe.weight, transformer.wte.weight, transformer.h.*.attn.c_attn.weight",
        ),
    ] {
        let error = frozen(&small(), &patterns(&["*.bias", pattern])).unwrap_err();
        assert!(matches!(error, WrapError::NoMatch { .. }));
        assert_eq!(
            error.to_string(),
            format!(
                "no parameter matches `{pattern}`, so nothing would be frozen; the nearest are \
                 {near}"
            )
        );
    }
}

#[test]
fn plan_of_the_blog_post_model() {
    let tree = blog_post_model();
    let plan = WrapPlan::new(&tree, &classes(&["GPT2Block"]), &[]).unwrap();
    assert_eq!(plan.elements(), tree.elements());
    assert_eq!(
        plan.to_string(),
        "\
unit                                class            units  parameters      elements
(root)                              GPT2LMHeadModel     ×1           4       157.5 M
transformer.h.0 … transformer.h.17  GPT2Block          ×18          12  113.3 M each
total: 19 units, 220 parameters, 2.2 B
tied: lm_head.weight is transformer.wte.weight, owned by (root)"
    );
}

#[test]
fn plan_with_nested_units_frozen_weights_and_a_column() {
    let freeze = patterns(&["*.ln_1.*", "lm_head.weight"]);
    let plan = WrapPlan::new(&small(), &classes(&["GPT2Block", "GPT2MLP"]), &freeze).unwrap();
    let bytes = |group: &UnitGroup<'_>| {
        let elements: usize = group.units.iter().map(|unit| unit.elements).sum();
        format!("{} B", 4 * elements)
    };
    let table = plan.table(&[Column { heading: "bytes", cell: &bytes }]);
    assert_eq!(
        table,
        "\
unit                                       class            units  parameters  elements   bytes
(root)                                     GPT2LMHeadModel     ×1           4        72   288 B
transformer.h.0 … transformer.h.1          GPT2Block           ×2           8   96 each   768 B
transformer.h.0.mlp … transformer.h.1.mlp  GPT2MLP             ×2           4  148 each  1184 B
total: 5 units, 28 parameters, 560
tied: lm_head.weight is transformer.wte.weight, owned by (root)
frozen: 5 parameters, 56: transformer.wte.weight, transformer.h.*.ln_1.weight, \
transformer.h.*.ln_1.bias"
    );
}

#[test]
fn different_units_have_separate_rows() {
    let tree = Module::new("Root").child(
        "h",
        Module::list([
            layer("Block", &[2], None),
            layer("Block", &[3], None),
            layer("Block", &[2], None),
            layer("Other", &[2], None),
        ]),
    );
    let plan = WrapPlan::new(&tree, &classes(&["Block", "Other"]), &[]).unwrap();
    let groups = plan.groups();
    let rows: Vec<Vec<&str>> =
        groups.iter().map(|group| group.units.iter().map(|u| u.path.as_str()).collect()).collect();
    assert_eq!(rows, [vec![""], vec!["h.0", "h.2"], vec!["h.1"], vec!["h.3"]]);
}
