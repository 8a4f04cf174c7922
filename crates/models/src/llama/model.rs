//! The Llama model.

use super::LlamaConfig;
use crate::layers::attention::{Heads, Mask, Scores, attention, merge_heads, split_heads};
use crate::layers::dim_names::{DimName, EMBED, HEADS, KV_HEADS, MLP, VOCAB};
use crate::layers::rotary::Angles;
use crate::layers::{
    Embedding, Linear, checkpoint, dims, loss, residual_stream, rms_norm, unflatten_tokens,
};
use crate::model::{Dimensions, Model};
use crate::scope::Scope;
use crate::task::{CausalLm, Loss};
use fullshard_graph::{Result, Tensor};

/// A Llama with its language modeling head.
#[derive(Debug, Clone)]
pub struct Llama {
    /// Its config.
    pub config: LlamaConfig,
}

/// The model's class in Hugging Face's library.
pub(super) const CLASS: &str = "LlamaForCausalLM";

/// The class of its norms.
const NORM: &str = "LlamaRMSNorm";

impl Model for Llama {
    fn class(&self) -> &'static str {
        CLASS
    }

    fn task(&self) -> CausalLm {
        CausalLm { vocabulary: self.config.vocab_size }
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
            positions: config.rotary.max_sequence(config.max_position_embeddings),
        }
    }

    fn forward(&self, nn: &Scope<'_>, tokens: &Tensor) -> Result<Tensor> {
        let hidden = self.model(nn, tokens)?;
        unflatten_tokens(&self.head().apply(nn, "lm_head", &hidden)?, tokens)
    }

    fn loss(&self, nn: &Scope<'_>, tokens: &Tensor, labels: &Tensor) -> Result<Loss> {
        let hidden = self.model(nn, tokens)?;
        loss::apply(nn, "lm_head", &self.head(), &hidden, labels)
    }
}

impl Llama {
    /// The head, which shares the token embeddings if tied.
    fn head(&self) -> Linear<'static> {
        let config = &self.config;
        let tied = config.tie_word_embeddings.then_some("model.embed_tokens.weight");
        let head = Linear::new(config.vocab_size).dim_names([VOCAB, EMBED]).bias(false);
        head.std(config.initializer_range).tied(tied)
    }

    /// The final hidden states, `[..., width]`. Only attention depends on which tokens form a
    /// sequence.
    fn model(&self, nn: &Scope<'_>, tokens: &Tensor) -> Result<Tensor> {
        let config = &self.config;
        let [_, sequence] = dims("tokens", tokens)?;
        nn.module("model", "LlamaModel", |nn| {
            nn.children(&["embed_tokens", "layers", "norm", "rotary_emb"])?;
            let table = Embedding::new(config.vocab_size, config.hidden_size)
                .std(config.initializer_range)
                .padding(config.pad_token_id);
            let x = residual_stream(nn, &table.apply(nn, "embed_tokens", tokens)?)?;
            let angles =
                config.rotary.angles(nn, "rotary_emb", "LlamaRotaryEmbedding", sequence)?;
            let layer = |nn: &Scope<'_>, x: &Tensor| self.layer(nn, x, &angles);
            let x =
                nn.layers("layers", "LlamaDecoderLayer", config.num_hidden_layers, &x, layer)?;
            rms_norm::apply(nn, "norm", NORM, &x, config.rms_norm_eps)
        })
    }

    fn residual_norm(&self, nn: &Scope<'_>, name: &str, x: &Tensor) -> Result<[Tensor; 2]> {
        rms_norm::apply_residual(nn, name, NORM, x, self.config.rms_norm_eps)
    }

    fn layer(&self, nn: &Scope<'_>, x: &Tensor, angles: &Angles) -> Result<Tensor> {
        nn.children(&["self_attn", "mlp", "input_layernorm", "post_attention_layernorm"])?;
        let [x, normalized] = self.residual_norm(nn, "input_layernorm", x)?;
        let attn_out =
            nn.module("self_attn", "LlamaAttention", |nn| self.attention(nn, &normalized, angles))?;
        let x = (x + attn_out)?.named(checkpoint::OUT_PROJ)?;
        let [x, normalized] = self.residual_norm(nn, "post_attention_layernorm", &x)?;
        x + nn.module("mlp", "LlamaMLP", |nn| self.feed_forward(nn, &normalized))?
    }

    fn attention(&self, nn: &Scope<'_>, x: &Tensor, angles: &Angles) -> Result<Tensor> {
        let config = &self.config;
        let linear =
            |output| Linear::new(output).bias(config.attention_bias).std(config.initializer_range);
        let projected = |name, heads: usize, dim: DimName| {
            let linear = linear(heads * config.head_dim).dim_names([dim.of(heads), EMBED]);
            split_heads(&linear.apply(nn, name, x)?, angles.sequence(), config.head_dim)
        };
        let rotated = |name, heads, dim| angles.apply_rotary(&projected(name, heads, dim)?);
        let (queries, keys) = (config.num_attention_heads, config.num_key_value_heads);
        let heads = Heads {
            query: rotated("q_proj", queries, HEADS)?.named(checkpoint::QKV)?,
            key: rotated("k_proj", keys, KV_HEADS)?.named(checkpoint::QKV)?,
            value: projected("v_proj", keys, KV_HEADS)?.named(checkpoint::QKV)?,
        };
        let scale = (config.head_dim as f64).sqrt().recip();
        let scores = Scores::scaled(Mask::causal(), nn.compute_dtype(), scale)?;
        let scores = Scores { dropout: config.attention_dropout, ..scores };
        let attn_out = merge_heads(&attention(nn, &heads, &scores)?, x)?;
        let output = linear(config.hidden_size).dim_names([EMBED, HEADS.of(queries)]);
        output.apply(nn, "o_proj", &attn_out)
    }

    fn feed_forward(&self, nn: &Scope<'_>, x: &Tensor) -> Result<Tensor> {
        let config = &self.config;
        nn.children(&["gate_proj", "up_proj", "down_proj", "act_fn"])?;
        let linear =
            |output| Linear::new(output).bias(config.mlp_bias).std(config.initializer_range);
        let inner = linear(config.intermediate_size).dim_names([MLP, EMBED]);
        let projected = |name| inner.apply(nn, name, x);
        let (gate, up) = (projected("gate_proj")?, projected("up_proj")?);
        let (gate, up) = (gate.named(checkpoint::MLP_GATE)?, up.named(checkpoint::MLP_IN)?);
        let inner = config.hidden_act.gated(nn, "act_fn", &gate, &up)?;
        linear(config.hidden_size).dim_names([EMBED, MLP]).apply(nn, "down_proj", &inner)
    }
}
