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

mod draw;

pub use draw::Draw;

use crate::error::{Error, Result};
use crate::ops::{barrier, constant, full, zeros};
use crate::tensor::Tensor;
use fullshard_core::{DType, TensorType};

/// Rounds for keys made from keys: these are scalars, so the usual margin costs nothing.
const KEY_ROUNDS: usize = 20;

/// How far each round turns the second word, over and over.
const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];

/// Added to the key so that a key of zeros is none.
const PARITY: u32 = 0x1BD1_1BDA;

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
        Draw::new(self.clone(), dims)
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
        return Err(Error::new("key", format!("a {what} is u32[2], not {}", words.ty())));
    }
    let word = |i| words.narrow(0, i, i + 1)?.reshape(&[]);
    Ok([word(0)?, word(1)?])
}

/// The FNV-1a hash of a name: short, and the same on every machine and in every version.
fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_name_never_changes() {
        assert_eq!(fnv1a(""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a("a"), 0xAF63_DC4C_8601_EC8C);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_F739_67E8);
    }
}
