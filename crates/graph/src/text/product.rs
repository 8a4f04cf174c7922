//! Matrix products that are called by name instead of being left to the compiler.
//!
//! A platform that knows [`PRODUCT`] computes two operands of `f32` into a dense result, as its
//! attributes say: `sizes` has two batch sizes, rows, columns and what is summed over; `lhs` and
//! `rhs` have the strides of both batches, then of rows and sums, and of sums and columns;
//! `offsets` where each begins. So an operand that is only a view of another tensor is not written
//! out first.

use super::types::mlir;
use super::view::View;
use super::{Names, Writer};
use crate::graph::{Graph, Node};
use crate::op::DotDims;
use fullshard_core::{DType, TensorType};
use std::rc::Rc;

/// The name that platforms know products by.
pub const PRODUCT: &str = "fullshard.product";

/// Below so many multiplications a matrix, a call costs more than it saves.
const LEAST: usize = 1 << 15;

/// A dimension in both operands: its size and strides.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Shared {
    size: usize,
    lhs: usize,
    rhs: usize,
}

/// A product as sizes and strides.
#[derive(PartialEq, Debug)]
struct Strided {
    sizes: [usize; 5],
    lhs: [usize; 4],
    rhs: [usize; 4],
}

impl Writer {
    /// Writes a product of views as a call, if it is one that a call is good for.
    pub(super) fn product_of(
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
        let short = |ty: &TensorType| matches!(ty.dtype, DType::F32 | DType::Bf16 | DType::F16);
        if !strided.is_large() || !short(lhs) || !short(result) {
            return None;
        }
        let mut operands = Vec::new();
        for view in views {
            let name = names[view.base.index()].clone()?;
            let base = self.converted(&name, graph.ty(view.base), DType::F32, &node.path);
            operands.push((base, wide(graph.ty(view.base))));
        }
        let text = format!(
            "stablehlo.custom_call @{PRODUCT}({}, {}) {{api_version = 4 : i32, backend_config = \
             {{lhs = {}, offsets = {}, rhs = {}, sizes = {}}}}}",
            operands[0].0,
            operands[1].0,
            integers(&strided.lhs),
            integers(&[lhs_view.offset, rhs_view.offset]),
            integers(&strided.rhs),
            integers(&strided.sizes),
        );
        let types = format!(
            "({}, {}) -> {}",
            mlir(&operands[0].1),
            mlir(&operands[1].1),
            mlir(&wide(result))
        );
        let product = self.op_one(&text, &types, &node.path);
        Some(vec![self.converted(&product, &wide(result), result.dtype, &node.path)])
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
    /// The product of two views, if rows, columns and sums have one stride each and there are at
    /// most two batches.
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
            // The other operand does not have the dimension, so its stride never stands in the way.
            merged(free.map(|dim| Shared { size: dims[dim], lhs: strides[dim], rhs: 0 }))
        };
        let batches = shared(&dims.lhs_batch, &dims.rhs_batch);
        let rows = one(&free(lhs, lhs_strides, [&dims.lhs_batch, &dims.lhs_contract]))?;
        let columns = one(&free(&rhs.dims, rhs_strides, [&dims.rhs_batch, &dims.rhs_contract]))?;
        let sums = one(&shared(&dims.lhs_contract, &dims.rhs_contract))?;
        let nothing = Shared { size: 1, lhs: 0, rhs: 0 };
        let [outer, inner] = match batches[..] {
            [] => [nothing, nothing],
            [inner] => [nothing, inner],
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
        rows.min(columns).min(sums) > 1 && rows * columns * sums >= LEAST
    }
}

/// A type with its numbers in `f32`.
fn wide(ty: &TensorType) -> TensorType {
    TensorType::new(DType::F32, &ty.dims)
}

/// Dimensions with those put together that lie one inside the other in both operands.
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

/// The only dimension; none is one of size 1.
fn one(dims: &[Shared]) -> Option<Shared> {
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
    fn a_linear_layer_is_one_matrix_whatever_its_batch() {
        let found = strided(&[4, 8, 16], &[16, 32], [&[], &[]], [&[2], &[0]]);
        let sizes = [1, 1, 32, 32, 16];
        let expected = Strided { sizes, lhs: [0, 0, 16, 1], rhs: [0, 0, 32, 1] };
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn heads_need_no_transposing() {
        // bqhd,bkhd->bhqk
        let shape = [2, 64, 3, 16];
        let found = strided(&shape, &shape, [&[0, 2], &[0, 2]], [&[3], &[3]]);
        let (lhs, rhs) = ([3072, 16, 48, 1], [3072, 16, 1, 48]);
        assert_eq!(found, Some(Strided { sizes: [2, 3, 64, 64, 16], lhs, rhs }));
    }

    #[test]
    fn gradients_of_weights_sum_over_tokens() {
        let found = strided(&[4, 8, 16], &[4, 8, 32], [&[], &[]], [&[0, 1], &[0, 1]]);
        let expected =
            Strided { sizes: [1, 1, 16, 32, 32], lhs: [0, 0, 1, 16], rhs: [0, 0, 32, 1] };
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn what_has_no_single_stride_is_left_to_the_compiler() {
        assert_eq!(strided(&[4, 8, 16], &[8, 32], [&[], &[]], [&[1], &[0]]), None);
    }
}
