//! Statistics of each distribution.

use super::results;
use fullshard_graph::{DType, Draw, Key, Result, Tensor};

pub const COUNT: usize = 1 << 18;

/// A sample drawn with one key.
fn sample(dims: &[usize], draw: impl FnOnce(&Draw) -> Result<Tensor>) -> Vec<f64> {
    let found = results(|| Ok(vec![draw(&Key::constant(7)?.named("sample")?.draw(dims))?]));
    found[0].to_f64().unwrap()
}

/// The mean of a function of each value.
pub fn mean(values: &[f64], function: impl Fn(f64) -> f64) -> f64 {
    values.iter().map(|&value| function(value)).sum::<f64>() / values.len() as f64
}

/// Mean, variance, skewness and kurtosis.
fn moments(values: &[f64]) -> [f64; 4] {
    let center = mean(values, |x| x);
    let variance = mean(values, |x| (x - center).powi(2));
    let standard = |power| mean(values, |x| ((x - center) / variance.sqrt()).powi(power));
    [center, variance, standard(3), standard(4)]
}

/// Checks a normally distributed statistic within five deviations: one failure in a million.
#[track_caller]
pub fn assert_near(what: &str, found: f64, expected: f64, deviation: f64) {
    println!("{what}: {found:.6} for {expected:.6}, {:.2} σ", (found - expected) / deviation);
    assert!((found - expected).abs() < 5.0 * deviation, "{what}: {found} for {expected}");
}

#[test]
fn uniform_numbers_are_uniform() {
    let values = sample(&[COUNT], |draw| draw.uniform(DType::F32));
    let n = COUNT as f64;
    assert!(values.iter().all(|x| (0.0..1.0).contains(x)));
    let [center, variance, ..] = moments(&values);
    assert_near("mean", center, 0.5, (1.0 / 12.0 / n).sqrt());
    assert_near("variance", variance, 1.0 / 12.0, (1.0 / 180.0 / n).sqrt());
    let bins = 64;
    let mut counts = vec![0.0; bins];
    values.iter().for_each(|x| counts[(x * bins as f64) as usize] += 1.0);
    let expected = n / bins as f64;
    let chi_square: f64 = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
    let degrees_of_freedom = bins as f64 - 1.0;
    assert_near("chi-square", chi_square, degrees_of_freedom, (2.0 * degrees_of_freedom).sqrt());
    let product: f64 = values.windows(2).map(|pair| (pair[0] - 0.5) * (pair[1] - 0.5)).sum();
    assert_near("lag-1 correlation", product / n * 12.0, 0.0, 1.0 / n.sqrt());
}

#[test]
fn every_bit_is_fair() {
    let found = results(|| Ok(vec![Key::constant(0)?.draw(&[COUNT]).bits()?]));
    let bits: Vec<u32> = found[0].values().unwrap();
    for bit in 0..32 {
        let set = bits.iter().filter(|word| *word >> bit & 1 == 1).count();
        let deviation = (0.25 * COUNT as f64).sqrt();
        assert_near(&format!("bit {bit}"), set as f64, COUNT as f64 / 2.0, deviation);
    }
}

#[test]
fn low_precision_types_are_uniform_below_one() {
    for dtype in [DType::F64, DType::Bf16, DType::F16] {
        let values = sample(&[1 << 16], |draw| draw.uniform(dtype));
        assert!(values.iter().all(|x| (0.0..1.0).contains(x)), "{dtype}");
        // bf16 has steps of 1/256, so the mean is half a step below 1/2.
        let expected = if dtype == DType::Bf16 { 0.5 - 0.5 / 256.0 } else { 0.5 };
        assert_near(dtype.name(), mean(&values, |x| x), expected, 0.0015);
    }
}

/// The standard normal CDF, by Simpson's rule.
fn normal_cdf(x: f64) -> f64 {
    let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let steps = 64;
    let h = x / f64::from(steps);
    let weight = |i| if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
    let sum: f64 = (0..=steps).map(|i| weight(i) * density(f64::from(i) * h)).sum();
    0.5 + sum * h / 3.0
}

/// The largest distance from a CDF, times the square root of the count.
fn kolmogorov_smirnov(values: &[f64], cdf: impl Fn(f64) -> f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let distance = |(i, &x): (usize, &f64)| {
        let level = cdf(x);
        (level - i as f64 / n).abs().max(((i + 1) as f64 / n - level).abs())
    };
    sorted.iter().enumerate().map(distance).fold(0.0, f64::max) * n.sqrt()
}

#[test]
fn normal_numbers_are_normal() {
    let values = sample(&[COUNT], |draw| draw.normal(DType::F32));
    let n = COUNT as f64;
    let [center, variance, skewness, kurtosis] = moments(&values);
    assert_near("mean", center, 0.0, (1.0 / n).sqrt());
    assert_near("variance", variance, 1.0, (2.0 / n).sqrt());
    assert_near("skewness", skewness, 0.0, (6.0 / n).sqrt());
    assert_near("kurtosis", kurtosis, 3.0, (24.0 / n).sqrt());
    let product: f64 = values.windows(2).map(|pair| pair[0] * pair[1]).sum();
    assert_near("lag-1 correlation", product / n, 0.0, 1.0 / n.sqrt());
    let distance = kolmogorov_smirnov(&values[..1 << 16], normal_cdf);
    println!("Kolmogorov-Smirnov: {distance:.3}");
    // 1.95 is exceeded once in a thousand runs.
    assert!(distance < 1.95, "{distance}");
}

#[test]
fn truncated_normal_numbers_stay_inside() {
    for (low, high) in [(-2.0, 2.0), (0.5, 3.0), (-1.0, 8.0), (2.5, 2.75), (-9.0, 9.0)] {
        let values = sample(&[COUNT], |draw| draw.truncated_normal(DType::F32, low, high));
        assert!(values.iter().all(|x| (low..=high).contains(x)));
        let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let (below, mass) = (normal_cdf(low), normal_cdf(high) - normal_cdf(low));
        let shift = (density(low) - density(high)) / mass;
        let spread = 1.0 + (low * density(low) - high * density(high)) / mass - shift * shift;
        let [center, variance, _, kurtosis] = moments(&values);
        let n = COUNT as f64;
        let what = format!("({low}, {high})");
        assert_near(&format!("{what} mean"), center, shift, (spread / n).sqrt());
        let deviation = spread * ((kurtosis - 1.0) / n).sqrt();
        assert_near(&format!("{what} variance"), variance, spread, deviation);
        let cdf = |x| (normal_cdf(x) - below) / mass;
        let distance = kolmogorov_smirnov(&values[..1 << 14], cdf);
        println!("{what} Kolmogorov-Smirnov: {distance:.3}");
        assert!(distance < 1.95, "{what}: {distance}");
    }
}

#[test]
fn bernoulli_has_its_probability() {
    for p in [0.0, 1e-3, 0.1, 0.5, 0.9, 1.0] {
        let values = sample(&[COUNT], |draw| draw.bernoulli(p));
        let deviation = (p * (1.0 - p) / COUNT as f64).sqrt() + 1e-12;
        assert_near(&format!("p = {p}"), mean(&values, |x| x), p, deviation);
    }
}
