//! GPT-2 with 1.5 billion parameters is initialized on eight devices without host memory beyond the
//! shards. Alone in its file, since the peak is that of the process.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_graph::Program;
use fullshard_optim::Sgd;
use fullshard_parallel::{FsdpConfig, PlacementOptions, WrapPolicy};
use fullshard_step::BatchShape;
use fullshard_train::initial_state;

const CONFIG: &str = include_str!("../../../examples/configs/gpt2_1.5b.json");
const DEVICES: usize = 8;

/// Maximum memory beyond the state.
const LIMIT: u64 = 300 << 20;

/// Peak memory of this process, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn large_models_are_initialized_as_shards() {
    let wrap = WrapPolicy::Classes(vec!["GPT2Block".to_owned()]);
    let config = FsdpConfig { wrap, ..FsdpConfig::default() };
    let options = PlacementOptions { config, scan_layers: true, ..PlacementOptions::default() };
    let batch = BatchShape {
        sequences: DEVICES,
        tokens: 1024,
        accumulation: 1,
        sync_each_microbatch: true,
    };
    // Without momentum there is no state but the parameters.
    let spec = spec(CONFIG, DEVICES, &options, batch, Box::new(Sgd::default()));
    let shards = spec.placement.parameters.iter().map(|param| param.shard_elements());
    let state = (shards.sum::<usize>() * DEVICES * size_of::<f32>()) as u64;

    let compiler = compiler(DEVICES);
    let init = spec.init_programs().unwrap();
    let programs: Vec<&Program> = init.iter().map(|init| &init.program).collect();
    let compiled = compiler.compile_all(&programs).unwrap();
    let before = peak();
    let start = std::time::Instant::now();
    let arrays = initial_state(compiler.client, &init, &compiled, 1).unwrap();
    for shard in arrays.iter().flat_map(|array| array.shards()) {
        shard.ready_event().unwrap().wait().unwrap();
    }
    let beyond = (peak() - before).saturating_sub(state);
    println!("{state} bytes of state, {beyond} beyond, {:?}", start.elapsed());
    assert!(beyond < LIMIT, "{beyond} bytes beyond the {state} of the state");
}
