//! Sharding rules in a file: those of a strategy give its program, and wrong ones change nothing.
#![allow(clippy::unwrap_used)]

use fullshard::RunConfig;
use fullshard::config::Given;
use fullshard_data::demo::Demo;
use fullshard_parallel::Strategy;
use fullshard_step::program_hash;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Eight devices do not divide any of its sizes but the MLP's.
const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 99, "n_positions": 20, "n_embd": 18,
    "n_layer": 2, "n_head": 2, "n_inner": 40}"#;
const MESHES: [&str; 2] = ["data=2,fsdp=4", "fsdp=8"];

fn config(flags: &[(&str, &str)]) -> RunConfig {
    let mut given = Given::default();
    for (name, value) in [("config_name", MODEL), ("block_size", "16")].iter().chain(flags) {
        given.add(name, vec![(*value).to_owned()]).unwrap();
    }
    given.resolve(RunConfig::default()).unwrap()
}

/// The hash of the step program.
fn hash(config: &RunConfig) -> String {
    program_hash(&config.planned_spec().unwrap().step_program().unwrap().to_text())
}

fn hash_with_rules(mesh: &str, path: &Path) -> String {
    hash(&config(&[("mesh", mesh), ("sharding_rules", &path.display().to_string())]))
}

/// The axes of a mesh by name.
fn names(mesh: &str) -> Vec<&str> {
    mesh.split(',').map(|axis| axis.split('=').next().unwrap()).collect()
}

/// The rules of a strategy with axes by name, and with `*` where all axes are meant.
fn rules_of(strategy: Strategy, dim: &str, mesh: &str) -> [Value; 2] {
    let all = json!(names(mesh));
    let (by_name, by_star) = match strategy {
        Strategy::NoShard => (json!([]), json!([])),
        Strategy::HybridShard | Strategy::HybridShardZero2 => (json!(["fsdp"]), json!("fsdp")),
        _ => (all.clone(), json!("*")),
    };
    [(all, by_name), (json!("*"), by_star)].map(|(batch, axes)| {
        json!({
            "activations": [["batch", batch]],
            "parameters": [[dim, axes]],
            "gather": if strategy == Strategy::WeightUpdate { "step" } else { "unit" },
            "reshard_after_forward": strategy.reshards(),
        })
    })
}

fn check_same_program(strategy: Strategy, dim: &str) {
    let folder = tempfile::tempdir().unwrap();
    let settings = json!({"xla_fsdp_settings": {"shard_param_on_dim_0": dim == "dim_0"}});
    let settings = settings.to_string();
    for mesh in MESHES {
        let flags = [("mesh", mesh), ("fsdp", strategy.name()), ("fsdp_config", &settings)];
        let expected = hash(&config(&flags));
        for rules in rules_of(strategy, dim, mesh) {
            for (name, text) in [
                ("rules.json", rules.to_string()),
                ("rules.toml", toml::to_string(&rules).unwrap()),
            ] {
                let path = folder.path().join(name);
                fs::write(&path, &text).unwrap();
                assert_eq!(hash_with_rules(mesh, &path), expected, "{mesh}: {text}");
            }
        }
    }
}

macro_rules! same_program {
    ($($name:ident: $strategy:ident $dim:literal;)*) => {
        $(
            #[test]
            fn $name() {
                check_same_program(Strategy::$strategy, $dim);
            }
        )*
    };
}

same_program! {
    rules_of_full_shard_give_its_program: FullShard "flat";
    rules_of_full_shard_on_dim_0_give_its_program: FullShard "dim_0";
    rules_of_hybrid_shard_give_its_program: HybridShard "flat";
    rules_of_hybrid_shard_on_dim_0_give_its_program: HybridShard "dim_0";
    rules_of_shard_grad_op_give_its_program: ShardGradOp "flat";
    rules_of_shard_grad_op_on_dim_0_give_its_program: ShardGradOp "dim_0";
    rules_of_hybrid_shard_zero2_give_its_program: HybridShardZero2 "flat";
    rules_of_hybrid_shard_zero2_on_dim_0_give_its_program: HybridShardZero2 "dim_0";
    rules_of_weight_update_give_its_program: WeightUpdate "flat";
    rules_of_weight_update_on_dim_0_give_its_program: WeightUpdate "dim_0";
    rules_of_no_shard_give_its_program: NoShard "flat";
    rules_of_no_shard_on_dim_0_give_its_program: NoShard "dim_0";
}

#[test]
fn example_gives_the_program_of_full_shard() {
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rules/full_shard.toml");
    for mesh in MESHES {
        let [full, none] =
            ["full_shard", "no_shard"].map(|it| hash(&config(&[("mesh", mesh), ("fsdp", it)])));
        assert_eq!(hash_with_rules(mesh, &example), full, "{mesh}");
        assert_ne!(full, none, "{mesh}");
    }
}

/// All files below a folder, with their contents.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => {
                all.push((path.clone(), Vec::new()));
                all.extend(files(&path));
            }
            false => all.push((path.clone(), fs::read(&path).unwrap())),
        }
    }
    all.sort();
    all
}

/// A folder with text and a tokenizer.
fn folder_with_text() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    Demo::write(folder.path(), 600, 5).unwrap();
    folder
}

/// Trains with rules in a file of this name, or without the file, on data=2,fsdp=4. The message
/// must have the path and these words, and the folder must stay as it is.
fn check_rejected(name: &str, rules: Option<&str>, more: &[(&str, &str)], words: &[&str]) {
    let folder = folder_with_text();
    let path = |name: &str| folder.path().join(name).display().to_string();
    if let Some(rules) = rules {
        fs::write(path(name), rules).unwrap();
    }
    let (text, tokenizer, cache) = (path("train.txt"), path("tokenizer.json"), path("cache"));
    let (rules, output) = (path(name), path("output"));
    let mut flags = vec![
        ("mesh", MESHES[0]),
        ("sharding_rules", &rules),
        ("train_file", &text),
        ("tokenizer_name", &tokenizer),
        ("cache_dir", &cache),
        ("output_dir", &output),
        ("max_steps", "1"),
    ];
    flags.extend(more);
    let before = files(folder.path());
    let error = fullshard::train(&config(&flags), &mut ()).map(|_| ()).unwrap_err().to_string();
    for words in [&[rules.as_str()], words].concat() {
        assert!(error.contains(words), "no `{words}` in: {error}");
    }
    assert_eq!(files(folder.path()), before, "{error}");
}

macro_rules! rejected {
    ($($name:ident: $file:literal $rules:expr, $more:expr, $words:expr;)*) => {
        $(
            #[test]
            fn $name() {
                check_rejected($file, $rules, &$more, &$words);
            }
        )*
    };
}

const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 96, "hidden_size": 16,
    "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 64}"#;
const VALID: &str = r#"activations = [["batch", "*"]]"#;

rejected! {
    rejects_an_unknown_axis: "rules.toml"
        Some("activations = [[\"batch\", \"*\"]]\nparameters = [[\"flat\", \"model\"]]"), [],
        ["rule `flat` of", "no axis `model` in [\"data\", \"fsdp\"]", "name axes of --mesh"];
    rejects_tensor_beside_other_axes: "rules.toml"
        Some("activations = [[\"batch\", \"*\"]]\nparameters = [[\"mlp\", [\"tensor\", \"fsdp\"]]]"),
        [("mesh", "data=2,fsdp=2,tensor=2")],
        ["rule `mlp` of", "has `tensor` beside other axes", "write a rule for `tensor` alone"];
    rejects_sharded_tokens_without_a_sliced_head: "rules.toml"
        Some("activations = [[\"batch\", \"*\"], [\"norm_sequence\", \"tensor\"]]\nparameters = [[\"mlp\", \"tensor\"]]"),
        [("mesh", "data=2,fsdp=2,tensor=2")],
        ["rule `norm_sequence` of", "needs a sliced head", "[\"vocab\", \"tensor\"]"];
    rejects_query_heads_apart_from_their_keys: "rules.toml"
        Some("activations = [[\"batch\", \"*\"]]\nparameters = [[\"heads\", \"tensor\"]]"),
        [("mesh", "data=2,fsdp=2,tensor=2"), ("config_name", LLAMA)],
        ["slices only one of `heads` and `kv_heads`", "add a rule for the other"];
    rejects_a_tensor_axis_that_slices_nothing: "rules.toml"
        Some(VALID), [("mesh", "data=2,fsdp=2,tensor=2")],
        ["mesh axis `tensor` does not shard", "it slices named dims of parameters"];
    rejects_a_context_axis_that_shards_nothing: "rules.toml"
        Some(VALID), [("mesh", "data=2,fsdp=2,context=2")],
        ["mesh axis `context` does not shard", "it shards the rule `sequence`"];
    rejects_another_axis_for_sequences: "rules.toml"
        Some(r#"activations = [["batch", "*"], ["sequence", "fsdp"]]"#), [],
        ["rule `sequence` of", "has axis `fsdp`", "only `context` shards `sequence`"];
    rejects_an_unknown_dimension: "rules.toml"
        Some("activations = [[\"batch\", \"*\"]]\nparameters = [[\"embd\", \"fsdp\"]]"), [],
        ["rule `embd` of", "did you mean `embed`?", "the names are dim_0, embed, flat, "];
    rejects_an_unknown_dimension_of_activations: "rules.toml"
        Some(r#"activations = [["batch", "*"], ["sequences", "fsdp"]]"#), [],
        ["rule `sequences` of", "did you mean `sequence`?", "the names are batch"];
    rejects_an_axis_that_does_not_shard_the_batch: "rules.toml"
        Some(r#"activations = [["batch", "fsdp"]]"#), [],
        ["mesh axis `data` does not shard the batch", "add it to the rule `batch`"];
    rejects_rules_without_a_batch: "rules.toml"
        Some("activations = []"), [],
        ["mesh axis `data` does not shard the batch", "add it to the rule `batch`"];
    rejects_a_strategy_beside_rules: "rules.toml"
        Some(VALID), [("fsdp", "hybrid_shard")],
        ["--fsdp and --sharding_rules", "leave one of them out"];
    rejects_a_dimension_that_does_not_divide: "rules.toml"
        Some("activations = [[\"batch\", \"*\"]]\nparameters = [[\"embed\", \"fsdp\"]]"), [],
        ["rule `embed` of", "dim 1 of `transformer.wte.weight` is 18", "a multiple of 4 devices",
         "`flat` always works"];
    rejects_a_missing_file: "rules.toml"
        None, [],
        ["--sharding_rules", "cannot read", "No such file"];
    rejects_malformed_toml: "rules.toml"
        Some("activations = [[\"batch\", \"*\""), [],
        ["--sharding_rules", "line 1", "see docs/parallelism.md"];
    rejects_malformed_json: "rules.json"
        Some(r#"{"activations": [["batch"]]}"#), [],
        ["--sharding_rules", "line 1", "see docs/parallelism.md"];
    rejects_an_unknown_key: "rules.toml"
        Some("activations = [[\"batch\", \"*\"]]\nparams = []"), [],
        ["unknown field `params`", "`parameters`", "see docs/parallelism.md"];
}
