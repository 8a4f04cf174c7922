//! Which parameters weight decay applies to.

/// Whether weight decay applies to a parameter, by its full name and the class of the module
/// that holds it: the rule of Hugging Face's Trainer.
///
/// Biases and the parameters of normalisation layers do not decay. A layer normalises if its
/// class is `LayerNorm` or ends in `RMSNorm`, or if the parameter's name, in lower case, has
/// `layernorm` or `rmsnorm` in it or a part between dots that is `norm` or ends in `_norm`.
/// (Trainer itself knows RMS norms by their names alone, and its models name them so; here one
/// with another name does not decay either.)
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
    let normalises = class == "LayerNorm"
        || class.ends_with("RMSNorm")
        || ["layernorm", "rmsnorm"].iter().any(|word| name.contains(word))
        || name.split('.').any(|part| part == "norm" || part.ends_with("_norm"));
    !normalises && !name.contains("bias")
}
