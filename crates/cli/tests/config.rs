//! Run configs as a person uses them: printed, kept, run again.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Folder, refused, short, text};
use std::fs;
use std::process::Stdio;

/// The losses that a run logged, to the last digit.
fn losses(folder: &Folder, output: &str) -> Vec<serde_json::Value> {
    let state = folder.json(&format!("{output}/trainer_state.json"));
    let log = state["log_history"].as_array().unwrap();
    log.iter().filter_map(|entry| entry.get("loss").cloned()).collect()
}

#[test]
fn a_run_is_repeated_from_its_config_bit_for_bit() {
    let folder = Folder::new();
    let flags = ["--do_eval", "--max_steps", "6", "--logging_steps", "1", "--seed", "7", "--bf16"];
    folder.says(&short(&flags));
    assert_eq!(losses(&folder, "out").len(), 6);

    // As it is it would write over its own results, which it was not allowed to.
    let again = ["train", "out/run_config.toml"];
    refused(&folder, &again, 1, "which is not empty: add --overwrite_output_dir");
    folder.says(&["train", "out/run_config.toml", "--output_dir", "again"]);
    assert_eq!(losses(&folder, "again"), losses(&folder, "out"));
    let bytes = |path: &str| fs::read(folder.path(path)).unwrap();
    assert_eq!(bytes("again/model.safetensors"), bytes("out/model.safetensors"));
    let config = |output: &str| text(&bytes(&format!("{output}/run_config.toml")));
    assert_eq!(config("again"), config("out").replace("\"out\"", "\"again\""));

    // Flags win over the file.
    folder.says(&["train", "out/run_config.toml", "--output_dir", "other", "--seed", "8"]);
    assert_ne!(losses(&folder, "other"), losses(&folder, "out"));
}

#[test]
fn flags_are_printed_as_a_config_and_back() {
    let folder = Folder::new();
    let flags = [
        "--model_type",
        "gpt2",
        "--train_file",
        "train.txt",
        "--bf16",
        "--lr-scheduler-type=cosine",
    ];
    let toml = folder.says(&[&["config"], &flags[..]].concat());
    assert!(toml.starts_with("version = 1\n") && toml.contains("compute = \"bfloat16\""), "{toml}");
    folder.write("kept.toml", &toml);
    assert_eq!(folder.says(&["config", "kept.toml"]), toml);
    let json = folder.says(&["config", "kept.toml", "--format", "json"]);
    folder.write("kept.json", &json);
    assert_eq!(folder.says(&["config", "kept.json"]), toml);
    let words = folder.says(&["config", "kept.toml", "--format", "flags"]);
    let words: Vec<&str> = words.split_whitespace().collect();
    assert_eq!(folder.says(&[&["config"], &words[..]].concat()), toml);
    // Flags by name in a file are another way to write them.
    folder.write(
        "flags.json",
        r#"{"model_type": "gpt2", "train_file": ["train.txt"], "bf16": true,
        "lr_scheduler_type": "cosine"}"#,
    );
    assert_eq!(folder.says(&["config", "flags.json"]), toml);
}

#[test]
fn configs_that_cannot_be_are_refused_by_name() {
    let folder = Folder::new();
    folder.write("newer.toml", "version = 2\n[model]\n");
    folder.write("typo.toml", "version = 1\n[model]\nmodel_typ = \"gpt2\"\n");
    folder.write("flags.json", r#"{"model_typ": "gpt2"}"#);
    for (file, expected) in [
        ("newer.toml", "newer.toml: it is a run config of version 2, but this fullshard reads"),
        ("typo.toml", "unknown field `model_typ`"),
        ("flags.json", "flags.json: there is no argument `model_typ`; perhaps `model_type`"),
        ("missing.toml", "cannot read missing.toml: No such file"),
    ] {
        refused(&folder, &["train", file], 1, expected);
    }
    refused(&folder, &["train", "train.txt"], 2, "a run config or a file of flags ends in .toml");
}

/// What reads the output may stop doing so: a command that only prints ends, a run goes on.
#[test]
fn a_closed_pipe_ends_what_only_prints() {
    let folder = Folder::new();
    for (args, code) in [(vec!["config"], None), (short(&["--max_steps", "2"]), Some(0))] {
        let mut child = folder.command(&args).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let status = child.wait().unwrap();
        match code {
            Some(code) => assert_eq!(status.code(), Some(code), "{args:?}"),
            // Nothing was left to print when the pipe closed, or the signal's code.
            None => assert!(matches!(status.code(), Some(0 | 141)), "{args:?}: {status}"),
        }
    }
    assert!(folder.path("out/model.safetensors").is_file());
}
