//! Masks: which keys a query attends to.

use crate::layers::dims;
use fullshard_graph::{Comparison, DType, Error, Result, Tensor, iota};
use std::ops::Range;

/// Which keys a query attends to: those that both the pattern and the padding of its row allow. The
/// output of a query without any is zero.
#[derive(Debug, Clone)]
pub struct Mask {
    /// The pattern by position.
    pub pattern: Pattern,
    /// The valid keys of each row, `[batch, keys]` in `i1`; the others are padding. By default
    /// all.
    pub keys: Option<Tensor>,
}

/// Which keys a query attends to by position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pattern {
    /// Keys up to its own position.
    #[default]
    Causal,
    /// All keys. There may be more or fewer keys than queries.
    Full,
    /// The last keys up to its own position, inclusive: this number of them.
    Window(usize),
    /// Keys up to its own position, and all of this number of leading keys.
    Prefix(usize),
}

impl Mask {
    /// Keys up to the query's position.
    pub fn causal() -> Mask {
        Mask::of(Pattern::Causal)
    }

    /// All keys.
    pub fn full() -> Mask {
        Mask::of(Pattern::Full)
    }

    /// The last `size` keys up to the query's position, inclusive.
    pub fn window(size: usize) -> Mask {
        Mask::of(Pattern::Window(size))
    }

    /// Keys up to the query's position, and all of the first `length`.
    pub fn prefix(length: usize) -> Mask {
        Mask::of(Pattern::Prefix(length))
    }

    fn of(pattern: Pattern) -> Mask {
        Mask { pattern, keys: None }
    }

    /// Excludes padding keys: those where `[batch, keys]` is zero or false.
    pub fn without_padding(self, is_key: &Tensor) -> Result<Mask> {
        let [_, _] = dims("key mask", is_key)?;
        Ok(Mask { keys: Some(is_key.convert(DType::Bool)?), ..self })
    }

    /// Excludes keys beyond the length of their row, given lengths `[batch]` in `i32`.
    pub fn with_lengths(self, lengths: &Tensor, keys: usize) -> Result<Mask> {
        let [batch] = dims("lengths", lengths)?;
        let position = iota(lengths.dtype(), &[batch, keys], 1)?;
        let is_key = position.compare(Comparison::Less, &lengths.expand(1)?)?;
        Ok(Mask { keys: Some(is_key), ..self })
    }

    /// Checks the mask against the numbers of queries and keys.
    pub(super) fn check(&self, batch: usize, queries: usize, keys: usize) -> Result<()> {
        if queries != keys && self.pattern != Pattern::Full {
            let reason = format!("a {} mask of {queries} queries and {keys} keys", self.pattern);
            return Err(Error::new("attention", reason));
        }
        if self.pattern == Pattern::Window(0) {
            return Err(Error::new("attention", "a window of 0 keys"));
        }
        match &self.keys {
            Some(mask) if mask.dims() != [batch, keys] => {
                let reason = format!("a key mask {} for [{batch}, {keys}]", mask.ty());
                Err(Error::new("attention", reason))
            }
            _ => Ok(()),
        }
    }

    /// The mask for a range of keys.
    pub(super) fn narrow(&self, keys: &Range<usize>) -> Result<Mask> {
        let narrow = |mask: &Tensor| mask.narrow(1, keys.start, keys.end);
        Ok(Mask { keys: self.keys.as_ref().map(narrow).transpose()?, ..*self })
    }

    /// Which scores `[..., queries, keys]` count: `None` if all do.
    pub(super) fn allowed(
        &self,
        queries: &Range<usize>,
        keys: &Range<usize>,
    ) -> Result<Option<Tensor>> {
        let dims = [queries.len(), keys.len()];
        let query = (iota(DType::I32, &dims, 0)? + queries.start as f64)?;
        let mut key = iota(DType::I32, &dims, 1)?;
        if keys.start > 0 {
            key = (key + keys.start as f64)?;
        }
        self.allowed_at(&query, &key)
    }

    /// The same for the positions `[queries, keys]` of each query and key.
    pub(super) fn allowed_at(&self, query: &Tensor, key: &Tensor) -> Result<Option<Tensor>> {
        let pattern = self.pattern.allowed(query, key)?;
        let Some(mask) = &self.keys else { return Ok(pattern) };
        let [batch, count] = dims("key mask", mask)?;
        // The rank of scores: `[batch, key heads, group, queries, keys]`.
        let mask = mask.reshape(&[batch, 1, 1, 1, count])?;
        match pattern {
            Some(pattern) => pattern.and(&mask).map(Some),
            None => Ok(Some(mask)),
        }
    }
}

impl Pattern {
    /// The range of keys, of `keys` in total, that any of a block of queries may attend to. Others
    /// are not computed.
    pub fn keys(self, queries: &Range<usize>, keys: usize) -> Range<usize> {
        match self {
            Pattern::Causal => 0..queries.end,
            Pattern::Full => 0..keys,
            Pattern::Window(size) => (queries.start + 1).saturating_sub(size)..queries.end,
            Pattern::Prefix(length) => 0..queries.end.max(length.min(keys)),
        }
    }

    /// Which keys each query attends to, given the positions `[queries, keys]` of both: `None` if
    /// all.
    fn allowed(self, query: &Tensor, key: &Tensor) -> Result<Option<Tensor>> {
        if self == Pattern::Full {
            return Ok(None);
        }
        let causal = key.compare(Comparison::LessEqual, query)?;
        let allowed = match self {
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
        Ok(Some(allowed))
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
