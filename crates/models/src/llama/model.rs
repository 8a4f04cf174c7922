//! Llama's tree and mathematics.

use super::LlamaConfig;
use crate::config::ConfigError;
use crate::fields::Fields;
use crate::layers::attention::{Form, Heads, Scores, attention, merge_heads, split_heads};
use crate::layers::rotary::{Angles, Rotary};
use crate::layers::{DEAR, by_sequence, dims, embedding, linear, loss, rms_norm, stream};
use crate::model::{CausalLm, Dimensions, Loss};
use crate::module::Module;
use crate::scope::Scope;
use fullshard_graph::{Result, Tensor};

/// A Llama with its language-modelling head.
#[derive(Debug, Clone)]
pub struct Llama {
    /// What it is made to be.
    pub config: LlamaConfig,
}

impl CausalLm for Llama {
    fn tree(&self) -> Module {
        Module::new("LlamaForCausalLM")
            .child("model", self.model_module())
            .child("lm_head", self.head_module())
    }

    fn dimensions(&self) -> Dimensions {
        let config = &self.config;
        Dimensions {
            layers: config.num_hidden_layers,
            hidden: config.hidden_size,
            heads: config.num_attention_heads,
            head: config.head_dim,
            inner: config.intermediate_size,
            vocabulary: config.vocab_size,
            positions: config.rotary.longest(config.max_position_embeddings),
        }
    }

    fn attention_form(&self) -> Form {
        let config = &self.config;
        let factor = (config.head_dim as f64).sqrt().recip();
        Form { factor: Some(factor), upcast: false, dropout: config.attention_dropout }
    }

    fn logits(&self, scope: &Scope<'_>, tokens: &Tensor) -> Result<Tensor> {
        let hidden = self.model(scope, tokens)?;
        by_sequence(&linear::apply(scope, "lm_head", &hidden, false)?, tokens)
    }

    fn loss(&self, scope: &Scope<'_>, tokens: &Tensor, labels: &Tensor) -> Result<Loss> {
        let hidden = self.model(scope, tokens)?;
        loss::apply(scope, "lm_head", &hidden, labels)
    }
}

/// The tree.
impl Llama {
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Llama, ConfigError> {
        Ok(Llama { config: LlamaConfig::read(fields)? })
    }

    fn model_module(&self) -> Module {
        let config = &self.config;
        let (width, deviation) = (config.hidden_size, config.initializer_range);
        let tokens = embedding::module(config.vocab_size, width, deviation, config.pad_token_id);
        let layers = (0..config.num_hidden_layers).map(|_| self.layer_module());
        Module::new("LlamaModel")
            .child("embed_tokens", tokens)
            .child("layers", Module::list(layers))
            .child("norm", rms_norm::module("LlamaRMSNorm", width))
            .child("rotary_emb", Rotary::module("LlamaRotaryEmbedding"))
    }

    fn layer_module(&self) -> Module {
        let config = &self.config;
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let queries = config.num_attention_heads * config.head_dim;
        let keys = config.num_key_value_heads * config.head_dim;
        let attention = |input, output| {
            linear::module(input, output, config.attention_bias, config.initializer_range)
        };
        let feed_forward = |input, output| {
            linear::module(input, output, config.mlp_bias, config.initializer_range)
        };
        let attention = Module::new("LlamaAttention")
            .child("q_proj", attention(width, queries))
            .child("k_proj", attention(width, keys))
            .child("v_proj", attention(width, keys))
            .child("o_proj", attention(queries, width));
        let feed_forward = Module::new("LlamaMLP")
            .child("gate_proj", feed_forward(width, inner))
            .child("up_proj", feed_forward(width, inner))
            .child("down_proj", feed_forward(inner, width))
            .child("act_fn", config.hidden_act.module());
        Module::new("LlamaDecoderLayer")
            .child("self_attn", attention)
            .child("mlp", feed_forward)
            .child("input_layernorm", rms_norm::module("LlamaRMSNorm", width))
            .child("post_attention_layernorm", rms_norm::module("LlamaRMSNorm", width))
    }

    fn head_module(&self) -> Module {
        let config = &self.config;
        let (width, vocabulary) = (config.hidden_size, config.vocab_size);
        if config.tie_word_embeddings {
            linear::tied(width, vocabulary, "model.embed_tokens.weight")
        } else {
            linear::module(width, vocabulary, false, config.initializer_range)
        }
    }
}

/// The mathematics.
impl Llama {
    /// The hidden states that the head takes, `[..., width]`: only attention needs to know which
    /// tokens are a sequence.
    fn model(&self, scope: &Scope<'_>, tokens: &Tensor) -> Result<Tensor> {
        let config = &self.config;
        let [_, sequence] = dims("tokens", tokens)?;
        scope.module("model", |scope| {
            let x = embedding::apply(scope, "embed_tokens", tokens, config.pad_token_id)?;
            let x = stream(scope, &x)?;
            let angles = config.rotary.angles(scope, "rotary_emb", sequence)?;
            let layer = |scope: &Scope<'_>, x: &Tensor| self.layer(scope, x, &angles);
            let x = scope.layers("layers", config.num_hidden_layers, &x, layer)?;
            rms_norm::apply(scope, "norm", &x, config.rms_norm_eps)
        })
    }

    fn layer(&self, scope: &Scope<'_>, x: &Tensor, angles: &Angles) -> Result<Tensor> {
        let epsilon = self.config.rms_norm_eps;
        let normal = rms_norm::apply(scope, "input_layernorm", x, epsilon)?;
        let mixed = scope.module("self_attn", |scope| self.attention(scope, &normal, angles))?;
        let x = (x + mixed)?.named(DEAR)?;
        let normal = rms_norm::apply(scope, "post_attention_layernorm", &x, epsilon)?;
        x + scope.module("mlp", |scope| self.feed_forward(scope, &normal))?
    }

    fn attention(&self, scope: &Scope<'_>, x: &Tensor, angles: &Angles) -> Result<Tensor> {
        let config = &self.config;
        let projected = |name, heads| {
            let x = linear::apply(scope, name, x, config.attention_bias)?;
            split_heads(&x, angles.sequence(), heads)
        };
        let heads = Heads {
            query: angles.turn(&projected("q_proj", config.num_attention_heads)?)?.named(DEAR)?,
            key: angles.turn(&projected("k_proj", config.num_key_value_heads)?)?.named(DEAR)?,
            value: projected("v_proj", config.num_key_value_heads)?.named(DEAR)?,
        };
        let scale = (config.head_dim as f64).sqrt().recip();
        let scores = Scores::scaled(scope.compute_dtype(), scale)?;
        let scores = Scores { dropout: config.attention_dropout, ..scores };
        let mixed = merge_heads(&attention(scope, &heads, &scores)?, x)?;
        linear::apply(scope, "o_proj", &mixed, config.attention_bias)
    }

    fn feed_forward(&self, scope: &Scope<'_>, x: &Tensor) -> Result<Tensor> {
        let config = &self.config;
        let projected = |name, x: &Tensor| linear::apply(scope, name, x, config.mlp_bias);
        let (gate, up) = (projected("gate_proj", x)?, projected("up_proj", x)?);
        let (gate, up) = (gate.named(DEAR)?, up.named(DEAR)?);
        projected("down_proj", &config.hidden_act.gated(scope, &gate, &up)?)
    }
}
