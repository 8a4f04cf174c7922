//! Row and column statistics of a parameter that is flat or sharded on its first dim.
//!
//! Such a shard is a contiguous range of elements in row-major order. Padded with
//! zeros to complete rows, it has row and column sums by plain reductions; summed over devices they
//! are those of the full parameter. Factors for rows and columns map back to the elements of the
//! shard the same way.

use crate::shard::Shard;
use fullshard_graph::{DType, Group, Result, Tensor, full, iota, zeros};

/// A parameter of rank two or more as a batch of matrices, for each layer of a stack, and the local
/// range of its elements.
pub(crate) struct Matrices {
    stack: usize,
    batch: usize,
    rows: usize,
    columns: usize,
    /// The number of elements per shard, and of shards.
    local: usize,
    parts: usize,
    /// The index of the local shard.
    index: Tensor,
    local_dims: Vec<usize>,
}

/// The range of local items, such as rows, among all items.
struct Window {
    start: Tensor,
    length: usize,
    /// The end of the last device's range, which may exceed the total.
    end: usize,
}

impl Matrices {
    /// The matrices of a parameter; `None` if its rank is below two.
    pub(crate) fn of(shard: &Shard) -> Result<Option<Matrices>> {
        let [leading @ .., rows, columns] = shard.dims.as_slice() else { return Ok(None) };
        let index = shard.layout_group().map(Group::index).transpose()?;
        let stack = shard.stack.unwrap_or(1);
        let local_dims = shard.local_dims();
        Ok(Some(Matrices {
            stack,
            batch: leading.iter().product(),
            rows: *rows,
            columns: *columns,
            local: local_dims.iter().product::<usize>() / stack.max(1),
            parts: shard.parts(),
            index: index.map_or_else(|| zeros(DType::I32, &[]), Ok)?,
            local_dims,
        }))
    }

    /// The row sums `[stack, batch, rows]` and column sums `[stack, batch, columns]` of the local
    /// elements, zero for rows and columns without any.
    pub(crate) fn sums(&self, elements: &Tensor) -> Result<(Tensor, Tensor)> {
        let elements = self.to_rows(elements)?;
        let rows = self.row_window()?.place(&elements.sum(&[2])?, self.batch * self.rows)?;
        let rows = rows.reshape(&[self.stack, self.batch, self.rows])?;
        Ok((rows, self.column_sums(&elements)?))
    }

    fn column_sums(&self, elements: &Tensor) -> Result<Tensor> {
        let Matrices { stack, batch, rows, columns, .. } = *self;
        if batch == 1 {
            return elements.sum(&[1])?.reshape(&[stack, 1, columns]);
        }
        if self.holds_full_matrices() {
            let count = self.local / (rows * columns);
            let sums = elements.reshape(&[stack, count, rows, columns])?.sum(&[2])?;
            return self.window(rows * columns, count)?.place(&sums, batch);
        }
        // Segment sum of rows by matrix; padding rows are zero.
        let elements = elements.transpose(&[1, 0, 2])?;
        let sums = zeros(DType::F32, &[batch, stack, columns])?;
        sums.add_rows(&self.matrix_of_row()?, &elements)?.transpose(&[1, 0, 2])
    }

    /// For each local element, the factor of its row, from `[stack, batch, rows]`, times that of
    /// its column, from `[stack, batch, columns]`.
    pub(crate) fn outer_products(&self, rows: &Tensor, columns: &Tensor) -> Result<Tensor> {
        let rows = rows.reshape(&[self.stack, self.batch * self.rows])?;
        let rows = self.row_window()?.take(&rows)?.expand(2)?;
        self.to_elements(&(rows * self.column_of_row(columns)?)?)
    }

    /// Column factors per local row, or one for all rows.
    fn column_of_row(&self, factors: &Tensor) -> Result<Tensor> {
        let Matrices { stack, batch, rows, columns, .. } = *self;
        if batch == 1 {
            return Ok(factors.clone());
        }
        if self.holds_full_matrices() {
            let count = self.local / (rows * columns);
            let factors = self.window(rows * columns, count)?.take(factors)?.expand(2)?;
            let factors = factors.broadcast_to(&[stack, count, rows, columns])?;
            return factors.reshape(&[stack, count * rows, columns]);
        }
        factors.transpose(&[1, 0, 2])?.take(&self.matrix_of_row()?)?.transpose(&[1, 0, 2])
    }

    fn holds_full_matrices(&self) -> bool {
        self.local.is_multiple_of(self.rows * self.columns)
    }

    /// The maximum offset in its first row at which a shard begins.
    fn max_shift(&self) -> usize {
        let aligned = self.parts == 1 || self.local.is_multiple_of(self.columns);
        if aligned { 0 } else { self.columns - 1 }
    }

    /// The maximum number of rows that a shard overlaps.
    fn local_rows(&self) -> usize {
        (self.max_shift() + self.local).div_ceil(self.columns)
    }

    fn row_window(&self) -> Result<Window> {
        self.window(self.columns, self.local_rows())
    }

    /// The window of local items of `elements` elements each.
    fn window(&self, elements: usize, length: usize) -> Result<Window> {
        let last = (self.parts - 1) * self.local / elements;
        // The index of the first element, divided in two terms: it might not fit into 32 bits.
        let quotient = (&self.index * (self.local / elements) as f64)?;
        let remainder = ((&self.index * (self.local % elements) as f64)? / elements as f64)?;
        Ok(Window { start: (quotient + remainder)?, length, end: last + length })
    }

    /// The offset in its first row at which the shard begins.
    fn shift(&self) -> Result<Tensor> {
        let columns = full(DType::I32, &[], self.columns as f64)?;
        (&self.index * (self.local % self.columns) as f64)?.remainder(&columns)
    }

    /// The matrix index of each local row.
    fn matrix_of_row(&self) -> Result<Tensor> {
        let row = iota(DType::I32, &[self.local_rows()], 0)?;
        (row + self.row_window()?.start)? / self.rows as f64
    }

    /// The shard padded to complete rows: `[stack, rows, columns]`.
    fn to_rows(&self, elements: &Tensor) -> Result<Tensor> {
        let (rows, columns) = (self.local_rows(), self.columns);
        let mut flat = elements.reshape(&[self.stack, self.local])?;
        if rows * columns != self.local {
            let zero = zeros(DType::I32, &[])?;
            let padded = zeros(DType::F32, &[self.stack, rows * columns])?;
            flat = padded.dynamic_update_slice(&flat, &[&zero, &self.shift()?])?;
        }
        flat.reshape(&[self.stack, rows, columns])
    }

    /// The shard from complete rows, in the dimensions of the local tensor.
    fn to_elements(&self, rows: &Tensor) -> Result<Tensor> {
        let padded = self.local_rows() * self.columns;
        let mut flat = rows.reshape(&[self.stack, padded])?;
        if padded != self.local {
            let zero = zeros(DType::I32, &[])?;
            flat = flat.dynamic_slice(&[&zero, &self.shift()?], &[self.stack, self.local])?;
        }
        flat.reshape(&self.local_dims)
    }
}

impl Window {
    /// Local items, along dimension 1, at their position among `total`; zeros elsewhere.
    fn place(&self, items: &Tensor, total: usize) -> Result<Tensor> {
        if self.end == self.length {
            return items.narrow(1, 0, total);
        }
        let mut dims = items.dims().to_vec();
        dims[1] = self.end;
        let starts = self.starts(items.rank())?;
        let placed = zeros(DType::F32, &dims)?
            .dynamic_update_slice(items, &starts.iter().collect::<Vec<_>>())?;
        placed.narrow(1, 0, total)
    }

    /// The local ones of all items, along dimension 1; zeros beyond the end.
    fn take(&self, items: &Tensor) -> Result<Tensor> {
        let rank = items.rank();
        let mut padding = vec![0; rank];
        padding[1] = self.end as i64 - items.dims()[1] as i64;
        let padded = items.pad(0.0, &vec![0; rank], &padding, &vec![0; rank])?;
        if self.end == self.length {
            return Ok(padded);
        }
        let mut sizes = items.dims().to_vec();
        sizes[1] = self.length;
        padded.dynamic_slice(&self.starts(rank)?.iter().collect::<Vec<_>>(), &sizes)
    }

    fn starts(&self, rank: usize) -> Result<Vec<Tensor>> {
        let zero = zeros(DType::I32, &[])?;
        Ok((0..rank).map(|dim| if dim == 1 { self.start.clone() } else { zero.clone() }).collect())
    }
}
