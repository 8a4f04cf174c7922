//! Random tensors of several distributions, drawn with a key.

use super::{Key, number, threefry};
use crate::error::{Error, Result};
use crate::mesh::Group;
use crate::op::Comparison;
use crate::ops::{full, iota, ones, select, zeros};
use crate::tensor::Tensor;
use fullshard_core::DType;
use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};

/// Rounds per element: a third less work than the usual twenty, at each element of each mask. The
/// margin is thinner (others report one test of BigCrush failing at thirteen rounds of the variant
/// with longer words, none at twenty), which does not matter for initial weights and dropout.
const DRAW_ROUNDS: usize = 13;

/// The number of values of one word of a counter.
const WORD: u128 = 1 << 32;

/// Random numbers to draw with a key: the dimensions of the full tensor, and the part of each to draw.
///
/// All draws use the same bits, so draw once with each key.
#[derive(Debug, Clone)]
pub struct Draw {
    key: Key,
    dims: Vec<usize>,
    parts: Vec<Part>,
}

/// The part of a dimension that this device draws.
#[derive(Debug, Clone)]
enum Part {
    Full,
    /// The shard of this device in a group.
    Shard(Group),
    /// The positions in a vector.
    Positions(Tensor),
}

impl Draw {
    pub(super) fn new(key: Key, dims: &[usize]) -> Draw {
        Draw { key, dims: dims.to_vec(), parts: vec![Part::Full; dims.len()] }
    }

    /// In a manual region, draws only this device's shard along a dimension sharded over these
    /// axes: the same values as in the full tensor.
    pub fn shard(self, dim: usize, group: &Group) -> Result<Draw> {
        match self.dims.get(dim).is_some_and(|size| size.is_multiple_of(group.size())) {
            true => self.shard_padded(dim, group),
            false => Err(self.cannot_shard(dim, group, "")),
        }
    }

    /// As [`Draw::shard`], for a dimension that need not be a multiple of its shards: all have the
    /// same size, and what is past the end of the full tensor is padding, of any value.
    pub fn shard_padded(mut self, dim: usize, group: &Group) -> Result<Draw> {
        let used = self.parts.iter().any(|part| match part {
            Part::Shard(other) => other.shares_axis(group),
            _ => false,
        });
        if used || !matches!(self.parts.get(dim), Some(Part::Full)) {
            let why = if used { ": an axis is already used" } else { "" };
            return Err(self.cannot_shard(dim, group, why));
        }
        self.parts[dim] = Part::Shard(group.clone());
        Ok(self)
    }

    fn cannot_shard(&self, dim: usize, group: &Group, why: &str) -> Error {
        let (dims, parts) = (&self.dims, group.size());
        Error::new("draw", format!("cannot shard dimension {dim} of {dims:?} {parts} ways{why}"))
    }

    /// Draws only some positions along a dimension, given as integers `[count]`: the same values as
    /// in the full tensor.
    pub fn at(mut self, dim: usize, positions: &Tensor) -> Result<Draw> {
        let is_vector = positions.rank() == 1 && positions.dtype().is_integer();
        if !is_vector || !matches!(self.parts.get(dim), Some(Part::Full)) {
            let (dims, positions) = (&self.dims, positions.ty());
            let reason =
                format!("cannot draw positions {positions} of dimension {dim} of {dims:?}");
            return Err(Error::new("draw", reason));
        }
        self.parts[dim] = Part::Positions(positions.convert(DType::U32)?);
        Ok(self)
    }

    /// The dimensions of the part that this device draws.
    pub fn local_dims(&self) -> Vec<usize> {
        let local = |(&dim, part): (&usize, &Part)| match part {
            Part::Full => dim,
            Part::Shard(group) => dim.div_ceil(group.size()),
            Part::Positions(positions) => positions.dims()[0],
        };
        self.dims.iter().zip(&self.parts).map(local).collect()
    }

    /// Random `u32`s.
    pub fn bits(&self) -> Result<Tensor> {
        let [bits, _] = self.words()?;
        Ok(bits)
    }

    /// Uniform in `[0, 1)`, at the resolution of the type between a half and one (that of `f32` for
    /// `f64`), so that nothing is rounded up to one.
    pub fn uniform(&self, dtype: DType) -> Result<Tensor> {
        let bits = significant_bits("uniform", dtype)?;
        unit(&self.bits()?, bits)?.convert(dtype)
    }

    /// Standard normal, computed in `f32`.
    pub fn normal(&self, dtype: DType) -> Result<Tensor> {
        significant_bits("normal", dtype)?;
        // Box-Muller: it uses both words, and its tail ends only at 6.7. The radius is of a number
        // in (0, 1], the angle in [-π, π].
        let [radius, angle] = self.words()?;
        let step = 0.5_f64.powi(32);
        let radius = ((radius.convert(DType::F32)? * step)? + step / 2.0)?;
        let radius = (radius.log()? * -2.0)?.sqrt()?;
        let angle = (angle.bitcast(DType::I32)?.convert(DType::F32)? * (2.0 * PI * step))?;
        (radius * angle.cos()?)?.convert(dtype)
    }

    /// Normal, truncated to two limits (up to the rounding of the type); computed in `f32`.
    /// Limits beyond 4 on one side are rejected: `f32` has too few numbers there.
    pub fn truncated_normal(&self, dtype: DType, low: f64, high: f64) -> Result<Tensor> {
        significant_bits("truncated_normal", dtype)?;
        let finite = low.is_finite() && high.is_finite();
        if !finite || low >= high || low > 4.0 || high < -4.0 {
            let reason = format!("invalid limits {low} and {high}");
            return Err(Error::new("truncated_normal", reason));
        }
        // The inverse CDF, between its values at the limits.
        let erf = |limit: f64| full(DType::F32, &[], limit * FRAC_1_SQRT_2)?.erf();
        let (from, to) = (erf(low)?, erf(high)?);
        // One bit less than the type has, and the midpoint of each step: never zero or one.
        let middle = (unit(&self.bits()?, 23)? + 0.5_f64.powi(24))?;
        let level = ((middle * (to - &from)?)? + from)?;
        let below_one = 1.0 - 0.5_f64.powi(24);
        let normal = (erf_inv(&level.clamp(-below_one, below_one)?)? * SQRT_2)?;
        normal.clamp(low, high)?.convert(dtype)
    }

    /// True with probability `p`.
    pub fn bernoulli(&self, p: f64) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::new("bernoulli", format!("{p} is not a probability")));
        }
        if p == 1.0 {
            return ones(DType::Bool, &self.local_dims());
        }
        let bits = self.bits()?;
        bits.compare(Comparison::Less, &number(&bits, (p * WORD as f64) as u32)?)
    }

    /// A tensor with each element zeroed with probability `p` and otherwise divided by `1 - p`.
    pub fn dropout(&self, x: &Tensor, p: f64) -> Result<Tensor> {
        let local = self.local_dims();
        if x.dims() != local || !x.dtype().is_float() || !(0.0..1.0).contains(&p) {
            let reason = format!("{p} of {} with a mask of {local:?}", x.ty());
            return Err(Error::new("dropout", reason));
        }
        if p == 0.0 {
            return Ok(x.clone());
        }
        let keep = self.bernoulli(1.0 - p)?;
        select(&keep, &(x * (1.0 / (1.0 - p)))?, &zeros(x.dtype(), &[])?)
    }

    /// Two random words for each element.
    fn words(&self) -> Result<[Tensor; 2]> {
        let [high, low] = self.counter()?;
        threefry(DRAW_ROUNDS, [&self.key.words[0], &self.key.words[1]], [&high, &low])
    }

    /// The index of each element in the full tensor: as many of the last dimensions as fit in one
    /// word in the low word, and the rest in the high word.
    fn counter(&self) -> Result<[Tensor; 2]> {
        let split = split(&self.dims)?;
        Ok([self.index(0, split)?, self.index(split, self.dims.len())?])
    }

    /// The row-major index of each element over the dimensions from `start` to before `limit`.
    fn index(&self, start: usize, limit: usize) -> Result<Tensor> {
        let local = self.local_dims();
        let mut index = zeros(DType::U32, &local)?;
        let mut stride = 1_usize;
        for dim in (start..limit).rev() {
            let position = self.positions(dim, local[dim])?;
            let position = (position * stride as f64)?.broadcast_dims(&local, &[dim])?;
            index = (index + position)?;
            stride = stride.saturating_mul(self.dims[dim]);
        }
        Ok(index)
    }

    /// The positions of this device's elements along a dimension.
    fn positions(&self, dim: usize, count: usize) -> Result<Tensor> {
        if let Part::Positions(positions) = &self.parts[dim] {
            return Ok(positions.clone());
        }
        let position = iota(DType::U32, &[count], 0)?;
        let Part::Shard(group) = &self.parts[dim] else { return Ok(position) };
        position + (group.index()?.convert(DType::U32)? * count as f64)?
    }
}

/// Number of leading dimensions in the high word of a counter.
fn split(dims: &[usize]) -> Result<usize> {
    let fits = |dims: &[usize]| {
        dims.iter().fold(1_u128, |count, &dim| count.saturating_mul(dim as u128)) <= WORD
    };
    let split = (0..dims.len()).find(|&split| fits(&dims[split..])).unwrap_or(dims.len());
    if fits(&dims[..split]) {
        return Ok(split);
    }
    Err(Error::new("draw", format!("{dims:?} has too many elements")))
}

/// The top bits of words as `f32` in `[0, 1)`.
fn unit(words: &Tensor, bits: u32) -> Result<Tensor> {
    let steps = words.shift_right(&number(words, 32 - bits)?)?;
    steps.convert(DType::F32)? * 0.5_f64.powi(bits as i32)
}

/// The significant bits of a floating-point type, at most those of `f32`.
fn significant_bits(op: &str, dtype: DType) -> Result<u32> {
    Ok(match dtype {
        DType::F32 | DType::F64 => 24,
        DType::F16 => 11,
        DType::Bf16 => 8,
        DType::F8E4M3FN => 4,
        DType::F8E5M2 => 3,
        _ => return Err(Error::new(op, format!("cannot draw {dtype}; draw f32 and convert"))),
    })
}

/// The inverse error function in `f32`, for arguments strictly between -1 and 1: the polynomials of
/// Giles, "Approximating the erfinv function" (2010), accurate to single precision.
fn erf_inv(x: &Tensor) -> Result<Tensor> {
    const CENTER: [f64; 9] = [
        2.810_226_36e-8,
        3.432_739_39e-7,
        -3.523_387_7e-6,
        -4.391_506_54e-6,
        0.000_218_580_87,
        -0.001_253_725_03,
        -0.004_177_681_64,
        0.246_640_727,
        1.501_409_41,
    ];
    const TAIL: [f64; 9] = [
        -0.000_200_214_257,
        0.000_100_950_558,
        0.001_349_343_22,
        -0.003_673_428_44,
        0.005_739_507_73,
        -0.007_622_461_3,
        0.009_438_870_47,
        1.001_674_06,
        2.832_976_82,
    ];
    let w = (((1.0 - x)? * (x + 1.0)?)?.log()? * -1.0)?;
    let is_center = w.compare(Comparison::Less, &full(DType::F32, &[], 5.0)?)?;
    let center = polynomial(&CENTER, &(&w - 2.5)?)?;
    let tail = polynomial(&TAIL, &(w.sqrt()? - 3.0)?)?;
    select(&is_center, &center, &tail)? * x
}

/// A polynomial, the highest power first.
fn polynomial(coefficients: &[f64], x: &Tensor) -> Result<Tensor> {
    let start = zeros(x.dtype(), x.dims())?;
    coefficients.iter().try_fold(start, |sum, &coefficient| (sum * x)? + coefficient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_split_only_when_a_word_is_too_small() {
        assert_eq!(split(&[]).unwrap(), 0);
        assert_eq!(split(&[1 << 16, 1 << 16]).unwrap(), 0);
        assert_eq!(split(&[2, 1 << 16, 1 << 16]).unwrap(), 1);
        assert_eq!(split(&[1 << 32, 3]).unwrap(), 1);
        assert_eq!(split(&[1 << 31, 2, 1 << 30, 2, 2]).unwrap(), 2);
        assert!(split(&[(1 << 32) + 1]).is_err());
        assert!(split(&[4, 1 << 31, 4]).is_err());
        assert_eq!(split(&[0, usize::MAX]).unwrap(), 0);
    }
}
