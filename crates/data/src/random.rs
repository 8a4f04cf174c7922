//! Pseudorandom numbers from a seed, the same on every platform.

/// Mixes all bits (the finalizer of SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// A counter-based stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    key: u64,
    drawn: u64,
}

impl Random {
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        Self { key: mix(mix(seed) ^ purpose), drawn: 0 }
    }

    /// A number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        self.drawn += 1;
        (mix(self.key ^ mix(self.drawn)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An approximately normal number with mean 0 and variance 1: a sum of twelve uniform ones.
    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}
