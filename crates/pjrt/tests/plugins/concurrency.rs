//! Concurrent installers, and one that is killed midway.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::{Bench, answer};

/// A slow pip that logs its calls.
const SLOW_PIP: &str =
    "echo called >> \"$wheels/../calls\"; sleep 0.3; cp \"$wheels\"/*.whl \"$dest\"";

fn assert_installed_once(bench: &Bench) {
    let calls = fs::read_to_string(bench.root.join("calls")).unwrap();
    assert_eq!(calls.lines().count(), 1, "only one should have downloaded");
    assert_eq!(bench.listing(), [".lock", "cpu-1.0"]);
}

#[test]
fn two_threads_install_once() {
    let bench = Bench::new();
    bench.fake_python(SLOW_PIP);
    let package = bench.package();
    thread::scope(|scope| {
        let installers = [(); 2].map(|()| scope.spawn(|| bench.install_with_pip(&package)));
        let [first, second] = installers.map(|one| one.join().unwrap().unwrap());
        assert_eq!(first, second);
    });
    assert_installed_once(&bench);
}

#[test]
fn two_processes_install_once() {
    let bench = Bench::new();
    bench.fake_python(SLOW_PIP);
    let children = [(); 2].map(|()| {
        let mut command = bench.child("install");
        command.stdout(Stdio::piped()).spawn().unwrap()
    });
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(answer(&output).ends_with("cpu-1.0/tiny/plugin.so"));
    }
    assert_installed_once(&bench);
}

#[test]
fn clears_leftovers_of_killed_process() {
    let bench = Bench::new();
    bench.fake_python("echo half > \"$dest/half\"; echo $$ > \"$wheels/../pid\"; exec sleep 60");
    let mut child = bench.child("install").stdout(Stdio::null()).spawn().unwrap();
    let pip = wait_for_pid(&bench);
    child.kill().unwrap();
    child.wait().unwrap();
    Command::new("kill").arg(pip).status().unwrap();

    let left = bench.listing();
    assert!(left.iter().any(|name| name.starts_with(".staging-")), "{left:?}");
    assert_eq!(bench.store().installed_package(&bench.package()), None);
    bench.install(&bench.package()).unwrap();
    assert_eq!(bench.listing(), [".lock", "cpu-1.0"]);
}

fn wait_for_pid(bench: &Bench) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        match fs::read_to_string(bench.root.join("pid")) {
            Ok(pid) if pid.ends_with('\n') => return pid.trim().to_owned(),
            _ => thread::sleep(Duration::from_millis(10)),
        }
    }
    panic!("pip was never started");
}
