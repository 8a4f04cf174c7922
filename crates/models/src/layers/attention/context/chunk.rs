//! Chunks of the sequence, early and late, and the merging of their partial results.

use fullshard_graph::{Result, Tensor, concatenate, select, zeros};

/// A chunk of the sequence.
#[derive(Clone)]
pub(super) struct Chunk {
    /// Tensors of its tokens.
    pub tensors: Vec<Tensor>,
    /// The position of the first token, an `i32` scalar.
    pub start: Tensor,
}

/// What belongs to the two chunks of a device.
pub(super) struct Pair<T> {
    pub early: T,
    pub late: T,
}

impl Pair<Chunk> {
    /// Splits tensors of both chunks along the dimension of tokens.
    pub fn chunks(tensors: &[Tensor], dim: usize, starts: [Tensor; 2]) -> Result<Pair<Chunk>> {
        let mut chunks = [Vec::new(), Vec::new()];
        for tensor in tensors {
            let half = tensor.dims()[dim] / 2;
            chunks[0].push(tensor.narrow(dim, 0, half)?);
            chunks[1].push(tensor.narrow(dim, half, 2 * half)?);
        }
        let ([early, late], [early_start, late_start]) = (chunks, starts);
        Ok(Pair {
            early: Chunk { tensors: early, start: early_start },
            late: Chunk { tensors: late, start: late_start },
        })
    }

    /// The early chunk if the condition holds, else the late one.
    pub fn select(&self, is_early: &Tensor) -> Result<Chunk> {
        let tensors = select_all(is_early, &self.early.tensors, &self.late.tensors)?;
        Ok(Chunk { tensors, start: select(is_early, &self.early.start, &self.late.start)? })
    }
}

impl Pair<Tensor> {
    /// Adds to the early tensor if the condition holds, else to the late one.
    pub fn add(&self, is_early: &Tensor, x: &Tensor) -> Result<Pair<Tensor>> {
        let zero = zeros(x.dtype(), &[])?;
        let early = (&self.early + select(is_early, x, &zero)?)?;
        Ok(Pair { early, late: (&self.late + select(is_early, &zero, x)?)? })
    }

    /// Both, along the dimension of tokens.
    pub fn join(&self, dim: usize) -> Result<Tensor> {
        concatenate(&[&self.early, &self.late], dim)
    }
}

/// Selects each of a list of tensors.
pub(super) fn select_all(is_yes: &Tensor, yes: &[Tensor], no: &[Tensor]) -> Result<Vec<Tensor>> {
    yes.iter().zip(no).map(|(yes, no)| select(is_yes, yes, no)).collect()
}

/// The output and statistics of queries over the keys of two blocks, from those over each.
pub(super) fn merge(a: &[Tensor], b: &[Tensor]) -> Result<Vec<Tensor>> {
    let apart = (&a[1] - &b[1])?;
    let stats = (a[1].maximum(&b[1])? + (-&apart.abs()?)?.exp()?.log1p()?)?;
    let weighted = |part: &[Tensor]| &part[0] * (&part[1] - &stats)?.exp()?.expand(3)?;
    Ok(vec![(weighted(a)? + weighted(b)?)?, stats])
}

/// Keys and values as one tensor, so that one collective moves both.
pub(super) fn stack(key: &Tensor, value: &Tensor) -> Result<Tensor> {
    concatenate(&[&key.expand(0)?, &value.expand(0)?], 0)
}

/// The inverse of [`stack`].
pub(super) fn unstack(keys: &Tensor) -> Result<[Tensor; 2]> {
    let part = |i: usize| keys.narrow(0, i, i + 1)?.reshape(&keys.dims()[1..]);
    Ok([part(0)?, part(1)?])
}
