//! Damaged libraries of the right size: found in the background once, before loading after a crash.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::SystemTime;

use crate::bench::{Bench, LIBRARY, RECORD, answer, noise};

const FIX: &str = "`fullshard plugins install cpu` replaces it";

/// An installed plugin.
struct Fixture {
    bench: Bench,
    library: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let bench = Bench::new();
        let library = bench.install(&bench.package()).unwrap().path;
        Self { bench, library }
    }

    fn tree(&self) -> PathBuf {
        self.bench.store().folder().join("cpu-1.0")
    }

    fn play(&self, role: &str) -> Output {
        self.bench.child(role).output().unwrap()
    }

    /// Flips a bit; its size and time stay the same.
    fn damage(&self) {
        let modified = modified(&self.library);
        let mut content = fs::read(&self.library).unwrap();
        content[50_000] ^= 1;
        fs::write(&self.library, content).unwrap();
        let file = File::options().append(true).open(&self.library).unwrap();
        file.set_modified(modified).unwrap();
    }

    fn marks(&self) -> usize {
        let names = fs::read_dir(self.tree()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with(".in-use-")).count()
    }

    fn is_damaged(&self, text: &str) -> bool {
        text.contains(&format!("{} is damaged", self.library.display())) && text.contains(FIX)
    }
}

fn modified(path: &Path) -> SystemTime {
    path.metadata().unwrap().modified().unwrap()
}

#[test]
fn intact_library_is_verified_once() {
    let fixture = Fixture::new();
    assert_eq!(answer(&fixture.play("use")), "new");
    assert_eq!(answer(&fixture.play("use")), "verified");
    assert_eq!(fixture.marks(), 0, "all ended cleanly");
}

#[test]
fn damaged_library_ends_the_process_and_is_reinstalled() {
    let fixture = Fixture::new();
    fixture.damage();
    let ended = fixture.play("use");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(fixture.is_damaged(&stderr), "{stderr}");
    // It did not end cleanly, so the next one is not even loaded.
    let error = answer(&fixture.play("use"));
    assert!(fixture.is_damaged(&error), "{error}");

    fixture.bench.install(&fixture.bench.package()).unwrap();
    assert_eq!(fs::read(&fixture.library).unwrap(), noise(100_000));
    assert_eq!(answer(&fixture.play("use")), "new");
}

#[test]
fn library_is_verified_before_loading_after_a_crash() {
    let fixture = Fixture::new();
    assert!(!fixture.play("crash").status.success());
    assert_eq!(fixture.marks(), 1);
    assert_eq!(answer(&fixture.play("use")), "verified");
    assert_eq!(fixture.marks(), 0, "it was not the library");

    // Damage after it was verified shows as a crash.
    fixture.damage();
    assert_eq!(answer(&fixture.play("crash")), "verified");
    for _ in 0..2 {
        let error = answer(&fixture.play("use"));
        assert!(fixture.is_damaged(&error), "{error}");
    }
    fixture.bench.install(&fixture.bench.package()).unwrap();
    assert_eq!(answer(&fixture.play("use")), "new");
}

/// Not even after the first crash.
#[test]
fn damage_before_the_first_use_is_never_recorded() {
    let fixture = Fixture::new();
    fixture.damage();
    File::create(fixture.tree().join(".in-use-AbCdEf")).unwrap();
    for _ in 0..2 {
        let error = answer(&fixture.play("use"));
        assert!(fixture.is_damaged(&error), "{error}");
    }
    assert!(!fixture.tree().join(RECORD).exists());
}

#[test]
fn running_processes_are_no_crashes() {
    let fixture = Fixture::new();
    assert_eq!(answer(&fixture.play("use")), "new");
    let mark = fixture.tree().join(".in-use-AbCdEf");
    let held = File::create(&mark).unwrap();
    held.lock().unwrap();
    fixture.damage();
    assert_eq!(answer(&fixture.play("use")), "verified");
    // A child of another test that is being started has a copy of the file until it runs.
    held.unlock().unwrap();
    assert!(fixture.is_damaged(&answer(&fixture.play("use"))));
    assert!(mark.exists() && fixture.tree().join(LIBRARY).is_file());
}
