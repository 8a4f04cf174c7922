//! GPT-2 of 1.5 billion parameters begins on eight devices, and no host memory is taken for it
//! beyond the shards themselves. Alone in its file, since the peak is that of the whole process.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_optim::Sgd;
use fullshard_parallel::{FsdpConfig, Options, WrapPolicy};
use fullshard_pjrt::{Array, HostTensor};
use fullshard_train::{Batch, Compiler};

const CONFIG: &str = include_str!("../../../examples/configs/gpt2_1.5b.json");
const DEVICES: usize = 8;

/// What may be taken beyond the state.
const LIMIT: u64 = 300 << 20;

/// The most memory that this process ever had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn large_models_begin_as_shards_alone() {
    let wrap = WrapPolicy::Classes(vec!["GPT2Block".to_owned()]);
    let config = FsdpConfig { wrap, ..FsdpConfig::default() };
    let options = Options { config, scan_layers: true, ..Options::default() };
    let batch = Batch { sequences: DEVICES, tokens: 1024, accumulation: 1, reduce_each: true };
    // Without momentum there is no state but the parameters.
    let recipe = recipe(CONFIG, DEVICES, &options, batch, Box::new(Sgd::default()));
    let parts = recipe.placement.parameters.iter().map(|stored| stored.part_elements());
    let state = (parts.sum::<usize>() * DEVICES * size_of::<f32>()) as u64;

    let Compiler { client, .. } = compiler(DEVICES);
    let program = compiler(DEVICES).compile(&recipe.init_program().unwrap()).unwrap().program;
    let memory = program.executable().memory().unwrap();
    println!("{memory:?}");
    let seed = HostTensor::from_values(&[2], &[0_u32, 1]).unwrap();
    let sharding = program.argument_type(0).unwrap().sharding;
    let seed = Array::from_host(client, &seed, sharding, program.devices()).unwrap();
    let before = peak();
    let start = std::time::Instant::now();
    let made = program.execute_arrays(&[&seed]).unwrap();
    // The last bias, which is small: when it is here, everything is.
    assert!(
        made.last().unwrap().to_host().unwrap().values::<f32>().unwrap().iter().all(|&x| x == 0.0)
    );
    let beyond = (peak() - before).saturating_sub(state);
    println!("{state} bytes of state, {beyond} beyond, {:?}", start.elapsed());
    assert!(beyond < LIMIT, "{beyond} bytes beyond the {state} of the state");
}
