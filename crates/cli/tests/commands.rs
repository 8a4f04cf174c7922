//! The output and errors of commands.
#![allow(clippy::unwrap_used)]

use fullshard_core::Platform;
use fullshard_pjrt::plugins::{Store, find_or_install};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const EXAMPLE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/programs/fsdp_layer.mlir");

const ADD: &str = "
module @add {
  func.func public @main(%a: tensor<2x2xf32>, %b: tensor<2x2xf32>) -> tensor<2x2xf32> {
    %c = stablehlo.add %a, %b : tensor<2x2xf32>
    return %c : tensor<2x2xf32>
  }
}";

/// A temporary folder of a test: files, plugin cache and compile cache.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.path(name), contents).unwrap();
        self.path(name)
    }

    /// Runs the binary with an empty cache and the CPU plugin.
    fn run(&self, args: &[&str]) -> Output {
        let store = Store::default_location().unwrap();
        let cpu = find_or_install(Platform::Cpu, None, &store).unwrap().path;
        let mut command = self.command(args);
        command.env("FULLSHARD_CPU_PLUGIN", cpu).output().unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullshard"));
        command.args(args).env("FULLSHARD_CACHE", self.path("cache")).env_remove("PJRT_DEVICE");
        command
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.run(&[args, &["--json"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "XLA's own log lines are quiet");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The stderr of a command, which must fail.
    fn failure(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "");
        let stderr = text(&output.stderr);
        assert!(stderr.contains("error: "), "{stderr}");
        stderr
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn as_str(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn safetensors(tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, _, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

#[test]
fn lists_devices() {
    let folder = Folder::new();
    let reports = folder.json(&["devices", "--device", "cpu", "--num-devices", "3"]);
    let report = &reports[0];
    assert_eq!(report["kind"], "cpu");
    assert_eq!(report["plugin"]["api_version"], "0.81");
    assert_eq!(report["devices"].as_array().unwrap().len(), 3);
    assert_eq!(report["devices"][2]["id"], 2);
    let output = folder.run(&["devices", "--device", "cpu"]);
    assert!(text(&output.stdout).contains("PJRT API 0.81"), "{}", text(&output.stdout));
}

#[test]
fn runs_a_program_on_given_inputs() {
    let folder = Folder::new();
    let program = folder.write("add.mlir", ADD);
    let square: &[usize] = &[2, 2];
    let inputs = safetensors(&[
        ("arg0", square, &[1.0, 2.0, 3.0, 4.0]),
        ("arg1", square, &[10.0, 20.0, 30.0, 40.0]),
    ]);
    let inputs = folder.write("in.safetensors", inputs);
    let outputs = folder.path("out.safetensors");
    let args = ["exec", as_str(&program), "--inputs", as_str(&inputs), "--repeat", "3"];
    let report = folder.json(&[&args[..], &["--outputs", as_str(&outputs)]].concat());
    assert_eq!(report["program"], "add");
    assert_eq!(report["results"][0]["first"], serde_json::json!([11.0, 22.0, 33.0, 44.0]));
    assert_eq!(report["memory"]["arguments"], 32);
    assert_eq!((&report["cache"], &report["time"]["repeat"]), (&"miss".into(), &3.into()));
    assert_eq!(folder.json(&args)["cache"], "hit");
    let file = fs::read(outputs).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let tensor = file.tensor("out0").unwrap();
    assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, square));
    assert_eq!(tensor.data()[..4], 11.0_f32.to_le_bytes());
    let printed = text(&folder.run(&args).stdout);
    assert!(printed.contains("result 0: f32[2,2] 11.000000 22.000000"), "{printed}");
}

/// The error comes before compilation, and a pipe stays a pipe.
#[test]
fn results_replace_only_files() {
    let folder = Folder::new();
    let program = folder.write("add.mlir", ADD);
    let pipe = folder.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (path, what) in [(&pipe, "a pipe"), (&folder.path(""), "a folder")] {
        let stderr = folder.failure(&["exec", as_str(&program), "--outputs", as_str(path)]);
        let expected = format!("cannot write {}: it is {what}", path.display());
        assert!(stderr.contains(&expected), "{stderr}");
    }
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    let missing = folder.path("no/such");
    let stderr =
        folder.failure(&["exec", as_str(&program), "--outputs", as_str(&missing.join("x"))]);
    let expected = format!("but there is no folder {}: create it", missing.display());
    assert!(stderr.contains("--outputs is ") && stderr.contains(&expected), "{stderr}");
    assert!(!folder.path("no").exists() && !folder.path("cache").exists());
}

/// The example shards its arguments over four devices and gathers the results.
#[test]
fn sharded_program_matches_one_device() {
    let folder = Folder::new();
    let batch: Vec<f32> = (0..32 * 256).map(|i| ((i * 7) % 13) as f32).collect();
    let weights: Vec<f32> = (0..256 * 256).map(|i| ((i * 5) % 11) as f32).collect();
    let inputs = safetensors(&[("arg0", &[32, 256], &batch), ("arg1", &[256, 256], &weights)]);
    let inputs = folder.write("in.safetensors", inputs);
    let report = folder.json(&["exec", EXAMPLE, "--inputs", as_str(&inputs)]);
    assert_eq!(report["devices"], 4);
    let output_at = |row: usize, column: usize| -> f32 {
        (0..256).map(|k| batch[256 * row + k] * weights[256 * k + column]).sum()
    };
    let expected: Vec<f32> = (0..8).map(|column| output_at(0, column)).collect();
    assert_eq!(report["results"][0]["first"], serde_json::json!(expected));
    // Integers that are exact in single precision.
    let gradient = |row: usize, column: usize| -> f32 {
        (0..32).map(|k| batch[256 * k + row] * output_at(k, column)).sum()
    };
    let expected: Vec<f32> = (0..8).map(|column| gradient(0, column)).collect();
    assert_eq!(report["results"][1]["first"], serde_json::json!(expected));
}

#[test]
fn rejects_invalid_programs() {
    let folder = Folder::new();
    let failure = |name: &str, contents: &[u8]| {
        let file = folder.write(name, contents);
        folder.failure(&["exec", as_str(&file)])
    };
    assert!(folder.failure(&["exec", "missing.mlir"]).contains("missing.mlir: No such file"));
    assert!(failure("a.mlir", b"garbage").contains("PJRT_Client_Compile"));
    assert!(failure("b.mlir", &[0xff, 0xfe, 0x00]).contains("not text"));
    assert!(failure("c.mlir", b"").contains("PJRT_Client_Compile"));
    let huge = "module @huge { func.func public @main() -> tensor<1099511627776xf32> {
      %0 = stablehlo.iota dim = 0 : tensor<1099511627776xf32>
      return %0 : tensor<1099511627776xf32> } }";
    assert!(failure("d.mlir", huge.as_bytes()).contains("`huge` needs 4398046511104 bytes"));
    let add = folder.write("add.mlir", ADD);
    let add = as_str(&add);
    assert!(folder.failure(&["exec", add, "--repeat", "0"]).contains("--repeat"));
    let stderr = folder.failure(&["exec", add, "--xla-flag", "xla_no_such_flag=1"]);
    assert!(stderr.contains("xla_no_such_flag"), "{stderr}");
    assert!(folder.failure(&["exec", add, "--xla-flag", "nonsense"]).contains("name=value"));
    let stderr = folder.failure(&["exec", add, "--profile", "trace"]);
    assert!(stderr.contains("no profiler extension"), "{stderr}");
}

#[test]
fn rejects_mismatched_inputs() {
    let folder = Folder::new();
    let program = folder.write("add.mlir", ADD);
    let failure = |contents: Vec<u8>| {
        let inputs = folder.write("in.safetensors", contents);
        folder.failure(&["exec", as_str(&program), "--inputs", as_str(&inputs)])
    };
    let square: &[usize] = &[2, 2];
    let four = [0.0; 4];
    assert!(failure(b"garbage".to_vec()).contains("not a safetensors file"));
    let stderr = failure(safetensors(&[("arg0", square, &four)]));
    assert!(stderr.contains("it has no `arg1`, but the program takes 2 arguments"), "{stderr}");
    let stderr = failure(safetensors(&[("arg0", square, &four), ("arg1", &[4], &four)]));
    assert!(stderr.contains("`arg1` is f32[4] but the program takes f32[2,2]"), "{stderr}");
    let stderr = failure(safetensors(&[("weights", square, &four)]));
    assert!(stderr.contains("it has a tensor `weights`"), "{stderr}");
}

#[test]
fn reports_ahead_of_time_compilation() {
    let folder = Folder::new();
    let store = Store::default_location().unwrap();
    let libtpu = store.install(Platform::Tpu).unwrap().path;
    let compile = |args: &[&str]| {
        let all = [&["compile", EXAMPLE, "--plugin", as_str(&libtpu)], args].concat();
        folder.command(&all).output().unwrap()
    };
    let hlo = folder.path("optimized.hlo");
    let output = compile(&["--topology", "v4-8", "--hlo", as_str(&hlo), "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["chips"], &report["devices"]), (&4.into(), &4.into()));
    assert_eq!(report["device_kind"], "TPU v4");
    // Two shards of f32: a batch of 8x256, weights of 64x256.
    assert_eq!(report["memory"]["arguments"], (8 + 64) * 256 * 4);
    let kinds: Vec<_> =
        report["collectives"].as_array().unwrap().iter().map(|row| &row["kind"]).collect();
    assert_eq!(kinds, ["all-gather", "reduce-scatter"]);
    let written = fs::read_to_string(&hlo).unwrap();
    assert!(written.starts_with("HloModule fsdp_layer") && written.contains("ENTRY"));

    for (args, expected) in [
        (&["--topology", "v9-8"][..], "unknown accelerator `v9-8`"),
        (&["--topology", "v4-8", "--num-devices", "8"], "for 8 devices but v4-8 has 4"),
        (
            &["--topology", "v4-8", "--hlo", "no/such/folder/x"],
            "but there is no folder no/such/folder: create it",
        ),
    ] {
        let output = compile(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
    // Without libtpu, and without a Python that might have one.
    let mut command = folder.command(&["compile", EXAMPLE, "--topology", "v4-8"]);
    let stderr = text(&command.env("PATH", "").env_remove("VIRTUAL_ENV").output().unwrap().stderr);
    assert!(stderr.contains("fullshard plugins install tpu"), "{stderr}");
}

/// Builds a shared library with `rustc`.
fn library(folder: &Folder, name: &str, source: &str) -> PathBuf {
    let source = folder.write(&format!("{name}.rs"), source);
    let library = folder.path(&format!("{name}.so"));
    let rustc = std::env::var("RUSTC").unwrap_or("rustc".into());
    let status = Command::new(rustc)
        .args(["--crate-type=cdylib", "--edition=2024", "-Cpanic=abort", "-o"])
        .arg(&library)
        .arg(source)
        .status()
        .unwrap();
    assert!(status.success());
    library
}

#[test]
fn rejects_invalid_plugins() {
    let folder = Folder::new();
    let text_file = folder.write("notes.so", "not a library");
    let empty = library(&folder, "empty", "");
    let null = library(
        &folder,
        "null",
        "#[unsafe(no_mangle)] pub extern \"C\" fn GetPjrtApi() -> *const u8 { std::ptr::null() }",
    );
    // A table with only its size and version.
    let short = library(
        &folder,
        "short",
        "static TABLE: [usize; 5] = [40, 0, 24, 0, 0];
         #[unsafe(no_mangle)] pub extern \"C\" fn GetPjrtApi() -> *const usize { TABLE.as_ptr() }",
    );
    for (plugin, expected) in [
        (Path::new("/no/such/plugin.so"), "/no/such/plugin.so"),
        (&text_file, "is not a plugin"),
        (&empty, "it has no symbol `GetPjrtApi`"),
        (&null, "GetPjrtApi returned null"),
        (&short, "it cannot report errors"),
    ] {
        let stderr = folder.failure(&["devices", "--device", "cpu", "--plugin", as_str(plugin)]);
        assert!(stderr.contains(expected), "{stderr}");
    }
    let stderr = folder.failure(&["devices", "--plugin", as_str(&empty)]);
    assert!(stderr.contains("--plugin needs --device"), "{stderr}");
}

#[test]
fn lists_installs_and_removes_plugins() {
    let folder = Folder::new();
    let rows = folder.json(&["plugins"]);
    let kinds: Vec<_> = rows.as_array().unwrap().iter().map(|row| &row["kind"]).collect();
    assert_eq!(kinds, ["cpu", "cuda", "tpu", "mpi"]);
    assert_eq!(rows[0]["package"], "xla-cpu-pjrt");
    assert!(rows[0]["origin"].as_str().unwrap().contains("FULLSHARD_CPU_PLUGIN"));

    fs::create_dir(folder.path("wheels")).unwrap();
    let from = folder.path("wheels");
    let install = ["plugins", "install", "cpu", "--from", as_str(&from)];
    assert!(folder.failure(&install).contains("xla_cpu_pjrt-0.0.1"));
    let wheel = from.join("xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl");
    fs::write(&wheel, "cut").unwrap();
    let stderr = folder.failure(&install);
    assert!(stderr.contains("it is truncated at 3 of 63461052 bytes"), "{stderr}");
    assert!(stderr.contains("python3 -m pip download"), "the manual download: {stderr}");
    fs::File::create(&wheel).unwrap().set_len(63_461_052).unwrap();
    let stderr = folder.failure(&install);
    assert!(stderr.contains("55837b6b7b47"), "the expected checksum: {stderr}");
    assert!(!folder.path("cache/plugins/cpu-0.0.1").exists());
    let output = folder.run(&["plugins", "remove", "cpu"]);
    assert!(text(&output.stdout).contains("not installed"), "{}", text(&output.stdout));
    let output = folder.run(&["plugins", "install", "abacus"]);
    assert_eq!(output.status.code(), Some(2), "a usage error");
}
