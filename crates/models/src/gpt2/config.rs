//! GPT-2's fields of `config.json`.

use crate::config::{ConfigError, object};
use crate::fields::Fields;
use crate::layers::Activation;
use crate::layers::activation::GELU_NEW;

/// The config of a GPT-2, with Hugging Face's names and defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpt2Config {
    /// The vocabulary size.
    pub vocab_size: usize,
    /// The maximum sequence length.
    pub n_positions: usize,
    /// The hidden size.
    pub n_embd: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// Number of attention heads.
    pub n_head: usize,
    /// The hidden size of the MLP: four times `n_embd` by default.
    pub n_inner: usize,
    /// The activation function of the MLP.
    pub activation_function: Activation,
    /// Dropout after the embeddings.
    pub embd_pdrop: f64,
    /// Dropout on attention probabilities.
    pub attn_pdrop: f64,
    /// Dropout on what is added to the residual stream.
    pub resid_pdrop: f64,
    /// Epsilon of layer norms.
    pub layer_norm_epsilon: f64,
    /// The standard deviation of the initializer of weights.
    pub initializer_range: f64,
    /// Whether attention scores are divided by the square root of the head dimension.
    pub scale_attn_weights: bool,
    /// Whether they are also divided by the layer index, from 1.
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Whether the matmuls of attention scores are in `f32`.
    pub reorder_and_upcast_attn: bool,
    /// Whether the head shares the token embeddings.
    pub tie_word_embeddings: bool,
}

impl Gpt2Config {
    /// Reads the text of a `config.json`, whatever its `model_type`.
    pub fn from_json(text: &str) -> Result<Gpt2Config, ConfigError> {
        Gpt2Config::read(&Fields::new(&object(text)?))
    }

    /// Reads and checks the fields.
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Gpt2Config, ConfigError> {
        let n_embd = fields.size(&["n_embd", "hidden_size"], 768)?;
        let n_head = fields.size(&["n_head", "num_attention_heads"], 12)?;
        if !n_embd.is_multiple_of(n_head) {
            let expected = format!("a multiple of `n_head`, which is {n_head}");
            return Err(fields.invalid("n_embd", n_embd, &expected));
        }
        if fields.flag("add_cross_attention", false)? {
            let expected = "false: there is no encoder to attend to";
            return Err(fields.invalid("add_cross_attention", true, expected));
        }
        let config = Gpt2Config {
            vocab_size: fields.size(&["vocab_size"], 50257)?,
            n_positions: fields.size(&["n_positions", "max_position_embeddings"], 1024)?,
            n_embd,
            n_layer: fields.layers(&["n_layer", "num_hidden_layers"], 12)?,
            n_head,
            n_inner: fields.size(&["n_inner"], 4 * n_embd)?,
            activation_function: fields.activation("activation_function", GELU_NEW)?,
            embd_pdrop: fields.dropout("embd_pdrop", 0.1)?,
            attn_pdrop: fields.dropout("attn_pdrop", 0.1)?,
            resid_pdrop: fields.dropout("resid_pdrop", 0.1)?,
            layer_norm_epsilon: fields.positive("layer_norm_epsilon", 1e-5)?,
            initializer_range: fields.std("initializer_range", 0.02)?,
            scale_attn_weights: fields.flag("scale_attn_weights", true)?,
            scale_attn_by_inverse_layer_idx: fields
                .flag("scale_attn_by_inverse_layer_idx", false)?,
            reorder_and_upcast_attn: fields.flag("reorder_and_upcast_attn", false)?,
            tie_word_embeddings: fields.flag("tie_word_embeddings", true)?,
        };
        config.check_weights(fields)?;
        Ok(config)
    }

    /// Checks the number of elements of every kind of weight.
    fn check_weights(&self, fields: &Fields<'_>) -> Result<(), ConfigError> {
        let width = ("n_embd", self.n_embd);
        let layers = ("n_layer", self.n_layer);
        fields.check_elements(&[("vocab_size", self.vocab_size), width])?;
        fields.check_elements(&[("n_positions", self.n_positions), width])?;
        fields.check_elements(&[layers, width, width])?;
        fields.check_elements(&[layers, width, ("n_inner", self.n_inner)])
    }
}
