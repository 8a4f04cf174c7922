//! Random numbers that depend on nothing but a seed, a name and a position.
//!
//! There is no state: the number at an index of a tensor is Threefry, a block cipher made for
//! this, of that index under a key. So a tensor is the same however it is cut over devices, a
//! dropout mask is the same when the backward pass computes it again, and any part of a tensor
//! can be made without the rest. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
//! (2011), is the source of the cipher.
//!
//! ```
//! use fullshard_graph::{Argument, DType, Key, Program, TensorType};
//!
//! # fn main() -> fullshard_graph::Result<()> {
//! let seed = Argument::new(TensorType::new(DType::U32, &[2]));
//! let step = Argument::new(TensorType::scalar(DType::I32));
//! let program = Program::trace("noise", &[seed, step], |arguments| {
//!     let key = Key::new(&arguments[0])?.fold(&arguments[1])?;
//!     let x = key.named("x")?.draw(&[4, 8]).normal(DType::F32)?;
//!     Ok(vec![key.named("dropout")?.draw(x.dims()).dropout(&x, 0.1)?])
//! })?;
//! # assert!(program.to_text().contains("stablehlo.select"));
//! # Ok(()) }
//! ```

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::mesh::Group;
use crate::op::Comparison;
use crate::ops::{barrier, constant, full, iota, ones, select, zeros};
use crate::tensor::Tensor;
use crate::types::TensorType;
use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};

/// Rounds for the numbers themselves: a third less work than the usual twenty, at each element
/// of each mask. The margin is thinner for it (others report one test of BigCrush failing at
/// thirteen rounds of the variant with longer words, none at twenty), which initial weights and
/// dropout do not notice.
const DRAW_ROUNDS: usize = 13;

/// Rounds for keys made from keys: these are scalars, so the usual margin costs nothing.
const KEY_ROUNDS: usize = 20;

/// How far each round turns the second word, over and over.
const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];

/// Added to the key so that a key of zeros is none.
const PARITY: u32 = 0x1BD1_1BDA;

/// The number of values of one word of a counter.
const WORD: u128 = 1 << 32;

/// Threefry-2x32: the two words of a counter enciphered under the two words of a key, all `u32`.
///
/// [`Draw`] is what programs use; this is the generator by itself.
pub fn threefry(rounds: usize, key: [&Tensor; 2], counter: [&Tensor; 2]) -> Result<[Tensor; 2]> {
    let words = [key[0], key[1], counter[0], counter[1]];
    if let Some(wrong) = words.iter().find(|word| word.dtype() != DType::U32) {
        return Err(Error::new("threefry", format!("{} is no word of u32", wrong.ty())));
    }
    let parity = key[0].xor(key[1])?;
    let schedule = [key[0].clone(), key[1].clone(), parity.xor(&number(&parity, PARITY)?)?];
    let mut x = (counter[0] + &schedule[0])?;
    let mut y = (counter[1] + &schedule[1])?;
    for round in 0..rounds {
        x = (x + &y)?;
        y = rotate_left(&y, ROTATIONS[round % 8])?.xor(&x)?;
        if round % 4 == 3 {
            let turn = round / 4 + 1;
            let second = &schedule[(turn + 1) % 3];
            x = (x + &schedule[turn % 3])?;
            y = (y + (second + number(second, turn as u32)?)?)?;
        }
    }
    Ok([x, y])
}

fn rotate_left(word: &Tensor, bits: u32) -> Result<Tensor> {
    let low = word.shift_right(&number(word, 32 - bits)?)?;
    word.shift_left(&number(word, bits)?)?.or(&low)
}

/// A number at each element of a tensor of words.
fn number(like: &Tensor, value: u32) -> Result<Tensor> {
    full(DType::U32, like.dims(), value.into())
}

/// What random numbers are made from: a seed, and the names and numbers folded into it.
///
/// A key gives the same numbers each time, so each use needs a key of its own:
/// [`Key::named`] and [`Key::fold`] make them.
#[derive(Debug, Clone)]
pub struct Key {
    words: [Tensor; 2],
}

/// How a key was made from another. Keys made in different ways differ, also from the numbers
/// drawn with the other.
#[derive(Clone, Copy)]
enum Purpose {
    Name = 0x6E61_6D65,
    Fold = 0x666F_6C64,
}

impl Key {
    /// The key of a seed in two words, `u32[2]`: an argument, so that another seed needs no other
    /// program.
    pub fn new(seed: &Tensor) -> Result<Key> {
        Ok(Key { words: halves("seed", seed)? })
    }

    /// The key of a seed that stands in the program: that of [`Key::new`] with the high word
    /// first.
    pub fn constant(seed: u64) -> Result<Key> {
        Key::new(&constant(&[2], &[(seed >> 32) as u32, seed as u32])?)
    }

    /// The key for what has this name, such as `h.3.attn.dropout`.
    pub fn named(&self, name: &str) -> Result<Key> {
        self.named_by(&constant(&[2], &Key::hash(name))?)
    }

    /// The key for what has the name of this hash, `u32[2]`: as an argument, a program serves any
    /// name.
    pub fn named_by(&self, hash: &Tensor) -> Result<Key> {
        let [high, low] = halves("hash of a name", hash)?;
        self.derive(Purpose::Name, [&high, &low])
    }

    /// The hash of a name, the high word first.
    pub fn hash(name: &str) -> [u32; 2] {
        let hash = fnv1a(name);
        [(hash >> 32) as u32, hash as u32]
    }

    /// The key for an integer known only when the program runs, such as the number of a step or
    /// of a layer in a scan.
    pub fn fold(&self, integer: &Tensor) -> Result<Key> {
        if integer.rank() != 0 || !integer.dtype().is_integer() {
            return Err(Error::new("fold", format!("{} is no integer", integer.ty())));
        }
        let high = match integer.dtype() {
            DType::I64 | DType::U64 => {
                let bits = integer.bitcast(DType::U64)?;
                bits.shift_right(&full(DType::U64, &[], 32.0)?)?.convert(DType::U32)?
            }
            _ => zeros(DType::U32, &[])?,
        };
        self.derive(Purpose::Fold, [&high, &integer.convert(DType::U32)?])
    }

    /// The same key, made before anything is drawn with it. Without, the compiler makes it again for
    /// each number drawn, and draws that differ in nothing else are different code to it.
    pub fn made_first(&self) -> Result<Key> {
        let [first, second] = &self.words;
        let words = barrier(&[first, second])?.try_into();
        Ok(Key { words: words.map_err(|_| Error::new("key", "a key has two words"))? })
    }

    /// Numbers for a tensor of these dimensions, whole.
    pub fn draw(&self, dims: &[usize]) -> Draw {
        Draw { key: self.clone(), dims: dims.to_vec(), cuts: vec![None; dims.len()] }
    }

    fn derive(&self, purpose: Purpose, what: [&Tensor; 2]) -> Result<Key> {
        let [first, second] = &self.words;
        let first = first.xor(&number(first, purpose as u32)?)?;
        Ok(Key { words: threefry(KEY_ROUNDS, [&first, second], what)? })
    }
}

/// The two words of a `u32[2]`.
fn halves(what: &str, words: &Tensor) -> Result<[Tensor; 2]> {
    if *words.ty() != TensorType::new(DType::U32, &[2]) {
        return Err(Error::new("key", format!("a {what} is tensor<2xui32>, not {}", words.ty())));
    }
    let word = |i| words.narrow(0, i, i + 1)?.reshape(&[]);
    Ok([word(0)?, word(1)?])
}

/// The FNV-1a hash of a name: short, and the same on every machine and in every version.
pub fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// Random numbers to be drawn with a key: the dimensions of the whole tensor, and how it is cut.
///
/// Everything drawn is made of the same bits, so draw once with each key.
#[derive(Debug, Clone)]
pub struct Draw {
    key: Key,
    dims: Vec<usize>,
    cuts: Vec<Option<Group>>,
}

impl Draw {
    /// In a manual region, makes only this device's part along a dimension that these axes cut:
    /// the part it would have of the whole tensor.
    pub fn cut(mut self, dim: usize, group: &Group) -> Result<Draw> {
        let fits = self.dims.get(dim).is_some_and(|size| size.is_multiple_of(group.size()));
        let used = self.cuts.iter().flatten().any(|other| other.shares_axis(group));
        if !fits || used || self.cuts[dim].is_some() {
            let (dims, parts) = (&self.dims, group.size());
            let why = if used { " by an axis that cuts it already" } else { "" };
            let reason = format!("dimension {dim} of {dims:?} in {parts} parts{why}");
            return Err(Error::new("draw", reason));
        }
        self.cuts[dim] = Some(group.clone());
        Ok(self)
    }

    /// The dimensions of this device's part.
    pub fn local_dims(&self) -> Vec<usize> {
        let parts = self.cuts.iter().map(|cut| cut.as_ref().map_or(1, Group::size));
        self.dims.iter().zip(parts).map(|(dim, parts)| dim / parts).collect()
    }

    /// Random `u32`s.
    pub fn bits(&self) -> Result<Tensor> {
        let [bits, _] = self.words()?;
        Ok(bits)
    }

    /// Uniform in `[0, 1)`, in as many steps as the type has between a half and one (those of
    /// `f32` for `f64`), so that nothing is rounded up to one.
    pub fn uniform(&self, dtype: DType) -> Result<Tensor> {
        let bits = significant_bits("uniform", dtype)?;
        unit(&self.bits()?, bits)?.convert(dtype)
    }

    /// Normal, of mean zero and variance one; made in `f32`.
    pub fn normal(&self, dtype: DType) -> Result<Tensor> {
        significant_bits("normal", dtype)?;
        // Box and Muller's way: it takes both words, and its tail ends only at 6.7. The radius is
        // of a number in (0, 1], the angle in [-π, π].
        let [radius, angle] = self.words()?;
        let step = 0.5_f64.powi(32);
        let radius = ((radius.convert(DType::F32)? * step)? + step / 2.0)?;
        let radius = (radius.log()? * -2.0)?.sqrt()?;
        let angle = (angle.bitcast(DType::I32)?.convert(DType::F32)? * (2.0 * PI * step))?;
        (radius * angle.cos()?)?.convert(dtype)
    }

    /// Normal, but only between two limits (up to the rounding of the type); made in `f32`.
    /// Limits further than 4 out on one side are refused: `f32` has too few numbers there.
    pub fn truncated_normal(&self, dtype: DType, low: f64, high: f64) -> Result<Tensor> {
        significant_bits("truncated_normal", dtype)?;
        let finite = low.is_finite() && high.is_finite();
        if !finite || low >= high || low > 4.0 || high < -4.0 {
            let reason = format!("no normal numbers from {low} to {high}");
            return Err(Error::new("truncated_normal", reason));
        }
        // The inverse of the distribution function, between its values at the limits.
        let erf = |limit: f64| full(DType::F32, &[], limit * FRAC_1_SQRT_2)?.erf();
        let (from, to) = (erf(low)?, erf(high)?);
        // One bit less than the type has, and the middle of each step: never zero or one.
        let middle = (unit(&self.bits()?, 23)? + 0.5_f64.powi(24))?;
        let level = ((middle * (to - &from)?)? + from)?;
        let below_one = 1.0 - 0.5_f64.powi(24);
        let normal = (erf_inv(&level.clamp(-below_one, below_one)?)? * SQRT_2)?;
        normal.clamp(low, high)?.convert(dtype)
    }

    /// True with probability `p`.
    pub fn bernoulli(&self, p: f64) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::new("bernoulli", format!("{p} is no probability")));
        }
        if p == 1.0 {
            return ones(DType::Bool, &self.local_dims());
        }
        let bits = self.bits()?;
        bits.compare(Comparison::Less, &number(&bits, (p * WORD as f64) as u32)?)
    }

    /// A tensor with each element set to zero with probability `p` and else divided by `1 - p`.
    pub fn dropout(&self, x: &Tensor, p: f64) -> Result<Tensor> {
        let local = self.local_dims();
        if x.dims() != local || !x.dtype().is_float() || !(0.0..1.0).contains(&p) {
            let reason = format!("{p} of {} with a mask of {local:?}", x.ty());
            return Err(Error::new("dropout", reason));
        }
        if p == 0.0 {
            return Ok(x.clone());
        }
        let kept = self.bernoulli(1.0 - p)?;
        select(&kept, &(x * (1.0 / (1.0 - p)))?, &zeros(x.dtype(), &[])?)
    }

    /// Two random words for each element.
    fn words(&self) -> Result<[Tensor; 2]> {
        let [high, low] = self.counter()?;
        threefry(DRAW_ROUNDS, [&self.key.words[0], &self.key.words[1]], [&high, &low])
    }

    /// The index of each element in the whole tensor: as many of the last dimensions as one word
    /// counts in the low word, and those before in the high one.
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
            let mut place = iota(DType::U32, &[local[dim]], 0)?;
            if let Some(group) = &self.cuts[dim] {
                let part = group.index()?.convert(DType::U32)?;
                place = (place + (part * local[dim] as f64)?)?;
            }
            let place = (place * stride as f64)?.broadcast_dims(&local, &[dim])?;
            index = (index + place)?;
            stride = stride.saturating_mul(self.dims[dim]);
        }
        Ok(index)
    }
}

/// How many of the first dimensions go into the high word of a counter.
fn split(dims: &[usize]) -> Result<usize> {
    let fits = |dims: &[usize]| {
        dims.iter().fold(1_u128, |count, &dim| count.saturating_mul(dim as u128)) <= WORD
    };
    let split = (0..dims.len()).find(|&split| fits(&dims[split..])).unwrap_or(dims.len());
    if fits(&dims[..split]) {
        return Ok(split);
    }
    Err(Error::new("draw", format!("{dims:?} has too many elements to count")))
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
        _ => return Err(Error::new(op, format!("{dtype} is no floating-point type"))),
    })
}

/// The inverse of the error function in `f32`, for arguments strictly between -1 and 1: the
/// polynomials of Giles, "Approximating the erfinv function" (2010), good to single precision.
fn erf_inv(x: &Tensor) -> Result<Tensor> {
    const CENTRE: [f64; 9] = [
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
    let is_centre = w.compare(Comparison::Less, &full(DType::F32, &[], 5.0)?)?;
    let centre = polynomial(&CENTRE, &(&w - 2.5)?)?;
    let tail = polynomial(&TAIL, &(w.sqrt()? - 3.0)?)?;
    select(&is_centre, &centre, &tail)? * x
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
    fn an_index_is_split_only_where_a_word_is_too_small() {
        assert_eq!(split(&[]).unwrap(), 0);
        assert_eq!(split(&[1 << 16, 1 << 16]).unwrap(), 0);
        assert_eq!(split(&[2, 1 << 16, 1 << 16]).unwrap(), 1);
        assert_eq!(split(&[1 << 32, 3]).unwrap(), 1);
        assert_eq!(split(&[1 << 31, 2, 1 << 30, 2, 2]).unwrap(), 2);
        assert!(split(&[(1 << 32) + 1]).is_err());
        assert!(split(&[4, 1 << 31, 4]).is_err());
        assert_eq!(split(&[0, usize::MAX]).unwrap(), 0);
    }

    #[test]
    fn the_hash_of_a_name_never_changes() {
        assert_eq!(fnv1a(""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a("a"), 0xAF63_DC4C_8601_EC8C);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_F739_67E8);
    }
}
