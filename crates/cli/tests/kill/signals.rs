//! Signals: a checkpoint is saved in time, and one job runs in a folder.

use super::{
    AUTO, LONG, Outcome, UNINTERRUPTED, checkpoints, drill, fail, finish, folder, intact, start,
};
use std::fs;
use std::time::{Duration, Instant};

/// One run, stopped by each signal in turn and resumed, and told to save in between.
#[test]
fn a_run_that_is_stopped_saves_and_resumes() {
    let folder = folder();
    let out = folder.path("out");
    // Few checkpoints by themselves, so that those of signals are seen.
    let args = drill(&[&LONG[..2], &["--save_steps", "149"], &AUTO].concat());
    let mut before = 0;
    for (signal, name, code) in
        [("-TERM", "SIGTERM", 143), ("-HUP", "SIGHUP", 129), ("-INT", "Ctrl-C", 130)]
    {
        let mut run = start(&folder, &args);
        assert!(run.prints("training for"), "{}", run.printed);
        let waits_for = if signal == "-TERM" { "checkpoint of" } else { "  loss " };
        if signal == "-TERM" {
            run.signal("-USR1");
        }
        assert!(run.prints(waits_for), "{}", run.printed);
        run.signal(signal);
        let (status, printed) = run.end();
        assert_eq!(status.code(), Some(code), "{printed}");
        assert!(printed.contains(&format!("stopped by {name} after step ")), "{printed}");
        let step = folder.json("out/trainer_state.json")["global_step"].as_u64().unwrap();
        assert!(before < step && step < 149, "{before} {step}: {printed}");
        assert!(intact(&out).contains(&step), "{step} of {:?}", checkpoints(&out));
        before = step;
    }
    let printed = finish(&folder, &args);
    let resumed = format!("resumed from out/checkpoint-{before}, after step {before}");
    assert!(printed.contains(&resumed), "{printed}");
    let mut outcome = Outcome::of(&folder, "out");
    outcome.state["save_steps"] = UNINTERRUPTED.state["save_steps"].clone();
    outcome.assert_is(&UNINTERRUPTED);
}

/// Most of the time of this run is that of evaluations. One that is stopped is made up for.
#[test]
fn a_run_that_is_stopped_while_it_evaluates_misses_none() {
    let folder = folder();
    let train = fs::read_to_string(folder.path("train.txt")).unwrap();
    folder.write("many.txt", &train.repeat(4));
    let flags = [
        "--validation_file",
        "many.txt",
        "--per_device_eval_batch_size",
        "1",
        "--eval_strategy",
        "steps",
        "--eval_steps",
        "1",
        "--save_strategy",
        "best",
        "--load_best_model_at_end",
        "--max_steps",
        "4",
        "--report_to",
        "none",
    ];
    finish(&folder, &drill(&[&flags[..], &["--output_dir", "whole"]].concat()));
    let whole = Outcome::of(&folder, "whole");
    let args = drill(&[&flags[..], &AUTO].concat());
    for _ in 0..2 {
        let mut run = start(&folder, &args);
        assert!(run.prints("evaluation loss"), "{}", run.printed);
        std::thread::sleep(Duration::from_millis(50));
        run.signal("-TERM");
        let (status, printed) = run.end();
        assert_eq!(status.code(), Some(143), "{printed}");
    }
    finish(&folder, &args);
    let mut outcome = Outcome::of(&folder, "out");
    let best = outcome.state["best_model_checkpoint"].as_str().unwrap().replace("out", "whole");
    outcome.state["best_model_checkpoint"] = best.into();
    outcome.assert_is(&whole);
}

/// A second job is refused at once. The first goes on, until a signal with no time to save ends it.
#[test]
fn a_folder_has_one_job_which_ends_in_time() {
    let folder = folder();
    let out = folder.path("out");
    let args = drill(&["--max_steps", "100000", "--save_steps", "5", "--preemption_grace_s", "0"]);
    let mut run = start(&folder, &args);
    assert!(run.prints("checkpoint of"), "{}", run.printed);
    let holder = format!("process {} on ", run.child.id());
    let mut second = args.clone();
    second.extend(AUTO);
    fail(&folder, &second, &["out is in use by another job", &holder, "--output_dir"]);
    assert!(run.prints("checkpoint of") && run.child.try_wait().unwrap().is_none());
    let start = Instant::now();
    run.signal("-TERM");
    let (status, printed) = run.end();
    assert_eq!(status.code(), Some(143), "{printed}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let stderr = fs::read_to_string(folder.path("stderr")).unwrap();
    assert!(stderr.contains("--preemption_grace_s"), "{stderr}");
    fullshard_checkpoint::sweep(&out).unwrap();
    assert!(!intact(&out).is_empty());
}
