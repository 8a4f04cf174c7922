//! GPT-2's tree and mathematics.

use super::Gpt2Config;
use crate::config::ConfigError;
use crate::fields::Fields;
use crate::layers::attention::{Form, Heads, Scores, attention, merge_heads, split_heads};
use crate::layers::{DEAR, by_sequence, conv1d, dims, embedding, layer_norm, linear, loss, stream};
use crate::model::{CausalLm, Dimensions, Loss};
use crate::module::Module;
use crate::scope::Scope;
use fullshard_graph::{Result, Tensor};

/// A GPT-2 with its language-modelling head.
#[derive(Debug, Clone)]
pub struct Gpt2 {
    /// What it is made to be.
    pub config: Gpt2Config,
}

impl CausalLm for Gpt2 {
    fn tree(&self) -> Module {
        Module::new("GPT2LMHeadModel")
            .child("transformer", self.transformer_module())
            .child("lm_head", self.head_module())
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

    fn attention_form(&self) -> Form {
        let config = &self.config;
        let by_layer = config.scale_attn_by_inverse_layer_idx;
        Form {
            factor: (!by_layer).then(|| self.attention_scale()),
            upcast: config.reorder_and_upcast_attn,
            dropout: config.attn_pdrop,
        }
    }

    fn logits(&self, scope: &Scope<'_>, tokens: &Tensor) -> Result<Tensor> {
        let hidden = self.transformer(scope, tokens)?;
        by_sequence(&linear::apply(scope, "lm_head", &hidden, false)?, tokens)
    }

    fn loss(&self, scope: &Scope<'_>, tokens: &Tensor, labels: &Tensor) -> Result<Loss> {
        let hidden = self.transformer(scope, tokens)?;
        loss::apply(scope, "lm_head", &hidden, labels)
    }
}

/// The tree.
impl Gpt2 {
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Gpt2, ConfigError> {
        Ok(Gpt2 { config: Gpt2Config::read(fields)? })
    }

    fn transformer_module(&self) -> Module {
        let config = &self.config;
        let (width, deviation) = (config.n_embd, config.initializer_range);
        let blocks = (0..config.n_layer).map(|_| self.block_module());
        Module::new("GPT2Model")
            .child("wte", embedding::module(config.vocab_size, width, deviation, None))
            .child("wpe", embedding::module(config.n_positions, width, deviation, None))
            .child("drop", Module::new("Dropout"))
            .child("h", Module::list(blocks))
            .child("ln_f", layer_norm::module(width))
    }

    fn block_module(&self) -> Module {
        let config = &self.config;
        let (width, inner, deviation) = (config.n_embd, config.n_inner, config.initializer_range);
        // Two projections in each layer are added up in the stream.
        let into_stream = deviation / (2.0 * config.n_layer as f64).sqrt();
        let attention = Module::new("GPT2Attention")
            .child("c_attn", conv1d::module(width, 3 * width, deviation))
            .child("c_proj", conv1d::module(width, width, into_stream))
            .child("attn_dropout", Module::new("Dropout"))
            .child("resid_dropout", Module::new("Dropout"));
        let feed_forward = Module::new("GPT2MLP")
            .child("c_fc", conv1d::module(width, inner, deviation))
            .child("c_proj", conv1d::module(inner, width, into_stream))
            .child("act", config.activation_function.module())
            .child("dropout", Module::new("Dropout"));
        Module::new("GPT2Block")
            .child("ln_1", layer_norm::module(width))
            .child("attn", attention)
            .child("ln_2", layer_norm::module(width))
            .child("mlp", feed_forward)
    }

    fn head_module(&self) -> Module {
        let config = &self.config;
        if config.tie_word_embeddings {
            linear::tied(config.n_embd, config.vocab_size, "transformer.wte.weight")
        } else {
            linear::module(config.n_embd, config.vocab_size, false, config.initializer_range)
        }
    }
}

/// The mathematics.
impl Gpt2 {
    /// The hidden states that the head takes, `[..., width]`: only attention needs to know which
    /// tokens are a sequence.
    fn transformer(&self, scope: &Scope<'_>, tokens: &Tensor) -> Result<Tensor> {
        let config = &self.config;
        let [_, sequence] = dims("tokens", tokens)?;
        scope.module("transformer", |scope| {
            let positions = embedding::first_rows(scope, "wpe", sequence)?;
            let x = stream(scope, &(embedding::apply(scope, "wte", tokens, None)? + positions)?)?;
            let x = scope.dropout("drop", &x, config.embd_pdrop)?;
            let x =
                scope.layers("h", config.n_layer, &x, |scope, x| self.block(scope, x, sequence))?;
            layer_norm::apply(scope, "ln_f", &x, config.layer_norm_epsilon)
        })
    }

    fn block(&self, scope: &Scope<'_>, x: &Tensor, sequence: usize) -> Result<Tensor> {
        let epsilon = self.config.layer_norm_epsilon;
        let normal = layer_norm::apply(scope, "ln_1", x, epsilon)?;
        let mixed = scope.module("attn", |scope| self.attention(scope, &normal, sequence))?;
        let x = (x + mixed)?.named(DEAR)?;
        let normal = layer_norm::apply(scope, "ln_2", &x, epsilon)?;
        x + scope.module("mlp", |scope| self.feed_forward(scope, &normal))?
    }

    fn attention(&self, scope: &Scope<'_>, x: &Tensor, sequence: usize) -> Result<Tensor> {
        let config = &self.config;
        let projections = conv1d::apply_parts(scope, "c_attn", x, 3)?;
        let heads = |x: &Tensor| split_heads(&x.named(DEAR)?, sequence, config.n_head);
        let [query, key, value] = [0, 1, 2].map(|i| heads(&projections[i]));
        let heads = Heads { query: query?, key: key?, value: value? };
        let mixed = merge_heads(&attention(scope, &heads, &self.scores(scope)?)?, x)?;
        let x = conv1d::apply(scope, "c_proj", &mixed)?;
        scope.dropout("resid_dropout", &x, config.resid_pdrop)
    }

    /// What attention scores are multiplied by, before the layer has a say.
    fn attention_scale(&self) -> f64 {
        let head = self.config.n_embd / self.config.n_head;
        if self.config.scale_attn_weights { (head as f64).sqrt().recip() } else { 1.0 }
    }

    fn scores(&self, scope: &Scope<'_>) -> Result<Scores> {
        let config = &self.config;
        let mut scores = Scores::scaled(scope.compute_dtype(), self.attention_scale())?;
        if config.scale_attn_by_inverse_layer_idx {
            let number = (scope.layer()? + 1.0)?.convert(scores.scale.dtype())?;
            scores.scale = (scores.scale / number)?;
            scores.factor = None;
        }
        scores.upcast = config.reorder_and_upcast_attn;
        scores.dropout = config.attn_pdrop;
        Ok(scores)
    }

    fn feed_forward(&self, scope: &Scope<'_>, x: &Tensor) -> Result<Tensor> {
        let config = &self.config;
        let inner = conv1d::apply(scope, "c_fc", x)?.named(DEAR)?;
        let inner = config.activation_function.apply(scope, &inner)?;
        let x = conv1d::apply(scope, "c_proj", &inner)?;
        scope.dropout("dropout", &x, config.resid_pdrop)
    }
}
