//! temporary
#![allow(clippy::unwrap_used)]
#[path = "../tests/common/mod.rs"]
mod common;
use common::*;
use fullshard_pjrt::CompiledMemory;
use fullshard_pjrt::hlo::Module;
use fullshard_plan::{Budget, Made, compiled, quick};
fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let n = |i: usize| a[i].parse::<usize>().unwrap();
    let machine: &'static str = a[0].clone().leak();
    let case = Case::new(machine, Shape::Gpt2(n(1), n(2), n(3)), n(4));
    let module = Module::decode("hlo_with_config", &std::fs::read(&a[5]).unwrap()).unwrap();
    let gib = |i: usize| (a[i].parse::<f64>().unwrap() * 1073741824.0) as u64;
    let memory = CompiledMemory {
        arguments: gib(6),
        outputs: gib(6),
        aliased: gib(6),
        temporaries: gib(7),
        code: 0,
        host: 0,
        peak: None,
    };
    let made = Made {
        program: String::new(),
        memory,
        module,
        seconds: 0.0,
        cached: true,
        compiler: String::new(),
        limit: None,
    };
    let r = compiled(&case.recipe(), &case.machine(), &made, Budget::default()).unwrap();
    let part = |what: &str| r.memory.parts.iter().find(|part| part.what == what).unwrap().bytes;
    println!(
        "{}",
        serde_json::json!({case.name(): {"memory": r.memory.total, "gradients": part("gradients"), "activations": part("activations"), "temporaries": part("temporaries"), "step": r.time.step, "compute": r.time.compute, "exposed": r.time.exposed, "hidden": r.time.hidden}})
    );
    for t in &r.time.modules {
        eprintln!("{} {} {:.1} {:.1}", t.module, t.backward, t.compute * 1e3, t.exposed * 1e3);
    }
    let q = quick(&case.recipe(), &case.machine()).unwrap();
    for t in &q.time.modules {
        eprintln!("Q {} {} {:.1} {:.1}", t.module, t.backward, t.compute * 1e3, t.exposed * 1e3);
    }
    eprintln!(
        "step {:.3} vs {:.3}; exposed {:.3} vs {:.3}; memory {:.2} vs {:.2}",
        q.time.step,
        r.time.step,
        q.time.exposed,
        r.time.exposed,
        q.memory.total as f64 / 1e9,
        r.memory.total as f64 / 1e9
    );
    eprintln!("{:?}\n{:?}", q.memory.parts, r.memory.parts);
}
