//! Run configs on the command line: printed, saved and run again.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Folder, rejects, short, text};
use std::fs;
use std::process::Stdio;

/// The losses that a run logged, with all digits.
fn losses(folder: &Folder, output: &str) -> Vec<serde_json::Value> {
    let state = folder.json(&format!("{output}/trainer_state.json"));
    let log = state["log_history"].as_array().unwrap();
    log.iter().filter_map(|entry| entry.get("loss").cloned()).collect()
}

#[test]
fn config_reproduces_a_run_bit_for_bit() {
    let folder = Folder::new();
    let flags = ["--do_eval", "--max_steps", "6", "--logging_steps", "1", "--seed", "7", "--bf16"];
    folder.stdout(&short(&flags));
    assert_eq!(losses(&folder, "out").len(), 6);

    // Unchanged, it would overwrite its own results without permission.
    let again = ["train", "out/run_config.toml"];
    rejects(&folder, &again, 1, "which is not empty: add --resume_from_checkpoint");
    folder.stdout(&["train", "out/run_config.toml", "--output_dir", "again"]);
    assert_eq!(losses(&folder, "again"), losses(&folder, "out"));
    let bytes = |path: &str| fs::read(folder.path(path)).unwrap();
    assert_eq!(bytes("again/model.safetensors"), bytes("out/model.safetensors"));
    let config = |output: &str| text(&bytes(&format!("{output}/run_config.toml")));
    assert_eq!(config("again"), config("out").replace("\"out\"", "\"again\""));

    // Flags override the file.
    folder.stdout(&["train", "out/run_config.toml", "--output_dir", "other", "--seed", "8"]);
    assert_ne!(losses(&folder, "other"), losses(&folder, "out"));
}

#[test]
fn flags_and_configs_round_trip() {
    let folder = Folder::new();
    let flags = [
        "--model_type",
        "gpt2",
        "--train_file",
        "train.txt",
        "--bf16",
        "--lr-scheduler-type=cosine",
    ];
    let toml = folder.stdout(&[&["config"], &flags[..]].concat());
    assert!(toml.starts_with("version = 4\n") && toml.contains("compute = \"bfloat16\""), "{toml}");
    folder.write("kept.toml", &toml);
    assert_eq!(folder.stdout(&["config", "kept.toml"]), toml);
    let json = folder.stdout(&["config", "kept.toml", "--format", "json"]);
    folder.write("kept.json", &json);
    assert_eq!(folder.stdout(&["config", "kept.json"]), toml);
    let words = folder.stdout(&["config", "kept.toml", "--format", "flags"]);
    let words: Vec<&str> = words.split_whitespace().collect();
    assert_eq!(folder.stdout(&[&["config"], &words[..]].concat()), toml);
    // A file of flags gives the same config.
    folder.write(
        "flags.json",
        r#"{"model_type": "gpt2", "train_file": ["train.txt"], "bf16": true,
        "lr_scheduler_type": "cosine"}"#,
    );
    assert_eq!(folder.stdout(&["config", "flags.json"]), toml);
}

#[test]
fn rejects_invalid_configs() {
    let folder = Folder::new();
    folder.write("newer.toml", "version = 5\n[model]\n");
    folder.write("typo.toml", "version = 1\n[model]\nmodel_typ = \"gpt2\"\n");
    folder.write("flags.json", r#"{"model_typ": "gpt2"}"#);
    for (file, expected) in [
        ("newer.toml", "newer.toml: run config version 5 is not supported"),
        ("typo.toml", "unknown field `model_typ`"),
        ("flags.json", "flags.json: unknown argument `model_typ` (did you mean `model_type`?)"),
        ("missing.toml", "cannot read missing.toml: No such file"),
    ] {
        rejects(&folder, &["train", file], 1, expected);
    }
    rejects(&folder, &["train", "train.txt"], 2, "a run config or a file of flags ends in .toml");
}

/// After a closed pipe, a command that only prints exits, and a run continues.
#[test]
fn closed_pipe_ends_only_printing_commands() {
    let folder = Folder::new();
    for (args, code) in [(vec!["config"], None), (short(&["--max_steps", "2"]), Some(0))] {
        let mut child = folder.command(&args).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let status = child.wait().unwrap();
        match code {
            Some(code) => assert_eq!(status.code(), Some(code), "{args:?}"),
            // All was printed before the pipe closed, or the code of the signal.
            None => assert!(matches!(status.code(), Some(0 | 141)), "{args:?}: {status}"),
        }
    }
    assert!(folder.path("out/model.safetensors").is_file());
}
