//! Masks: which keys a query attends to.

use crate::layers::dims;
use fullshard_graph::{Comparison, DType, Error, Result, Tensor, iota};
use std::ops::Range;

/// Which keys a query attends to: those that both the pattern and the keys of its row allow. A
/// query without any gives zeros.
#[derive(Debug, Clone)]
pub struct Mask {
    /// By the positions of the two.
    pub pattern: Pattern,
    /// Which keys of each row there are, `[batch, keys]` in `i1`; the others are padding. By
    /// default all.
    pub keys: Option<Tensor>,
}

/// Which keys a query attends to by the positions of the two, counted from the same start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pattern {
    /// Those up to its own.
    #[default]
    Causal,
    /// All. There may be more or fewer keys than queries.
    Full,
    /// The last ones up to its own, which counts: this number of them.
    Window(usize),
    /// Those up to its own, and all of this number of leading ones.
    Prefix(usize),
}

impl Mask {
    /// Keys up to the query's own.
    pub fn causal() -> Mask {
        Mask::of(Pattern::Causal)
    }

    /// All keys.
    pub fn full() -> Mask {
        Mask::of(Pattern::Full)
    }

    /// The last `size` keys up to the query's own, which counts.
    pub fn window(size: usize) -> Mask {
        Mask::of(Pattern::Window(size))
    }

    /// Keys up to the query's own, and all of the first `length`.
    pub fn prefix(length: usize) -> Mask {
        Mask::of(Pattern::Prefix(length))
    }

    fn of(pattern: Pattern) -> Mask {
        Mask { pattern, keys: None }
    }

    /// Without the keys that are padding, `[batch, keys]`: those where this is zero or false.
    pub fn without_padding(self, is_key: &Tensor) -> Result<Mask> {
        let [_, _] = dims("key mask", is_key)?;
        Ok(Mask { keys: Some(is_key.convert(DType::Bool)?), ..self })
    }

    /// Without the keys that are beyond the length of their row, of lengths `[batch]` in `i32`.
    pub fn with_lengths(self, lengths: &Tensor, keys: usize) -> Result<Mask> {
        let [batch] = dims("lengths", lengths)?;
        let position = iota(lengths.dtype(), &[batch, keys], 1)?;
        let is_key = position.compare(Comparison::Less, &lengths.expand(1)?)?;
        Ok(Mask { keys: Some(is_key), ..self })
    }

    /// Refuses what does not fit the numbers of queries and keys.
    pub(super) fn check(&self, batch: usize, queries: usize, keys: usize) -> Result<()> {
        if queries != keys && self.pattern != Pattern::Full {
            let reason = format!("a {} mask of {queries} queries and {keys} keys", self.pattern);
            return Err(Error::new("attention", reason));
        }
        if self.pattern == Pattern::Window(0) {
            return Err(Error::new("attention", "a window of 0 keys, in which nothing is seen"));
        }
        match &self.keys {
            Some(mask) if mask.dims() != [batch, keys] => {
                let reason = format!("a key mask {} for [{batch}, {keys}]", mask.ty());
                Err(Error::new("attention", reason))
            }
            _ => Ok(()),
        }
    }

    /// The keys of a range, for the queries of a block.
    pub(super) fn narrow(&self, keys: &Range<usize>) -> Result<Mask> {
        let narrow = |mask: &Tensor| mask.narrow(1, keys.start, keys.end);
        Ok(Mask { keys: self.keys.as_ref().map(narrow).transpose()?, ..*self })
    }

    /// Which scores `[..., queries, keys]` count: `None` if all do.
    pub(super) fn seen(
        &self,
        queries: &Range<usize>,
        keys: &Range<usize>,
    ) -> Result<Option<Tensor>> {
        let pattern = self.pattern.seen(queries, keys)?;
        let Some(mask) = &self.keys else { return Ok(pattern) };
        let [batch, count] = dims("key mask", mask)?;
        // As wide as scores are deep: `[batch, key heads, queries of each, queries, keys]`.
        let mask = mask.reshape(&[batch, 1, 1, 1, count])?;
        match pattern {
            Some(pattern) => pattern.and(&mask).map(Some),
            None => Ok(Some(mask)),
        }
    }
}

impl Pattern {
    /// The keys that any of a block of queries may attend to, of `keys` in all. Others are not
    /// computed.
    pub fn keys(self, queries: &Range<usize>, keys: usize) -> Range<usize> {
        match self {
            Pattern::Causal => 0..queries.end,
            Pattern::Full => 0..keys,
            Pattern::Window(size) => (queries.start + 1).saturating_sub(size)..queries.end,
            Pattern::Prefix(length) => 0..queries.end.max(length.min(keys)),
        }
    }

    /// Which of a range of keys each of a range of queries attends to, `[queries, keys]`: `None`
    /// if all.
    fn seen(self, queries: &Range<usize>, keys: &Range<usize>) -> Result<Option<Tensor>> {
        if self == Pattern::Full {
            return Ok(None);
        }
        let dims = [queries.len(), keys.len()];
        let query = (iota(DType::I32, &dims, 0)? + queries.start as f64)?;
        let mut key = iota(DType::I32, &dims, 1)?;
        if keys.start > 0 {
            key = (key + keys.start as f64)?;
        }
        let causal = key.compare(Comparison::LessEqual, &query)?;
        let seen = match self {
            Pattern::Causal | Pattern::Full => causal,
            Pattern::Window(size) => {
                let first = (query - size as f64)?;
                causal.and(&key.compare(Comparison::Greater, &first)?)?
            }
            Pattern::Prefix(length) => {
                let end = fullshard_graph::full(DType::I32, &[], length as f64)?;
                causal.or(&key.compare(Comparison::Less, &end)?)?
            }
        };
        Ok(Some(seen))
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pattern::Causal => f.write_str("causal"),
            Pattern::Full => f.write_str("full"),
            Pattern::Window(size) => write!(f, "window of {size}"),
            Pattern::Prefix(length) => write!(f, "prefix of {length}"),
        }
    }
}
