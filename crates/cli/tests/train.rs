//! `fullshard train` and `fullshard run_clm`: their output files, and how they stop.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Folder, number, rejects, short, text};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

/// The flags of the PyTorch/XLA FSDP blog post, except for sizes and the hub.
#[test]
fn output_matches_hugging_face() {
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
    let stdout = folder.stdout(&short(&more));
    for part in ["GPT2Block", "estimated memory", "compiled in", "step 3/", "***** eval metrics"] {
        assert!(stdout.contains(part), "{part} in {stdout}");
    }
    let line = stdout.lines().find(|line| line.starts_with("step 3/")).unwrap();
    for part in ["loss ", "grad norm ", "lr ", "tokens/s", "/step", "MFU unknown", "input wait "] {
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
    assert!((rate - 1e-2 * (1.0 - 2.0 / 8.0)).abs() < 1e-9, "of the third step: {rate}");
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

    // The trained model can be evaluated separately, with the same loss.
    let stdout = folder.stdout(&[
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
    assert!(stdout.contains("eval_loss"), "{stdout}");
    let compiled = stdout.contains("evaluation program") && !stdout.contains("step program");
    assert!(compiled, "only the evaluation: {stdout}");
    let again = number(&folder.json("again/eval_results.json")["eval_loss"]);
    assert!((again / loss - 1.0).abs() < 1e-3, "{again} for {loss}");
    assert!(
        !folder.path("again/model.safetensors").exists() && !folder.path("again/runs").exists()
    );
}

/// Anything but a file in place of an output file is an error before the run starts.
#[test]
fn output_replaces_only_files() {
    let folder = Folder::new();
    let args = short(&["--do_eval", "--max_steps", "1", "--overwrite_output_dir"]);
    folder.stdout(&args);
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
            rejects(&folder, &args, 1, &format!("cannot write out/{name}: it is a pipe"));
            fs::remove_file(&path).unwrap();
            fs::write(&path, kept).unwrap();
            written += 1;
        }
    }
    assert!(written >= 10, "{written}");
    for name in ["model.safetensors", "run_config.toml"] {
        let path = folder.path("out").join(name);
        fs::remove_file(&path).unwrap();
        symlink("/no/such/place", &path).unwrap();
        rejects(&folder, &args, 1, &format!("cannot write out/{name}: it is a dangling link"));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn dangling_output_dir_is_rejected() {
    let folder = Folder::new();
    symlink("/no/such/place", folder.path("link")).unwrap();
    for name in ["link", "link/below"] {
        let args = short(&["--max_steps", "1"]);
        let args: Vec<&str> =
            args.into_iter().map(|word| if word == "out" { name } else { word }).collect();
        let expected = format!("--output_dir is {name}, but link is a dangling link");
        rejects(&folder, &args, 1, &expected);
    }
}

/// A file of arguments, as JSON and as TOML, equals the flags.
#[test]
fn reads_arguments_from_a_file() {
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
    folder.stdout(&["run_clm", "args.json"]);
    folder.stdout(&["train", "args.toml"]);
    folder.stdout(&short(&["--max_steps", "2", "--logging_steps", "1", "--overwrite_output_dir"]));
    let losses = ["out", "toml"].map(|name| {
        let state = folder.json(&format!("{name}/trainer_state.json"));
        [0, 1].map(|log| number(&state["log_history"][log]["loss"]))
    });
    assert_eq!(losses[0], losses[1]);

    for (contents, expected) in [
        (r#"{"num_core": 2}"#, "unknown argument `num_core` (did you mean `num_cores`?)"),
        (r#"["train"]"#, "expected an object of arguments"),
        (r#"{"num_cores": "#, "wrong.json: invalid JSON: EOF"),
    ] {
        folder.write("wrong.json", contents);
        rejects(&folder, &["train", "wrong.json"], 1, expected);
    }
    folder.write("wrong.toml", "num_cores = ");
    rejects(&folder, &["train", "wrong.toml"], 1, "wrong.toml: invalid TOML");
    rejects(&folder, &["train", "missing.json"], 1, "missing.json: No such file");
}

/// Starts a long run, waits until it trains, and stops it with a signal.
fn stopped(folder: &Folder, signal: &str) -> (Option<i32>, String) {
    let args = short(&["--max_steps", "100000", "--logging_steps", "1", "--overwrite_output_dir"]);
    let mut child = folder.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = String::new();
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
        stdout += &(line.unwrap() + "\n");
    }
    (child.wait().unwrap().code(), stdout)
}

#[test]
fn signals_stop_a_run_after_its_step() {
    let folder = Folder::new();
    for (signal, name, code) in [("-TERM", "SIGTERM", 143), ("-INT", "Ctrl-C", 130)] {
        let (found, stdout) = stopped(&folder, signal);
        assert_eq!(found, Some(code), "{stdout}");
        assert!(stdout.contains(&format!("stopped by {name} after step ")), "{stdout}");
        let state = folder.json("out/trainer_state.json");
        let step = state["global_step"].as_u64().unwrap();
        assert!(stdout.contains(&format!("after step {step} of 100000")), "{stdout}");
        assert!(step >= 2 && folder.path("out/model.safetensors").is_file());
        assert!(!folder.path("out/eval_results.json").exists());
    }
}

/// Nothing can be written, neither to the output folder nor to the other one: no partial file
/// remains.
#[test]
fn full_disk_leaves_no_partial_files() {
    let folder = Folder::new();
    let args =
        short(&["--max_steps", "1", "--no_cache", "--report_to", "none", "--rescue_dir", "rescue"]);
    let command = folder.command(&args);
    // Limits files to 32 blocks of 512 bytes.
    let script = r#"trap '' XFSZ; ulimit -f 32; exec "$0" "$@""#;
    let mut limited = Command::new("sh");
    limited.arg("-c").arg(script).arg(command.get_program()).args(command.get_args());
    limited.current_dir(folder.0.path());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}{}", text(&output.stdout));
    assert!(stderr.contains("cannot write out/model.safetensors: File too large"), "{stderr}");
    assert!(stderr.contains("error: cannot write rescue/fullshard-out-step-1-"), "{stderr}");
    let left = fs::read_dir(folder.path("out")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["goodput.jsonl"]);
    assert_eq!(fs::read_dir(folder.path("rescue")).unwrap().count(), 0);
}

/// A short demo: its output, and that its loss falls.
#[test]
fn demo_prints_its_progress() {
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
    let stdout = folder.stdout(&args);
    for part in [
        "no model can get its loss below",
        "trained on 2 devices",
        "entropy of the source",
        "above the minimum of",
        "Next steps:",
    ] {
        assert!(stdout.contains(part), "{part} in {stdout}");
    }
    let results = folder.json("fullshard-demo/all_results.json");
    assert!(number(&results["eval_loss"]) < 4.3, "{results}");
    let again = folder.stdout(&["train", "--max_steps", "2", "--num_cores", "2"]);
    assert!(again.contains("from the token cache"), "{again}");
}

/// What a run shows on a terminal.
fn on_a_terminal(folder: &Folder, args: &[&str]) -> String {
    let mut command = std::process::Command::new("python3");
    command.args(["-c", "import pty, sys; pty.spawn(sys.argv[1:])"]);
    let run = folder.command(args);
    command.arg(run.get_program()).args(run.get_args()).current_dir(folder.path(""));
    command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    text(&command.output().unwrap().stdout)
}

#[test]
fn progress_bar_is_shown_unless_disable_tqdm() {
    let folder = Folder::new();
    let shown = on_a_terminal(&folder, &short(&["--max_steps", "2"]));
    assert!(shown.contains("2/2, loss"), "{shown}");
    let hidden = short(&["--max_steps", "2", "--disable_tqdm", "--overwrite_output_dir"]);
    let hidden = on_a_terminal(&folder, &hidden);
    assert!(!hidden.contains("2/2, loss") && hidden.contains("saved to"), "{hidden}");
}
