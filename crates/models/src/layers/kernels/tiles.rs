//! Kernels that go through matrices tile by tile: activation functions, and sums over tokens.

use super::unsupported_reason;
use fullshard_graph::triton::{Address, Builder, Grid, Pointer, Value, kernel, split_rows};
use fullshard_graph::{DType, Error, Result, Tensor, TensorType, custom_vjp, zeros};
use std::f64::consts::{LOG2_E, PI};

/// The rows and columns of a tile. A row of it is contiguous, and long enough for memory.
const TILE: [usize; 2] = [16, 256];

/// The warps of a program.
const WARPS: usize = 4;

/// About the number of programs: enough to fill the GPUs of today a few times.
const PROGRAMS: usize = 2048;

/// The sums of a matrix `[..., width]` over all but its last dim.
pub fn column_sums(x: &Tensor) -> Result<Tensor> {
    let tiles = Tiles::of(x)?;
    let (_, sums) = tiles.run("column_sums", &[x], 0, |x| (vec![], Some(x[0].clone())))?;
    sums.ok_or_else(|| Error::new("column sums", "a result is missing"))
}

/// GELU with the tanh approximation.
pub fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    let results = custom_vjp(
        &[x],
        |x| Ok(vec![gelu(&x[0])?]),
        |x| Ok((vec![gelu(&x[0])?], x)),
        |x, gradients| Ok(vec![gelu_gradients(&x[0], &gradients[0], false)?.0]),
    )?;
    Ok(results[0].clone())
}

/// The same of `x + bias`, which must be given as well: it is what both passes read. The gradient of
/// the bias is summed in the pass that computes that of `x`.
pub fn biased_gelu_tanh(x: &Tensor, bias: &Tensor, sum: &Tensor) -> Result<Tensor> {
    let results = custom_vjp(
        &[x, bias, sum],
        |inputs| Ok(vec![gelu(&inputs[2])?]),
        |inputs| Ok((vec![gelu(&inputs[2])?], vec![inputs[2].clone()])),
        |saved, gradients| {
            let (x_grad, sums) = gelu_gradients(&saved[0], &gradients[0], true)?;
            let sums = sums.ok_or_else(|| Error::new("gelu", "a result is missing"))?;
            Ok(vec![x_grad, sums.convert(bias.dtype())?, zeros(sum.dtype(), sum.dims())?])
        },
    )?;
    Ok(results[0].clone())
}

fn gelu(x: &Tensor) -> Result<Tensor> {
    let (results, _) = Tiles::of(x)?.run("gelu_forward", &[x], 1, |x| {
        let (_, sigma) = gelu_argument(&x[0]);
        (vec![&x[0] * sigma], None)
    })?;
    Ok(results[0].clone())
}

/// The gradient of `x`, and its sums over all but the last dim, if wanted.
fn gelu_gradients(x: &Tensor, gradient: &Tensor, sums: bool) -> Result<(Tensor, Option<Tensor>)> {
    let name = if sums { "gelu_backward_sums" } else { "gelu_backward" };
    let dtype = x.dtype();
    let (results, sums) = Tiles::of(x)?.run(name, &[x, gradient], 1, |values| {
        let [x, gradient] = values else { return (vec![], None) };
        // As in `Tensor::gelu_tanh_grad`.
        let (z, sigma) = gelu_argument(x);
        let x_dz = z * 3.0 - x * (2.0 * gelu_factor());
        let derivative = &sigma * ((&sigma * -1.0 + 1.0) * x_dz + 1.0);
        let x_grad = gradient * derivative;
        let sum = sums.then(|| x_grad.rounded(dtype));
        (vec![x_grad], sum)
    })?;
    Ok((results[0].clone(), sums))
}

/// `z = k x + k a x³`, and the logistic function of it.
fn gelu_argument(x: &Value) -> (Value, Value) {
    let z = x * (x * x * (gelu_factor() * 0.044715) + gelu_factor());
    // By the square of a root, since a division takes more instructions.
    let root = ((&z * -LOG2_E).exp2() + 1.0).rsqrt();
    let sigma = &root * &root;
    (z, sigma)
}

fn gelu_factor() -> f64 {
    (8.0 / PI).sqrt()
}

/// A matrix in tiles. A program has a column of them.
#[derive(Debug, Clone, Copy)]
struct Tiles {
    rows: usize,
    width: usize,
    dtype: DType,
}

impl Tiles {
    fn of(x: &Tensor) -> Result<Tiles> {
        if let Some(reason) = unsupported_reason(x.ty()) {
            return Err(Error::new("kernel", format!("kernels cannot be used: {reason}")));
        }
        let width = x.dims()[x.rank() - 1];
        Ok(Tiles { rows: x.ty().elements() / width, width, dtype: x.dtype() })
    }

    /// Computes matrices of the same size from the elements of matrices, in `f32`, and sums over
    /// the rows of a further one.
    fn run(
        self,
        name: &str,
        operands: &[&Tensor],
        outputs: usize,
        compute: impl FnOnce(&[Value]) -> (Vec<Value>, Option<Value>),
    ) -> Result<(Vec<Tensor>, Option<Tensor>)> {
        let has_sums = outputs == 0 || name.ends_with("_sums");
        let across = self.width.div_ceil(TILE[1]);
        let (tiles, down) = split_rows(self.rows.div_ceil(TILE[0]), PROGRAMS.div_ceil(across));
        let like = TensorType::new(self.dtype, operands[0].dims());
        let sums = TensorType::new(DType::F32, &[down, self.width]);
        let mut results = vec![like; outputs];
        results.extend(has_sums.then_some(sums));
        let grid = Grid { programs: across * down, warps: WARPS };
        let results = kernel(name, grid, operands, &results, |k, inputs, results| {
            let tile = Tile::new(k, self, across, tiles);
            let sums = if has_sums { vec![k.zeros(&TILE)] } else { vec![] };
            let sums = k.for_each(&tile.first, &tile.end(), &sums, |index, sums| {
                let at = |pointer: &Pointer| tile.at(pointer, index);
                let values: Vec<Value> = inputs.iter().map(|it| at(it).load().float()).collect();
                let (computed, summed) = compute(&values);
                for (result, value) in results.iter().zip(&computed) {
                    at(result).store(value);
                }
                sums.iter().zip(summed).map(|(sum, term)| sum + term).collect()
            });
            for (result, sum) in results[outputs..].iter().zip(&sums) {
                tile.sums_at(result).store(&sum.sum(0));
            }
        })?;
        let (matrices, sums) = results.split_at(outputs);
        Ok((matrices.to_vec(), sums.first().map(|sums| sums.sum(&[0])).transpose()?))
    }
}

/// The tiles of one program.
struct Tile {
    matrix: Tiles,
    /// The number of the program among those of the same columns.
    down: Value,
    columns: Value,
    rows: Value,
    first: Value,
    count: usize,
}

impl Tile {
    fn new(k: &Builder, matrix: Tiles, across: usize, count: usize) -> Tile {
        let down = k.program() / across;
        let column = k.program() - &down * across;
        let columns = column * TILE[1] + k.range(TILE[1]);
        let first = &down * count;
        Tile { matrix, columns, rows: k.range(TILE[0]), first, down, count }
    }

    fn end(&self) -> Value {
        &self.first + self.count
    }

    fn at(&self, pointer: &Pointer, index: &Value) -> Address {
        let rows = (index * TILE[0] + &self.rows).with_dim(1);
        let positions = &rows * self.matrix.width + self.columns.with_dim(0);
        let in_rows = |rows: &Value| rows.less_than(self.matrix.rows).expanded(&TILE);
        let is_whole = self.matrix.rows.is_multiple_of(TILE[0] * self.count);
        let rows_mask = (!is_whole).then(|| in_rows(&rows));
        let columns_mask = self.columns_mask().map(|mask| mask.with_dim(0).expanded(&TILE));
        let mask = match (rows_mask, columns_mask) {
            (Some(rows), Some(columns)) => Some(rows.and(&columns)),
            (rows, columns) => rows.or(columns),
        };
        pointer.at(&positions).only_if(mask.as_ref())
    }

    fn sums_at(&self, pointer: &Pointer) -> Address {
        let positions = &self.down * self.matrix.width + &self.columns;
        pointer.at(&positions).only_if(self.columns_mask().as_ref())
    }

    fn columns_mask(&self) -> Option<Value> {
        let is_whole = self.matrix.width.is_multiple_of(TILE[1]);
        (!is_whole).then(|| self.columns.less_than(self.matrix.width))
    }
}
