//! Pseudorandom numbers from a seed, the same on every platform.

/// Mixes all bits (the finalizer of SplitMix64).
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// A counter-based stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    key: u64,
    drawn: u64,
}

impl Random {
    /// The stream of a seed for a purpose; streams of other purposes are independent.
    pub fn new(seed: u64, purpose: u64) -> Self {
        Self { key: mix(mix(seed) ^ purpose), drawn: 0 }
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        self.drawn += 1;
        (mix(self.key ^ mix(self.drawn)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An exponentially distributed number: the time to the next of events that come at random,
    /// with this mean time between them.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// An approximately normal number with mean 0 and variance 1: a sum of twelve uniform ones.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_numbers_have_their_mean_and_variance() {
        let mut random = Random::new(1, 2);
        let drawn: Vec<f64> = (0..100_000).map(|_| random.exponential(3.0)).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let square = drawn.iter().map(|x| x * x).sum::<f64>() / drawn.len() as f64;
        assert!((mean / 3.0 - 1.0).abs() < 0.02, "{mean}");
        assert!(((square - mean * mean) / 9.0 - 1.0).abs() < 0.03, "{square}");
        assert!(drawn.iter().all(|&x| x >= 0.0));
    }
}
