//! Records what the compiler says of the steps that the quick model is compared on.
//!
//!     cargo run --release -p fullshard-plan --example record -- FOLDER [PART OF A NAME]
//!
//! Compiled programs are kept in the folder, so that a step is compiled once; a recording of all
//! steps that are there is printed, to become `tests/data/compiled.json`. TPU steps need libtpu,
//! those on GPUs the CUDA plugin, and neither a TPU nor a GPU.
#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::Case;
use fullshard_pjrt::hlo::Module;
use fullshard_pjrt::plugins::Store;
use fullshard_pjrt::{CompileOptions, CompiledMemory, Plugin, Topology, TpuSlice};
use fullshard_plan::{Budget, Made, compiled};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().expect("a folder for compiled programs"));
    let wanted = arguments.next();
    std::fs::create_dir_all(&folder).unwrap();
    let mut rows = Vec::new();
    for case in [common::fitted(), common::held_out()].concat() {
        let name = case.name();
        let path = folder.join(name.replace([' ', ',', '(', ')'], "_"));
        if wanted.as_ref().is_some_and(|part| name.contains(part)) && !path.exists() {
            compile(&case, &path);
        }
        if path.exists() {
            rows.push(row(&case, &path));
        }
    }
    println!("{}", serde_json::to_string_pretty(&rows).unwrap());
}

/// Compiles a step and keeps what came of it.
fn compile(case: &Case, path: &Path) {
    let machine = case.machine();
    let text = case.recipe().step_program().unwrap().to_text();
    let plugin = Store::default_location().unwrap().install(machine.kind).unwrap();
    let topology = TpuSlice::parse(case.machine).unwrap();
    let topology = Topology::tpu(Plugin::load(&plugin.path).unwrap(), &topology).unwrap();
    let start = Instant::now();
    let executable = match topology.compile(&text, &CompileOptions::new(machine.devices)) {
        Ok(executable) => executable,
        Err(error) => return eprintln!("{}: {error}", case.name()),
    };
    let program = executable.optimized_program().unwrap();
    let said = json!({
        "memory": executable.memory().unwrap(),
        "seconds": start.elapsed().as_secs_f64(),
        "format": program.format,
    });
    eprintln!("{}: {:.0} s", case.name(), start.elapsed().as_secs_f64());
    std::fs::write(path.with_extension("json"), said.to_string()).unwrap();
    std::fs::write(path, program.code).unwrap();
}

/// What a plan says of a compiled step.
fn row(case: &Case, path: &Path) -> Value {
    let said = std::fs::read_to_string(path.with_extension("json")).unwrap();
    let said: Value = serde_json::from_str(&said).unwrap();
    let code = std::fs::read(path).unwrap();
    let memory: CompiledMemory = serde_json::from_value(said["memory"].clone()).unwrap();
    let made = Made {
        program: String::new(),
        memory,
        module: Module::decode(said["format"].as_str().unwrap(), &code).unwrap(),
        seconds: said["seconds"].as_f64().unwrap(),
        compiler: String::new(),
        limit: None,
    };
    let report = compiled(&case.recipe(), &case.machine(), &made, Budget::default()).unwrap();
    let part =
        |what: &str| report.memory.parts.iter().find(|part| part.what == what).unwrap().bytes;
    json!({
        "name": case.name(),
        "memory": report.memory.total,
        "gradients": part("gradients"),
        "activations": part("activations"),
        "temporaries": part("temporaries"),
        "step": report.time.step,
        "compute": report.time.compute,
        "exposed": report.time.exposed,
        "hidden": report.time.hidden,
    })
}
