//! The command of the PyTorch/XLA FSDP blog post, shortened to a few seconds, compared with the
//! same run in PyTorch, and its output loaded by `transformers`. `data/record_run.py` records
//! `data/run.json`.
#![allow(clippy::unwrap_used)]

use fullshard_checkpoint::{
    ExportOptions, ModelNames, TensorEntry, WeightDtype, export, write_config,
};
use fullshard_core::Platform;
use fullshard_data::Order;
use fullshard_models::from_json;
use fullshard_pjrt::plugins::{Store, find_or_install};
use serde_json::Value;
use std::convert::Infallible;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");

/// The flags of the blog post, except for data, sizes and output folder. Its learning rate is
/// Trainer's default, too low for such a short run.
const BLOG_FLAGS: &str = "run_clm --num_cores 4 --num_train_epochs 1 \
    --per_device_train_batch_size 2 --per_device_eval_batch_size 2 --do_train --do_eval \
    --overwrite_output_dir --tokenizer_name gpt2 --block_size 64 --optim adafactor \
    --adafactor true --save_strategy no --learning_rate 0.005 --fsdp full_shard";

/// The output files of Hugging Face's Trainer.
const FILES: [&str; 10] = [
    "all_results.json",
    "config.json",
    "eval_results.json",
    "generation_config.json",
    "loss.svg",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "train_results.json",
    "trainer_state.json",
];

/// Runs commands in a temporary folder with its own cache and model.
struct Bench {
    folder: tempfile::TempDir,
    cpu_plugin: PathBuf,
}

impl Bench {
    fn new() -> Bench {
        let store = Store::default_location().unwrap();
        let cpu_plugin = find_or_install(Platform::Cpu, None, &store).unwrap().path;
        Bench { folder: tempfile::tempdir().unwrap(), cpu_plugin }
    }

    fn command(&self, flags: &str) -> Command {
        let folder = self.folder.path();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullshard"));
        command.args(flags.split_whitespace()).current_dir(folder);
        command.args(["--train_file", &data("train.txt")]);
        command.args(["--validation_file", &data("validation.txt")]);
        command.arg("--cache_dir").arg(folder.join("cache"));
        command.env("FULLSHARD_CACHE", folder.join("cache")).env("PJRT_DEVICE", "CPU");
        command.env("FULLSHARD_CPU_PLUGIN", &self.cpu_plugin);
        command
    }

    /// Runs the command of the blog post with more flags.
    fn train(&self, output: &Path, flags: &[&str]) {
        let mut command = self.command(BLOG_FLAGS);
        command.arg("--output_dir").arg(output).args(flags);
        let finished = command.output().unwrap();
        assert!(finished.status.success(), "{}", String::from_utf8_lossy(&finished.stderr));
    }

    /// A folder with the initial model of the recording.
    fn model(&self) -> String {
        let config = json(data("gpt2_config.json"));
        let tree = from_json(&config.to_string()).unwrap().tree();
        let parameters = tree.named_parameters().into_iter();
        let untied = parameters.filter(|(_, parameter)| parameter.tied_to.is_none());
        let tensors: Vec<_> = untied
            .map(|(name, parameter)| TensorEntry::new(name, parameter.dims.clone()))
            .collect();
        let values = |name: &str| {
            let tensor = tensors.iter().find(|tensor| tensor.name == name).unwrap();
            Ok::<_, Infallible>(initial_values(name, tensor.dims.iter().product()))
        };
        let folder = self.folder.path().join("model");
        fs::create_dir(&folder).unwrap();
        export(&folder, &tensors, values, &ExportOptions::default()).unwrap();
        let names = ModelNames { model_type: "gpt2", architecture: tree.class };
        write_config(&folder, &config, names, WeightDtype::F32).unwrap();
        folder.to_str().unwrap().to_owned()
    }
}

/// The output folder of a test, which is kept for the scripts in `data`.
fn output(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("recorded").join(name);
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn data(name: &str) -> String {
    format!("{DATA}/{name}")
}

fn json(path: impl AsRef<Path>) -> Value {
    let path = path.as_ref();
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(number).collect()
}

/// The initial values of a parameter, as in `record_run.py`: a hash of its name and the index, so
/// that both have the same bits without a checkpoint.
fn initial_values(name: &str, elements: usize) -> Vec<f32> {
    let is_scale = name.contains(".ln_") && name.ends_with(".weight");
    let base = if is_scale { 1.0 } else { 0.0 };
    let offset: u32 = name.bytes().map(u32::from).sum();
    let value = |index: usize| {
        let mut hash = (index as u32).wrapping_mul(2_654_435_761).wrapping_add(offset);
        hash ^= hash >> 15;
        hash = hash.wrapping_mul(2_246_822_519);
        hash ^= hash >> 13;
        (base + (f64::from(hash) / 2_f64.powi(32) - 0.5) * 0.07) as f32
    };
    (0..elements).map(value).collect()
}

/// The logged values of a name.
fn logged(state: &Value, name: &str) -> Vec<f64> {
    let logs = state["log_history"].as_array().unwrap().iter();
    logs.filter_map(|log| log.get(name)).map(number).collect()
}

/// The largest relative difference of two lists of equal length.
fn difference(ours: &[f64], recorded: &[f64]) -> f64 {
    assert_eq!(ours.len(), recorded.len());
    let pairs = ours.iter().zip(recorded);
    pairs.map(|(ours, recorded)| (ours / recorded - 1.0).abs()).fold(0.0, f64::max)
}

/// The relative difference of a run and the recording, the maximum over steps.
#[derive(Debug)]
struct Distance {
    loss: f64,
    grad_norm: f64,
    learning_rate: f64,
    eval_loss: f64,
    perplexity: f64,
}

impl Distance {
    fn of(output: &Path, recorded: &Value) -> Distance {
        let state = json(output.join("trainer_state.json"));
        let results = json(output.join("eval_results.json"));
        let steps = |name: &str| difference(&logged(&state, name), &numbers(&recorded[name]));
        let result = |name: &str| difference(&[number(&results[name])], &[number(&recorded[name])]);
        let distance = Distance {
            loss: steps("loss"),
            grad_norm: steps("grad_norm"),
            learning_rate: steps("learning_rate"),
            eval_loss: result("eval_loss"),
            perplexity: result("perplexity"),
        };
        println!("{distance:?}");
        distance
    }
}

fn assert_files(output: &Path) {
    for name in FILES {
        assert!(output.join(name).is_file(), "{name} is missing");
    }
    let logs = fs::read_dir(output.join("runs")).unwrap().map(|run| run.unwrap().path());
    let mut events = logs.flat_map(|run| fs::read_dir(run).unwrap());
    assert!(events.any(|file| file.unwrap().file_name().to_str().unwrap().contains("tfevents")));
}

#[test]
fn f32_matches_pytorch_and_loads_in_transformers() {
    let bench = Bench::new();
    let output = output("f32");
    let mut fsdp = json(data("fsdp_config.json"));
    fsdp["xla_fsdp_settings"]["compute_dtype"] = "float32".into();
    let flags = ["--model_name_or_path", &bench.model(), "--logging_steps", "1"];
    bench.train(&output, &[&flags[..], &["--fsdp_config", &fsdp.to_string()]].concat());

    let blocks = json(output.join("train_results.json"))["train_samples"].as_u64().unwrap();
    assert_ne!(blocks % 8, 0, "the last batch should be smaller");
    let order = Order::shuffled(42, blocks);
    let order: Value = (0..blocks).map(|position| order.block(0, position).unwrap()).collect();
    fs::write(output.join("order.json"), order.to_string()).unwrap();

    let recorded = json(data("run.json"));
    assert_eq!(order, recorded["order"], "record again: see data/record_run.py");
    let losses = numbers(&recorded["loss"]);
    assert!(losses.last().unwrap() < &(losses[0] * 0.6), "the loss of the recording should fall");
    let distance = Distance::of(&output, &recorded);
    assert!(distance.loss < 1e-3 && distance.learning_rate < 1e-6, "{distance:?}");
    // Torch sums a million small squares in f32, with an error of 2e-4.
    assert!(distance.grad_norm < 1e-3, "{distance:?}");
    assert!(distance.eval_loss < 1e-3 && distance.perplexity < 1e-3, "{distance:?}");

    let results = json(output.join("eval_results.json"));
    assert_eq!(results["eval_samples"], recorded["eval_samples"]);
    let apart = (number(&results["eval_loss"]) - number(&recorded["opened_loss"])).abs();
    println!("difference to the loss of transformers: {apart:e}");
    assert!(apart < 1e-4, "difference to the loss of transformers: {apart}");
    assert_files(&output);
}

#[test]
fn bfloat16_is_close_to_pytorch() {
    let bench = Bench::new();
    let fsdp = ["--fsdp_config", &data("fsdp_config.json")];
    let near = output("bf16");
    let flags = ["--model_name_or_path", &bench.model(), "--logging_steps", "1"];
    bench.train(&near, &[&flags[..], &fsdp].concat());
    let distance = Distance::of(&near, &json(data("run.json")));
    assert!(distance.loss < 2e-2 && distance.eval_loss < 2e-2, "{distance:?}");
    assert_files(&near);

    let scratch = output("scratch");
    let flags = "--config_name gpt2_config.json --logging_strategy no --max_train_samples 30";
    fs::copy(data("gpt2_config.json"), bench.folder.path().join("gpt2_config.json")).unwrap();
    let flags: Vec<&str> = flags.split_whitespace().chain(fsdp).collect();
    bench.train(&scratch, &flags);
    let state = json(scratch.join("trainer_state.json"));
    assert!(logged(&state, "loss").is_empty(), "nothing should be logged");
    let loss = number(&json(scratch.join("eval_results.json"))["eval_loss"]);
    assert!(loss < (50257_f64).ln() - 0.1, "{loss} after training");
    assert_files(&scratch);
}

/// The resident memory of a process in bytes.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
#[ignore = "long: 2,000 steps, about two minutes, and reads /proc"]
fn long_memory_stays_flat() {
    let bench = Bench::new();
    let mut command = bench.command(
        "train --num_cores 2 --max_steps 2000 --per_device_train_batch_size 1 --block_size 16 \
         --model_type gpt2 --config_overrides n_embd=16,n_layer=2,n_head=2,n_positions=16 \
         --logging_steps 100 --disable_tqdm --output_dir out",
    );
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut after = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.starts_with("step ") && line.contains("grad norm") {
            after.push(resident(child.id()));
        }
    }
    assert!(child.wait().unwrap().success());
    println!("{:?}", after.iter().map(|bytes| bytes >> 10).collect::<Vec<_>>());
    assert_eq!(after.len(), 20);
    let (early, late) = (after[2], after[19]);
    assert!(late < early + 20_000_000, "{early} bytes after 300 steps, {late} after 2000");
}
