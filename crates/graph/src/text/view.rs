//! Tensors that are views of others: transposed, sliced and reshaped without copying. A call that
//! takes strides needs none of them materialized.

use crate::graph::{Graph, ValueId};
use crate::op::Op;

/// A strided view of a dense tensor.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct View {
    /// The dense tensor.
    pub base: ValueId,
    /// The offset of the first element.
    pub offset: usize,
    /// The stride of each dimension.
    pub strides: Vec<usize>,
}

/// The node that computes each value of a graph; none for parameters.
pub(super) fn producers(graph: &Graph) -> Vec<Option<usize>> {
    let mut producers = vec![None; graph.types.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        for output in &node.outputs {
            producers[output.index()] = Some(i);
        }
    }
    producers
}

/// A value as a view of the earliest tensor possible.
pub(super) fn view(graph: &Graph, producers: &[Option<usize>], value: ValueId) -> View {
    view_through(graph, producers, value).unwrap_or_else(|| View {
        base: value,
        offset: 0,
        strides: dense(&graph.ty(value).dims),
    })
}

/// The tensor that begins with a value's elements, or the value itself.
pub(super) fn longer(graph: &Graph, producers: &[Option<usize>], value: ValueId) -> ValueId {
    let view = view(graph, producers, value);
    let is_prefix = view.offset == 0 && view.strides == dense(&graph.ty(value).dims);
    if is_prefix { view.base } else { value }
}

/// The strides of a dense tensor.
pub(super) fn dense(dims: &[usize]) -> Vec<usize> {
    (0..dims.len()).map(|dim| dims[dim + 1..].iter().product()).collect()
}

fn view_through(graph: &Graph, producers: &[Option<usize>], value: ValueId) -> Option<View> {
    let node = &graph.nodes[producers[value.index()]?];
    let inner = || node.inputs.first().map(|&input| (input, view(graph, producers, input)));
    match &node.op {
        Op::Name(_) | Op::StopGradient => Some(inner()?.1),
        Op::Transpose { permutation } => {
            let (_, view) = inner()?;
            let strides = permutation.iter().map(|&dim| view.strides[dim]).collect();
            Some(View { strides, ..view })
        }
        Op::Slice { start, stride, .. } if stride.iter().all(|&stride| stride == 1) => {
            let (_, view) = inner()?;
            let skipped: usize = start.iter().zip(&view.strides).map(|(a, b)| a * b).sum();
            Some(View { offset: view.offset + skipped, ..view })
        }
        Op::Reshape => {
            let (input, view) = inner()?;
            let (from, to) = (&graph.ty(input).dims, &graph.ty(value).dims);
            Some(View { strides: reshaped(from, &view.strides, to)?, ..view })
        }
        _ => None,
    }
}

/// The strides of a reshaped view, if it is still a view.
fn reshaped(from: &[usize], strides: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let mut result = vec![0; to.len()];
    let (mut old, mut new) = (0, 0);
    while new < to.len() {
        // The fewest dimensions on both sides with equal numbers of elements.
        let (old_start, new_start) = (old, new);
        let (mut old_size, mut new_size) = (1, to[new]);
        new += 1;
        while old_size != new_size {
            if old_size < new_size {
                old_size *= from.get(old)?;
                old += 1;
            } else {
                new_size *= to.get(new)?;
                new += 1;
            }
        }
        // The stride of a dimension of size one does not matter.
        let group: Vec<usize> = (old_start..old).filter(|&dim| from[dim] != 1).collect();
        let contiguous = |pair: &[usize]| strides[pair[0]] == from[pair[1]] * strides[pair[1]];
        if !group.windows(2).all(contiguous) {
            return None;
        }
        let mut stride = group.last().map_or(0, |&dim| strides[dim]);
        for dim in (new_start..new).rev() {
            result[dim] = stride;
            stride *= to[dim];
        }
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_heads_are_a_view() {
        // [2, 64, 96] of a projection [2, 64, 288], as [2, 64, 3, 32].
        assert_eq!(
            reshaped(&[2, 64, 96], &[18432, 288, 1], &[2, 64, 3, 32]),
            Some(vec![18432, 288, 32, 1])
        );
    }

    #[test]
    fn contiguous_dims_can_be_merged() {
        assert_eq!(reshaped(&[4, 8, 16], &[128, 16, 1], &[32, 16]), Some(vec![16, 1]));
        assert_eq!(reshaped(&[4, 8, 16], &[256, 32, 1], &[32, 16]), Some(vec![32, 1]));
        assert_eq!(reshaped(&[4, 8, 16], &[128, 16, 1], &[1, 4, 128]), Some(vec![0, 128, 1]));
    }

    #[test]
    fn non_contiguous_dims_cannot_be_merged() {
        assert_eq!(reshaped(&[4, 8, 16], &[16, 64, 1], &[32, 16]), None);
        assert_eq!(reshaped(&[4, 8], &[16, 1], &[8, 4]), None);
    }
}
