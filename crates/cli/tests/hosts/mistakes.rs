//! Jobs that cannot run: one message that names the mistake, and nothing is written.

use super::common::{Folder, text};
use super::{STEPS, by, flags, mpiexec, process};
use std::fs;
use std::process::Command;

/// Checks that a job fails with an error that is printed once, before it writes anything.
fn rejects(folder: &Folder, mut command: Command, expected: &str) {
    let before = folder.names();
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    assert!(!output.status.success(), "{command:?}: {stderr}");
    assert_eq!(stderr.matches(expected).count(), 1, "{command:?}: {stderr}");
    assert_eq!(folder.names(), before, "{command:?}");
}

#[test]
fn processes_without_mpi_are_refused() {
    let folder = Folder::new();
    for number in ["0", "1"] {
        let mut command = process(&folder, &flags(&STEPS));
        command.env("FULLSHARD_NUM_PROCESSES", "2").env("FULLSHARD_PROCESS_ID", number);
        rejects(&folder, command, "nothing states where process 0 is");
        let mut command = process(&folder, &flags(&STEPS));
        command.env("FULLSHARD_NUM_PROCESSES", "2").env("FULLSHARD_PROCESS_ID", number);
        command.env("FULLSHARD_COORDINATOR", "127.0.0.1:61439");
        rejects(&folder, command, "this process is alone in MPI, but the job has 2 processes");
    }
}

#[test]
fn devices_must_divide_into_processes() {
    let folder = Folder::new();
    let args = flags(&["--num_cores", "4", "--max_steps", "6"]);
    let expected = "the mesh has 4 devices, which 3 processes cannot share equally: use 3 or 6";
    rejects(&folder, mpiexec(&folder, "3", &args), expected);
}

#[test]
fn automatic_axes_across_processes_are_refused() {
    let folder = Folder::new();
    let args = flags(&["--mesh", "tensor=2", "--automatic_axes", "tensor", "--max_steps", "6"]);
    let expected = "--automatic_axes tensor: this axis is across processes";
    rejects(&folder, mpiexec(&folder, "2", &args), expected);
}

/// The second process has another file system at the place of the output folder.
#[test]
fn a_folder_that_is_not_shared_is_noticed() {
    let folder = Folder::new();
    fs::create_dir(folder.path("shared")).unwrap();
    let args = flags(&["--max_steps", "6", "--output_dir", "shared/out"]);
    let train = process(&folder, &args);
    let namespace = ["--user", "--map-root-user", "--mount", "sh", "-c"];
    let line = "mount -t tmpfs none shared && exec \"$0\" \"$@\"";
    if !Command::new("unshare").args(namespace).arg("true").status().unwrap().success() {
        println!("skipped: this system does not allow namespaces");
        return;
    }
    let second = by("unshare", &[&namespace[..], &[line]].concat(), &train);
    let mut job = mpiexec(&folder, "1", &args);
    job.args([":", "-n", "1"]).arg(second.get_program()).args(second.get_args());
    let output = job.output().unwrap();
    let stderr = text(&output.stderr);
    assert!(!output.status.success(), "{stderr}");
    assert!(stderr.contains("shared/out is not one folder for all processes"), "{stderr}");
    assert!(!folder.path("shared/out/run_config.toml").exists());
}

/// `mpiexec` of another MPI than the library's starts processes that do not know of one another.
#[test]
fn contradicting_launchers_are_refused() {
    let folder = Folder::new();
    let mut command = mpiexec(&folder, "2", &flags(&STEPS));
    command.env("FULLSHARD_NUM_PROCESSES", "4");
    let before = folder.names();
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    assert!(!output.status.success(), "{stderr}");
    assert!(stderr.contains("4 processes were given, but PMI_SIZE is 2"), "{stderr}");
    assert_eq!(folder.names(), before);
}
