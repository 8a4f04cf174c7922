//! The part of this test binary that runs as a child process: some tests need a
//! separate process, to kill it or to set its environment.

use std::env;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use fullshard_pjrt::plugins::{
    Located, Origin, Platform, PluginError, Store, clean_end, find, find_or_install, watch_crashes,
};

use crate::bench::{BENCH, Bench, LIBRARY, RECORD, ROLE};

/// The entry point of a child process.
#[test]
#[ignore = "child: run by other tests as a child process"]
fn child_plays_its_role() {
    let bench = Bench::at(env::var_os(BENCH).unwrap().into());
    match env::var(ROLE).unwrap().as_str() {
        "install" => {
            let installed = bench.install_with_pip(&bench.package()).unwrap();
            println!("answer: {}", installed.path.display());
        }
        "find" => answer(find(kind(), flag().as_deref(), &store(&bench))),
        "find or install" => {
            let found = find_or_install(kind(), flag().as_deref(), &store(&bench));
            answer(found.map(Some));
        }
        "use" => use_plugin(&bench),
        "crash" => {
            use_plugin(&bench);
            std::process::abort();
        }
        other => panic!("unknown role {other}"),
    }
}

/// Verifies the library of the bench, waits until that is recorded, and ends cleanly unless this
/// is a crash.
fn use_plugin(bench: &Bench) {
    watch_crashes();
    let tree = bench.store().folder().join("cpu-1.0");
    let located =
        Located { kind: Platform::Cpu.into(), path: tree.join(LIBRARY), origin: Origin::Cache };
    let is_new = !tree.join(RECORD).exists();
    match located.verify() {
        Ok(()) => {
            let start = Instant::now();
            while !tree.join(RECORD).exists() && start.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(5));
            }
            println!("answer: {}", if is_new { "new" } else { "verified" });
        }
        Err(error) => println!("answer: error: {error}"),
    }
    if env::var(ROLE).unwrap() != "crash" {
        clean_end();
    }
}

fn kind() -> Platform {
    env::var("KIND").unwrap().parse().unwrap()
}

fn flag() -> Option<PathBuf> {
    env::var_os("FLAG").map(PathBuf::from)
}

/// The store of the bench, with the active Python of the environment.
fn store(bench: &Bench) -> Store {
    Store::at(bench.root.join("cache")).quiet()
}

fn answer(found: Result<Option<Located>, PluginError>) {
    match found {
        Ok(Some(found)) => println!("answer: {}: {}", found.origin, found.path.display()),
        Ok(None) => println!("answer: nothing"),
        Err(error) => println!("answer: error: {error}"),
    }
}
