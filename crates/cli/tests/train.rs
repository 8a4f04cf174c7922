//! `fullshard train` and `fullshard run_clm` as a person runs them: what they leave behind, and how
//! they stop.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Folder, number, refused, short, text};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// The post's flags, but for the size of things and the hub.
#[test]
fn a_run_leaves_what_hugging_face_leaves() {
    let folder = Folder::new();
    let more = [
        "--do_eval",
        "--num_train_epochs",
        "1",
        "--per_device_train_batch_size",
        "8",
        "--per_device_eval_batch_size",
        "4",
        "--overwrite_output_dir",
        "--cache_dir",
        "kept",
        "--block_size",
        "16",
        "--optim",
        "adafactor",
        "--adafactor",
        "true",
        "--save_strategy",
        "no",
        "--logging_strategy",
        "steps",
        "--logging_steps",
        "3",
        "--bf16",
        "--gradient_checkpointing",
        "true",
        "--fsdp",
        "full_shard",
        "--learning_rate",
        "1e-2",
    ];
    let said = folder.says(&short(&more));
    for part in ["GPT2Block", "estimated memory", "compiled in", "step 3/", "***** eval metrics"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let line = said.lines().find(|line| line.starts_with("step 3/")).unwrap();
    for part in ["loss ", "grad norm ", "lr ", "tokens/s", " a step", "MFU unknown", "input wait "]
    {
        assert!(line.contains(part), "{part} in {line}");
    }
    let [train, eval, all, state, config] =
        ["train_results", "eval_results", "all_results", "trainer_state", "config"]
            .map(|name| folder.json(&format!("out/{name}.json")));
    // About 2000 tokens in blocks of 16 and batches of 16.
    assert_eq!((&state["global_step"], &state["max_steps"]), (&8.into(), &8.into()), "{state}");
    assert_eq!(state["epoch"], 1.0);
    let history = state["log_history"].as_array().unwrap();
    assert_eq!(history.len(), 3, "{history:?}");
    assert_eq!((&history[0]["step"], &history[2]["train_loss"]), (&3.into(), &train["train_loss"]));
    let rate = number(&history[0]["learning_rate"]);
    assert!((rate - 1e-2 * (1.0 - 2.0 / 8.0)).abs() < 1e-9, "the third step's: {rate}");
    let loss = number(&eval["eval_loss"]);
    assert!(loss < 96_f64.ln() - 0.2, "{loss}");
    assert!((number(&eval["perplexity"]) / loss.exp() - 1.0).abs() < 1e-9);
    assert_eq!((&all["eval_loss"], &all["train_loss"]), (&eval["eval_loss"], &train["train_loss"]));
    assert_eq!(config["architectures"][0], "GPT2LMHeadModel");
    for name in ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "loss.svg"] {
        assert!(folder.path("out").join(name).is_file(), "{name}");
    }
    let runs = fs::read_dir(folder.path("out/runs")).unwrap().count();
    assert_eq!(runs, 1);
    assert!(folder.path("kept/fullshard/tokens").is_dir());

    // What was trained can be evaluated by itself, and is what it was.
    let said = folder.says(&[
        "run_clm",
        "--model_name_or_path",
        "out",
        "--validation_file",
        "validation.txt",
        "--do_eval",
        "--output_dir",
        "again",
        "--block_size",
        "16",
        "--bf16",
        "--per_device_eval_batch_size",
        "8",
        "--report_to",
        "none",
    ]);
    assert!(said.contains("eval_loss"), "{said}");
    let compiled = said.contains("evaluation program") && !said.contains("step program");
    assert!(compiled, "only what evaluates: {said}");
    let again = number(&folder.json("again/eval_results.json")["eval_loss"]);
    assert!((again / loss - 1.0).abs() < 1e-3, "{again} for {loss}");
    assert!(
        !folder.path("again/model.safetensors").exists() && !folder.path("again/runs").exists()
    );
}

/// Whatever a run writes, something else in its place is found before the run begins.
#[test]
fn a_run_replaces_nothing_but_files() {
    let folder = Folder::new();
    let args = short(&["--do_eval", "--max_steps", "1", "--overwrite_output_dir"]);
    folder.says(&args);
    // Not all models have one.
    fs::write(folder.path("out/generation_config.json"), "{}").unwrap();
    let mut written = 0;
    for entry in fs::read_dir(folder.path("out")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let kept = fs::read(&path).unwrap();
            fs::remove_file(&path).unwrap();
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            let name = path.file_name().unwrap().to_str().unwrap();
            refused(&folder, &args, 1, &format!("cannot write out/{name}: it is a pipe"));
            fs::remove_file(&path).unwrap();
            fs::write(&path, kept).unwrap();
            written += 1;
        }
    }
    assert!(written >= 10, "{written}");
}

/// A file of all arguments, as JSON and as TOML, is the same as the flags.
#[test]
fn arguments_can_be_in_a_file() {
    let folder = Folder::new();
    let json = r#"{"config_name": "tiny.json", "tokenizer_name": "tokenizer.json",
        "train_file": ["train.txt"], "validation_file": "validation.txt", "num_cores": 2,
        "fsdp_config": {"transformer_layer_cls_to_wrap": "GPT2Block"}, "do_train": true,
        "do_eval": false, "output_dir": "out", "max_steps": 2, "logging_steps": 1,
        "report_to": "none", "max_train_samples": null}"#;
    folder.write("args.json", json);
    let toml = "config_name = \"tiny.json\"\ntokenizer_name = \"tokenizer.json\"\n\
        train_file = [\"train.txt\"]\nvalidation_file = \"validation.txt\"\nnum_cores = 2\n\
        fsdp_config = \"fsdp.json\"\noutput_dir = \"toml\"\nmax_steps = 2\nlogging-steps = 1\n\
        report_to = \"none\"\n";
    folder.write("args.toml", toml);
    folder.says(&["run_clm", "args.json"]);
    folder.says(&["train", "args.toml"]);
    folder.says(&short(&["--max_steps", "2", "--logging_steps", "1", "--overwrite_output_dir"]));
    let losses = ["out", "toml"].map(|name| {
        let state = folder.json(&format!("{name}/trainer_state.json"));
        [0, 1].map(|log| number(&state["log_history"][log]["loss"]))
    });
    assert_eq!(losses[0], losses[1]);

    for (contents, expected) in [
        (r#"{"num_core": 2}"#, "there is no argument `num_core`; perhaps `num_cores` was meant"),
        (r#"["train"]"#, "an object of arguments is needed"),
        (r#"{"num_cores": "#, "wrong.json: no JSON: EOF"),
    ] {
        folder.write("wrong.json", contents);
        refused(&folder, &["train", "wrong.json"], 1, expected);
    }
    folder.write("wrong.toml", "num_cores = ");
    refused(&folder, &["train", "wrong.toml"], 1, "wrong.toml: no TOML");
    refused(&folder, &["train", "missing.json"], 1, "missing.json: No such file");
}

/// Starts a long run, waits until it trains, and ends it with a signal.
fn stopped(folder: &Folder, signal: &str) -> (Option<i32>, String) {
    let args = short(&["--max_steps", "100000", "--logging_steps", "1", "--overwrite_output_dir"]);
    let mut child = folder.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.by_ref() {
        let line = line.unwrap();
        if line.starts_with("step 2/") {
            break;
        }
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    for line in lines {
        said += &(line.unwrap() + "\n");
    }
    (child.wait().unwrap().code(), said)
}

#[test]
fn a_signal_stops_a_run_after_its_step() {
    let folder = Folder::new();
    for (signal, name, code) in [("-TERM", "SIGTERM", 143), ("-INT", "Ctrl-C", 130)] {
        let (found, said) = stopped(&folder, signal);
        assert_eq!(found, Some(code), "{said}");
        assert!(said.contains(&format!("stopped by {name} after step ")), "{said}");
        let state = folder.json("out/trainer_state.json");
        let step = state["global_step"].as_u64().unwrap();
        assert!(said.contains(&format!("after step {step} of 100000")), "{said}");
        assert!(step >= 2 && folder.path("out/model.safetensors").is_file());
        assert!(!folder.path("out/eval_results.json").exists());
    }
}

#[test]
fn a_loss_that_is_not_finite_leaves_no_model() {
    let folder = Folder::new();
    let args = short(&["--learning_rate", "1e30", "--max_steps", "5", "--report_to", "none"]);
    let output = folder.run(&args);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: step 2 has a loss of"), "{said}");
    assert!(said.contains("lower --learning_rate"), "{said}");
    assert!(!folder.path("out").exists());
}

/// Writing fails when all is done: nothing half-written stays.
#[test]
fn a_full_disk_leaves_nothing_half_written() {
    let folder = Folder::new();
    let args = short(&["--max_steps", "1", "--no_cache", "--report_to", "none"]);
    let command = folder.command(&args);
    // Of files of more than 32 blocks of 512 bytes nothing can be written.
    let script = r#"trap '' XFSZ; ulimit -f 32; exec "$0" "$@""#;
    let mut limited = Command::new("sh");
    limited.arg("-c").arg(script).arg(command.get_program()).args(command.get_args());
    limited.current_dir(folder.0.path());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}{}", text(&output.stdout));
    assert!(said.contains("cannot write out/model.safetensors: File too large"), "{said}");
    let left: Vec<_> = fs::read_dir(folder.path("out")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The demo, shortened: what it says, and that it comes nearer to its floor.
#[test]
fn the_demo_tells_what_it_does() {
    let folder = Folder::new();
    let args = [
        "train",
        "--max_steps",
        "12",
        "--num_cores",
        "2",
        "--logging_steps",
        "4",
        "--eval_steps",
        "6",
        "--max_eval_samples",
        "64",
    ];
    let said = folder.says(&args);
    for part in [
        "no model can get its loss below",
        "trained on 2 devices at once",
        "entropy of the source",
        "above the least possible",
        "What to try next:",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let results = folder.json("fullshard-demo/all_results.json");
    assert!(number(&results["eval_loss"]) < 4.3, "{results}");
    let again = folder.says(&["train", "--max_steps", "2", "--num_cores", "2"]);
    assert!(again.contains("tokenised before"), "{again}");
}
