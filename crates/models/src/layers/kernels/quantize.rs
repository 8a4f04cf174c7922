//! Rounding to FP8, to a matrix and its transpose in one pass: matmuls in FP8 read their operands
//! along the dim that they contract, which is another one in the backward pass.

use super::unsupported_reason;
use fullshard_graph::triton::{Grid, Value, kernel};
use fullshard_graph::{DType, Error, Result, Tensor, TensorType};

/// The rows and columns of a tile: as many bytes each of the transpose's rows.
const TILE: usize = 128;

const WARPS: usize = 8;

/// A matrix `[rows, width]` times a factor, a scalar in `f32`, in an FP8 type; and its transpose.
pub fn quantize(x: &Tensor, factor: &Tensor, dtype: DType) -> Result<[Tensor; 2]> {
    let reason = unsupported_reason(x.ty());
    let (&[rows, width], None) = (x.dims(), &reason) else {
        let reason = reason.unwrap_or_else(|| format!("{} is no matrix", x.ty()));
        return Err(Error::new("quantize", format!("kernels cannot be used: {reason}")));
    };
    let [down, across] = [rows, width].map(|size| size.div_ceil(TILE));
    let results = [[rows, width], [width, rows]].map(|dims| TensorType::new(dtype, &dims));
    let name = if dtype == DType::F8E5M2 { "quantize_e5m2" } else { "quantize_e4m3" };
    let grid = Grid { programs: down * across, warps: WARPS };
    let results = kernel(name, grid, &[x, factor], &results, |k, inputs, results| {
        let row = k.program() / across;
        let column = k.program() - &row * across;
        let row = row * TILE + k.range(TILE);
        let column = column * TILE + k.range(TILE);
        let inside = |index: &Value, size: usize, dim: usize| {
            let mask = index.less_than(size).with_dim(dim).expanded(&[TILE; 2]);
            (!size.is_multiple_of(TILE)).then_some(mask)
        };
        let both = |a: Option<Value>, b: Option<Value>| match (a, b) {
            (Some(a), Some(b)) => Some(a.and(&b)),
            (a, b) => a.or(b),
        };
        let mask = both(inside(&row, rows, 1), inside(&column, width, 0));
        let at = row.with_dim(1) * width + column.with_dim(0);
        let x = inputs[0].at(&at).only_if(mask.as_ref()).load().float();
        let factor = inputs[1].at(&k.int(0)).load();
        let rounded = (x * factor).convert(dtype);
        results[0].at(&at).only_if(mask.as_ref()).store(&rounded);
        let mask = both(inside(&column, width, 1), inside(&row, rows, 0));
        let at = column.with_dim(1) * rows + row.with_dim(0);
        results[1].at(&at).only_if(mask.as_ref()).store(&rounded.transposed());
    })?;
    results.try_into().map_err(|_| Error::new("quantize", "a result is missing"))
}
