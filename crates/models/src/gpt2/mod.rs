//! GPT-2.

mod config;
mod model;

pub use config::Gpt2Config;
pub use model::Gpt2;

use crate::model::boxed;
use crate::registry::Architecture;
use serde_json::json;

/// GPT-2 with its language modeling head.
pub const ARCHITECTURE: Architecture = Architecture {
    model_type: "gpt2",
    class: model::CLASS,
    defaults: || {
        json!({
            "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768,
            "n_layer": 12, "n_head": 12, "n_inner": null, "activation_function": "gelu_new",
            "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
            "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
            "scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false,
            "reorder_and_upcast_attn": false, "tie_word_embeddings": true,
            "bos_token_id": 50256, "eos_token_id": 50256,
        })
    },
    read: |fields| Ok(boxed(Gpt2 { config: Gpt2Config::read(fields)? })?),
};
