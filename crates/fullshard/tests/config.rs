//! A run config is the same as flags, as a file and in Rust.
#![allow(clippy::unwrap_used)]

use fullshard::RunConfig;
use fullshard::config::{AheadChoice, Compute, ConfigSource, Flag, Flags, Given, SaveWhen, Takes};
use serde_json::{Value, json};
use std::fs;

fn given(flags: &[(&str, &[&str])]) -> Given {
    let mut given = Given::default();
    for (name, words) in flags {
        given.add(name, words.iter().map(|&word| word.to_owned()).collect()).unwrap();
    }
    given
}

fn resolved(flags: &[(&str, &[&str])]) -> RunConfig {
    given(flags).resolve(RunConfig::default()).unwrap()
}

/// The config of a command line.
fn parsed(flags: &[String]) -> RunConfig {
    let mut given = Given::default();
    let mut flags = flags.iter().peekable();
    while let Some(flag) = flags.next() {
        let name = flag.strip_prefix("--").unwrap();
        let mut words = Vec::new();
        while let Some(word) = flags.next_if(|word| !word.starts_with("--")) {
            words.push(word.clone());
        }
        given.add(name, words).unwrap();
    }
    given.resolve(RunConfig::default()).unwrap()
}

/// Writes a config to both kinds of file and reads it back.
fn through_files(config: &RunConfig) -> [RunConfig; 2] {
    let folder = tempfile::tempdir().unwrap();
    [("c.toml", config.to_toml().unwrap()), ("c.json", config.to_json().unwrap())].map(
        |(name, text)| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            RunConfig::read(&path).unwrap()
        },
    )
}

/// A non-default value for a flag, and flags that it requires.
fn sample(flag: &Flag) -> (Vec<String>, Vec<(&'static str, &'static str)>) {
    let word = |word: &str| vec![word.to_owned()];
    let words = match flag.name {
        "fsdp" => word("no_shard"),
        "device" => word("tpu"),
        "remat" => word("dots"),
        "mesh" => word("data=2,fsdp=-1"),
        "fsdp_config" => word(r#"{"min_num_params": 7}"#),
        "lr_scheduler_kwargs" => word(r#"{"num_cycles": 2}"#),
        "config_name" => word(r#"{"model_type": "gpt2"}"#),
        "adafactor" | "bf16" | "fp8" | "gradient_checkpointing" => word("true"),
        _ if flag.takes == Takes::Switch => {
            let on = flag.default == Some(vec!["true".to_owned()]);
            word(if on { "false" } else { "true" })
        }
        _ if !flag.choices.is_empty() => {
            let default = flag.default.as_ref().map(|words| words[0].as_str());
            word(flag.choices.iter().find(|&&choice| Some(choice) != default).unwrap())
        }
        _ if flag.takes == Takes::Many => vec!["a".to_owned(), "b".to_owned()],
        "preallocate" => word("true"),
        _ => match (flag.check)(&word("0.25")) {
            Ok(()) => word("0.25"),
            Err(_) => word("3"),
        },
    };
    let needed = match flag.name {
        "config_overrides" => vec![("model_type", "gpt2")],
        "dataset_config_name" => vec![("dataset_name", "d")],
        _ => Vec::new(),
    };
    (words, needed)
}

#[test]
fn every_flag_round_trips_through_files() {
    let mut tried = 0;
    for flag in Flags::all().into_iter().filter(|flag| flag.name != "token") {
        let (words, needed) = sample(&flag);
        let mut flags = given(
            &needed
                .iter()
                .map(|(n, w)| (*n, [*w]))
                .collect::<Vec<_>>()
                .iter()
                .map(|(n, w)| (*n, &w[..]))
                .collect::<Vec<_>>(),
        );
        let without = flags.resolve(RunConfig::default()).unwrap();
        flags.add(flag.name, words.clone()).unwrap();
        let config = flags.resolve(RunConfig::default()).unwrap();
        assert_ne!(config, without, "--{} {words:?} has no effect", flag.name);
        for read in through_files(&config) {
            assert_eq!(read, config, "--{} {words:?}", flag.name);
        }
        assert_eq!(parsed(&config.to_flags()), config, "--{}: {:?}", flag.name, config.to_flags());
        for alias in flag.aliases {
            let mut flags = given(&[]);
            flags.add(alias, words.clone()).unwrap();
            assert_eq!(flags.resolve(RunConfig::default()).unwrap(), config, "--{alias}");
        }
        tried += 1;
    }
    assert!(tried > 70, "{tried} flags");
}

/// Every key of a file is set by some flag or by `fsdp_config`.
#[test]
fn every_key_round_trips_through_flags() {
    let all = serde_json::to_value(RunConfig::default()).unwrap();
    let changed = |section: &str, key: &str, value: &Value| match (section, key, value) {
        ("model", "config", _) => json!("config.json"),
        ("fsdp", "strategy", _) => json!("shard_grad_op"),
        ("fsdp", "buffer_dtype", _) | ("precision", ..) => json!("bfloat16"),
        ("fsdp", "gradient_divide_factors", _) => json!([2.0, 3.0]),
        ("fsdp", "collective", _) => json!("axes"),
        ("model", "attention", _) => json!("eager"),
        ("fsdp", "sharding_groups", _) => json!([[0, 1], [2, 3]]),
        ("fsdp", "sharding_rank" | "sharding_world_size", _) => json!(2),
        ("mesh", "shape", _) => json!("data=2,fsdp=-1"),
        ("mesh", "context_method", _) => json!("ring"),
        ("fsdp", "wrap", _) => json!([]),
        (
            "fsdp",
            "reshard_after_forward"
            | "pin_layout_in_collective_ops"
            | "optimization_barrier_in_forward"
            | "optimization_barrier_in_backward",
            _,
        ) => json!(true),
        ("device", "platform", _) => json!("cuda"),
        ("remat", "policy", _) => json!("full"),
        ("model", "scan_layers", _) | ("fsdp", "gather_ahead", _) => json!("true"),
        ("evaluation" | "logging", "strategy", _) => json!("epoch"),
        ("schedule", "lr_scheduler_kwargs", _) => json!({"power": 2.0}),
        ("checkpoint", "strategy", _) => json!("epoch"),
        ("checkpoint", "total_limit", _) => json!(2),
        ("checkpoint", "memory", _) | ("output", "max_shard_size", _) => json!("3GB"),
        ("output", "save_dtype", _) => json!("bfloat16"),
        (_, "do_train" | "do_eval" | "preallocate" | "greater_is_better", _) => json!(true),
        ("device", "memory_fraction", _) => json!(0.5),
        ("optimizer", "learning_rate", _)
        | ("evaluation", "steps", _)
        | ("guard", "step_timeout", _) => json!(0.125),
        ("guard", "on_loss_spike", _) => json!("skip"),
        (
            _,
            "logits_chunk_mib" | "min_num_params" | "block_size" | "max_train_samples"
            | "max_eval_samples",
            _,
        )
        | (_, "seed", Value::Null)
        | ("mesh", "devices", _) => json!(3),
        (.., Value::Null) => json!("word"),
        (.., Value::Bool(on)) => json!(!on),
        (.., Value::String(_)) => json!("other"),
        (.., Value::Array(_)) => json!(["x", "y"]),
        (.., Value::Number(number)) if number.is_f64() => json!(0.375),
        _ => json!(17),
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.json");
    let mut tried = 0;
    for (section, keys) in all.as_object().unwrap() {
        for (key, value) in keys.as_object().into_iter().flatten() {
            let mut config = all.clone();
            config[section][key] = changed(section, key, value);
            fs::write(&path, config.to_string()).unwrap();
            let read = RunConfig::read(&path).unwrap();
            assert_ne!(read, RunConfig::default(), "{section}.{key}");
            // Keys that require others do not pass `check` alone.
            if read.check().is_ok() && key != "token" {
                assert_eq!(parsed(&read.to_flags()), read, "{section}.{key}");
            }
            tried += 1;
        }
    }
    assert!(tried > 75, "{tried} keys");
}

#[test]
fn token_is_never_written() {
    let config = resolved(&[("token", &["hf_secret"])]);
    assert!(config.model.token.is_given());
    let texts = [
        config.to_toml().unwrap(),
        config.to_json().unwrap(),
        config.to_flags().join(" "),
        format!("{config:?}"),
    ];
    assert!(texts.iter().all(|text| !text.contains("hf_secret")), "{texts:?}");
    assert!(through_files(&config).iter().all(|read| !read.model.token.is_given()));
}

/// Command lines carry Hugging Face's default of 0 beside a config that names classes.
#[test]
fn minimum_of_no_parameters_wraps_as_the_config_says() {
    let fsdp = r#"{"transformer_layer_cls_to_wrap": "GPT2Block"}"#;
    let config = resolved(&[("fsdp_min_num_params", &["0"]), ("fsdp_config", &[fsdp])]);
    assert_eq!(config, resolved(&[("fsdp_config", &[fsdp])]));
}

#[test]
fn rejects_other_versions_and_unknown_keys() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text, expected) in [
        ("a.toml", "version = 5\n", "version 5 is not supported, expected version 4"),
        ("b.toml", "version = 0\n", "run config version 0"),
        ("c.toml", "[model]\nmodel_type = \"gpt2\"\n", "add `version = 4`"),
        ("d.toml", "version = 1\n[model]\nmodel_typ = \"gpt2\"\n", "unknown field `model_typ`"),
        ("e.toml", "version = 1\n[modell]\n", "unknown field `modell`"),
        (
            "f.json",
            "{\"version\": 1, \"remat\": {\"policy\": \"some\"}}",
            "`some` is neither a remat policy",
        ),
        ("g.json", "{\"version\": 1, \"mesh\": {\"fsdp\": -1}}", "invalid value"),
        ("h.json", "[1]", "unknown"),
        ("i.toml", "version = ", "invalid TOML"),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        if name == "h.json" {
            assert!(RunConfig::read(&path).is_err());
            continue;
        }
        let error = RunConfig::read(&path).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{name}: {error}");
    }
}

/// The version before had no checkpoints.
#[test]
fn version_1_saves_no_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.toml");
    for text in
        ["version = 1\n[output]\nsave_strategy = \"no\"\n", "version = 1\n[mesh]\nfsdp = 2\n"]
    {
        fs::write(&path, text).unwrap();
        let config = RunConfig::read(&path).unwrap();
        assert_eq!(config.checkpoint.strategy, SaveWhen::No);
        assert_eq!(config.version, RunConfig::default().version);
    }
}

/// Layers were gathered ahead or not; what was the default then is the chip's choice now.
#[test]
fn version_3_gathers_ahead_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.toml");
    for (given, expected) in [("true", AheadChoice::True), ("false", AheadChoice::Auto)] {
        fs::write(&path, format!("version = 3\n[fsdp]\ngather_ahead = {given}\n")).unwrap();
        assert_eq!(RunConfig::read(&path).unwrap().fsdp.gather_ahead, expected);
    }
}

/// Choices between `true`, `false` and other words take booleans.
#[test]
fn booleans_are_words_of_a_choice() {
    let folder = tempfile::tempdir().unwrap();
    let expected = resolved(&[("gather_ahead", &["true"]), ("scan_layers", &["false"])]);
    for (name, text) in [
        ("a.toml", "version = 4\n[fsdp]\ngather_ahead = true\n[model]\nscan_layers = false\n"),
        (
            "b.json",
            r#"{"version": 4, "fsdp": {"gather_ahead": true}, "model": {"scan_layers": false}}"#,
        ),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        assert_eq!(RunConfig::read(&path).unwrap(), expected, "{name}");
    }
    let path = folder.path().join("c.json");
    fs::write(&path, r#"{"gather_ahead": true, "scan_layers": false}"#).unwrap();
    let flags = Given::from_file(&path).unwrap().unwrap();
    assert_eq!(flags.resolve(RunConfig::default()).unwrap(), expected);
    let path = folder.path().join("d.toml");
    for (value, expected) in [
        ("\"all\"", "unknown variant `all`, expected one of `auto`, `false`, `vectors`, `true`"),
        ("1", "invalid type: integer `1`, expected a word"),
    ] {
        fs::write(&path, format!("version = 4\n[fsdp]\ngather_ahead = {value}\n")).unwrap();
        let error = RunConfig::read(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn rejects_contradicting_flags() {
    for (flags, expected) in [
        (&[("bf16", &["true"][..]), ("dtype", &["float32"])][..], "contradict each other"),
        (&[("fp8", &["true"]), ("dtype", &["float16"])], "contradict each other"),
        (&[("remat", &["none"]), ("gradient_checkpointing", &[])], "contradict each other"),
        (&[("config_name", &["a"]), ("model_type", &["gpt2"])], "cannot be used with"),
        (&[("dataset_name", &["a"]), ("train_file", &["b"])], "cannot be used with"),
        (&[("warmup_ratio", &["0.1"]), ("warmup_steps", &["3"])], "cannot be used with"),
        (&[("config_overrides", &["a=1"])], "--config_overrides needs --model_type"),
        (&[("warmup_ratio", &["2"])], "--warmup_ratio is `2`, but must be"),
    ] {
        let error = given(flags).resolve(RunConfig::default()).unwrap_err().to_string();
        assert!(error.contains(expected), "{flags:?}: {error}");
    }
    let mut flags = Given::default();
    let error = flags.add("num_train_epoch", vec!["1".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("did you mean `num_train_epochs`?"), "{error}");
}

#[test]
fn equivalent_flags_give_the_same_config() {
    let compute = |flags: &[(&str, &[&str])]| resolved(flags).precision.compute;
    assert_eq!(compute(&[("bf16", &[])]), Some(Compute::Bfloat16));
    assert_eq!(compute(&[("bf16", &["true"]), ("fp8", &[])]), Some(Compute::Float8));
    assert_eq!(compute(&[("bf16", &["false"])]), None);
    let stated = r#"{"xla_fsdp_settings": {"compute_dtype": "bfloat16"}}"#;
    assert_eq!(compute(&[("fsdp_config", &[stated]), ("fp8", &[])]), Some(Compute::Float8));
    let checkpointed = r#"{"xla_fsdp_grad_ckpt": true}"#;
    assert_eq!(
        resolved(&[("fsdp_config", &[checkpointed])]).remat,
        resolved(&[("gradient-checkpointing", &[])]).remat
    );
    assert_eq!(resolved(&[("adafactor", &[])]).optimizer.name, "adafactor");
    assert_eq!(resolved(&[("seed", &["1"]), ("seed", &["2"])]).schedule.seed, 2);
    let Some(ConfigSource::Inline(config)) =
        resolved(&[("config", &[r#"{"n_inner": null, "n_layer": 2}"#])]).model.config
    else {
        panic!("expected inline JSON")
    };
    assert_eq!(Value::Object(config), json!({"n_layer": 2}));
}
