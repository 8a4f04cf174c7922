//! temporary
#![allow(clippy::unwrap_used)]
#[path = "../tests/common/mod.rs"]
mod common;
use common::*;
use fullshard_parallel::Remat;
use fullshard_plan::quick;
fn main() {
    let post = Shape::Gpt2(18, 3072, 24);
    let llama = Shape::Llama(16, 2048, 32, 8, 8192, 128256);
    let gpu = |shape, batch, remat, optimizer| Case {
        remat,
        optimizer,
        scan: false,
        ..Case::new("h200", shape, batch)
    };
    for (case, mem, time) in [
        (Case::new("v4-8", post, 32), 15.1, f64::NAN),
        (gpu(post, 16, Remat::None, "adamw"), 75.8, 463.7),
        (gpu(post, 16, Remat::None, "adafactor"), 59.3, 494.7),
        (gpu(post, 32, Remat::Full, "adafactor"), 21.6, 1170.0),
        (gpu(llama, 16, Remat::None, "adamw"), 38.1, 404.7),
    ] {
        let r = case.recipe();
        let q = quick(&r, &case.machine()).unwrap();
        println!(
            "{}\n  mem {:.1} GiB vs {mem}  time {:.1} vs {time}\n  {:?}",
            case.name(),
            q.memory.total as f64 / 1073741824.0,
            q.time.step * 1e3,
            r.estimate().unwrap()
        );
        for m in &q.time.modules {
            println!("     {} {} {:.1}", m.module, m.backward, m.compute * 1e3);
        }
    }
}
