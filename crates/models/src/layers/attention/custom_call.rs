//! Attention as custom calls on the CPU, forward and backward, which keep scores in its caches.

use super::kernel::Kernel;
use super::{Form, Pattern};
use fullshard_graph::{Attribute, DType, Error, Result, Tensor, TensorType, custom_call};

/// The target of the forward call.
pub const ATTENTION: &str = "fullshard.attention";

/// The target of the call for gradients.
pub const ATTENTION_GRADIENTS: &str = "fullshard.attention_gradients";

/// Why the calls do not support a form, if so.
pub fn call_unsupported_reason(dtype: DType, head: usize, scores: Form) -> Option<String> {
    match () {
        () if head == 0 => Some("the model has no attention heads".into()),
        () if !matches!(dtype, DType::F32 | DType::Bf16) => {
            Some(format!("the call supports f32 and bf16, not {}", dtype.name()))
        }
        () if !matches!(scores.pattern, Pattern::Causal | Pattern::Full) => {
            Some(format!("the mask is {}, which the call does not support", scores.pattern))
        }
        () if scores.padding => Some("keys can be padding, which the call does not mask".into()),
        () if scores.upcast && dtype != DType::F32 => Some("f32 matmuls are requested".into()),
        () if scores.dropout > 0.0 => Some("the call has no dropout".into()),
        () if scores.factor.is_none_or(|factor| factor <= 0.0) => {
            Some("the scale of scores depends on the layer".into())
        }
        () => None,
    }
}

/// The calls for a form.
pub(super) struct Calls {
    scale: f32,
    causal: bool,
}

impl Calls {
    pub fn new(scores: Form) -> Result<Calls> {
        let missing = || Error::new("attention", "the call needs a static scale");
        let scale = scores.factor.ok_or_else(missing)? as f32;
        Ok(Calls { scale, causal: scores.pattern == Pattern::Causal })
    }

    /// A call of queries, keys and values, and of further operands.
    fn call(
        &self,
        target: &str,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>> {
        let (&[batch, queries, heads, head], &[_, keys, key_heads, _]) =
            (operands[0].dims(), operands[1].dims())
        else {
            return Err(Error::new("attention", "queries and keys have four dims"));
        };
        let sizes = [batch, heads, key_heads, queries, keys, head].map(|size| size as i64);
        let layout = |rank: usize| (0..rank).rev().collect::<Vec<_>>();
        let of_operands: Vec<_> = operands.iter().map(|x| layout(x.rank())).collect();
        let of_results: Vec<_> = results.iter().map(|ty| layout(ty.dims.len())).collect();
        let [of_operands, of_results] = [&of_operands, &of_results]
            .map(|layouts| layouts.iter().map(Vec::as_slice).collect::<Vec<_>>());
        custom_call(target)
            .attribute("causal", Attribute::Int(i64::from(self.causal)))
            .attribute("scale", Attribute::Float(self.scale))
            .attribute("sizes", Attribute::Ints(sizes.to_vec()))
            .layouts(&of_operands, &of_results)
            .call(operands, results)
    }
}

impl Kernel for Calls {
    fn forward(&self, inputs: &[Tensor]) -> Result<(Tensor, Tensor)> {
        let [query, key, value] = inputs else {
            return Err(Error::new("attention", "expected queries, keys and values"));
        };
        let &[batch, sequence, heads, _] = query.dims() else {
            return Err(Error::new("attention", "queries have four dims"));
        };
        let stats = TensorType::new(DType::F32, &[batch, heads, sequence]);
        let results = self.call(ATTENTION, &[query, key, value], &[query.ty().clone(), stats])?;
        Ok((results[0].clone(), results[1].clone()))
    }

    fn gradients(&self, residuals: &[Tensor], gradient: &Tensor) -> Result<[Tensor; 3]> {
        let [query, key, value, stats, attn_out] = residuals else {
            return Err(Error::new("attention", "expected five residuals"));
        };
        let operands = [query, key, value, attn_out, stats, gradient];
        let results = [query, key, value].map(|x| x.ty().clone());
        let results = self.call(ATTENTION_GRADIENTS, &operands, &results)?;
        results.try_into().map_err(|_| Error::new("attention", "expected three gradients"))
    }
}
