//! temporary recorder
#![allow(clippy::unwrap_used)]
#[path = "../tests/common/mod.rs"]
mod common;
use fullshard_pjrt::hlo::{Module, collectives, runs_per_launch};
use fullshard_pjrt::plugins::{PluginKind, Store};
use fullshard_pjrt::{CompileOptions, Plugin, Topology, TpuSlice};
use std::time::Instant;

fn main() {
    let dir = std::path::Path::new("/tmp/planb");
    std::fs::create_dir_all(dir).unwrap();
    let mut cases = common::fitted();
    cases.extend(common::held_out());
    let filter = std::env::args().nth(1).unwrap_or_default();
    for case in cases.iter().filter(|c| c.name().contains(&filter)) {
        let name = case.name();
        let file = dir.join(name.replace(['/', ' ', ','], "_"));
        let recipe = case.recipe();
        let est = recipe.estimate().unwrap();
        if !file.exists() {
            let t = Instant::now();
            let text = recipe.step_program().unwrap().to_text();
            eprintln!("{name}: traced in {:?}", t.elapsed());
            let store = Store::default_location().unwrap();
            let plugin = Plugin::load(&store.install(PluginKind::Tpu).unwrap().path).unwrap();
            let topology = Topology::tpu(plugin, &TpuSlice::parse(case.machine).unwrap()).unwrap();
            let t = Instant::now();
            let executable =
                match topology.compile(&text, &CompileOptions::new(case.machine().devices)) {
                    Ok(e) => e,
                    Err(e) => {
                        eprintln!("{name}: FAILED {e}");
                        continue;
                    }
                };
            let program = executable.optimized_program().unwrap();
            let memory = executable.memory().unwrap();
            eprintln!("{name}: compiled in {:?}, {memory:?}", t.elapsed());
            let m = serde_json::json!({"memory": memory, "seconds": t.elapsed().as_secs_f64(), "format": program.format});
            std::fs::write(file.with_extension("json"), m.to_string()).unwrap();
            std::fs::write(&file, program.code).unwrap();
        }
        let m: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(file.with_extension("json")).unwrap())
                .unwrap();
        let module =
            Module::decode(m["format"].as_str().unwrap(), &std::fs::read(&file).unwrap()).unwrap();
        let runs = runs_per_launch(&module);
        let mut cycles = 0.0;
        let mut rows: Vec<(f64, u64, String, String)> = vec![];
        for c in module.computations() {
            if !runs.is_reached(c.id) {
                continue;
            }
            let n = runs.count(c.id);
            for i in c.instructions() {
                if let Some(e) = i.estimated_cycles() {
                    if i.called.is_empty() && i.opcode == "while" {
                        continue;
                    }
                    cycles += e as f64 * n.unwrap_or(1) as f64;
                    let dot = i.called.iter().filter_map(|&id| module.computation(id)).any(|c| {
                        c.instructions()
                            .iter()
                            .any(|i| i.opcode == "convolution" || i.opcode == "dot")
                    });
                    rows.push((
                        e as f64 * n.unwrap_or(1) as f64,
                        n.unwrap_or(0),
                        format!(
                            "{}{} {} {}",
                            i.opcode,
                            if dot { " DOT" } else { "" },
                            i.name,
                            i.shape
                        ),
                        i.metadata.op_name.clone(),
                    ));
                }
            }
        }
        let clock = case.machine().chip.clock.unwrap();
        let temp = m["memory"]["temporaries"].as_u64().unwrap();
        let args = m["memory"]["arguments"].as_u64().unwrap();
        let dots: f64 = rows.iter().filter(|r| r.2.contains("DOT")).map(|r| r.0).sum();
        println!(
            "{name}\t{:.3}\t{:.3}\t{:.4}\t{:.4}\t{}",
            args as f64 / 1e9,
            temp as f64 / 1e9,
            cycles / clock,
            dots / clock,
            m["seconds"]
        );
        println!("   est {:?}", est);
        if std::env::var("DETAIL").is_ok() {
            rows.sort_by(|a, b| b.0.total_cmp(&a.0));
            for r in rows.iter().take(60) {
                println!(
                    "{:9.3} ms x{} {} | {}",
                    r.0 / clock * 1e3,
                    r.1,
                    r.2.chars().take(150).collect::<String>(),
                    r.3
                )
            }
            for c in collectives(&module) {
                println!(
                    "{:?} {} async={} n={} bytes={:?} runs={:?} group={:?}",
                    c.kind, c.computation, c.asynchronous, c.count, c.bytes, c.runs, c.group_size
                )
            }
        }
    }
}
