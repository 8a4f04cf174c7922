//! What a run resumes from: damaged, foreign and best checkpoints, and changed settings.

use super::common::{Folder, TINY};
use super::{AUTO, Outcome, checkpoints, damage, drill, fail, finish, folder, intact, weights};
use std::fs;
use std::process::Command;

const SHORT: [&str; 4] = ["--save_steps", "2", "--report_to", "none"];

/// The flags of a short run that saves every second step.
fn short(steps: &'static str, more: &[&'static str]) -> Vec<&'static str> {
    drill(&[&["--max_steps", steps][..], &SHORT, more].concat())
}

/// Copies `out` to a new name.
fn copy(folder: &Folder, to: &str) {
    let (from, to) = (folder.path("out"), folder.path(to));
    assert!(Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap().success());
}

/// A damaged checkpoint is named in a warning and the one before is used; the run ends the same.
#[test]
fn resumes_from_the_checkpoint_before_a_damaged_one() {
    let folder = folder();
    finish(&folder, &short("4", &[]));
    copy(&folder, "values");
    copy(&folder, "small");
    finish(&folder, &short("6", &AUTO));
    let expected = Outcome::of(&folder, "out");
    for (output, newest, file) in [
        ("values", "values/checkpoint-4", "optimizer-00001-of-00002.safetensors"),
        ("small", "small/checkpoint-4", "trainer_state.json"),
    ] {
        let name = format!("{newest}/{file}");
        damage(folder.path(&name));
        let before = folder.names();
        let args = ["--output_dir", output, "--resume_from_checkpoint", newest];
        fail(&folder, &short("6", &args), &["error: ", &name]);
        assert_eq!(folder.names(), before);

        let auto = short("6", &[&args[..2], &AUTO].concat());
        let printed = finish(&folder, &auto);
        assert!(printed.contains("warning: ") && printed.contains(&name), "{printed}");
        let resumed = format!("resumed from {output}/checkpoint-2, after step 2");
        assert!(printed.contains(&resumed), "{printed}");
        Outcome::of(&folder, output).assert_is(&expected);
        assert_eq!(intact(&folder.path(output)), [4, 6]);
    }
}

/// A run on two devices goes on with one, with the same batches and losses.
#[test]
fn resumes_on_another_number_of_devices() {
    let folder = folder();
    let logged = ["--logging_steps", "1"];
    finish(&folder, &short("3", &[&logged[..], &["--save_steps", "3"]].concat()));
    copy(&folder, "one");
    finish(&folder, &short("6", &[&logged[..], &AUTO].concat()));
    let flags = ["--num_cores", "1", "--per_device_train_batch_size", "48", "--output_dir", "one"];
    let printed = finish(&folder, &short("6", &[&logged[..], &flags, &AUTO].concat()));
    assert!(printed.contains("resumed from one/checkpoint-3"), "{printed}");
    assert!(!printed.contains("the run goes on at sequence"), "{printed}");
    let losses = |output: &str| -> Vec<f64> {
        let state = folder.json(&format!("{output}/trainer_state.json"));
        let logs = state["log_history"].as_array().unwrap();
        logs.iter().filter_map(|log| log["loss"].as_f64()).collect()
    };
    let (one, two) = (losses("one"), losses("out"));
    assert_eq!((one.len(), two.len()), (6, 6));
    for (one, two) in one.iter().zip(&two) {
        assert!((one / two - 1.0).abs() < 1e-5, "{one} {two}");
    }
}

/// Several steps per launch give the run of single steps, and saves and ends where it does.
#[test]
fn resumes_with_several_steps_per_launch() {
    let folder = folder();
    let flags = ["--save_steps", "4", "--logging_steps", "1"];
    finish(&folder, &short("4", &flags));
    copy(&folder, "loops");
    finish(&folder, &short("10", &[&flags[..], &AUTO].concat()));
    let loops = ["--output_dir", "loops", "--iterations_per_loop", "3"];
    let printed = finish(&folder, &short("10", &[&flags[..], &loops, &AUTO].concat()));
    assert!(printed.contains("resumed from loops/checkpoint-4, after step 4"), "{printed}");
    assert!(!printed.contains("iterations_per_loop"), "{printed}");
    let [loops, single] = ["loops", "out"].map(|output| {
        let mut outcome = Outcome::of(&folder, output);
        for log in outcome.state["log_history"].as_array_mut().unwrap() {
            // A launch has the batches of its steps.
            log.as_object_mut().unwrap().remove("device_memory");
        }
        outcome
    });
    loops.assert_is(&single);
    assert_eq!(intact(&folder.path("loops")), [8, 10]);

    let longer = ["--output_dir", "longer", "--iterations_per_loop", "5"];
    let printed = finish(&folder, &short("4", &longer));
    let reason = "--iterations_per_loop 5 has no effect: the run saves every 2 steps";
    assert!(printed.contains(reason), "{printed}");
}

/// Checkpoints of another model, optimizer, data or order are refused with the reason, and nothing
/// is written; a change that is meant is possible.
#[test]
fn refuses_checkpoints_of_another_run() {
    let folder = folder();
    finish(&folder, &short("4", &[]));
    folder.write("wide.json", &TINY.replace("\"n_embd\": 16", "\"n_embd\": 32"));
    let other = fs::read_to_string(folder.path("train.txt")).unwrap();
    folder.write("other.txt", &other.replacen('e', "a", 1));
    folder.write("longer.txt", &(other.clone() + &other));
    let before = folder.names();
    for (flags, words) in [
        (
            ["--config_name", "wide.json"],
            ["c_attn.bias` is [48] in it, but [96]", "pass the model"],
        ),
        (["--optim", "adafactor"], ["state of adamw", "--optim adamw"]),
        (["--train_file", "other.txt"], ["tokens", "--ignore_data_skip"]),
        (["--train_file", "longer.txt"], ["blocks instead of", "--ignore_data_skip"]),
        (["--seed", "7"], ["seed 7 instead of 42", "--ignore_data_skip"]),
        (["--data_seed", "7"], ["seed 7 instead of 42", "--ignore_data_skip"]),
    ] {
        for resume in ["auto", "true", "out/checkpoint-4"] {
            let args = [&flags[..], &["--resume_from_checkpoint", resume]].concat();
            fail(&folder, &short("6", &args), &[&["error: "], &words[..]].concat());
        }
    }
    assert_eq!(folder.names(), before);

    // Another position in other data, and other batches of the same.
    copy(&folder, "other");
    let flags = ["--train_file", "other.txt", "--ignore_data_skip", "--output_dir", "other"];
    let printed = finish(&folder, &short("6", &[&flags[..], &AUTO].concat()));
    assert!(printed.contains("resumed from other/checkpoint-4"), "{printed}");
    let flags = ["--per_device_train_batch_size", "12"];
    let printed = finish(&folder, &short("8", &[&flags[..], &AUTO].concat()));
    let goes_on =
        "steps have 24 sequences instead of 48: the run goes on at sequence 49 of epoch 2";
    assert!(printed.contains(goes_on), "{printed}");
    // The second epoch has 126 sequences too: four steps of 24 end it, the last of them not full.
    let state = folder.json("out/trainer_state.json");
    assert_eq!((&state["global_step"], &state["epoch"]), (&8.into(), &2.0.into()), "{printed}");
}

#[test]
fn starts_from_a_model_that_was_saved_alone() {
    let folder = folder();
    finish(&folder, &short("2", &["--save_only_model"]));
    for resume in ["auto", "true", "out/checkpoint-2"] {
        let args = ["--resume_from_checkpoint", resume];
        let words = ["--save_only_model", "--model_name_or_path"];
        fail(&folder, &short("4", &args), &words);
    }
    let mut args = short("1", &["--model_name_or_path", "out/checkpoint-2", "--output_dir", "new"]);
    while let Some(config) = args.iter().position(|flag| *flag == "--config_name") {
        args.drain(config..config + 2);
    }
    finish(&folder, &args);
    let loss = |output: &str| {
        let state = folder.json(&format!("{output}/trainer_state.json"));
        state["log_history"].as_array().unwrap().last().unwrap()["train_loss"].as_f64().unwrap()
    };
    assert!(loss("new") < loss("out"), "{} {}", loss("new"), loss("out"));
}

/// Flags of a run that chooses the model with the greatest loss, which is that of its first step.
const WORST: [&str; 12] = [
    "--eval_strategy",
    "steps",
    "--eval_steps",
    "1",
    "--load_best_model_at_end",
    "--greater_is_better",
    "true",
    "--save_total_limit",
    "1",
    "--report_to",
    "none",
    "--do_eval",
];

/// The best checkpoint is kept beside the limit and its model is the result, also of a run that
/// is resumed in a folder that was moved.
#[test]
fn keeps_and_loads_the_best_checkpoint() {
    let folder = folder();
    let steps = ["--max_steps", "4", "--save_steps", "1"];
    finish(&folder, &drill(&[&WORST[..], &steps].concat()));
    let state = folder.json("out/trainer_state.json");
    let best = state["best_global_step"].as_u64().unwrap();
    assert_eq!(best, 1, "{state}");
    assert_eq!(state["best_model_checkpoint"], format!("out/checkpoint-{best}"));
    assert_eq!(intact(&folder.path("out")), [best, 4]);
    assert_eq!(weights(folder.path("out")), weights(folder.path("out/checkpoint-1")));

    // The same in a folder that was moved.
    fs::rename(folder.path("out"), folder.path("moved")).unwrap();
    let steps = ["--max_steps", "6", "--save_steps", "1", "--output_dir", "./moved"];
    finish(&folder, &drill(&[&WORST[..], &steps, &AUTO].concat()));
    assert_eq!(intact(&folder.path("moved")), [best, 6]);
    assert_eq!(weights(folder.path("moved")), weights(folder.path("moved/checkpoint-1")));

    // Without the best checkpoint, the model of the last step is there, and the run says so.
    fs::remove_dir_all(folder.path("moved/checkpoint-1")).unwrap();
    let steps = ["--max_steps", "7", "--save_steps", "1", "--output_dir", "moved"];
    let words = ["the best model cannot be loaded", "last step are saved in moved"];
    fail(&folder, &drill(&[&WORST[..], &steps, &AUTO].concat()), &words);
    assert_eq!(weights(folder.path("moved")), weights(folder.path("moved/checkpoint-7")));
}

/// With `--save_strategy best`, only the best evaluations are saved.
#[test]
fn saves_the_best_evaluations() {
    let folder = folder();
    let flags = ["--save_strategy", "best", "--greater_is_better", "false"];
    let more = ["--max_steps", "8", "--save_total_limit", "9", "--learning_rate", "0.6"];
    finish(&folder, &drill(&[&WORST[..], &flags, &more].concat()));
    let state = folder.json("out/trainer_state.json");
    let mut best = f64::INFINITY;
    let mut expected = Vec::new();
    for log in state["log_history"].as_array().unwrap() {
        if let Some(loss) = log["eval_loss"].as_f64().filter(|loss| *loss < best) {
            best = loss;
            expected.push(log["step"].as_u64().unwrap());
        }
    }
    assert!(expected.len() > 1 && expected.len() < 8, "{expected:?}");
    assert_eq!(checkpoints(&folder.path("out")), expected);
}

/// Without memory for copies training waits for each save, and saves the same.
#[test]
fn saves_without_copies_are_the_same() {
    let folder = folder();
    finish(&folder, &short("4", &[]));
    let waits = ["--output_dir", "waits", "--save_memory", "1KB"];
    let printed = finish(&folder, &short("4", &waits));
    assert!(printed.contains("training waited, without copies"), "{printed}");
    assert_eq!(intact(&folder.path("waits")), [2, 4]);
    for step in [2, 4] {
        let saved = |output: &str| weights(folder.path(&format!("{output}/checkpoint-{step}")));
        assert!(saved("waits") == saved("out"), "step {step}");
    }
    Outcome::of(&folder, "waits").assert_is(&Outcome::of(&folder, "out"));
}
