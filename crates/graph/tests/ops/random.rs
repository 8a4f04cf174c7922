//! Seeded random numbers and choices.

use crate::check::Input;

/// The distance between adjacent values of [`Random::spaced`].
const GAP: f64 = 0.1;

/// A random number generator (SplitMix64).
pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// An integer in `0..limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// An integer in `low..=high`.
    pub fn within(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }

    /// Numbers in [-1, 1).
    pub fn numbers(&mut self, count: usize) -> Vec<f64> {
        let mut number = || (self.next() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0;
        (0..count).map(|_| number()).collect()
    }

    /// Dimensions from one to four.
    pub fn dims(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).map(|_| 1 + self.below(4)).collect()
    }

    /// A random permutation of `0..count`.
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }

    /// A random non-empty subset of `0..count`, in random order.
    pub fn some_of(&mut self, count: usize) -> Vec<usize> {
        let mut selected = self.permutation(count);
        selected.truncate(1 + self.below(count));
        selected
    }

    /// Dimensions that broadcast to `dims`.
    pub fn broadcastable(&mut self, dims: &[usize]) -> Vec<usize> {
        let missing = self.below(dims.len() + 1);
        dims[missing..].iter().map(|&dim| if self.below(3) == 0 { 1 } else { dim }).collect()
    }

    /// An input in [-1, 1).
    pub fn around_zero(&mut self, dims: &[usize]) -> Input {
        Input { dims: dims.to_vec(), values: self.numbers(dims.iter().product()) }
    }

    /// An input in [0.5, 2).
    pub fn positive(&mut self, dims: &[usize]) -> Input {
        let mut input = self.around_zero(dims);
        input.values.iter_mut().for_each(|x| *x = 1.25 + 0.75 * *x);
        input
    }

    /// An input of which no two elements are near each other, nor any near a multiple of 0.1: away
    /// from the kinks of a function.
    pub fn spaced(&mut self, dims: &[usize]) -> Input {
        self.spaced_all(&[dims]).remove(0)
    }

    /// Inputs that are [`Random::spaced`] together.
    pub fn spaced_all(&mut self, dims: &[&[usize]]) -> Vec<Input> {
        let counts: Vec<usize> = dims.iter().map(|dims| dims.iter().product()).collect();
        let count = counts.iter().sum();
        let order = self.permutation(count);
        let jitter = self.numbers(count);
        let position = |i: usize| order[i] as f64 - (count / 2) as f64 + 0.5;
        let mut values = (0..count).map(|i| GAP * (position(i) + 0.2 * jitter[i]));
        let input = |(dims, &count): (&&[usize], &usize)| Input {
            dims: dims.to_vec(),
            values: values.by_ref().take(count).collect(),
        };
        dims.iter().zip(&counts).map(input).collect()
    }
}
