//! Thinning and smoothing of points.

type Points = Vec<(f64, f64)>;

/// At most `count` means of neighboring points, so that a long run costs no more to draw.
pub(super) fn thinned(points: &[(f64, f64)], count: usize) -> Points {
    let finite: Points =
        points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    let each = finite.len().div_ceil(count.max(1)).max(1);
    finite.chunks(each).map(mean).collect()
}

fn mean(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let sum = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    (sum.0 / count, sum.1 / count)
}

/// Each point moved onto a line fitted to its neighbors, with Gaussian weights. Unlike a running
/// mean this neither lags nor is off at the steep start.
pub(super) fn smoothed(points: &[(f64, f64)]) -> Points {
    let width = (points.len() as f64 / 40.0).max(1.5);
    let reach = (3.0 * width).ceil() as usize;
    let around = |i: usize| {
        let (from, to) = (i.saturating_sub(reach), (i + reach + 1).min(points.len()));
        (from..to).map(move |j| (j as f64 - i as f64, points[j].1))
    };
    let weight = |distance: f64| (-0.5 * (distance / width).powi(2)).exp();
    let fitted = |i: usize| {
        let sum =
            |of: fn(f64, f64) -> f64| -> f64 { around(i).map(|(x, y)| weight(x) * of(x, y)).sum() };
        let (n, x, y) = (sum(|_, _| 1.0), sum(|x, _| x), sum(|_, y| y));
        let (xx, xy) = (sum(|x, _| x * x), sum(|x, y| x * y));
        let spread = n * xx - x * x;
        if spread > 1e-9 { (y * xx - x * xy) / spread } else { y / n }
    };
    points.iter().enumerate().map(|(i, &(step, _))| (step, fitted(i))).collect()
}
