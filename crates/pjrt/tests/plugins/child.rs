//! The part of this test binary that runs as a child process: some tests need a
//! separate process, to kill it or to set its environment.

use std::env;
use std::path::PathBuf;

use fullshard_pjrt::plugins::{Located, Platform, PluginError, Store, find, find_or_install};

use crate::bench::{BENCH, Bench, ROLE};

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
        other => panic!("unknown role {other}"),
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
