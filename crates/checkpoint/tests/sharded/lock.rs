//! One job per folder, as long as it lives.

use super::names;
use fullshard_checkpoint::{Error, LOCK, Lock};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

const FOLDER: &str = "FULLSHARD_TEST_LOCKED";

#[test]
#[ignore = "child: holds a lock until it is killed"]
fn child_holds_a_lock() {
    let _lock = Lock::acquire(std::env::var(FOLDER).unwrap().as_ref()).unwrap();
    println!("locked");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

/// A process that has the lock of a folder.
fn holder(folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["lock::child_holds_a_lock", "--ignored", "--exact", "--nocapture"]);
    let mut child = command.env(FOLDER, folder).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line.ends_with("locked")));
    child
}

/// The process that an error names.
fn refused(folder: &Path) -> String {
    let error = Lock::acquire(folder).unwrap_err();
    let Error::Locked { folder: named, holder } = &error else { panic!("{error}") };
    assert_eq!(named, folder);
    holder.clone()
}

#[test]
fn a_second_job_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let lock = Lock::acquire(folder.path()).unwrap();
    for _ in 0..2 {
        assert!(refused(folder.path()).starts_with(&format!("process {} on ", std::process::id())));
    }
    drop(lock);
    Lock::acquire(folder.path()).unwrap();
}

#[test]
fn a_killed_process_frees_its_lock() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = holder(folder.path());
    assert!(refused(folder.path()).starts_with(&format!("process {} on ", child.id())));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names(folder.path()), [LOCK]);
    let lock = Lock::acquire(folder.path()).unwrap();
    assert!(refused(folder.path()).starts_with(&format!("process {} on ", std::process::id())));
    drop(lock);
}

/// What a lock created goes with it; what was there before stays.
#[test]
fn a_lock_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("runs/today/out");
    drop(Lock::acquire(&inner).unwrap());
    assert!(names(folder.path()).is_empty(), "{:?}", names(folder.path()));

    fs::create_dir_all(&inner).unwrap();
    drop(Lock::acquire(&inner).unwrap());
    assert!(inner.is_dir() && names(&inner).is_empty());

    let lock = Lock::acquire(&inner.join("new")).unwrap();
    fs::write(inner.join("new/model"), "weights").unwrap();
    drop(lock);
    assert_eq!(names(&inner.join("new")), ["model"]);
}

/// Locks are taken and removed by many threads, of which one has it at a time.
#[test]
fn only_one_of_many_has_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("out");
    let (holders, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    match Lock::acquire(&inner) {
                        Ok(lock) => {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                            taken.fetch_add(1, Ordering::SeqCst);
                            holders.fetch_sub(1, Ordering::SeqCst);
                            drop(lock);
                        }
                        Err(Error::Locked { .. }) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert!(taken.into_inner() > 0);
    assert!(!inner.join(LOCK).exists());
}
