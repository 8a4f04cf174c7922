//! Exponentials of many numbers at once, in a form that compilers turn into vector instructions.

use pulp::{Arch, Simd, WithSimd};
use std::f32::consts::LOG2_E;

/// Numbers that are worked on side by side.
const LANES: usize = 16;

/// Below this, the exponential is hardly a normal number.
const LOWEST: f32 = -87.3;

/// Added to a number, it leaves the nearest whole one in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;

/// The logarithm of two as a sum: a part with few bits, which any exponent times is exact, and the
/// rest.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// The largest of some numbers, leaving out those that are none.
pub(super) fn largest(numbers: &[f32]) -> f32 {
    Arch::new().dispatch(Largest(numbers))
}

/// Puts exponentials of numbers less a shift in their place, and sums them up.
pub(super) fn exponentials(numbers: &mut [f32], shift: f32) -> f32 {
    Arch::new().dispatch(Exponentials { numbers, shift })
}

struct Largest<'a>(&'a [f32]);

impl WithSimd for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f32 {
        let larger = |a: f32, b: f32| if b > a { b } else { a };
        let (chunks, rest) = self.0.as_chunks::<LANES>();
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for chunk in chunks {
            for lane in 0..LANES {
                lanes[lane] = larger(lanes[lane], chunk[lane]);
            }
        }
        lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
    }
}

struct Exponentials<'a> {
    numbers: &'a mut [f32],
    shift: f32,
}

impl WithSimd for Exponentials<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f32 {
        let (chunks, rest) = self.numbers.as_chunks_mut::<LANES>();
        let mut sums = [0.0_f32; LANES];
        for chunk in chunks {
            for lane in 0..LANES {
                chunk[lane] = exponential(chunk[lane] - self.shift);
                sums[lane] += chunk[lane];
            }
        }
        let mut sum: f32 = sums.iter().sum();
        for number in rest {
            *number = exponential(*number - self.shift);
            sum += *number;
        }
        sum
    }
}

/// `e` to a power below 88: two to the whole part, times a Taylor series of the rest, whose first
/// term that is left out is below a quarter of the last bit.
#[inline(always)]
fn exponential(power: f32) -> f32 {
    // As a comparison, this keeps what is not a number.
    let power = if power < LOWEST { LOWEST } else { power };
    let rounded = power.mul_add(LOG2_E, ROUNDER);
    let whole = rounded - ROUNDER;
    let rest = whole.mul_add(-LN_2[1], whole.mul_add(-LN_2[0], power));
    let series = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let series = series.iter().fold(1.0 / 5040.0, |sum, &term| rest.mul_add(sum, term));
    // The lowest bits of what was rounded are the exponent.
    series * f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0_f32.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right_to_the_last_bits() {
        let powers: Vec<f32> = (-8700..8700).map(|i| i as f32 / 100.0).collect();
        let mut found = powers.clone();
        exponentials(&mut found, 0.0);
        for (found, power) in found.iter().zip(powers) {
            let expected = f64::from(power).exp();
            let apart = (f64::from(*found) / expected - 1.0).abs();
            assert!(apart < 2.0 * f64::from(f32::EPSILON), "exp({power}) is {found}: {apart}");
        }
    }

    #[test]
    fn what_is_tiny_or_no_number_stays_so() {
        let mut numbers = [-1e4, f32::NEG_INFINITY, f32::NAN];
        assert!(exponentials(&mut numbers, 1.0).is_nan());
        assert!(numbers[..2].iter().all(|&number| (0.0..1e-37).contains(&number)));
        assert!(numbers[2].is_nan());
    }

    #[test]
    fn sums_and_maxima_are_of_all_numbers() {
        for size in [1, 15, 16, 17, 50] {
            let mut numbers: Vec<f32> = (0..size).map(|i| (i * 7 % size) as f32 / 9.0).collect();
            let expected: f64 = numbers.iter().map(|&x| f64::from(x - 2.0).exp()).sum();
            assert_eq!(largest(&numbers), (size - 1) as f32 / 9.0);
            let found = f64::from(exponentials(&mut numbers, 2.0));
            assert!((found / expected - 1.0).abs() < 1e-6, "{found} of {size}");
        }
    }
}
