//! What a run leaves behind, against what Hugging Face's Trainer and TensorBoard make of it.
#![allow(clippy::unwrap_used)]

use fullshard_train::report::{Curve, TerminalStyle};

/// A run of `count` logs that falls from 4 towards 1.5, with noise.
fn curve(count: usize) -> Curve {
    let noise = |i: usize| ((i * i * 7919 % 1009) as f64 / 1009.0 - 0.5) * 0.3;
    let loss = |part: f64| 1.5 + 2.6 * (-6.0 * part).exp();
    let part = |i: usize| i as f64 / count as f64;
    Curve {
        title: "GPT-2, 4 devices".to_owned(),
        losses: (1..=count).map(|i| (i as f64 * 2.0, loss(part(i)) + noise(i))).collect(),
        evaluations: (1..=4)
            .map(|i| (count as f64 / 2.0 * i as f64, loss(i as f64 / 4.0)))
            .collect(),
        floor: None,
    }
    .with_floor(1.386, "entropy of the source")
}

#[test]
fn a_curve_in_a_terminal() {
    insta::assert_snapshot!(curve(200).terminal(&TerminalStyle::default()));
    std::fs::write("/tmp/loss.svg", curve(200).svg()).unwrap();
}
