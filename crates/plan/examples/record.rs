//! Records compiled plans of the steps that the quick model is compared on.
//!
//!     cargo run -p fullshard-plan --example record -- tests/data/compiled.json FOLDER [FILTER]
//!
//! Updates all rows of the file, or those whose names contain the filter. Compiled programs are
//! cached in the folder, so that a step is compiled once. Steps on TPUs need libtpu but no TPU.
#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::Case;
use fullshard_pjrt::plugins::{Store, find_compiler};
use fullshard_pjrt::{CompileOptions, Plugin};
use fullshard_plan::{AheadCompiler, Budget, compiled};
use fullshard_step::{compiler_flags, overlap};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let file = PathBuf::from(arguments.next().expect("the file of the recording"));
    let folder = PathBuf::from(arguments.next().expect("a folder for compiled programs"));
    let filter = arguments.next().unwrap_or_default();
    for case in common::all().iter().filter(|case| case.name().contains(&filter)) {
        let row = row(case, folder.clone());
        let text = std::fs::read_to_string(&file).unwrap_or("{}".into());
        let mut rows: Map<String, Value> = serde_json::from_str(&text).unwrap();
        rows.insert(case.name(), row);
        rows.retain(|name, _| common::all().iter().any(|case| case.name() == *name));
        let text = serde_json::to_string_pretty(&rows).unwrap() + "\n";
        let draft = file.with_extension("draft");
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(&draft, &file).unwrap();
    }
}

/// The compiled plan of a step.
fn row(case: &Case, folder: PathBuf) -> Value {
    let (spec, machine) = (case.spec(), case.machine());
    let store = Store::default_location().unwrap();
    let located = find_compiler(machine.kind, None, &store).unwrap();
    let plugin = Plugin::load(&located.path).unwrap();
    let flags = compiler_flags(machine.kind, spec.model.attention_form()).into_iter();
    let mut flags = flags.chain(overlap(&machine.chip).flags.iter().copied());
    let options = CompileOptions::new(machine.devices);
    let options = flags.try_fold(options, CompileOptions::flag_text).unwrap();
    let compiler = AheadCompiler { plugin, options, folder: Some(folder) };
    let text = spec.step_program().unwrap().to_text();
    let step = match compiler.compile(&text, &machine) {
        Ok(step) => step,
        Err(error) => {
            eprintln!("{}: {error}", case.name());
            return Value::Null;
        }
    };
    eprintln!("{}: {:.0} s", case.name(), step.seconds);
    let report = compiled(&spec, &machine, &step, Budget::default()).unwrap();
    let part =
        |what: &str| report.memory.parts.iter().find(|part| part.what == what).unwrap().bytes;
    json!({
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
