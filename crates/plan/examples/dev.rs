use fullshard_parallel::{FsdpConfig, Options, Placement};
use fullshard_pjrt::hlo::Module;
use fullshard_plan::*;
use fullshard_train::{Batch, Recipe};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (config, pb, slice, batch, tokens) =
        (&a[1], &a[2], &a[3], a[4].parse().unwrap(), a[5].parse().unwrap());
    let temps: u64 = a.get(6).map_or(0, |t| t.parse().unwrap());
    let machine = Machine::parse(slice).unwrap();
    let model = fullshard_models::from_file(config).unwrap();
    let config = FsdpConfig::from_file("/work/wa/examples/configs/fsdp_config.json").unwrap();
    let options = Options { config, scan_layers: true, pad_vocabulary: true, ..Options::default() };
    let placement = Placement::new(&model.tree(), machine.devices, &options).unwrap();
    let batch = Batch { sequences: batch, tokens, accumulation: 1, reduce_each: true };
    let recipe = Recipe::new(
        model,
        placement,
        Box::new(fullshard_optim::Adafactor::trainer()),
        batch,
        Some(1.0),
    )
    .unwrap();
    let module = Module::decode("hlo_with_config", &std::fs::read(pb).unwrap()).unwrap();
    let mut memory = fullshard_pjrt::CompiledMemory::default();
    let e = recipe.estimate().unwrap();
    memory.arguments = e.parameters + e.optimizer;
    memory.temporaries = temps;
    let made = Made {
        program: String::new(),
        memory,
        module,
        seconds: 0.0,
        cached: true,
        compiler: String::new(),
        limit: None,
    };
    let t = std::time::Instant::now();
    let report = compiled(&recipe, &machine, &made, Budget::default()).unwrap();
    eprintln!("read in {:?}", t.elapsed());
    println!("{}", serde_json::to_string_pretty(&report).unwrap());
}
