//! Vectorized `exp`, in a form that compilers turn into SIMD instructions.

use super::matmul::Float;
use pulp::{Arch, Simd, WithSimd};
use std::f32::consts::LOG2_E;

/// SIMD lanes.
const LANES: usize = 16;

/// Below this, the exponential is barely a normal number.
const LOWEST: f32 = -87.3;

/// Added to a value, it leaves the nearest integer in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;

/// ln(2) as a sum: a high part with few bits, whose product with any exponent is exact, and the
/// remainder.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// The maximum, ignoring NaN.
pub(super) fn largest(values: &[f32]) -> f32 {
    Arch::new().dispatch(Largest(values))
}

/// Writes `exp(x * scale - shift)` of each `x` and returns the sum.
pub(super) fn exponentials<T: Float>(
    values: &[f32],
    scale: f32,
    shift: f32,
    results: &mut [T],
) -> f32 {
    Arch::new().dispatch(Exponentials { values, scale, shift, results })
}

/// The probabilities of scores with known statistics, and the gradients of the scores: `p (g -
/// delta) scale`, with `g` those of the probabilities.
pub(super) fn score_gradients<T: Float>(
    [scores, gradients]: [&[f32]; 2],
    [scale, stats, delta]: [f32; 3],
    [probabilities, of_scores]: [&mut [T]; 2],
) {
    Arch::new().dispatch(ScoreGradients {
        scores,
        gradients,
        scale,
        stats,
        delta,
        probabilities,
        of_scores,
    });
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

struct Exponentials<'a, T> {
    values: &'a [f32],
    scale: f32,
    shift: f32,
    results: &'a mut [T],
}

impl<T: Float> WithSimd for Exponentials<'_, T> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f32 {
        let (chunks, rest) = self.values.as_chunks::<LANES>();
        let (results, rest_of_results) = self.results.as_chunks_mut::<LANES>();
        let mut sums = [0.0_f32; LANES];
        for (chunk, results) in chunks.iter().zip(results) {
            for lane in 0..LANES {
                let value = exponential(chunk[lane].mul_add(self.scale, -self.shift));
                results[lane] = T::narrow(value);
                sums[lane] += value;
            }
        }
        let mut sum: f32 = sums.iter().sum();
        for (value, result) in rest.iter().zip(rest_of_results) {
            let value = exponential(value.mul_add(self.scale, -self.shift));
            *result = T::narrow(value);
            sum += value;
        }
        sum
    }
}

struct ScoreGradients<'a, T> {
    scores: &'a [f32],
    gradients: &'a [f32],
    scale: f32,
    stats: f32,
    delta: f32,
    probabilities: &'a mut [T],
    of_scores: &'a mut [T],
}

impl<T: Float> WithSimd for ScoreGradients<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let ScoreGradients { scores, gradients, scale, stats, delta, probabilities, of_scores } =
            self;
        let one = |score: f32, gradient: f32, probability: &mut T, of_score: &mut T| {
            let value = exponential(score.mul_add(scale, -stats));
            *probability = T::narrow(value);
            *of_score = T::narrow(value * (gradient - delta) * scale);
        };
        let count = scores.len() / LANES * LANES;
        for at in (0..count).step_by(LANES) {
            for lane in at..at + LANES {
                one(scores[lane], gradients[lane], &mut probabilities[lane], &mut of_scores[lane]);
            }
        }
        for at in count..scores.len() {
            one(scores[at], gradients[at], &mut probabilities[at], &mut of_scores[at]);
        }
    }
}

/// `exp` of a power below 88: a power of two times a Taylor series of the remainder, whose first
/// omitted term is below a quarter of the last bit.
#[inline(always)]
fn exponential(power: f32) -> f32 {
    // As a comparison, this preserves NaN.
    let power = if power < LOWEST { LOWEST } else { power };
    let rounded = power.mul_add(LOG2_E, ROUNDER);
    let exponent = rounded - ROUNDER;
    let rest = exponent.mul_add(-LN_2[1], exponent.mul_add(-LN_2[0], power));
    let series = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let series = series.iter().fold(1.0 / 5040.0, |sum, &term| rest.mul_add(sum, term));
    // The lowest bits of the rounded value are the exponent.
    series * f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0_f32.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn exp_is_accurate() {
        let powers: Vec<f32> = (-8700..8700).map(|i| i as f32 / 100.0).collect();
        let mut found = powers.clone();
        exponentials(&powers, 1.0, 0.0, &mut found);
        for (found, power) in found.iter().zip(powers) {
            let expected = f64::from(power).exp();
            let error = (f64::from(*found) / expected - 1.0).abs();
            assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({power}) is {found}: {error}");
        }
    }

    #[test]
    fn handles_underflow_and_nan() {
        let mut results = [0.0_f32; 3];
        let values = [-1e4, f32::NEG_INFINITY, f32::NAN];
        assert!(exponentials(&values, 1.0, 1.0, &mut results).is_nan());
        assert!(results[..2].iter().all(|&value| (0.0..1e-37).contains(&value)));
        assert!(results[2].is_nan());
    }

    /// Results in `bf16` are the nearest to those in `f32`.
    #[test]
    fn results_are_rounded() {
        let values: Vec<f32> = (0..50).map(|i| i as f32 / 7.0 - 4.0).collect();
        let (mut exact, mut rounded) = (values.clone(), vec![bf16::ZERO; 50]);
        let sums = [
            exponentials(&values, 1.0, 1.0, &mut exact),
            exponentials(&values, 1.0, 1.0, &mut rounded),
        ];
        assert_eq!(sums[0], sums[1]);
        assert!(exact.iter().zip(rounded).all(|(&exact, found)| found == bf16::from_f32(exact)));
    }

    #[test]
    fn sum_and_max_cover_all_lengths() {
        for size in [1, 15, 16, 17, 50] {
            let values: Vec<f32> = (0..size).map(|i| (i * 7 % size) as f32 / 9.0).collect();
            let expected: f64 = values.iter().map(|&x| f64::from(x - 2.0).exp()).sum();
            assert_eq!(largest(&values), (size - 1) as f32 / 9.0);
            let found = f64::from(exponentials(&values, 1.0, 2.0, &mut values.clone()));
            assert!((found / expected - 1.0).abs() < 1e-6, "{found} of {size}");
        }
    }
}
