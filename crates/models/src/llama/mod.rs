//! Llama.

mod config;
mod model;

pub use config::LlamaConfig;
pub use model::Llama;

use crate::model::boxed;
use crate::registry::Architecture;
use serde_json::json;

/// Llama with its language modeling head.
pub const ARCHITECTURE: Architecture = Architecture {
    model_type: "llama",
    class: model::CLASS,
    defaults: || {
        json!({
            "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
            "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": null, "hidden_act": "silu",
            "max_position_embeddings": 2048, "initializer_range": 0.02,
            "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 10000.0,
            "attention_bias": false, "mlp_bias": false, "bos_token_id": 1, "eos_token_id": 2,
        })
    },
    read: |fields| Ok(boxed(Llama { config: LlamaConfig::read(fields)? })?),
};
