//! Exports are identical to those that `transformers` has opened: see `data/open_exports.py`.
#![allow(clippy::unwrap_used)]

use fullshard_checkpoint::{
    Error, ExportOptions, ModelNames, TensorEntry, WeightDtype, Weights, export, write_config,
};
use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Prefixes of recorded tensors that are not weights.
const NOT_WEIGHTS: [&str; 7] = ["grad.", "losses.", "tokens", "labels", "logits", "loss", "rates"];

/// Suffix, largest shard and dtype of the exports of each recording.
const EXPORTS: [(&str, u64, WeightDtype); 4] = [
    ("", 50_000_000_000, WeightDtype::F32),
    ("_sharded", 10_000, WeightDtype::F32),
    ("_bf16", 50_000_000_000, WeightDtype::BF16),
    ("_f16_sharded", 10_000, WeightDtype::F16),
];

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data")
}

/// Exports a recorded model as it would be after training.
fn export_recording(case: &str, dir: &Path, options: &ExportOptions) {
    let path = recordings().join(format!("{case}.safetensors"));
    let recording = Weights::open(&path).unwrap();
    let tensors: Vec<TensorEntry> = recording
        .names()
        .filter(|name| !NOT_WEIGHTS.iter().any(|prefix| name.starts_with(prefix)))
        .map(|name| TensorEntry::new(name, recording.dims(name).unwrap()))
        .collect();
    export(dir, &tensors, |name| recording.read_f32(name), options).unwrap();
    let names = match &case[..4] {
        "gpt2" => ModelNames { model_type: "gpt2", architecture: "GPT2LMHeadModel" },
        _ => ModelNames { model_type: "llama", architecture: "LlamaForCausalLM" },
    };
    write_config(dir, &config(&path), names, options.dtype).unwrap();
    Weights::open(dir).unwrap().check(&tensors).unwrap();
}

fn config(recording: &Path) -> Value {
    let bytes = fs::read(recording).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    serde_json::from_str(&metadata.metadata().as_ref().unwrap()["config"]).unwrap()
}

fn digests(dir: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let digest = |path: &Path| -> String {
        Sha256::digest(fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    files
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), digest(&path)))
        .collect()
}

#[test]
fn exports_match_those_opened_by_transformers() {
    let exports = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exports");
    let _ = fs::remove_dir_all(&exports);
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(recordings()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let case = path.file_stem().unwrap().to_str().unwrap().to_owned();
            for (suffix, max_shard_bytes, dtype) in EXPORTS {
                let name = case.clone() + suffix;
                let dir = exports.join(&name);
                export_recording(&case, &dir, &ExportOptions { max_shard_bytes, dtype });
                found.insert(name, digests(&dir));
            }
        }
    }

    let opened = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/transformers.json");
    let opened: Value = serde_json::from_slice(&fs::read(opened).unwrap()).unwrap();
    let opened = opened["opened"].as_object().unwrap();
    assert_eq!(found.len(), 48);
    assert_eq!(found.keys().collect::<Vec<_>>(), opened.keys().collect::<Vec<_>>());
    for (name, digests) in &found {
        assert_eq!(&serde_json::to_value(digests).unwrap(), &opened[name]["files"], "{name}");
        let exact = !name.contains("_bf16") && !name.contains("_f16");
        let difference = opened[name]["logits_difference"].as_f64();
        assert_eq!(difference.is_some_and(|difference| difference < 1e-5), exact, "{name}");
    }
    assert!(found["llama_grouped_sharded"].len() > 5);
}

#[test]
fn config_keeps_the_fields_of_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let names = ModelNames { model_type: "gpt2", architecture: "GPT2LMHeadModel" };
    let given = serde_json::json!({
        "n_embd": 48, "torch_dtype": "bfloat16", "transformers_version": "4.31.0",
        "architectures": ["GPT2Model"], "my_own": {"b": 1, "a": 2},
    });
    write_config(dir.path(), &given, names, WeightDtype::F32).unwrap();
    let written = fs::read_to_string(dir.path().join("config.json")).unwrap();
    let expected = r#"{
  "architectures": [
    "GPT2LMHeadModel"
  ],
  "dtype": "float32",
  "model_type": "gpt2",
  "my_own": {
    "a": 2,
    "b": 1
  },
  "n_embd": 48
}
"#;
    assert_eq!(written, expected);
    // Without an end token there is no generation config.
    assert!(!dir.path().join("generation_config.json").exists());

    write_config(dir.path(), &given, names, WeightDtype::BF16).unwrap();
    let written = fs::read_to_string(dir.path().join("config.json")).unwrap();
    assert_eq!(written, expected.replace("float32", "bfloat16"));

    let error = write_config(dir.path(), &Value::Null, names, WeightDtype::F32).unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error}");
}
