//! Llama's fields of `config.json`.

use crate::config::{ConfigError, object};
use crate::fields::Fields;
use crate::layers::Activation;
use crate::layers::activation::SILU;
use crate::layers::rotary::{Rotary, Scaling};

/// The config of a Llama, with Hugging Face's names and defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// The vocabulary size.
    pub vocab_size: usize,
    /// The hidden size.
    pub hidden_size: usize,
    /// The hidden size of the MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of attention heads.
    pub num_attention_heads: usize,
    /// Number of key/value heads: `num_attention_heads` by default.
    pub num_key_value_heads: usize,
    /// The head dimension: `hidden_size / num_attention_heads` by default.
    pub head_dim: usize,
    /// The token whose embedding is initialized to zero and gets no gradient from lookups.
    pub pad_token_id: Option<usize>,
    /// The activation function of the MLP.
    pub hidden_act: Activation,
    /// The maximum sequence length.
    pub max_position_embeddings: usize,
    /// The standard deviation of the initializer of weights.
    pub initializer_range: f64,
    /// Epsilon of RMS norms.
    pub rms_norm_eps: f64,
    /// Whether the head shares the token embeddings.
    pub tie_word_embeddings: bool,
    /// Whether the attention projections have biases.
    pub attention_bias: bool,
    /// Dropout on attention probabilities.
    pub attention_dropout: f64,
    /// Whether the MLP projections have biases.
    pub mlp_bias: bool,
    /// The rotary embedding.
    pub rotary: Rotary,
}

impl LlamaConfig {
    /// Reads the text of a `config.json`, whatever its `model_type`.
    pub fn from_json(text: &str) -> Result<LlamaConfig, ConfigError> {
        LlamaConfig::read(&Fields::new(&object(text)?))
    }

    /// Reads and checks the fields.
    pub(crate) fn read(fields: &Fields<'_>) -> Result<LlamaConfig, ConfigError> {
        let hidden_size = fields.size(&["hidden_size"], 4096)?;
        let heads = fields.size(&["num_attention_heads"], 32)?;
        if !hidden_size.is_multiple_of(heads) {
            let expected = format!("a multiple of `num_attention_heads`, which is {heads}");
            return Err(fields.invalid("hidden_size", hidden_size, &expected));
        }
        let key_heads = fields.size(&["num_key_value_heads"], heads)?;
        if !heads.is_multiple_of(key_heads) {
            let expected = format!("a divisor of `num_attention_heads`, which is {heads}");
            return Err(fields.invalid("num_key_value_heads", key_heads, &expected));
        }
        let head_dim = fields.size(&["head_dim"], hidden_size / heads)?;
        if !head_dim.is_multiple_of(2) {
            let expected = "even, because rotary embeddings rotate pairs (the default \
                            is `hidden_size` / `num_attention_heads`)";
            return Err(fields.invalid("head_dim", head_dim, expected));
        }
        let positions = fields.size(&["max_position_embeddings"], 2048)?;
        let vocab_size = fields.size(&["vocab_size"], 32000)?;
        let config = LlamaConfig {
            vocab_size,
            hidden_size,
            intermediate_size: fields.size(&["intermediate_size"], 11008)?,
            num_hidden_layers: fields.layers(&["num_hidden_layers"], 32)?,
            num_attention_heads: heads,
            num_key_value_heads: key_heads,
            head_dim,
            pad_token_id: fields.token("pad_token_id", vocab_size)?,
            hidden_act: fields.activation("hidden_act", SILU)?,
            max_position_embeddings: positions,
            initializer_range: fields.std("initializer_range", 0.02)?,
            rms_norm_eps: fields.positive("rms_norm_eps", 1e-6)?,
            tie_word_embeddings: fields.flag("tie_word_embeddings", false)?,
            attention_bias: fields.flag("attention_bias", false)?,
            attention_dropout: fields.dropout("attention_dropout", 0.0)?,
            mlp_bias: fields.flag("mlp_bias", false)?,
            rotary: rotary(fields, head_dim, positions)?,
        };
        config.check_weights(fields)?;
        Ok(config)
    }

    /// Checks the number of elements of every kind of weight.
    fn check_weights(&self, fields: &Fields<'_>) -> Result<(), ConfigError> {
        let width = ("hidden_size", self.hidden_size);
        let layers = ("num_hidden_layers", self.num_hidden_layers);
        let heads = ("num_attention_heads", self.num_attention_heads);
        fields.check_elements(&[("vocab_size", self.vocab_size), width])?;
        fields.check_elements(&[layers, width, heads, ("head_dim", self.head_dim)])?;
        fields.check_elements(&[layers, width, ("intermediate_size", self.intermediate_size)])
    }
}

/// Reads the rotary embedding: `rope_parameters`, or `rope_theta` and `rope_scaling` in older
/// configs.
fn rotary(fields: &Fields<'_>, head: usize, positions: usize) -> Result<Rotary, ConfigError> {
    let theta = fields.positive("rope_theta", 10000.0)?;
    let scaling = match fields.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => fields.object("rope_scaling")?,
    };
    let Some(scaling) = scaling else {
        return Ok(Rotary { head, theta, scaling: Scaling::Default });
    };
    let theta = scaling.positive("rope_theta", theta)?;
    let inside = scaling.size(&["original_max_position_embeddings"], positions)?;
    let original = fields.size(&["original_max_position_embeddings"], inside)?;
    Ok(Rotary { head, theta, scaling: read_scaling(&scaling, positions, original as f64)? })
}

/// Reads one kind of scaling, given the maximum and the original maximum number of positions.
fn read_scaling(
    fields: &Fields<'_>,
    positions: usize,
    original: f64,
) -> Result<Scaling, ConfigError> {
    type Reader<'r> = &'r dyn Fn() -> Result<Scaling, ConfigError>;
    let factor = || fields.required("factor");
    let kinds: [(&str, Reader<'_>); 5] = [
        ("default", &|| Ok(Scaling::Default)),
        ("linear", &|| Ok(Scaling::Linear { factor: factor()? })),
        ("dynamic", &|| Ok(Scaling::Dynamic { factor: factor()?, positions })),
        ("yarn", &|| read_yarn(fields, factor()?, original)),
        ("llama3", &|| read_llama3(fields, factor()?, original)),
    ];
    match fields.choice(&["rope_type", "type"], &kinds)? {
        Some(read) => read(),
        None => Ok(Scaling::Default),
    }
}

fn read_yarn(fields: &Fields<'_>, factor: f64, original: f64) -> Result<Scaling, ConfigError> {
    Ok(Scaling::Yarn {
        factor,
        attention_factor: attention_factor(fields, factor)?,
        beta_fast: fields.positive("beta_fast", 32.0)?,
        beta_slow: fields.positive("beta_slow", 1.0)?,
        truncate: fields.flag("truncate", true)?,
        original,
    })
}

fn read_llama3(fields: &Fields<'_>, factor: f64, original: f64) -> Result<Scaling, ConfigError> {
    let (low, high) = (fields.required("low_freq_factor")?, fields.required("high_freq_factor")?);
    if high <= low {
        let expected = format!("above `low_freq_factor`, which is {low}");
        return Err(fields.invalid("high_freq_factor", high, &expected));
    }
    Ok(Scaling::Llama3 { factor, low, high, original })
}

/// The attention factor of YaRN: as set, or as in its paper.
fn attention_factor(fields: &Fields<'_>, factor: f64) -> Result<f64, ConfigError> {
    let any = |name| fields.optional_number(name, "a number", |_| true);
    let default = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    let given = any("attention_factor")?;
    Ok(match (given, any("mscale")?, any("mscale_all_dim")?) {
        (Some(given), ..) => given,
        (None, Some(part), Some(all)) if part != 0.0 && all != 0.0 => default(part) / default(all),
        _ => default(1.0),
    })
}
