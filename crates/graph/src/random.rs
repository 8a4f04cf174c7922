//! Counter-based random numbers: they depend only on a seed, a name and a position.
//!
//! There is no state: the number at an index of a tensor is Threefry, a block cipher designed for
//! this, of that index under a key. So a tensor is the same under any sharding, a dropout mask is
//! the same when the backward pass recomputes it, and any slice of a tensor can be generated
//! separately. The cipher is from Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
//! (2011).
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

mod draw;

pub use draw::Draw;

use crate::error::{Error, Result};
use crate::ops::{barrier, concatenate, constant, full, zeros};
use crate::tensor::Tensor;
use fullshard_core::{DType, TensorType};

/// Rounds for deriving keys from keys: these are scalars, so the usual margin costs nothing.
const KEY_ROUNDS: usize = 20;

/// Rotation of the second word in each round, repeated cyclically.
const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];

/// The key schedule's parity constant, so that no extended key is all zeros.
const PARITY: u32 = 0x1BD1_1BDA;

/// Threefry-2x32: encrypts the two words of a counter with the two words of a key, all `u32`.
///
/// Programs use [`Draw`]; this is the raw generator.
pub fn threefry(rounds: usize, key: [&Tensor; 2], counter: [&Tensor; 2]) -> Result<[Tensor; 2]> {
    let words = [key[0], key[1], counter[0], counter[1]];
    if let Some(invalid) = words.iter().find(|word| word.dtype() != DType::U32) {
        return Err(Error::new("threefry", format!("{} is not u32", invalid.ty())));
    }
    let parity = key[0].xor(key[1])?;
    let schedule = [key[0].clone(), key[1].clone(), parity.xor(&number(&parity, PARITY)?)?];
    let mut x = (counter[0] + &schedule[0])?;
    let mut y = (counter[1] + &schedule[1])?;
    for round in 0..rounds {
        x = (x + &y)?;
        y = rotate_left(&y, ROTATIONS[round % 8])?.xor(&x)?;
        if round % 4 == 3 {
            let injection = round / 4 + 1;
            let second = &schedule[(injection + 1) % 3];
            x = (x + &schedule[injection % 3])?;
            y = (y + (second + number(second, injection as u32)?)?)?;
        }
    }
    Ok([x, y])
}

fn rotate_left(word: &Tensor, bits: u32) -> Result<Tensor> {
    let low = word.shift_right(&number(word, 32 - bits)?)?;
    word.shift_left(&number(word, bits)?)?.or(&low)
}

/// A `u32` constant with the dimensions of a tensor.
fn number(like: &Tensor, value: u32) -> Result<Tensor> {
    full(DType::U32, like.dims(), value.into())
}

/// A random key: a seed, and the names and numbers folded into it.
///
/// A key returns the same numbers each time, so each use needs its own key: derive them with
/// [`Key::named`] and [`Key::fold`].
#[derive(Debug, Clone)]
pub struct Key {
    words: [Tensor; 2],
}

/// How a key was derived from another. It separates the derived keys from each other and from the
/// numbers drawn with the parent key.
#[derive(Clone, Copy)]
enum Purpose {
    Name = 0x6E61_6D65,
    Fold = 0x666F_6C64,
}

impl Key {
    /// The key of a seed in two words, `u32[2]`: as an argument, one program serves any seed.
    pub fn new(seed: &Tensor) -> Result<Key> {
        Ok(Key { words: split_words("seed", seed)? })
    }

    /// The key of a constant seed: that of [`Key::new`] with the high word first.
    pub fn constant(seed: u64) -> Result<Key> {
        Key::new(&constant(&[2], &[(seed >> 32) as u32, seed as u32])?)
    }

    /// The seed of this key, `u32[2]`: [`Key::new`] of it is the same key. Regions that cannot
    /// capture values take it as an input.
    pub fn seed(&self) -> Result<Tensor> {
        let [first, second] = &self.words;
        concatenate(&[&first.reshape(&[1])?, &second.reshape(&[1])?], 0)
    }

    /// The key for a name, such as `h.3.attn.dropout`.
    pub fn named(&self, name: &str) -> Result<Key> {
        self.named_by(&constant(&[2], &Key::hash(name))?)
    }

    /// The key for the name with this hash, `u32[2]`: as an argument, one program serves any name.
    pub fn named_by(&self, hash: &Tensor) -> Result<Key> {
        let [high, low] = split_words("hash of a name", hash)?;
        self.derive(Purpose::Name, [&high, &low])
    }

    /// The hash of a name, the high word first.
    pub fn hash(name: &str) -> [u32; 2] {
        let hash = fnv1a(name);
        [(hash >> 32) as u32, hash as u32]
    }

    /// The key for an integer known only at run time, such as a step number or a layer index in a
    /// scan.
    pub fn fold(&self, integer: &Tensor) -> Result<Key> {
        if integer.rank() != 0 || !integer.dtype().is_integer() {
            return Err(Error::new("fold", format!("{} is not an integer scalar", integer.ty())));
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

    /// The same key behind an optimization barrier. Without it, the compiler recomputes the key for
    /// each number drawn, and draws that differ only in the key compile to different code.
    pub fn behind_barrier(&self) -> Result<Key> {
        let [first, second] = &self.words;
        let words = barrier(&[first, second])?.try_into();
        Ok(Key { words: words.map_err(|_| Error::new("key", "a key has two words"))? })
    }

    /// Numbers for an unsharded tensor of these dimensions.
    pub fn draw(&self, dims: &[usize]) -> Draw {
        Draw::new(self.clone(), dims)
    }

    fn derive(&self, purpose: Purpose, what: [&Tensor; 2]) -> Result<Key> {
        let [first, second] = &self.words;
        let first = first.xor(&number(first, purpose as u32)?)?;
        Ok(Key { words: threefry(KEY_ROUNDS, [&first, second], what)? })
    }
}

/// The two words of a `u32[2]`.
fn split_words(what: &str, words: &Tensor) -> Result<[Tensor; 2]> {
    if *words.ty() != TensorType::new(DType::U32, &[2]) {
        return Err(Error::new("key", format!("a {what} must be u32[2], got {}", words.ty())));
    }
    let word = |i| words.narrow(0, i, i + 1)?.reshape(&[]);
    Ok([word(0)?, word(1)?])
}

/// The FNV-1a hash of a name: short and stable across machines and versions.
fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_hash_is_stable() {
        assert_eq!(fnv1a(""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a("a"), 0xAF63_DC4C_8601_EC8C);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_F739_67E8);
    }
}
