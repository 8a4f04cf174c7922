//! The GPT-2 model.

use super::Gpt2Config;
use crate::layers::attention::{Heads, Mask, Scores, attention, merge_heads, split_heads};
use crate::layers::dim_names::{DimName, EMBED, HEADS, MLP, VOCAB};
use crate::layers::{
    Conv1d, Embedding, Linear, checkpoint, dims, layer_norm, loss, residual_stream,
    unflatten_tokens,
};
use crate::model::{Dimensions, Model};
use crate::scope::Scope;
use crate::task::{CausalLm, Loss};
use fullshard_graph::{Result, Tensor};

/// A GPT-2 with its language modeling head.
#[derive(Debug, Clone)]
pub struct Gpt2 {
    /// Its config.
    pub config: Gpt2Config,
}

/// The model's class in Hugging Face's library.
pub(super) const CLASS: &str = "GPT2LMHeadModel";

impl Model for Gpt2 {
    fn class(&self) -> &'static str {
        CLASS
    }

    fn task(&self) -> CausalLm {
        CausalLm { vocabulary: self.config.vocab_size }
    }

    fn dimensions(&self) -> Dimensions {
        let config = &self.config;
        Dimensions {
            layers: config.n_layer,
            hidden: config.n_embd,
            heads: config.n_head,
            head: config.n_embd / config.n_head,
            inner: config.n_inner,
            vocabulary: config.vocab_size,
            positions: config.n_positions,
        }
    }

    fn forward(&self, nn: &Scope<'_>, tokens: &Tensor) -> Result<Tensor> {
        let hidden = self.transformer(nn, tokens)?;
        unflatten_tokens(&self.head().apply(nn, "lm_head", &hidden)?, tokens)
    }

    fn loss(&self, nn: &Scope<'_>, tokens: &Tensor, labels: &Tensor) -> Result<Loss> {
        let hidden = self.transformer(nn, tokens)?;
        loss::apply(nn, "lm_head", &self.head(), &hidden, labels)
    }
}

impl Gpt2 {
    /// The head, which shares the token embeddings unless they are untied.
    fn head(&self) -> Linear<'static> {
        let config = &self.config;
        let tied = config.tie_word_embeddings.then_some("transformer.wte.weight");
        let head = Linear::new(config.vocab_size).dim_names([VOCAB, EMBED]).bias(false);
        head.std(config.initializer_range).tied(tied)
    }

    /// The final hidden states, `[..., width]`. Only attention depends on which tokens form a
    /// sequence.
    fn transformer(&self, nn: &Scope<'_>, tokens: &Tensor) -> Result<Tensor> {
        let config = &self.config;
        let [_, sequence] = dims("tokens", tokens)?;
        let table = |rows| Embedding::new(rows, config.n_embd).std(config.initializer_range);
        nn.module("transformer", "GPT2Model", |nn| {
            nn.children(&["wte", "wpe", "drop", "h", "ln_f"])?;
            let positions = table(config.n_positions).first_rows(nn, "wpe", sequence)?;
            let x = (table(config.vocab_size).apply(nn, "wte", tokens)? + positions)?;
            let x = nn.dropout("drop", &residual_stream(nn, &x)?, config.embd_pdrop)?;
            let block = |nn: &Scope<'_>, x: &Tensor| self.block(nn, x, sequence);
            let x = nn.layers("h", "GPT2Block", config.n_layer, &x, block)?;
            layer_norm::apply(nn, "ln_f", &x, config.layer_norm_epsilon)
        })
    }

    fn block(&self, nn: &Scope<'_>, x: &Tensor, sequence: usize) -> Result<Tensor> {
        let epsilon = self.config.layer_norm_epsilon;
        let [x, normalized] = layer_norm::apply_residual(nn, "ln_1", x, epsilon)?;
        let attn_out =
            nn.module("attn", "GPT2Attention", |nn| self.attention(nn, &normalized, sequence))?;
        let x = (x + attn_out)?.named(checkpoint::OUT_PROJ)?;
        let [x, normalized] = layer_norm::apply_residual(nn, "ln_2", &x, epsilon)?;
        x + nn.module("mlp", "GPT2MLP", |nn| self.feed_forward(nn, &normalized))?
    }

    fn attention(&self, nn: &Scope<'_>, x: &Tensor, sequence: usize) -> Result<Tensor> {
        let config = &self.config;
        nn.children(&["c_attn", "c_proj", "attn_dropout", "resid_dropout"])?;
        nn.leaf("attn_dropout", "Dropout")?;
        let heads = HEADS.of(config.n_head);
        let projection = Conv1d::new(3 * config.n_embd).dim_names([EMBED, heads.fused(3)]);
        let projection = projection.std(config.initializer_range);
        let projections = projection.apply_parts(nn, "c_attn", x, 3)?;
        let head = config.n_embd / config.n_head;
        let split = |x: &Tensor| split_heads(x, sequence, head)?.named(checkpoint::QKV);
        let [query, key, value] = [0, 1, 2].map(|i| split(&projections[i]));
        let qkv = Heads { query: query?, key: key?, value: value? };
        let attn_out = merge_heads(&attention(nn, &qkv, &self.scores(nn)?)?, x)?;
        let x = self.residual_projection([heads, EMBED]).apply(nn, "c_proj", &attn_out)?;
        nn.dropout("resid_dropout", &x, config.resid_pdrop)
    }

    /// The scale of attention scores, before division by the layer index.
    fn attention_scale(&self) -> f64 {
        let head = self.config.n_embd / self.config.n_head;
        if self.config.scale_attn_weights { (head as f64).sqrt().recip() } else { 1.0 }
    }

    fn scores(&self, nn: &Scope<'_>) -> Result<Scores> {
        let config = &self.config;
        let mut scores =
            Scores::scaled(Mask::causal(), nn.compute_dtype(), self.attention_scale())?;
        if config.scale_attn_by_inverse_layer_idx {
            let number = (nn.layer()? + 1.0)?.convert(scores.scale.dtype())?;
            scores.scale = (scores.scale / number)?;
            scores.factor = None;
        }
        scores.upcast = config.reorder_and_upcast_attn;
        scores.dropout = config.attn_pdrop;
        Ok(scores)
    }

    fn feed_forward(&self, nn: &Scope<'_>, x: &Tensor) -> Result<Tensor> {
        let config = &self.config;
        nn.children(&["c_fc", "c_proj", "act", "dropout"])?;
        let projection = Conv1d::new(config.n_inner).dim_names([EMBED, MLP]);
        let projection = projection.std(config.initializer_range);
        let inner = projection.apply_activated(nn, "c_fc", x, config.activation_function, "act")?;
        let x = self.residual_projection([MLP, EMBED]).apply(nn, "c_proj", &inner)?;
        nn.dropout("dropout", &x, config.resid_pdrop)
    }

    /// A projection whose output is added to the residual stream; each layer has two.
    fn residual_projection(&self, dim_names: [DimName; 2]) -> Conv1d {
        let config = &self.config;
        let std = config.initializer_range / (2.0 * config.n_layer as f64).sqrt();
        Conv1d::new(config.n_embd).dim_names(dim_names).std(std)
    }
}
