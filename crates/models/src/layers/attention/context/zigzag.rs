//! The order of tokens on the devices of a context axis.

use fullshard_graph::{DType, Error, Group, Result, Tensor, concatenate, full, iota};

/// A sequence sharded over `n` devices in `2n` chunks: device `c` holds chunks `c` and `2n-1-c`, in
/// this order. Early tokens attend to few others and late ones to many, so every device has the
/// same number of causal scores.
#[derive(Debug, Clone)]
pub struct Zigzag {
    group: Group,
    chunk: usize,
}

impl Zigzag {
    /// The order of a sequence of this length over the devices of a group.
    pub fn new(group: &Group, sequence: usize) -> Result<Zigzag> {
        Ok(Zigzag { group: group.clone(), chunk: chunk_length(sequence, group.size())? })
    }

    /// The length of a chunk.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// The length of the sequence.
    pub fn sequence(&self) -> usize {
        2 * self.group.size() * self.chunk
    }

    /// The positions of this device's two chunks, each an `i32` scalar: that of its first token.
    pub fn starts(&self) -> Result<[Tensor; 2]> {
        self.starts_of(&self.group.index()?)
    }

    /// The positions of the two chunks of the device at an index.
    pub(super) fn starts_of(&self, device: &Tensor) -> Result<[Tensor; 2]> {
        let last = full(DType::I32, &[], (2 * self.group.size() - 1) as f64)?;
        let chunk = self.chunk as f64;
        Ok([(device * chunk)?, ((last - device)? * chunk)?])
    }

    /// The positions of this device's tokens, `i32`.
    pub fn positions(&self) -> Result<Tensor> {
        let chunk = iota(DType::I32, &[self.chunk], 0)?;
        let [early, late] = self.starts()?;
        concatenate(&[&(&chunk + early)?, &(chunk + late)?], 0)
    }

    /// This device's tokens of a tensor whose dimension `dim` is the full sequence.
    pub fn shard(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        self.check(x, dim)?;
        let mut sizes = x.dims().to_vec();
        sizes[dim] = self.chunk;
        let zero = full(DType::I32, &[], 0.0)?;
        let at = |start: Tensor| {
            let mut starts = vec![&zero; x.rank()];
            starts[dim] = &start;
            x.dynamic_slice(&starts, &sizes)
        };
        let [early, late] = self.starts()?;
        concatenate(&[&at(early)?, &at(late)?], dim)
    }

    /// The order of positions in a tensor whose dimension `dim` was all-gathered, device by device.
    pub fn by_position(&self, gathered: &Tensor, dim: usize) -> Result<Tensor> {
        self.check(gathered, dim)?;
        let chunks = gathered.split(dim, 2 * self.group.size())?;
        let early = chunks.iter().step_by(2);
        let late = chunks.iter().skip(1).step_by(2).rev();
        concatenate(&early.chain(late).collect::<Vec<_>>(), dim)
    }

    fn check(&self, x: &Tensor, dim: usize) -> Result<()> {
        let sequence = self.sequence();
        if x.dims().get(dim) == Some(&sequence) {
            return Ok(());
        }
        let reason = format!("dimension {dim} of {} is not a sequence of {sequence}", x.ty());
        Err(Error::new("context", reason))
    }
}

/// The length of each of the `2n` chunks of a sequence over `n` devices.
pub fn chunk_length(sequence: usize, devices: usize) -> Result<usize> {
    let chunks = 2 * devices;
    if chunks > 0 && sequence > 0 && sequence.is_multiple_of(chunks) {
        return Ok(sequence / chunks);
    }
    let above = sequence.max(1).next_multiple_of(chunks.max(1));
    let nearest = match above.saturating_sub(chunks) {
        0 => format!("{above}"),
        below => format!("{below} or {above}"),
    };
    let reason = format!(
        "the sequence length {sequence} must be a multiple of {chunks}, twice the size {devices} of \
         the context axis; the nearest is {nearest}"
    );
    Err(Error::new("context", reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_lengths_that_do_not_divide() {
        assert_eq!(chunk_length(4096, 4).ok(), Some(512));
        let error = |sequence, devices| chunk_length(sequence, devices).unwrap_err().to_string();
        assert_eq!(
            error(1000, 8),
            "context: the sequence length 1000 must be a multiple of 16, twice the size 8 of the \
             context axis; the nearest is 992 or 1008"
        );
        assert!(error(5, 4).ends_with("the nearest is 8"));
        assert!(error(0, 2).ends_with("the nearest is 4"));
    }
}
