//! exploration
#![allow(clippy::unwrap_used, missing_docs)]
mod block;
mod vocabulary;
use block::{Annotations, mesh};
use fullshard_graph::Program;
use fullshard_pjrt::CompileOptions;
use fullshard_pjrt::hlo::{Members, Module, collective};
use fullshard_pjrt::plugins::Platform;
use fullshard_testing::{CLIENT, compile_ahead};
use std::collections::BTreeMap;

fn module(program: &Program, kind: Platform) -> Module {
    let text = program.to_text();
    let options = CompileOptions::new(program.devices());
    let program = match kind {
        Platform::Cpu => CLIENT
            .compile(&text, &options)
            .unwrap_or_else(|e| panic!("{e}\n{text}"))
            .executable()
            .optimized_program(),
        kind => compile_ahead(kind, &text, &options)
            .unwrap_or_else(|e| panic!("{e}\n{text}"))
            .optimized_program(),
    };
    program.unwrap().module().unwrap()
}

fn show(name: &str, program: &Program, kind: Platform) {
    let module = module(program, kind);
    let mut rows: BTreeMap<(bool, String), (u64, u64, Vec<String>)> = BTreeMap::new();
    let mut seen = std::collections::HashSet::new();
    for computation in module.computations() {
        for instruction in computation.instructions() {
            if instruction.opcode.ends_with("-done") || instruction.collective_kind().is_none() {
                continue;
            }
            let Some(found) = collective(&module, instruction) else { continue };
            if let Some(chain) = &found.chain {
                if !seen.insert(chain.clone()) {
                    continue;
                }
            }
            let Members::Group(group) = &found.members else {
                println!("?? {:?}", found.members);
                continue;
            };
            let tensor = group.len() == 4 && group[3] < 4
                || group.len() == 4 && group[0] / 4 == group[3] / 4;
            let over = if group.len() == 8 {
                "both".to_owned()
            } else if tensor {
                "tensor".to_owned()
            } else if group.len() == 2 && group[1] - group[0] == 4 {
                "fsdp".into()
            } else {
                format!("{group:?}")
            };
            let row = rows.entry((!tensor, format!("{} over {over}", found.kind))).or_default();
            row.0 += 1;
            row.1 += found.bytes.unwrap_or(0);
            let name = instruction.metadata.op_name.rsplit('/').next().unwrap_or("").to_owned();
            row.2.push(format!(
                "{name}[{}k x{}]",
                found.bytes.unwrap_or(0) / 1024,
                instruction.operands.len()
            ));
        }
    }
    println!("== {name} on {kind}");
    for ((_, what), (count, bytes, names)) in rows {
        println!("   {what}: {count}, {} KiB: {}", bytes / 1024, names.join(" "));
    }
}

fn variants() -> Vec<(&'static str, Annotations)> {
    let none = Annotations::default();
    let weights = Annotations { weights: true, ..none };
    let inner = Annotations { inner: true, ..weights };
    let residual = Annotations { residual: true, ..inner };
    let outputs = Annotations { outputs: true, ..residual };
    let mixed = Annotations { mixed: true, ..none };
    vec![
        ("nothing", none),
        ("mixed", mixed),
        ("mixed+inner", Annotations { inner: true, ..mixed }),
        ("mixed+residual", Annotations { residual: true, ..mixed }),
        ("all", Annotations { mixed: true, inputs: true, ..outputs }),
    ]
}

#[test]
fn explore() {
    let kinds = std::env::var("KINDS").unwrap_or("cpu".into());
    let only = std::env::var("ONLY").ok();
    for (name, annotations) in variants() {
        for (sequence, remat, per_shard) in [
            (false, false, false),
            (true, false, false),
            (true, true, false),
            (true, false, true),
            (true, true, true),
        ] {
            let label = format!("{name} seq={sequence} remat={remat} per_shard={per_shard}");
            if only
                .as_ref()
                .is_some_and(|only| !only.split('|').any(|only| label.starts_with(only)))
            {
                continue;
            }
            let program = Annotations { sequence, remat, per_shard, ..annotations }.program();
            assert_eq!(program.devices(), mesh().devices());
            for kind in kinds.split(',') {
                show(&label, &program, kind.parse().unwrap());
            }
        }
    }
}

#[test]
fn vocab() {
    use vocabulary::Form;
    let kinds = std::env::var("KINDS").unwrap_or("cpu".into());
    for (embedding, forms) in [
        (true, &[Form::Gather, Form::OneHot, Form::PerShard][..]),
        (false, &[Form::Gather, Form::OneHot, Form::Select]),
    ] {
        for &form in forms {
            for sequence in [false, true] {
                for kind in kinds.split(',') {
                    show(
                        &format!(
                            "{} {form:?} seq={sequence}",
                            if embedding { "embedding" } else { "loss" }
                        ),
                        &vocabulary::program(form, embedding, sequence),
                        kind.parse().unwrap(),
                    );
                }
            }
        }
    }
}
