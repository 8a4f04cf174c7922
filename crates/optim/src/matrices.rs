//! Row and column statistics of a parameter of which a device holds a part.
//!
//! However a parameter is cut, a device holds a run of its elements in row-major order. Laid into
//! whole rows, with zeros where the run begins and ends inside a row, it has row and column sums
//! by plain reductions; summed over devices they are those of the whole parameter. Factors for
//! rows and columns come back to the elements of the run the same way.

use crate::shard::Shard;
use fullshard_graph::{DType, Group, Result, Tensor, full, iota, zeros};

/// A parameter of rank two or more as a batch of matrices, for each layer of a stack, and the
/// run of its elements that a device holds.
pub(crate) struct Matrices {
    stack: usize,
    batch: usize,
    rows: usize,
    columns: usize,
    /// The number of elements in a run, and of runs.
    local: usize,
    parts: usize,
    /// Which run this device holds.
    index: Tensor,
    local_dims: Vec<usize>,
}

/// Where a device's things begin among all of a kind, such as rows.
struct Window {
    start: Tensor,
    length: usize,
    /// Where the last device's end, which may be beyond what there is.
    end: usize,
}

impl Matrices {
    /// The matrices of a parameter; none if its rank is below two.
    pub(crate) fn of(shard: &Shard) -> Result<Option<Matrices>> {
        let [leading @ .., rows, columns] = shard.dims.as_slice() else { return Ok(None) };
        let index = shard.shared().map(Group::index).transpose()?;
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

    /// The number of elements in a row, and in a column.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        (self.columns, self.rows)
    }

    /// The sums of rows `[stack, batch, rows]` and columns `[stack, batch, columns]` of the local
    /// elements, zero for those that are elsewhere.
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
        if self.holds_whole_matrices() {
            let count = self.local / (rows * columns);
            let sums = elements.reshape(&[stack, count, rows, columns])?.sum(&[2])?;
            return self.window(rows * columns, count)?.place(&sums, batch);
        }
        // Rows are added up by the matrix they are of; those of padding are zero.
        let elements = elements.transpose(&[1, 0, 2])?;
        let sums = zeros(DType::F32, &[batch, stack, columns])?;
        sums.add_rows(&self.matrix_of_row()?, &elements)?.transpose(&[1, 0, 2])
    }

    /// For each local element its row's factor, of `[stack, batch, rows]`, times its column's, of
    /// `[stack, batch, columns]`.
    pub(crate) fn products(&self, rows: &Tensor, columns: &Tensor) -> Result<Tensor> {
        let rows = rows.reshape(&[self.stack, self.batch * self.rows])?;
        let rows = self.row_window()?.take(&rows)?.expand(2)?;
        self.to_elements(&(rows * self.column_of_row(columns)?)?)
    }

    /// Column factors for each local row, or one for all.
    fn column_of_row(&self, factors: &Tensor) -> Result<Tensor> {
        let Matrices { stack, batch, rows, columns, .. } = *self;
        if batch == 1 {
            return Ok(factors.clone());
        }
        if self.holds_whole_matrices() {
            let count = self.local / (rows * columns);
            let factors = self.window(rows * columns, count)?.take(factors)?.expand(2)?;
            let factors = factors.broadcast_to(&[stack, count, rows, columns])?;
            return factors.reshape(&[stack, count * rows, columns]);
        }
        factors.transpose(&[1, 0, 2])?.take(&self.matrix_of_row()?)?.transpose(&[1, 0, 2])
    }

    fn holds_whole_matrices(&self) -> bool {
        self.local.is_multiple_of(self.rows * self.columns)
    }

    /// How far into a row a run can begin.
    fn last_shift(&self) -> usize {
        let aligned = self.parts == 1 || self.local.is_multiple_of(self.columns);
        if aligned { 0 } else { self.columns - 1 }
    }

    /// The number of rows that a run touches, at most.
    fn local_rows(&self) -> usize {
        (self.last_shift() + self.local).div_ceil(self.columns)
    }

    fn row_window(&self) -> Result<Window> {
        self.window(self.columns, self.local_rows())
    }

    /// Where the local things of so many elements begin.
    fn window(&self, elements: usize, length: usize) -> Result<Window> {
        let last = (self.parts - 1) * self.local / elements;
        // The place of the first element, divided: by itself it might not fit into 32 bits.
        let whole = (&self.index * (self.local / elements) as f64)?;
        let rest = ((&self.index * (self.local % elements) as f64)? / elements as f64)?;
        Ok(Window { start: (whole + rest)?, length, end: last + length })
    }

    /// How far into its first row the run begins.
    fn shift(&self) -> Result<Tensor> {
        let columns = full(DType::I32, &[], self.columns as f64)?;
        (&self.index * (self.local % self.columns) as f64)?.remainder(&columns)
    }

    /// Which matrix each local row is of.
    fn matrix_of_row(&self) -> Result<Tensor> {
        let row = iota(DType::I32, &[self.local_rows()], 0)?;
        (row + self.row_window()?.start)? / self.rows as f64
    }

    /// The run in whole rows: `[stack, rows, columns]`.
    fn to_rows(&self, elements: &Tensor) -> Result<Tensor> {
        let (rows, columns) = (self.local_rows(), self.columns);
        let mut flat = elements.reshape(&[self.stack, self.local])?;
        if rows * columns != self.local {
            let zero = zeros(DType::I32, &[])?;
            let room = zeros(DType::F32, &[self.stack, rows * columns])?;
            flat = room.dynamic_update_slice(&flat, &[&zero, &self.shift()?])?;
        }
        flat.reshape(&[self.stack, rows, columns])
    }

    /// The run out of whole rows, in the dimensions of the local tensor.
    fn to_elements(&self, rows: &Tensor) -> Result<Tensor> {
        let room = self.local_rows() * self.columns;
        let mut flat = rows.reshape(&[self.stack, room])?;
        if room != self.local {
            let zero = zeros(DType::I32, &[])?;
            flat = flat.dynamic_slice(&[&zero, &self.shift()?], &[self.stack, self.local])?;
        }
        flat.reshape(&self.local_dims)
    }
}

impl Window {
    /// The local things, along dimension 1, where they are among `total`; zeros elsewhere.
    fn place(&self, things: &Tensor, total: usize) -> Result<Tensor> {
        if self.end == self.length {
            return things.narrow(1, 0, total);
        }
        let mut dims = things.dims().to_vec();
        dims[1] = self.end;
        let starts = self.starts(things.rank())?;
        let placed = zeros(DType::F32, &dims)?
            .dynamic_update_slice(things, &starts.iter().collect::<Vec<_>>())?;
        placed.narrow(1, 0, total)
    }

    /// The local ones of all things, along dimension 1; zeros beyond what there is.
    fn take(&self, things: &Tensor) -> Result<Tensor> {
        let rank = things.rank();
        let mut beyond = vec![0; rank];
        beyond[1] = self.end as i64 - things.dims()[1] as i64;
        let padded = things.pad(0.0, &vec![0; rank], &beyond, &vec![0; rank])?;
        if self.end == self.length {
            return Ok(padded);
        }
        let mut sizes = things.dims().to_vec();
        sizes[1] = self.length;
        padded.dynamic_slice(&self.starts(rank)?.iter().collect::<Vec<_>>(), &sizes)
    }

    fn starts(&self, rank: usize) -> Result<Vec<Tensor>> {
        let zero = zeros(DType::I32, &[])?;
        Ok((0..rank).map(|dim| if dim == 1 { self.start.clone() } else { zero.clone() }).collect())
    }
}
