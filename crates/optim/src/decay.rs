//! Which parameters weight decay applies to.

/// Whether weight decay applies to a parameter, by its full name and the class of its module: the
/// rule of Hugging Face's Trainer.
///
/// Biases and the parameters of normalization layers do not decay. A normalization layer has the
/// class `LayerNorm` or one that ends in `RMSNorm`, or its parameter's name, in lower case,
/// contains `layernorm` or `rmsnorm` or has a part between dots that is `norm` or ends in `_norm`.
/// (Trainer itself recognizes RMS norms by name only, and its models name them so; here those with
/// another name do not decay either.)
///
/// ```
/// use fullshard_optim::decays;
///
/// assert!(decays("transformer.h.0.attn.c_attn.weight", "Conv1D"));
/// assert!(!decays("transformer.h.0.attn.c_attn.bias", "Conv1D"));
/// assert!(!decays("transformer.h.0.ln_1.weight", "LayerNorm"));
/// assert!(!decays("model.layers.0.self_attn.q_norm.weight", "Qwen3RMSNorm"));
/// ```
pub fn decays(name: &str, class: &str) -> bool {
    let name = name.to_lowercase();
    let is_norm = class == "LayerNorm"
        || class.ends_with("RMSNorm")
        || ["layernorm", "rmsnorm"].iter().any(|word| name.contains(word))
        || name.split('.').any(|part| part == "norm" || part.ends_with("_norm"));
    !is_norm && !name.contains("bias")
}
