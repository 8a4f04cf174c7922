//! Runs the trainer in a temporary folder.
#![allow(dead_code, clippy::unwrap_used)]

use fullshard_core::Platform;
use fullshard_data::demo::Demo;
use fullshard_pjrt::plugins::{Store, find_or_install};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

/// A model that compiles quickly, with a larger vocabulary than the demo's tokenizer.
pub const TINY: &str = r#"{"model_type": "gpt2", "vocab_size": 96, "n_positions": 16, "n_embd": 16,
    "n_layer": 2, "n_head": 2, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}"#;

pub const BLOCKS: &str = r#"{"transformer_layer_cls_to_wrap": "GPT2Block"}"#;

/// A temporary folder of a test: text, tokenizer, config, caches.
pub struct Folder(pub tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        Demo::write(folder.0.path(), 2000, 5).unwrap();
        folder.write("tiny.json", TINY);
        folder.write("fsdp.json", BLOCKS);
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, contents: &str) {
        fs::write(self.path(name), contents).unwrap();
    }

    /// A command in this folder, with empty caches, the CPU plugin and no hub. The binary is the
    /// one that was built with the tests, or that in FULLSHARD_TEST_BINARY.
    pub fn command(&self, args: &[&str]) -> Command {
        let built = || env!("CARGO_BIN_EXE_fullshard").into();
        let mut command =
            Command::new(std::env::var_os("FULLSHARD_TEST_BINARY").unwrap_or_else(built));
        command.args(args).current_dir(self.0.path());
        if device() == Platform::Cpu {
            let store = Store::default_location().unwrap();
            let cpu = find_or_install(Platform::Cpu, None, &store).unwrap().path;
            command.env("FULLSHARD_CPU_PLUGIN", cpu);
        }
        command.env("FULLSHARD_CACHE", self.path("cache"));
        command.env("HF_HOME", self.path("hub")).env("HF_HUB_OFFLINE", "1");
        command.env_remove("PJRT_DEVICE").env_remove("HF_HUB_CACHE").env_remove("HF_TOKEN");
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The stdout of a run, which must succeed.
    pub fn stdout(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(name)).unwrap()).unwrap()
    }

    /// All files and folders inside.
    pub fn names(&self) -> Vec<PathBuf> {
        let mut names = Vec::new();
        let mut folders = vec![self.0.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path.clone());
                }
                names.push(path);
            }
        }
        names.sort();
        names
    }
}

/// What the tests run on: the CPU, or the platform in FULLSHARD_TEST_DEVICE.
pub fn device() -> Platform {
    std::env::var("FULLSHARD_TEST_DEVICE").map_or(Platform::Cpu, |name| name.parse().unwrap())
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// A run in progress.
pub struct Running {
    pub child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    pub printed: String,
}

impl Running {
    /// Starts a command. Its stderr goes to a file of the folder.
    pub fn start(folder: &Folder, mut command: Command) -> Running {
        let stderr = fs::File::create(folder.path("stderr")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, lines, printed: String::new() }
    }

    /// The next line of its stdout, if it does not end before.
    pub fn line(&mut self) -> Option<String> {
        let line = self.lines.next()?.unwrap();
        self.printed += &(line.clone() + "\n");
        Some(line)
    }

    /// Reads its stdout until a line has this text; false if it ends before.
    pub fn prints(&mut self, part: &str) -> bool {
        while let Some(line) = self.line() {
            if line.contains(part) {
                return true;
            }
        }
        false
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Waits for its end; returns its status and what it printed.
    pub fn end(mut self) -> (ExitStatus, String) {
        self.prints("\0");
        (self.child.wait().unwrap(), std::mem::take(&mut self.printed))
    }
}

/// A test that fails leaves nothing running.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The flags of a short run on two devices.
const SHORT: [&str; 16] = [
    "run_clm",
    "--config_name",
    "tiny.json",
    "--tokenizer_name",
    "tokenizer.json",
    "--train_file",
    "train.txt",
    "--validation_file",
    "validation.txt",
    "--num_cores",
    "2",
    "--fsdp_config",
    "fsdp.json",
    "--do_train",
    "--output_dir",
    "out",
];

pub fn short(more: &[&'static str]) -> Vec<&'static str> {
    [&SHORT[..], more].concat()
}

/// Checks that a command fails with an error, before it writes anything.
pub fn rejects(folder: &Folder, args: &[&str], code: i32, expected: &str) {
    let before = folder.names();
    let output = folder.run(args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert!(stderr.contains("error: ") && stderr.contains(expected), "{args:?}: {stderr}");
    assert_eq!(folder.names(), before, "{args:?}");
}
