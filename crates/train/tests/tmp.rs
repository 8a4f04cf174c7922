#![allow(clippy::unwrap_used, missing_docs)]
mod common;
use common::*;
use fullshard_graph::DType;
use fullshard_parallel::*;
use fullshard_train::Batch;
const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 20, "n_embd": 21,
    "n_layer": 2, "n_head": 3, "n_inner": 37, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
#[test]
fn times() {
    for (devices, acc, dt, f32r) in [(1,16,DType::Bf16,false)] {
    let batch = Batch { sequences: 16/acc, tokens: 11, accumulation: acc, reduce_each: true };
        let settings = Settings { compute_dtype: dt, fp32_reduce_scatter: f32r, ..Settings::default() };
        let config = FsdpConfig { settings, ..FsdpConfig::default() };
        let options = Options { config, ..Options::default() };
        let m = train(&recipe(MODEL, devices, &options, batch, adamw()), 2);
        let _ = &m; std::fs::write("/tmp/b1.mlir", recipe(MODEL, devices, &options, batch, adamw()).eval_program().unwrap().to_text()).unwrap(); println!("RES {devices} {acc} {dt:?} {f32r} {:?} {:?}", m[0], m[1]);
    }
}
