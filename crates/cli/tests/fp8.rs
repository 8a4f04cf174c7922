//! `bench step --fp8` reports the matmuls that run in FP8 and those that do not.
#![allow(clippy::unwrap_used)]

use fullshard_core::Platform;
use fullshard_pjrt::plugins::{Store, find_or_install};
use serde_json::Value;
use std::process::Command;

/// The report and stderr of a GPT-2 with a given MLP width.
fn measured(inner: usize, args: &[&str]) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        r#"{{"model_type": "gpt2", "vocab_size": 67, "n_positions": 16, "n_embd": 16, "n_layer": 2,
            "n_head": 2, "n_inner": {inner}, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}}"#
    );
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let store = Store::default_location().unwrap();
    let cpu = find_or_install(Platform::Cpu, None, &store).unwrap().path;
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullshard"));
    command.args(["bench", "step", "--config", "config.json", "--json", "--batch", "4"]);
    command.args(["--steps", "3", "--fixed_batch", "--learning_rate", "1e-2"]).args(args);
    command.current_dir(folder.path()).env("FULLSHARD_CACHE", folder.path().join("cache"));
    let output = command.env("FULLSHARD_CPU_PLUGIN", cpu).env_remove("PJRT_DEVICE").output();
    let output = output.unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    (serde_json::from_slice(&output.stdout).unwrap(), stderr)
}

#[test]
fn flag_and_config_give_the_same_step() {
    let config = r#"{"xla_fsdp_settings": {"compute_dtype": "float8_e4m3fn"}}"#;
    let (by_flag, stderr) = measured(64, &["--fp8"]);
    let (by_config, _) = measured(64, &["--fsdp_config", config]);
    assert_eq!(by_flag["compile"]["program"], by_config["compile"]["program"]);
    assert!(stderr.contains("cpu has no FP8 matmul units"), "{stderr}");
    let settings = &by_flag["settings"];
    assert_eq!(settings["fp8_matmuls"], 8);
    assert_eq!(settings["not_fp8"], serde_json::json!([]));
    assert_eq!(settings["compute_dtype"], "bfloat16");
    assert_eq!(settings["reduce_dtype"], "bfloat16");

    let (half, _) = measured(64, &["--bf16"]);
    assert_ne!(half["compile"]["program"], by_flag["compile"]["program"]);
    assert_eq!(half["settings"]["fp8_matmuls"], Value::Null);
    let loss = |report: &Value, when: &str| report["loss"][when].as_f64().unwrap();
    assert!(loss(&by_flag, "last") < loss(&by_flag, "first") - 0.3, "{}", by_flag["loss"]);
    for when in ["first", "last"] {
        let apart = loss(&by_flag, when) - loss(&half, when);
        assert!(apart.abs() < 0.05, "{} and {}", by_flag["loss"], half["loss"]);
    }
}

#[test]
fn other_sizes_stay_in_bfloat16() {
    let (report, stderr) = measured(40, &["--fp8"]);
    let settings = &report["settings"];
    assert_eq!(settings["fp8_matmuls"], 4);
    let others = ["0.mlp.c_fc", "0.mlp.c_proj", "1.mlp.c_fc", "1.mlp.c_proj"];
    let others = others.map(|name| format!("transformer.h.{name}"));
    assert_eq!(settings["not_fp8"], serde_json::json!(others));
    assert!(stderr.contains("4 matmuls run in bfloat16, not in FP8"), "{stderr}");
    assert!(stderr.contains("transformer.h.1.mlp.c_fc"), "{stderr}");
}
