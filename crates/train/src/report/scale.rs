//! The range and ticks of an axis.

use super::curve::Curve;

/// A range of numbers and its ticks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scale {
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) ticks: Vec<f64>,
    decimals: usize,
}

impl Scale {
    /// A scale over a range, with at most `count` round ticks.
    pub(super) fn over(min: f64, max: f64, count: usize) -> Scale {
        let step = round_step((max - min) / count.max(1) as f64);
        let first = (min / step - 1e-9).ceil() as i64;
        let last = (max / step + 1e-9).floor() as i64;
        let ticks = (first..=last).map(|tick| tick as f64 * step).collect();
        // 0.25 has one decimal more than its magnitude.
        let decimals = (0..9).find(|&decimals| {
            let scaled = step * 10_f64.powi(decimals);
            (scaled - scaled.round()).abs() < 1e-6 * scaled
        });
        Scale { min, max, ticks, decimals: decimals.unwrap_or(9) as usize }
    }

    /// The steps of a curve; `None` without points. Runs from the first step begin at zero.
    pub(super) fn of_steps(curve: &Curve, count: usize) -> Option<Scale> {
        let (min, max) = range(points(curve).map(|(step, _)| step))?;
        let min = if min <= 0.2 * max { 0.0 } else { min };
        Some(Scale::over(min, if max > min { max } else { min + 1.0 }, count))
    }

    /// The losses of a curve and its floor, with a margin; `None` without points.
    pub(super) fn of_losses(curve: &Curve, count: usize) -> Option<Scale> {
        let floor = curve.floor.iter().map(|floor| floor.value).filter(|value| value.is_finite());
        range(points(curve).map(|(_, loss)| loss))?;
        let (min, max) = range(points(curve).map(|(_, loss)| loss).chain(floor))?;
        let margin = if max > min { 0.06 * (max - min) } else { 0.5 };
        // The label of the floor is below it.
        let below = if curve.floor.is_some() { 1.5 * margin } else { margin };
        Some(Scale::over(min - below, max + margin, count))
    }

    /// The position of a number: 0 at the start of the scale, 1 at its end.
    pub(super) fn position(&self, value: f64) -> f64 {
        (value - self.min) / (self.max - self.min)
    }

    /// The label of a tick.
    pub(super) fn label(&self, tick: f64) -> String {
        let thousands = self.ticks.last().is_some_and(|&last| last >= 10_000.0);
        if thousands && self.decimals == 0 && tick % 1000.0 == 0.0 && tick != 0.0 {
            return format!("{}k", tick / 1000.0);
        }
        format!("{:.*}", self.decimals, if tick == 0.0 { 0.0 } else { tick })
    }
}

/// The next number of 1, 2, 2.5 or 5 times a power of ten.
fn round_step(min: f64) -> f64 {
    let magnitude = 10_f64.powf(min.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0].into_iter().find(|step| step * magnitude >= min * 0.999);
    step.unwrap_or(10.0) * magnitude
}

/// All finite points.
fn points(curve: &Curve) -> impl Iterator<Item = (f64, f64)> {
    let all = curve.losses.iter().chain(&curve.evaluations).copied();
    all.filter(|(step, loss)| step.is_finite() && loss.is_finite())
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| {
        let (min, max) = range.unwrap_or((value, value));
        Some((f64::min(min, value), f64::max(max, value)))
    })
}
