#![allow(clippy::unwrap_used)]
mod common;
use common::*;
use fullshard_parallel::Options;
use fullshard_train::Batch;

const GPT2: &str = r#"{"model_type":"gpt2","vocab_size":131,"n_positions":24,"n_embd":36,"n_layer":3,"n_head":4,"resid_pdrop":0,"embd_pdrop":0,"attn_pdrop":0}"#;

#[test]
fn first() {
    let batch = Batch { sequences: 8, tokens: 16, accumulation: 1, reduce_each: true };
    for devices in [1, 4] {
        let options = Options::default();
        let recipe = recipe(GPT2, devices, &options, batch, adamw());
        println!("{:?}", train(&recipe, 4));
    }
}
