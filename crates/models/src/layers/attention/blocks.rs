//! Blocks of scores, a chunk of queries by a chunk of keys, in matmuls: some rows at a time, so that
//! the scores of long chunks are never all in memory.
//!
//! A block saves its output and the softmax statistics, the log-sum-exp of scores. The backward
//! pass recomputes probabilities from scores and statistics, in as many passes over the scores as
//! there are matmuls: that of the definition would also repeat the softmax, and differentiate it.

use super::context::Dropout;
use super::{Heads, Mask, Pattern, attn_out, grouped};
use crate::layers::{dims, min_finite, upcast, upcast_dtype};
use fullshard_graph::{
    DType, Draw, Error, Group, Key, Result, Tensor, concatenate, constant, einsum, full, iota,
    scan, select, zeros,
};
use std::ops::Range;

/// The most groups of rows of a masked block. Those of a group have the same keys, up to the last
/// that any of them attends to, so more groups compute less of the masked part.
const GROUPS: usize = 8;

/// The dimension of rows in grouped queries.
const ROWS: usize = 3;

/// The form of attention in matmuls.
#[derive(Clone)]
pub(super) struct Blocks<'a> {
    /// The scale of scores.
    pub scale: Tensor,
    /// Whether the matmuls of scores are in `f32`.
    pub upcast: bool,
    /// The rows whose scores are in memory.
    pub rows: usize,
    /// The dropout of probabilities, if any.
    pub dropout: Option<DropoutMask<'a>>,
    /// Whether results are in the dtype of the softmax, since they are merged with those of other
    /// blocks.
    pub partial: bool,
}

/// A chunk of queries, and other tensors of the same rows.
pub(super) struct Queries<'a> {
    /// Queries; for gradients, outputs, statistics and the gradients of outputs too.
    pub tensors: &'a [Tensor],
    /// The position of the first in the sequence, an `i32` scalar.
    pub start: &'a Tensor,
}

/// A chunk of keys and values.
pub(super) struct Keys<'a> {
    pub key: &'a Tensor,
    pub value: &'a Tensor,
    /// The position of the first in the sequence, an `i32` scalar.
    pub start: &'a Tensor,
    /// Which of these keys count, by positions in the chunks.
    pub mask: &'a Mask,
}

/// The dropout mask of a full sequence.
#[derive(Clone)]
pub(super) struct DropoutMask<'a> {
    pub shards: &'a Dropout,
    pub seed: Tensor,
    pub probability: f64,
    pub sequence: usize,
}

/// A block of scores: a chunk of queries by a chunk of keys.
struct Block<'a> {
    blocks: &'a Blocks<'a>,
    /// Tensors of the rows, with heads in groups that share keys.
    tensors: Vec<Tensor>,
    key: Tensor,
    value: Tensor,
    /// The positions of the first row and of the first key in the sequence.
    starts: [&'a Tensor; 2],
    mask: &'a Mask,
}

/// Some rows of a block, and the keys that they attend to.
struct Rows {
    /// Tensors of the rows.
    tensors: Vec<Tensor>,
    /// The first row in its chunk.
    first: Tensor,
    /// The first key in its chunk.
    first_key: usize,
    key: Tensor,
    value: Tensor,
    mask: Mask,
}

/// Carries from rows to rows, and results of rows.
type Results = (Vec<Tensor>, Vec<Tensor>);

impl Blocks<'_> {
    /// The output of a block and the softmax statistics.
    pub fn forward(&self, queries: &Queries<'_>, keys: &Keys<'_>) -> Result<Vec<Tensor>> {
        let block = self.block(queries, keys)?;
        let mut parts = Vec::new();
        for range in block.row_groups() {
            let (_, part) = block.run(&range, vec![], |_, rows| block.row_outputs(&rows))?;
            parts.push(part);
        }
        let [attn_out, stats] = joined(&parts)?;
        let dims = queries.tensors[0].dims();
        Ok(vec![attn_out.reshape(dims)?, stats.reshape(&dims[..3])?])
    }

    /// The gradients of the queries, keys and values of a block.
    pub fn gradients(&self, queries: &Queries<'_>, keys: &Keys<'_>) -> Result<[Tensor; 3]> {
        let mut block = self.block(queries, keys)?;
        let [query, attn_out, stats, gradient] = &block.tensors[..] else { return Err(invalid()) };
        // What the gradient of a softmax subtracts, one number per row.
        let delta = (upcast(attn_out)? * upcast(gradient)?)?.sum(&[4])?;
        block.tensors = vec![query.clone(), stats.clone(), gradient.clone(), delta];
        let none = zeros(upcast_dtype(block.key.dtype()), block.key.dims())?;
        let (mut of_key, mut of_value) = (none.clone(), none);
        let mut parts = Vec::new();
        for range in block.row_groups() {
            let [batch, heads, all, head] = dims("key", &block.key)?;
            let keys = block.mask.pattern.keys(&range, all);
            let none = zeros(of_key.dtype(), &[batch, heads, keys.len(), head])?;
            let carries = vec![none.clone(), none];
            let (sums, part) =
                block.run(&range, carries, |sums, rows| block.row_gradients(&sums, &rows))?;
            let (low, high) = ([0, 0, keys.start as i64, 0], [0, 0, (all - keys.end) as i64, 0]);
            let [key, value] = &sums[..] else { return Err(invalid()) };
            of_key = (of_key + key.pad(0.0, &low, &high, &[0; 4])?)?;
            of_value = (of_value + value.pad(0.0, &low, &high, &[0; 4])?)?;
            parts.push(part);
        }
        let [query] = joined(&parts)?;
        Ok([query.reshape(queries.tensors[0].dims())?, of_key, of_value])
    }

    fn block<'a>(&'a self, queries: &'a Queries<'a>, keys: &'a Keys<'a>) -> Result<Block<'a>> {
        let Keys { key, value, mask, .. } = *keys;
        let heads =
            Heads { query: queries.tensors[0].clone(), key: key.clone(), value: value.clone() };
        let Heads { query, key, value } = grouped(&heads, mask)?;
        let tensors = queries.tensors.iter().map(|x| {
            let split = query.dims()[..3].iter().chain(&x.dims()[2..]);
            x.reshape(&split.copied().collect::<Vec<_>>())
        });
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let starts = [queries.start, keys.start];
        Ok(Block { blocks: self, tensors, key, value, starts, mask })
    }
}

impl Block<'_> {
    /// The groups of rows that have the same keys.
    fn row_groups(&self) -> Vec<Range<usize>> {
        let (count, rows) = (self.tensors[0].dims()[ROWS], self.blocks.rows);
        let groups = if self.mask.pattern == Pattern::Full { 1 } else { GROUPS };
        let size = count.div_ceil(rows).div_ceil(groups) * rows;
        (0..count).step_by(size).map(|start| start..count.min(start + size)).collect()
    }

    /// Runs `body` on a group of rows, some at a time, in a loop if that is several times.
    fn run(
        &self,
        range: &Range<usize>,
        mut carries: Vec<Tensor>,
        body: impl Fn(Vec<Tensor>, Rows) -> Result<Results>,
    ) -> Result<Results> {
        let keys = self.mask.pattern.keys(range, self.key.dims()[2]);
        let own = |x: &Tensor| x.narrow(2, keys.start, keys.end);
        let (key, value, mask) = (own(&self.key)?, own(&self.value)?, self.mask.narrow(&keys)?);
        let rows = |mut tensors: Vec<Tensor>| {
            let first = tensors.pop().ok_or_else(invalid)?;
            let (key, value, mask) = (key.clone(), value.clone(), mask.clone());
            Ok(Rows { tensors, first, first_key: keys.start, key, value, mask })
        };
        let (at_once, mut parts) = (self.blocks.rows, Vec::new());
        // One time needs no loop.
        let times = if range.len() > at_once { range.len() / at_once } else { 0 };
        let rest = range.start + times * at_once;
        if times > 0 {
            let stacked = self.narrow(range.start..rest)?;
            let stacked = stacked.iter().map(|x| split_rows(x, times));
            let mut stacked = stacked.collect::<Result<Vec<_>>>()?;
            let first = (iota(DType::I32, &[times], 0)? * at_once as f64)?;
            stacked.push((first + range.start as f64)?);
            let inputs: Vec<&Tensor> = stacked.iter().collect();
            let looped = scan(&carries.iter().collect::<Vec<_>>(), &inputs);
            let results = looped.run(|carries, slices| body(carries, rows(slices)?))?;
            carries = results.carries;
            parts.push(results.stacked.iter().map(join_rows).collect::<Result<Vec<_>>>()?);
        }
        if rest < range.end {
            let mut tensors = self.narrow(rest..range.end)?;
            tensors.push(constant(&[], &[rest as i32])?);
            let (next, results) = body(carries, rows(tensors)?)?;
            carries = next;
            parts.push(results);
        }
        Ok((carries, concatenated(&parts)?))
    }

    fn narrow(&self, rows: Range<usize>) -> Result<Vec<Tensor>> {
        self.tensors.iter().map(|x| x.narrow(ROWS, rows.start, rows.end)).collect()
    }

    /// The output of rows and their statistics.
    fn row_outputs(&self, rows: &Rows) -> Result<Results> {
        let (logits, allowed) = self.logits(rows)?;
        let stats = logits.logsumexp(4)?;
        let probabilities = self.probabilities(rows, &logits, &stats, allowed.as_ref())?;
        let probabilities = probabilities.convert(rows.value.dtype())?;
        let attn_out = attn_out(&self.dropped(&probabilities, rows)?, &rows.value)?;
        Ok((vec![], vec![self.result(&attn_out)?, stats]))
    }

    /// Adds to the gradients of keys and values, and returns that of the queries of rows.
    fn row_gradients(&self, sums: &[Tensor], rows: &Rows) -> Result<Results> {
        let ([of_key, of_value], [_, stats, gradient, delta]) = (sums, &rows.tensors[..]) else {
            return Err(invalid());
        };
        let (logits, allowed) = self.logits(rows)?;
        let probabilities = self.probabilities(rows, &logits, stats, allowed.as_ref())?;
        let dropped = self.dropped(&probabilities.convert(rows.value.dtype())?, rows)?;
        let of_value = (of_value + upcast(&of_keys(&dropped, gradient)?)?)?;
        let through = upcast(&einsum("bgrqd,bgkd->bgrqk", gradient, &rows.value)?)?;
        let through = (self.dropped(&through, rows)? - delta.expand(4)?)?;
        let [query, key] = self.operands(rows)?;
        let of_logits = ((probabilities * through)? * &self.blocks.scale)?;
        let of_logits = of_logits.convert(query.dtype())?;
        let of_key = (of_key + upcast(&of_keys(&of_logits, &query)?)?)?;
        Ok((vec![of_key, of_value], vec![self.result(&attn_out(&of_logits, &key)?)?]))
    }

    fn result(&self, x: &Tensor) -> Result<Tensor> {
        if self.blocks.partial { upcast(x) } else { x.convert(self.value.dtype()) }
    }

    /// The probabilities of scores with known statistics.
    fn probabilities(
        &self,
        rows: &Rows,
        logits: &Tensor,
        stats: &Tensor,
        allowed: Option<&Tensor>,
    ) -> Result<Tensor> {
        let probabilities = (logits - stats.expand(4)?)?.exp()?;
        match allowed.filter(|_| rows.mask.keys.is_some()) {
            // A query may attend to no key, and its statistics are then those of masked scores.
            Some(allowed) => select(allowed, &probabilities, &zeros(logits.dtype(), &[])?),
            None => Ok(probabilities),
        }
    }

    /// Queries and keys in the dtype of the matmuls of scores.
    fn operands(&self, rows: &Rows) -> Result<[Tensor; 2]> {
        let query = rows.tensors.first().ok_or_else(invalid)?;
        match self.blocks.upcast {
            true => Ok([upcast(query)?, upcast(&rows.key)?]),
            false => Ok([query.clone(), rows.key.clone()]),
        }
    }

    /// The masked scores of rows, `[batch, key heads, group, rows, keys]`, and which of them count.
    fn logits(&self, rows: &Rows) -> Result<(Tensor, Option<Tensor>)> {
        let [query, key] = self.operands(rows)?;
        let logits = upcast(&einsum("bgrqd,bgkd->bgrqk", &query, &key)?)?;
        let logits = (logits * &self.blocks.scale)?;
        let dims = [logits.dims()[3], logits.dims()[4]];
        let query = (iota(DType::I32, &dims, 0)? + &rows.first)?;
        let key = (iota(DType::I32, &dims, 1)? + rows.first_key as f64)?;
        let allowed = rows.mask.allowed_at(&query, &key)?;
        let logits = match &allowed {
            Some(allowed) => {
                select(allowed, &logits, &full(logits.dtype(), &[], min_finite(logits.dtype()))?)?
            }
            None => logits,
        };
        Ok((logits, allowed))
    }

    /// Applies the dropout mask to the probabilities of rows, or to their gradient.
    fn dropped(&self, x: &Tensor, rows: &Rows) -> Result<Tensor> {
        let Some(mask) = &self.blocks.dropout else { return Ok(x.clone()) };
        let [batch, groups, shared, queries, keys] = dims("probabilities", x)?;
        let heads = groups * shared;
        let positions = |count, start: &Tensor| iota(DType::I32, &[count], 0)? + start;
        let draw = mask.draw(batch, heads)?;
        let draw = draw.at(2, &positions(queries, &(self.starts[0] + &rows.first)?)?)?;
        let draw = draw.at(3, &positions(keys, &(self.starts[1] + rows.first_key as f64)?)?)?;
        let x = &x.reshape(&[batch, heads, queries, keys])?;
        let dropped = draw.dropout(x, mask.probability)?;
        dropped.reshape(&[batch, groups, shared, queries, keys])
    }
}

impl DropoutMask<'_> {
    /// The mask of all queries and keys for this device's rows of the batch and heads.
    fn draw(&self, batch: usize, heads: usize) -> Result<Draw> {
        let size = |group: &Option<Group>| group.as_ref().map_or(1, Group::size);
        let (batch, heads) = (batch * size(&self.shards.batch), heads * size(&self.shards.heads));
        let mut draw = Key::new(&self.seed)?.draw(&[batch, heads, self.sequence, self.sequence]);
        for (dim, group) in [&self.shards.batch, &self.shards.heads].into_iter().enumerate() {
            if let Some(group) = group {
                draw = draw.shard(dim, group)?;
            }
        }
        Ok(draw)
    }
}

/// The sums over rows, for each key, of the rows weighted by their scores.
fn of_keys(scores: &Tensor, rows: &Tensor) -> Result<Tensor> {
    einsum("bgrqk,bgrqd->bgkd", scores, rows)
}

fn invalid() -> Error {
    Error::new("attention", "a block has queries, keys and values")
}

/// Splits rows into blocks along a new first dimension.
fn split_rows(x: &Tensor, blocks: usize) -> Result<Tensor> {
    let mut split = x.dims().to_vec();
    split[ROWS] /= blocks;
    split.insert(ROWS, blocks);
    let mut order: Vec<usize> = (0..split.len()).collect();
    order[..=ROWS].rotate_right(1);
    x.reshape(&split)?.transpose(&order)
}

/// The inverse of [`split_rows`].
fn join_rows(x: &Tensor) -> Result<Tensor> {
    let mut order: Vec<usize> = (0..x.rank()).collect();
    order[..=ROWS].rotate_left(1);
    let split = x.transpose(&order)?;
    let mut dims = split.dims().to_vec();
    let blocks = dims.remove(ROWS);
    dims[ROWS] *= blocks;
    split.reshape(&dims)
}

/// The results of all rows from those of parts, each a list.
fn concatenated(parts: &[Vec<Tensor>]) -> Result<Vec<Tensor>> {
    let count = parts.first().map_or(0, Vec::len);
    let result =
        |i: usize| concatenate(&parts.iter().map(|part| &part[i]).collect::<Vec<_>>(), ROWS);
    (0..count).map(result).collect()
}

fn joined<const COUNT: usize>(parts: &[Vec<Tensor>]) -> Result<[Tensor; COUNT]> {
    concatenated(parts)?.try_into().map_err(|_| invalid())
}
