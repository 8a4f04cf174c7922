//! Processes that are killed, and saves that fail, at every point of a save.

use super::{load, names, pieces, save, save_pieces, saved};
use fullshard_checkpoint::sharded::{COMMITTED, MANIFEST, OnSave, SavePoint, verify};
use fullshard_checkpoint::{LOCK, Lock, checkpoint_name, list, remove_checkpoint, sweep};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where a child saves: its folder, the step, and the call of `on_save` that kills it.
const FOLDER: &str = "FULLSHARD_TEST_FOLDER";
const STEP: &str = "FULLSHARD_TEST_STEP";
const CALL: &str = "FULLSHARD_TEST_CALL";

/// The calls of `on_save` in a save from two devices.
const POINTS: [SavePoint; 7] = [
    SavePoint::Writing,
    SavePoint::Midway,
    SavePoint::Writing,
    SavePoint::Midway,
    SavePoint::Synced,
    SavePoint::Renamed,
    SavePoint::Committed,
];

/// The number of the save of a child.
const CHILD: u64 = 90;

/// Calls `then` at one of the points.
fn at(call: usize, then: impl Fn() + Send + Sync + 'static) -> OnSave {
    let calls = AtomicUsize::new(0);
    Arc::new(move |point| {
        let now = calls.fetch_add(1, Ordering::Relaxed);
        assert_eq!(point, POINTS[now]);
        if now == call {
            then();
        }
    })
}

/// Kills this process, without any of its destructors.
fn kill_self() {
    Command::new("kill").args(["-9", &std::process::id().to_string()]).status().unwrap();
    unreachable!("the process was killed");
}

#[test]
#[ignore = "child: killed by other tests while it saves"]
fn child_saves_until_it_is_killed() {
    let variable = |name| std::env::var(name).unwrap();
    let (step, call) = (variable(STEP).parse().unwrap(), variable(CALL).parse().unwrap());
    let folder = variable(FOLDER);
    let _lock = Lock::acquire(folder.as_ref()).unwrap();
    save_pieces(folder.as_ref(), step, CHILD, &pieces(2), at(call, kill_self)).unwrap();
}

fn run_child(folder: &Path, step: u64, call: usize) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["kill::child_saves_until_it_is_killed", "--ignored", "--exact"]);
    command.env(FOLDER, folder).env(STEP, step.to_string()).env(CALL, call.to_string());
    command.output().unwrap().status
}

/// Checks that after a sweep a folder has nothing but a checkpoint, if any, with the values of a
/// save.
fn has_only(folder: &Path, expected: &[(u64, u64)], what: &str) {
    let lock = Lock::acquire(folder).unwrap();
    sweep(folder).unwrap();
    assert_eq!(sweep(folder).unwrap(), 0, "{what}");
    let mut left: Vec<String> = expected.iter().map(|(step, _)| checkpoint_name(*step)).collect();
    left.push(LOCK.to_owned());
    left.sort();
    assert_eq!(names(folder), left, "{what}");
    for (listed, (step, save)) in list(folder).unwrap().iter().zip(expected) {
        assert_eq!(listed.manifest.as_ref().unwrap().progress.step, *step, "{what}");
        assert_eq!(verify(&listed.path, &mut |_| ()).unwrap(), [], "{what}");
        assert_eq!(load(&listed.path).unwrap(), saved(*save), "{what}");
    }
    drop(lock);
}

fn killed(folder: &Path, step: u64, call: usize) -> String {
    let status = run_child(folder, step, call);
    assert_eq!(status.signal(), Some(9), "{status}");
    format!("step {step} killed at call {call}, {:?}", POINTS[call])
}

#[test]
fn a_kill_of_the_first_save_leaves_nothing_or_all_of_it() {
    for (call, point) in POINTS.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let what = killed(folder.path(), 2, call);
        let complete = point == SavePoint::Committed;
        has_only(folder.path(), if complete { &[(2, CHILD)] } else { &[] }, &what);
    }
}

#[test]
fn a_kill_leaves_the_checkpoint_before() {
    for (call, point) in POINTS.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), 2, 2);
        let what = killed(folder.path(), 4, call);
        let complete = point == SavePoint::Committed;
        let expected: &[_] = if complete { &[(4, CHILD), (2, 2)] } else { &[(2, 2)] };
        has_only(folder.path(), expected, &what);
    }
}

#[test]
fn a_kill_leaves_the_checkpoint_that_is_replaced() {
    for (call, point) in POINTS.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), 2, 3);
        let what = killed(folder.path(), 2, call);
        let complete = point == SavePoint::Committed;
        has_only(folder.path(), &[(2, if complete { CHILD } else { 2 })], &what);
    }
}

/// Between the two renames there is no checkpoint under its name.
#[test]
fn a_sweep_restores_a_checkpoint_that_was_being_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = save(folder.path(), 2, 2);
    fs::rename(&path, folder.path().join(".unfinished-replaced-2")).unwrap();
    has_only(folder.path(), &[(2, 2)], "between two renames");
}

/// After a power cut the marker may be there without its text.
#[test]
fn a_sweep_trusts_no_empty_marker() {
    let folder = tempfile::tempdir().unwrap();
    let replaced = save(folder.path(), 2, 2);
    let kept = folder.path().join("kept");
    fs::rename(&replaced, &kept).unwrap();
    let path = save_pieces(folder.path(), 2, CHILD, &pieces(2), Arc::new(|_| {})).unwrap();
    fs::rename(kept, folder.path().join(".unfinished-replaced-2")).unwrap();
    fs::write(path.join(COMMITTED), "").unwrap();
    has_only(folder.path(), &[(2, 2)], "an empty marker");
}

/// A save that fails, at the marker last, leaves the older ones as they were and nothing else.
#[test]
fn a_failed_save_leaves_older_checkpoints() {
    for (step, call) in [(2, 1), (2, 4), (2, 5), (4, 1), (4, 4), (4, 5)] {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), 2, 2);
        let place = folder.path().to_owned();
        let block = move || {
            let unfinished = place.join(format!(".unfinished-{}", checkpoint_name(step)));
            let in_the_way = match POINTS[call] {
                SavePoint::Midway => unfinished.join(MANIFEST),
                SavePoint::Renamed => place.join(checkpoint_name(step)).join(COMMITTED),
                // Nothing can be renamed that is gone.
                _ => return fs::remove_dir_all(unfinished).unwrap(),
            };
            fs::create_dir(in_the_way).unwrap();
        };
        let what = format!("step {step} failed at {:?}", POINTS[call]);
        save_pieces(folder.path(), step, CHILD, &pieces(2), at(call, block)).expect_err(&what);
        assert_eq!(names(folder.path()), ["checkpoint-2"], "{what}");
        has_only(folder.path(), &[(2, 2)], &what);
    }
}

#[test]
fn a_sweep_leaves_what_is_not_ours() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 2, 2);
    let others = ["checkpoint-500", "checkpoint-x", "runs"];
    for name in others {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("pytorch_model.bin"), "weights").unwrap();
    }
    fs::write(folder.path().join(".unfinished-model"), "part").unwrap();
    assert_eq!(sweep(folder.path()).unwrap(), 1);
    assert_eq!(names(folder.path()), ["checkpoint-2", "checkpoint-500", "checkpoint-x", "runs"]);
    remove_checkpoint(&folder.path().join("checkpoint-2")).unwrap();
    assert_eq!(names(folder.path()), others);
}
