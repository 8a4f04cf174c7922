//! A fixture for the plugin tests: tiny wheels, a new store, and scripts that mock
//! Python.

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use fullshard_pjrt::plugins::{
    InstallError, Installed, Package, Platform, PluginError, Source, Store, Wheel,
};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;

pub const WHEEL: &str = "tiny_plugin-1.0-py3-none-manylinux_2_27_x86_64.whl";
pub const LIBRARY: &str = "tiny/plugin.so";
/// The file that says that a library was verified.
pub const RECORD: &str = "verified.json";

/// The role of a child process of this test binary; see `child.rs`.
pub const ROLE: &str = "FULLSHARD_TEST_ROLE";
/// The bench of a child process of this test binary.
pub const BENCH: &str = "FULLSHARD_TEST_BENCH";

/// A folder with `wheels/`, `cache/` and optionally a script named `python`.
pub struct Bench {
    pub root: PathBuf,
    _owned: Option<TempDir>,
}

impl Bench {
    /// A bench with one valid wheel.
    pub fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let bench = Self { root: folder.path().to_owned(), _owned: Some(folder) };
        fs::create_dir(bench.wheels()).unwrap();
        let library = noise(100_000);
        let sum = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&library));
        let record = format!("tiny/__init__.py,,\n{LIBRARY},sha256={sum},{}\n", library.len());
        bench.put_wheel(&[
            (LIBRARY, &library),
            ("tiny/__init__.py", b"pass"),
            ("tiny-1.0.dist-info/RECORD", record.as_bytes()),
        ]);
        bench
    }

    /// The bench of another process.
    pub fn at(root: PathBuf) -> Self {
        Self { root, _owned: None }
    }

    pub fn wheels(&self) -> PathBuf {
        self.root.join("wheels")
    }

    pub fn wheel(&self) -> PathBuf {
        self.wheels().join(WHEEL)
    }

    pub fn store(&self) -> Store {
        Store::at(self.root.join("cache")).with_python(self.root.join("python")).quiet()
    }

    pub fn put_wheel(&self, entries: &[(&str, &[u8])]) {
        let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in entries {
            let options = SimpleFileOptions::default().unix_permissions(0o755);
            archive.start_file(*name, options).unwrap();
            archive.write_all(content).unwrap();
        }
        fs::write(self.wheel(), archive.finish().unwrap().into_inner()).unwrap();
    }

    /// A package that pins the current wheel.
    pub fn package(&self) -> Package {
        let content = fs::read(self.wheel()).unwrap();
        let sum = Sha256::digest(&content);
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        Package {
            suffix: "",
            kind: Platform::Cpu.into(),
            plugin: Wheel {
                name: "tiny-plugin",
                version: "1.0",
                file: WHEEL,
                sha256: sum.leak(),
                bytes: content.len() as u64,
            },
            companions: &[],
            library: LIBRARY,
            exclude: &[".py"],
        }
    }

    pub fn install(&self, package: &Package) -> Result<Installed, PluginError> {
        self.store().install_package(package, Source::Folder(&self.wheels()))
    }

    pub fn install_with_pip(&self, package: &Package) -> Result<Installed, PluginError> {
        self.store().install_package(package, Source::Pip)
    }

    /// Replaces Python by a shell script, in which `$dest` is the download folder
    /// of pip and `$wheels` the folder of wheels.
    pub fn fake_python(&self, body: &str) -> PathBuf {
        self.script(&self.root.join("python"), body)
    }

    pub fn script(&self, path: &Path, body: &str) -> PathBuf {
        let draft = self.root.join("draft");
        let wheels = self.wheels();
        let script = format!(
            "#!/bin/sh\nwheels='{}'\nwhile [ $# -gt 0 ]; do [ \"$1\" = -d ] && dest=$2; shift; done\n{body}\n",
            wheels.display()
        );
        fs::write(&draft, script).unwrap();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Another process writes the script: a descriptor of ours could be
        // inherited by a child process and make the script "busy".
        let copied = Command::new("install").args(["-m", "755"]).args([&draft, path]).status();
        assert!(copied.unwrap().success());
        path.to_owned()
    }

    /// Names in the plugin cache, sorted.
    pub fn listing(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.store().folder())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Asserts that an installation failed, left nothing behind and printed the
    /// manual commands; returns the cause.
    pub fn failure(&self, result: Result<Installed, PluginError>) -> InstallError {
        let error = result.expect_err("the installation should fail");
        assert_eq!(self.listing(), [".lock"], "something was left behind");
        let message = error.to_string();
        println!("{message}\n");
        for line in
            ["python3 -m pip download --no-deps", "unzip -o", "export FULLSHARD_CPU_PLUGIN="]
        {
            assert!(message.contains(line), "no `{line}` in: {message}");
        }
        match error {
            PluginError::Install { cause, .. } => cause,
            other => panic!("unexpected error: {other:?}"),
        }
    }

    /// This test binary as a child process, in one of the roles of `child.rs`.
    pub fn child(&self, role: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["child::child_plays_its_role", "--ignored", "--exact", "--nocapture"])
            .env(ROLE, role)
            .env(BENCH, &self.root);
        command
    }
}

/// Bytes that do not compress.
pub fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..count).map(|_| step()).collect()
}

/// The output of a child, after the marker `answer:`.
pub fn answer(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split("answer: ").nth(1));
    line.unwrap_or_else(|| panic!("no answer in {output:?}")).to_owned()
}
