//! Cutting the tokens of examples into blocks of one length.

/// How the tokens of examples become blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grouping {
    /// As `run_clm` does: every 1000 examples are joined and cut, and what remains is dropped.
    Blocks,
    /// All examples as one stream, cut; nothing is dropped, so the last block may be shorter.
    Packed,
}

/// `run_clm` works on this many examples at a time: the default of `datasets`' `map`.
pub(crate) const BATCH: u64 = 1000;

/// Joins the tokens of examples and gives out those that end up in blocks.
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

    /// Takes the tokens of the next example, and hands on whatever is certain to stay.
    pub(crate) fn push<E>(
        &mut self,
        tokens: &[u32],
        emit: &mut impl FnMut(&[u32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.pending.extend_from_slice(tokens);
        let whole = self.pending.len() / self.block_size * self.block_size;
        if whole > 0 {
            emit(&self.pending[..whole])?;
            self.pending.drain(..whole);
        }
        self.examples += 1;
        if self.grouping == Grouping::Blocks && self.examples.is_multiple_of(BATCH) {
            self.pending.clear();
        }
        Ok(())
    }

    /// Hands on what the last block has.
    pub(crate) fn finish<E>(self, emit: &mut impl FnMut(&[u32]) -> Result<(), E>) -> Result<(), E> {
        match self.grouping {
            Grouping::Blocks => Ok(()),
            Grouping::Packed => emit(&self.pending),
        }
    }
}
