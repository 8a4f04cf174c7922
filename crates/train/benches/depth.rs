//! Compile time and program size by depth with scanned layers: the training step of GPT-2 with 12
//! and with 48 layers, on four virtual CPU devices.
//!
//!     cargo bench -p fullshard-train --bench depth
#![allow(clippy::unwrap_used)]

use fullshard_models::from_json;
use fullshard_optim::AdamW;
use fullshard_parallel::{FsdpConfig, Placement, PlacementOptions};
use fullshard_pjrt::plugins::{Platform, Store, find_or_install};
use fullshard_pjrt::{Client, ClientOptions, CompileOptions, Plugin};
use fullshard_step::{BatchShape, StepSpec};
use fullshard_train::Compiler;
use fullshard_train::Job;

const DEVICES: usize = 4;
const ROUNDS: usize = 3;

fn main() {
    let store = Store::default_location().unwrap();
    let located = find_or_install(Platform::Cpu, None, &store).unwrap();
    let plugin = Plugin::load(&located.path).unwrap();
    let client = Client::new(plugin, &ClientOptions::new().cpu_device_count(DEVICES)).unwrap();
    let compiler = Compiler {
        client: &client,
        cache: None,
        options: CompileOptions::new(DEVICES),
        job: Job::alone(),
    };
    for round in 1..=ROUNDS {
        let [few, many] = [12, 48].map(|layers| measure(&compiler, layers));
        println!(
            "round {round}: 12 layers {:.2} s, {} instructions; 48 layers {:.2} s, {}: ratio {:.3}",
            few.0,
            few.1,
            many.0,
            many.1,
            many.0 / few.0
        );
    }
}

/// Seconds to compile a step, and the instructions of the optimized program.
fn measure(compiler: &Compiler<'_>, layers: usize) -> (f64, usize) {
    let compiled = compiler.compile(&spec(layers).step_program().unwrap()).unwrap();
    let program = compiled.program.executable().optimized_program().unwrap();
    (compiled.time.as_secs_f64(), program.module().unwrap().instructions().count())
}

fn spec(layers: usize) -> StepSpec {
    let model = from_json(&format!(
        r#"{{"model_type": "gpt2", "vocab_size": 131, "n_positions": 8, "n_embd": 64,
            "n_layer": {layers}, "n_head": 2}}"#
    ))
    .unwrap();
    let config = r#"{"transformer_layer_cls_to_wrap": "GPT2Block", "xla_fsdp_grad_ckpt": true}"#;
    let config = FsdpConfig::from_json(config).unwrap();
    let options = PlacementOptions { config, scan_layers: true, ..PlacementOptions::default() };
    let placement = Placement::new(&model.tree(), DEVICES, &options).unwrap();
    let batch = BatchShape {
        sequences: 2 * DEVICES,
        tokens: 8,
        accumulation: 1,
        sync_each_microbatch: true,
    };
    StepSpec::new(model, placement, Box::new(AdamW::default()), batch, Some(1.0)).unwrap()
}
