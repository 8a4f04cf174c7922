//! Weights are read straight into shards: beyond the state, the host holds no more than the shards
//! of the largest tensor and some. Alone in its file, since the peak is that of the process.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_checkpoint::{ExportOptions, Weights, export};
use fullshard_optim::Sgd;
use fullshard_parallel::PlacementOptions;
use fullshard_step::BatchShape;
use fullshard_train::{EvalRunner, model_tensors};
use std::fs;

/// 236M parameters; the stack of one of its matrices has 315 MB.
const CONFIG: &str = r#"{"model_type": "gpt2", "vocab_size": 97, "n_positions": 16, "n_embd": 1280,
    "n_layer": 12, "n_head": 4}"#;
const DEVICES: usize = 4;

/// Maximum memory beyond the state and the shards of the largest tensor.
const LIMIT: u64 = 256 << 20;

/// A line of this process's memory, in bytes.
fn memory(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|found| found.strip_prefix(line)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn scanned_layers_are_read_as_shards() {
    let options = PlacementOptions { scan_layers: true, ..PlacementOptions::default() };
    let batch =
        BatchShape { sequences: DEVICES, tokens: 8, accumulation: 1, sync_each_microbatch: true };
    let spec = spec(CONFIG, DEVICES, &options, batch, Box::new(Sgd::default()));
    let shard = |param: &fullshard_parallel::ShardedParam| param.shard_elements() * 4;
    let state = spec.placement.parameters.iter().map(shard).sum::<usize>() * DEVICES;
    let largest = spec.placement.parameters.iter().map(shard).max().unwrap();
    assert!(largest as u64 * DEVICES as u64 > 300_000_000);

    let folder = tempfile::tempdir().unwrap();
    let tensors = model_tensors(&spec);
    let mut sizes = tensors.iter().map(|tensor| tensor.dims.iter().product());
    let values = |_: &str| Ok::<_, std::io::Error>(vec![0.5_f32; sizes.next().unwrap()]);
    export(folder.path(), &tensors, values, &ExportOptions::default()).unwrap();
    let weights = Weights::open(folder.path()).unwrap();

    let compiler = compiler(DEVICES);
    drop(compiler.compile(&spec.eval_program(DEVICES).unwrap()).unwrap());
    // From here on the peak counts again.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory("VmRSS:");
    let runner = EvalRunner::with_weights(&compiler, &spec, DEVICES, &weights).unwrap();
    let beyond = (memory("VmHWM:") - before).saturating_sub(state as u64);
    println!("{state} bytes of state, {beyond} beyond, {largest} of the largest shard");
    assert!(beyond < LIMIT + largest as u64, "{beyond} bytes beyond the {state} of the state");
    let values = runner.parameters().get("transformer.h.*.mlp.c_fc.weight").unwrap();
    assert!(values.iter().all(|&value| value == 0.5));
}
