//! The order of blocks.
//!
//! The order is computed, not stored: block = permutation(seed, epoch)(position). So any step of
//! any epoch is found without the previous ones, on any number of devices, and a corpus of a
//! billion blocks needs no table. The permutation is a Feistel network, which permutes the numbers
//! of 2k bits for any round function; numbers past the last block are permuted again until they are
//! in range ("cycle walking"), which keeps it a permutation and takes less than four rounds on
//! average.

use fullshard_core::random::mix;

/// The order of the blocks of a corpus in each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    length: u64,
    seed: Option<u64>,
}

/// Enough for every pair of positions to look independent; four is the minimum.
const ROUNDS: u64 = 6;

/// With fewer bits there are too few different round functions to reach all permutations.
const MIN_HALF_BITS: u32 = 4;

impl Order {
    /// A new order each epoch, a function of only the seed, the epoch and the position.
    pub fn shuffled(seed: u64, length: u64) -> Self {
        Self { length, seed: Some(seed) }
    }

    /// From the first block to the last, for evaluation.
    pub fn sequential(length: u64) -> Self {
        Self { length, seed: None }
    }

    /// The number of blocks.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The block at a position of an epoch; `None` past the last.
    pub fn block(&self, epoch: u64, position: u64) -> Option<u64> {
        if position >= self.length {
            return None;
        }
        let Some(seed) = self.seed else { return Some(position) };
        let key = mix(mix(seed) ^ epoch);
        let mut block = self.permute(key, position);
        while block >= self.length {
            block = self.permute(key, block);
        }
        Some(block)
    }

    /// A permutation of the numbers with as many bits as the length needs, or one more.
    fn permute(&self, key: u64, number: u64) -> u64 {
        let bits = u64::BITS - (self.length - 1).leading_zeros();
        let half = bits.div_ceil(2).max(MIN_HALF_BITS);
        let mask = (1 << half) - 1;
        let (mut left, mut right) = (number >> half, number & mask);
        for round in 0..ROUNDS {
            let next = left ^ (mix(key ^ mix(round << 32 ^ right)) & mask);
            (left, right) = (right, next);
        }
        left << half | right
    }
}
