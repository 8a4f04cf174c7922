//! Grouping the tokens of examples into blocks of equal length.

/// How the tokens of examples are grouped into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grouping {
    /// As in `run_clm`: every 1000 examples are concatenated and split; the remainder is dropped.
    Blocks,
    /// All examples are concatenated and split; nothing is dropped, the last block may be shorter.
    Packed,
}

/// Examples per batch in `run_clm`: the default of `datasets`' `map`.
pub(crate) const BATCH: u64 = 1000;

/// Concatenates the tokens of examples and emits those that end up in blocks.
pub(crate) struct Grouper {
    grouping: Grouping,
    block_size: usize,
    pending: Vec<u32>,
    examples: u64,
}

impl Grouper {
    pub(crate) fn new(grouping: Grouping, block_size: usize) -> Self {
        Self { grouping, block_size, pending: Vec::new(), examples: 0 }
    }

    /// Adds the tokens of the next example and emits all complete blocks.
    pub(crate) fn push<E>(
        &mut self,
        tokens: &[u32],
        emit: &mut impl FnMut(&[u32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.pending.extend_from_slice(tokens);
        let complete = self.pending.len() / self.block_size * self.block_size;
        if complete > 0 {
            emit(&self.pending[..complete])?;
            self.pending.drain(..complete);
        }
        self.examples += 1;
        if self.grouping == Grouping::Blocks && self.examples.is_multiple_of(BATCH) {
            self.pending.clear();
        }
        Ok(())
    }

    /// Emits the last, partial block of a packed corpus.
    pub(crate) fn finish<E>(self, emit: &mut impl FnMut(&[u32]) -> Result<(), E>) -> Result<(), E> {
        match self.grouping {
            Grouping::Blocks => Ok(()),
            Grouping::Packed => emit(&self.pending),
        }
    }
}
