//! temporary
#![allow(clippy::unwrap_used)]
#[path = "../tests/common/mod.rs"]
mod common;
use common::*;
use fullshard_parallel::Remat;
use fullshard_pjrt::plugins::{Store, find_compiler};
use fullshard_pjrt::{CompileOptions, Plugin};
use fullshard_plan::{Budget, Compiler, compiled, quick};
fn main() {
    let part = std::env::args().nth(1).unwrap();
    for case in all().iter().filter(|c| c.name().contains(&part)) {
        let (recipe, machine) = (case.recipe(), case.machine());
        let located =
            find_compiler(machine.kind, None, &Store::default_location().unwrap()).unwrap();
        let compiler = Compiler {
            plugin: Plugin::load(&located.path).unwrap(),
            options: CompileOptions::new(machine.devices),
            folder: Some("/tmp/planb".into()),
        };
        let text = recipe.step_program().unwrap().to_text();
        let made = compiler.compile(&text, &machine).unwrap();
        println!("{:?}", made.memory);
        let r = compiled(&recipe, &machine, &made, Budget::default()).unwrap();
        for l in &r.memory.largest {
            println!("{:?}", l);
        }
        println!("{:?}", r.memory.parts);
        let m = &made.module;
        for c in m.computations() {
            for i in c.instructions() {
                if i.opcode == "while" {
                    let mut v: Vec<(u64, String)> = i
                        .shape
                        .leaves()
                        .iter()
                        .filter_map(|s| s.as_array())
                        .map(|a| {
                            (
                                a.padded_byte_size().unwrap_or(0),
                                format!("{}{:?}", a.element, a.dims),
                            )
                        })
                        .collect();
                    v.sort();
                    v.reverse();
                    println!("WHILE {}", i.name);
                    for x in v.iter().take(40) {
                        println!("   {:8.1} MB {}", x.0 as f64 / 1e6, x.1);
                    }
                }
            }
        }
        for t in &r.time.modules {
            println!("{t:?}");
        }
        let q = quick(&recipe, &machine).unwrap();
        for t in &q.time.modules {
            println!("Q {t:?}");
        }
        println!("{:?} {:?}", q.memory.parts, recipe.estimate().unwrap());
    }
    let _ = Remat::None;
}
