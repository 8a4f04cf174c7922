//! A run with all guards, whose processes are killed ten times: with copies in memory, steps that
//! are repeated and compared (`--check_replicas`), and text with noise in it, whose loss spike is
//! rolled back. It ends as one that is not killed, bit for bit.
//!
//! On CPU in the long tier, and by `./check --gpu` in two processes on one GPU, over NCCL.

use super::{Folder, Kind, PLAIN, drill, undisturbed};
use std::fs;

const GUARDED: Kind = Kind {
    name: "SIGKILL of one process, with guards",
    prepare: write_text,
    flags: &[
        "--save_steps",
        "10",
        "--replicate_state",
        "5",
        "--replicate_dir",
        ".",
        "--full_determinism",
        "true",
        "--check_replicas",
        "20",
        "--on_loss_spike",
        "rollback",
        "--loss_spike_factor",
        "1",
    ],
    ..PLAIN
};

/// Text of one sentence, with words in no order in the middle of it.
fn write_text(folder: &Folder) {
    let text = fs::read_to_string(folder.path("train.txt")).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let sentence = words[..9].join(" ") + "\n";
    let noise: Vec<&str> = (0..80).map(|i| words[(i * i * 37 + 11 * i) % words.len()]).collect();
    let text = [&sentence.repeat(900), &noise.join(" "), "\n", &sentence.repeat(900)].concat();
    folder.write("train.txt", &text);
}

fn ten() {
    let expected = undisturbed(&GUARDED, 10);
    let warned = crate::stderr(&expected.folder);
    assert!(warned.contains("the run goes back to step "), "{warned}");
    drill(&GUARDED, 10).outcome.assert_is(&expected.outcome);
}

#[test]
#[ignore = "long: ten failures"]
fn long_ten() {
    ten();
}

#[test]
#[ignore = "gpu: two processes on one"]
fn gpu_ten() {
    ten();
}
