//! A checkpoint of one number of processes is resumed by another.

use super::common::Folder;
use super::{assert_close, ends, flags, mpiexec, process};
use std::process::Command;

/// Trains 3 steps as `saved` says and 3 more as each of `resumed` does: processes and devices, with
/// batches of 24 sequences in all.
fn resumes(saved: (usize, usize), resumed: &[(usize, usize)]) {
    let folder = Folder::new();
    let run = |(processes, devices): (usize, usize), steps, output: &str, more: &[&'static str]| {
        let texts = [devices, 24 / devices, processes].map(|number| &*number.to_string().leak());
        let [devices, batch, processes] = texts;
        let output: &'static str = output.to_owned().leak();
        let given = ["--num_cores", devices, "--per_device_train_batch_size", batch];
        let steps = ["--max_steps", steps, "--save_steps", "3", "--output_dir", output];
        let args = flags(&[&given[..], &steps, more].concat());
        let command = match processes {
            "1" => process(&folder, &args),
            _ => mpiexec(&folder, processes, &args),
        };
        ends(command, 0)
    };
    run((1, 1), "6", "expected", &[]);
    run(saved, "3", "out", &[]);
    for &(processes, devices) in resumed {
        let output = format!("by-{processes}-{devices}");
        let (from, to) = (folder.path("out"), folder.path(&output));
        assert!(Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap().success());
        let auto = ["--resume_from_checkpoint", "auto"];
        let printed = run((processes, devices), "6", &output, &auto);
        assert!(printed.contains(&format!("resumed from {output}/checkpoint-3")), "{printed}");
        assert_close(&folder, &output, "expected");
    }
}

#[test]
fn two_processes_save_and_one_resumes() {
    resumes((2, 2), &[(1, 1)]);
}

#[test]
#[ignore = "long: many launches"]
fn long_four_processes_save_and_others_resume() {
    resumes((4, 4), &[(1, 6), (2, 6), (3, 6)]);
}

#[test]
#[ignore = "long: many launches"]
fn long_one_process_saves_and_others_resume() {
    resumes((1, 4), &[(2, 2), (2, 8), (4, 8)]);
}
