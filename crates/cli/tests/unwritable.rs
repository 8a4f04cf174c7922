//! Output and caches that cannot be written: a run continues, a command that only prints fails.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Folder, short, text};
use std::fs;
use std::process::Command;

/// Runs a command in a shell, with redirections after it.
fn redirected(folder: &Folder, args: &[&str], redirections: &str) -> Option<i32> {
    let command = folder.command(args);
    let mut shell = Command::new("bash");
    shell.arg("-c").arg(format!(r#""$0" "$@" {redirections}; exit ${{PIPESTATUS[0]}}"#));
    shell.arg(command.get_program()).args(command.get_args()).current_dir(folder.0.path());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // Lines on standard error as well.
    shell.env("FULLSHARD_LOG", "debug").env_remove("PJRT_DEVICE");
    shell.output().unwrap().status.code()
}

/// Output that cannot be written does not end a run, and changes no exit code.
#[test]
fn unwritable_output_does_not_end_a_run() {
    let folder = Folder::new();
    // Programs of one device are compiled once.
    let more = ["--num_cores", "1", "--do_eval", "--max_steps", "3", "--logging_steps", "1"];
    let args = short(&more);
    for redirections in [
        "| head -1",
        "2>&1 | head -1",
        "2>&1 | true",
        "> /dev/full",
        "2> /dev/full",
        "> /dev/full 2>&1",
        ">&- 2>&-",
    ] {
        let _ = fs::remove_dir_all(folder.path("out"));
        assert_eq!(redirected(&folder, &args, redirections), Some(0), "{redirections}");
        for name in ["model.safetensors", "eval_results.json"] {
            assert!(folder.path("out").join(name).is_file(), "{name}: {redirections}");
        }
    }
    let failing = short(&["--learning_rate", "-1"]);
    let unknown = short(&["--no_such_flag"]);
    for redirections in ["2> /dev/full", "> /dev/full 2>&1", "2>&1 | true"] {
        assert_eq!(redirected(&folder, &failing, redirections), Some(1), "{redirections}");
        assert_eq!(redirected(&folder, &unknown, redirections), Some(2), "{redirections}");
    }
}

#[test]
fn printing_commands_fail_if_output_cannot_be_written() {
    let folder = Folder::new();
    for args in [&["config"][..], &["man"], &["completions", "bash"]] {
        assert_eq!(redirected(&folder, args, "> /dev/full"), Some(1), "{args:?}");
        assert_eq!(redirected(&folder, args, "> /dev/full 2>&1"), Some(1), "{args:?}");
    }
}

/// The disk of the cache is full after half of the tokens.
#[test]
fn full_token_cache_does_not_end_a_run() {
    let folder = Folder::new();
    fs::create_dir(folder.path("small")).unwrap();
    folder.write("train.txt", &fs::read_to_string(folder.path("train.txt")).unwrap().repeat(40));
    let command = folder.command(&short(&["--max_steps", "1", "--no_cache"]));
    let mut mounted = Command::new("unshare");
    let script = r#"mount -t tmpfs -o size=64k none small || exit 99; exec "$0" "$@""#;
    mounted.args(["-rm", "sh", "-c", script]).arg(command.get_program()).args(command.get_args());
    mounted.args(["--cache_dir", "small"]).current_dir(folder.0.path());
    mounted.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let Ok(output) = mounted.output() else { return println!("skipped: no unshare here") };
    let stderr = text(&output.stderr);
    if output.status.code() == Some(99) || stderr.contains("unshare: ") {
        return println!("skipped: this user cannot mount a small disk");
    }
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("warning: tokens are not cached: cannot write small/"), "{stderr}");
    assert!(stderr.contains("No space left on device"), "{stderr}");
    assert!(folder.path("out/model.safetensors").is_file());
}

/// Caches that cannot be written: tokens, the demo's text and compiled programs.
#[test]
fn unwritable_caches_do_not_end_a_run() {
    let folder = Folder::new();
    folder.write("file", "where the cache should be");
    let blocked = folder.path("file/cache");
    let run = |args: &[&str], temporary: &str| {
        let mut command = folder.command(args);
        command.env("FULLSHARD_CACHE", &blocked).env("TMPDIR", folder.path(temporary));
        command.output().unwrap()
    };
    fs::create_dir(folder.path("tmp")).unwrap();
    let flags = ["--num_cores", "1", "--do_eval", "--max_steps", "2", "--overwrite_output_dir"];
    let demo = ["train", "--max_steps", "2", "--num_cores", "1", "--max_eval_samples", "16"];
    for args in [&short(&flags)[..], &short(&[&flags[..], &["--overwrite_cache"]].concat()), &demo]
    {
        let output = run(args, "tmp");
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        for what in ["tokens", "compiled programs"] {
            let warnings = stderr.matches(&format!("warning: {what} are not cached")).count();
            assert_eq!(warnings, 1, "{what}: {stderr}");
        }
        for part in ["file/cache/tokens/", "--cache_dir or FULLSHARD_CACHE name another folder"] {
            assert!(stderr.contains(part), "{part} in {stderr}");
        }
        let left: Vec<_> = fs::read_dir(folder.path("tmp")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
    let output = run(&short(&flags), "none");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in ["error: cannot write ", "file/cache/tokens/", "/none either: ", "--cache_dir"] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
}
