//! Matmuls as custom calls instead of being left to the compiler.
//!
//! A platform that supports [`MATMUL`] multiplies two operands of `f32` into a dense result of it, and
//! two of `bf16` into one of either. Attributes: `sizes` has two batch sizes, M, N and K; `lhs` and `rhs` have the strides of both
//! batches, then of M and K for `lhs` and of K and N for `rhs`; `offsets` has the start of each
//! operand. So an operand that is a view of another tensor is not materialized.

use super::plain::row_major;
use super::types::mlir;
use super::view::View;
use super::{Names, Writer};
use crate::graph::{Graph, Node};
use crate::op::DotDims;
use fullshard_core::{DType, TensorType};
use std::rc::Rc;

/// The custom call target of matmuls.
pub const MATMUL: &str = "fullshard.matmul";

/// Multiplications per matrix below which a call costs more than it saves.
const MIN_MULTIPLICATIONS: usize = 1 << 15;

/// A dimension in both operands: its size and strides.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Shared {
    size: usize,
    lhs: usize,
    rhs: usize,
}

/// A matmul by sizes and strides.
#[derive(PartialEq, Debug)]
struct Strided {
    sizes: [usize; 5],
    lhs: [usize; 4],
    rhs: [usize; 4],
}

impl Writer {
    /// Writes a matmul of views as a custom call, if one is supported and pays off.
    pub(super) fn matmul_of(
        &mut self,
        graph: &Graph,
        node: &Node,
        dims: &DotDims,
        names: &Names,
        views: &[View],
    ) -> Option<Vec<Rc<str>>> {
        let [lhs, rhs] = node.inputs[..] else { return None };
        let [lhs_view, rhs_view] = views else { return None };
        let (lhs, rhs, result) = (graph.ty(lhs), graph.ty(rhs), graph.ty(node.outputs[0]));
        let strided = Strided::new(dims, &lhs.dims, [&lhs_view.strides, &rhs_view.strides], rhs)?;
        let supported = |ty: &TensorType| matches!(ty.dtype, DType::F32 | DType::Bf16 | DType::F16);
        if !strided.is_large() || !supported(lhs) || !supported(result) {
            return None;
        }
        let is_bf16 = [lhs.dtype, rhs.dtype] == [DType::Bf16; 2] && result.dtype != DType::F16;
        let (from, to) =
            if is_bf16 { (DType::Bf16, result.dtype) } else { (DType::F32, DType::F32) };
        let mut operands = Vec::new();
        for view in views {
            let name = names[view.base.index()].clone()?;
            operands.push(self.converted(&name, graph.ty(view.base), from, &node.path));
        }
        let [lhs, rhs] = [lhs_view, rhs_view].map(|view| graph.ty(view.base).with_dtype(from));
        let to = result.with_dtype(to);
        let types = format!("({}, {}) -> {}", mlir(&lhs), mlir(&rhs), mlir(&to));
        let text = format!(
            "stablehlo.custom_call @{MATMUL}({}) {{api_version = 4 : i32, backend_config = \
             {{lhs = {}, offsets = {}, rhs = {}, sizes = {}}}, {}}}",
            operands.join(", "),
            integers(&strided.lhs),
            integers(&[lhs_view.offset, rhs_view.offset]),
            integers(&strided.rhs),
            integers(&strided.sizes),
            row_major(&[&lhs, &rhs], &[&to]),
        );
        let matmul = self.op_one(&text, &types, &node.path);
        Some(vec![self.converted(&matmul, &to, result.dtype, &node.path)])
    }

    fn converted(
        &mut self,
        value: &Rc<str>,
        ty: &TensorType,
        dtype: DType,
        path: &Rc<str>,
    ) -> Rc<str> {
        if ty.dtype == dtype {
            return value.clone();
        }
        let types = format!("({}) -> {}", mlir(ty), mlir(&ty.with_dtype(dtype)));
        self.op_one(&format!("stablehlo.convert {value}"), &types, path)
    }
}

impl Strided {
    /// The matmul of two views, if M, N and K have one stride each and there are at most two
    /// batches.
    fn new(
        dims: &DotDims,
        lhs: &[usize],
        [lhs_strides, rhs_strides]: [&[usize]; 2],
        rhs: &TensorType,
    ) -> Option<Strided> {
        let shared = |left: &[usize], right: &[usize]| -> Vec<Shared> {
            let pairs = left.iter().zip(right);
            merged(pairs.map(|(&l, &r)| Shared {
                size: lhs[l],
                lhs: lhs_strides[l],
                rhs: rhs_strides[r],
            }))
        };
        let free = |dims: &[usize], strides: &[usize], used: [&[usize]; 2]| -> Vec<Shared> {
            let free = (0..dims.len()).filter(|dim| !used.iter().any(|used| used.contains(dim)));
            // The other operand does not have the dimension, so its stride never prevents merging.
            merged(free.map(|dim| Shared { size: dims[dim], lhs: strides[dim], rhs: 0 }))
        };
        let batches = shared(&dims.lhs_batch, &dims.rhs_batch);
        let rows = single(&free(lhs, lhs_strides, [&dims.lhs_batch, &dims.lhs_contract]))?;
        let columns = single(&free(&rhs.dims, rhs_strides, [&dims.rhs_batch, &dims.rhs_contract]))?;
        let sums = single(&shared(&dims.lhs_contract, &dims.rhs_contract))?;
        let unit = Shared { size: 1, lhs: 0, rhs: 0 };
        let [outer, inner] = match batches[..] {
            [] => [unit, unit],
            [inner] => [unit, inner],
            [outer, inner] => [outer, inner],
            _ => return None,
        };
        Some(Strided {
            sizes: [outer.size, inner.size, rows.size, columns.size, sums.size],
            lhs: [outer.lhs, inner.lhs, rows.lhs, sums.lhs],
            rhs: [outer.rhs, inner.rhs, sums.rhs, columns.lhs],
        })
    }

    /// Whether a call saves more than it costs.
    fn is_large(&self) -> bool {
        let [.., rows, columns, sums] = self.sizes;
        rows.min(columns).min(sums) > 1 && rows * columns * sums >= MIN_MULTIPLICATIONS
    }
}

/// Dimensions, with those merged that are contiguous in both operands.
fn merged(dims: impl Iterator<Item = Shared>) -> Vec<Shared> {
    let mut merged: Vec<Shared> = Vec::new();
    for dim in dims.filter(|dim| dim.size != 1) {
        match merged.last_mut() {
            Some(last) if last.lhs == dim.size * dim.lhs && last.rhs == dim.size * dim.rhs => {
                *last = Shared { size: last.size * dim.size, ..dim };
            }
            _ => merged.push(dim),
        }
    }
    merged
}

/// The only dimension; no dimension is one of size 1.
fn single(dims: &[Shared]) -> Option<Shared> {
    match dims {
        [] => Some(Shared { size: 1, lhs: 0, rhs: 0 }),
        [dim] => Some(*dim),
        _ => None,
    }
}

fn integers(values: &[usize]) -> String {
    format!("dense<{values:?}> : tensor<{}xi64>", values.len())
}

#[cfg(test)]
mod tests {
    use super::super::view::dense;
    use super::*;

    fn strided(
        lhs: &[usize],
        rhs: &[usize],
        batch: [&[usize]; 2],
        contract: [&[usize]; 2],
    ) -> Option<Strided> {
        let dims = DotDims {
            lhs_batch: batch[0].to_vec(),
            rhs_batch: batch[1].to_vec(),
            lhs_contract: contract[0].to_vec(),
            rhs_contract: contract[1].to_vec(),
            precise: false,
        };
        let strides = [&dense(lhs)[..], &dense(rhs)[..]];
        Strided::new(&dims, lhs, strides, &TensorType::new(DType::F32, rhs))
    }

    #[test]
    fn linear_layer_is_one_matmul_for_any_batch() {
        let found = strided(&[4, 8, 16], &[16, 32], [&[], &[]], [&[2], &[0]]);
        let sizes = [1, 1, 32, 32, 16];
        let expected = Strided { sizes, lhs: [0, 0, 16, 1], rhs: [0, 0, 32, 1] };
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn heads_need_no_transpose() {
        // bqhd,bkhd->bhqk
        let shape = [2, 64, 3, 16];
        let found = strided(&shape, &shape, [&[0, 2], &[0, 2]], [&[3], &[3]]);
        let (lhs, rhs) = ([3072, 16, 48, 1], [3072, 16, 1, 48]);
        assert_eq!(found, Some(Strided { sizes: [2, 3, 64, 64, 16], lhs, rhs }));
    }

    #[test]
    fn weight_gradients_contract_over_tokens() {
        let found = strided(&[4, 8, 16], &[4, 8, 32], [&[], &[]], [&[0, 1], &[0, 1]]);
        let expected =
            Strided { sizes: [1, 1, 16, 32, 32], lhs: [0, 0, 1, 16], rhs: [0, 0, 32, 1] };
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn multiple_strides_are_left_to_the_compiler() {
        assert_eq!(strided(&[4, 8, 16], &[8, 32], [&[], &[]], [&[1], &[0]]), None);
    }
}
