//! Contractions: matmuls and `einsum`.

use crate::error::{Error, Result};
use crate::op::{DotDims, Op};
use crate::tensor::Tensor;
use crate::trace::emit_one;
use fullshard_core::{DType, TensorType};

/// A contraction over the indices that are not in the result, such as `bqhd,bkhd->bhqk`.
///
/// Every index is a letter; an index of both operands and the result is a batch dimension. The
/// result has the operands' element type.
pub fn einsum(spec: &str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    contract(spec, a, b, false)
}

/// Like [`einsum`], with full `f32` accumulation: FP8 matmuls on GPUs otherwise accumulate in fewer
/// bits, for speed.
pub fn precise_einsum(spec: &str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    contract(spec, a, b, true)
}

fn contract(spec: &str, a: &Tensor, b: &Tensor, precise: bool) -> Result<Tensor> {
    let fail = |reason: &str| {
        Error::new("einsum", format!("`{spec}` of {} and {}: {reason}", a.ty(), b.ty()))
    };
    let (operands, result) = spec.split_once("->").ok_or_else(|| fail("no `->`"))?;
    let (left, right) = operands.split_once(',').ok_or_else(|| fail("expected two operands"))?;
    let [left, right, result] = [left, right, result].map(|part| part.trim().chars().collect());
    let (left, right, result): (Vec<char>, Vec<char>, Vec<char>) = (left, right, result);
    if left.len() != a.rank() || right.len() != b.rank() {
        return Err(fail("each dimension needs an index"));
    }
    if !a.can_multiply(b) {
        return Err(fail("both must have the same floating-point type"));
    }
    for indices in [&left, &right, &result] {
        if (1..indices.len()).any(|i| indices[..i].contains(&indices[i])) {
            return Err(fail("an index appears twice"));
        }
    }
    let both = |index: &&char| right.contains(index);
    let position = |indices: &[char], index: char| indices.iter().position(|&i| i == index);
    let mut dims = DotDims { precise, ..DotDims::default() };
    for &index in left.iter().filter(both) {
        let (l, r) = (position(&left, index).unwrap_or(0), position(&right, index).unwrap_or(0));
        if a.dims()[l] != b.dims()[r] {
            return Err(fail(&format!("`{index}` is {} and {}", a.dims()[l], b.dims()[r])));
        }
        if result.contains(&index) {
            dims.lhs_batch.push(l);
            dims.rhs_batch.push(r);
        } else {
            dims.lhs_contract.push(l);
            dims.rhs_contract.push(r);
        }
    }
    let batch = dims.lhs_batch.iter().map(|&l| left[l]);
    let left_free = left.iter().copied().filter(|index| !right.contains(index));
    let right_free = right.iter().copied().filter(|index| !left.contains(index));
    let natural: Vec<char> = batch.chain(left_free).chain(right_free).collect();
    let order: Option<Vec<usize>> = result.iter().map(|&index| position(&natural, index)).collect();
    match order {
        Some(order) if order.len() == natural.len() => a.dot(b, dims)?.transpose(&order),
        _ => Err(fail("the result must have each index that is in only one operand")),
    }
}

impl Tensor {
    /// The matmul over the last two dimensions; leading dimensions are batches, equal in both.
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        let (m, n) = (self.rank(), other.rank());
        let reason = || format!("{} times {}", self.ty(), other.ty());
        let batches = m.saturating_sub(2);
        let fits = m >= 2
            && m == n
            && self.can_multiply(other)
            && self.dims()[..batches] == other.dims()[..batches]
            && self.dims()[m - 1] == other.dims()[n - 2];
        if !fits {
            return Err(Error::new("matmul", reason()));
        }
        let batch: Vec<usize> = (0..batches).collect();
        let dims = DotDims {
            lhs_batch: batch.clone(),
            rhs_batch: batch,
            lhs_contract: vec![m - 1],
            rhs_contract: vec![n - 2],
            precise: false,
        };
        self.dot(other, dims)
    }

    /// Multiplies the last dimension by a matrix: a linear layer over any batch.
    pub fn linear(&self, matrix: &Tensor) -> Result<Tensor> {
        let fits = self.rank() >= 1
            && matrix.rank() == 2
            && self.can_multiply(matrix)
            && self.dims().last() == matrix.dims().first();
        if !fits {
            let reason = format!("{} times {}", self.ty(), matrix.ty());
            return Err(Error::new("linear", reason));
        }
        let dims = DotDims {
            lhs_contract: vec![self.rank() - 1],
            rhs_contract: vec![0],
            ..DotDims::default()
        };
        self.dot(matrix, dims)
    }

    /// Whether the element types allow a matmul.
    fn can_multiply(&self, other: &Tensor) -> bool {
        self.dtype() == other.dtype() && self.dtype().is_float()
    }

    pub(crate) fn dot(&self, other: &Tensor, dims: DotDims) -> Result<Tensor> {
        self.dot_to(other, dims, self.dtype())
    }

    /// A matmul whose result has its own element type, in which it accumulates.
    pub(crate) fn dot_to(&self, other: &Tensor, dims: DotDims, dtype: DType) -> Result<Tensor> {
        if !self.can_multiply(other) {
            let reason = format!("{} times {}", self.ty(), other.ty());
            return Err(Error::new("dot", reason));
        }
        let batch = dims.lhs_batch.iter().map(|&dim| self.dims()[dim]);
        let used = |batch: &[usize], contract: &[usize], dim: &usize| {
            batch.contains(dim) || contract.contains(dim)
        };
        let left = (0..self.rank())
            .filter(|dim| !used(&dims.lhs_batch, &dims.lhs_contract, dim))
            .map(|dim| self.dims()[dim]);
        let right = (0..other.rank())
            .filter(|dim| !used(&dims.rhs_batch, &dims.rhs_contract, dim))
            .map(|dim| other.dims()[dim]);
        let result: Vec<usize> = batch.chain(left).chain(right).collect();
        emit_one("dot", Op::Dot(dims), &[self, other], TensorType::new(dtype, &result))
    }
}
