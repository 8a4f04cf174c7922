//! Rotary positions: each pair of a query's or key's numbers is turned by an angle that grows
//! with the position, at a frequency of the pair's own.

use super::dims;
use crate::scope::Scope;
use fullshard_graph::{
    DType, Error, Result, Tensor, concatenate, constant, custom_vjp, iota, zeros,
};
use std::f64::consts::TAU;

/// How positions turn heads.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// The width of a head, which is even.
    pub head: usize,
    /// The base of the frequencies.
    pub theta: f64,
    /// How frequencies are changed for sequences longer than those a model was first trained on.
    pub scaling: Scaling,
}

/// A change of frequencies.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// None.
    Default,
    /// All are divided.
    Linear {
        /// By this.
        factor: f64,
    },
    /// The base grows with a sequence longer than the model is made for.
    Dynamic {
        /// How fast.
        factor: f64,
        /// The sequence that the model is made for.
        positions: usize,
    },
    /// Low ones are divided, high ones stay, those between are blended along a line.
    Yarn {
        /// What low ones are divided by.
        factor: f64,
        /// What queries and keys are stretched by.
        attention_factor: f64,
        /// A pair that turns at least so often in the original sequence stays.
        beta_fast: f64,
        /// A pair that turns at most so often is divided whole.
        beta_slow: f64,
        /// Whether the ends of the line are moved out to whole pairs.
        truncate: bool,
        /// The original sequence.
        original: f64,
    },
    /// As yarn, but blended by how often a pair turns, and nothing is stretched.
    Llama3 {
        /// What low ones are divided by.
        factor: f64,
        /// A pair that turns fewer times in the original sequence is divided whole.
        low: f64,
        /// A pair that turns more often stays.
        high: f64,
        /// The original sequence.
        original: f64,
    },
}

/// The cosines and sines of a sequence's angles, `[sequence, head / 2]`.
#[derive(Debug, Clone)]
pub struct Angles {
    cosines: Tensor,
    sines: Tensor,
}

impl Rotary {
    /// The longest sequence of a model made for a number of positions: dynamic scaling is for longer
    /// ones.
    pub fn longest(&self, positions: usize) -> usize {
        match self.scaling {
            Scaling::Dynamic { factor, .. } => (positions as f64 * factor) as usize,
            _ => positions,
        }
    }

    /// The angles of the positions of a sequence, made in `f32` in the module of a name, and of the
    /// class that a model has for it.
    pub fn angles(
        &self,
        nn: &Scope<'_>,
        name: &str,
        class: &'static str,
        sequence: usize,
    ) -> Result<Angles> {
        let tables = nn.module_of_many(name, class, |nn| {
            let pairs = self.head / 2;
            let frequencies: Vec<f32> =
                self.frequencies(sequence).iter().map(|&frequency| frequency as f32).collect();
            let positions = iota(DType::F32, &[sequence, pairs], 0)?;
            let angles = (positions * constant(&[1, pairs], &frequencies)?)?;
            let stretch = self.stretch();
            let table = |table: Tensor| nn.buffer(&(table * stretch)?);
            Ok(vec![table(angles.cos()?)?, table(angles.sin()?)?])
        })?;
        Ok(Angles { cosines: tables[0].clone(), sines: tables[1].clone() })
    }

    /// What cosines and sines are multiplied by.
    pub fn stretch(&self) -> f64 {
        match self.scaling {
            Scaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }

    /// The frequency of each pair in a sequence of a length, in radians a position.
    pub fn frequencies(&self, sequence: usize) -> Vec<f64> {
        let width = self.head as f64;
        let powers =
            |theta: f64| (0..self.head / 2).map(move |pair| theta.powf(-2.0 * pair as f64 / width));
        match self.scaling {
            Scaling::Default => powers(self.theta).collect(),
            Scaling::Linear { factor } => powers(self.theta).map(|f| f / factor).collect(),
            Scaling::Dynamic { factor, positions } => {
                let longer = sequence.max(positions) as f64 / positions as f64;
                let growth = factor * longer - (factor - 1.0);
                powers(self.theta * growth.powf(width / (width - 2.0))).collect()
            }
            Scaling::Yarn { factor, beta_fast, beta_slow, truncate, original, .. } => {
                // The pair, as a number between pairs, that turns so often in the original.
                let pair =
                    |turns: f64| width * (original / (turns * TAU)).ln() / (2.0 * self.theta.ln());
                let (mut from, mut to) = (pair(beta_fast), pair(beta_slow));
                if truncate {
                    (from, to) = (from.floor(), to.ceil());
                }
                let (from, mut to) = (from.max(0.0), to.min(width - 1.0));
                if from == to {
                    to += 0.001;
                }
                let divided = |pair: usize| ((pair as f64 - from) / (to - from)).clamp(0.0, 1.0);
                let blend = |(pair, f)| blended(f, factor, 1.0 - divided(pair));
                powers(self.theta).enumerate().map(blend).collect()
            }
            Scaling::Llama3 { factor, low, high, original } => {
                let kept = |f: f64| ((original * f / TAU - low) / (high - low)).clamp(0.0, 1.0);
                powers(self.theta).map(|f| blended(f, factor, kept(f))).collect()
            }
        }
    }
}

/// A frequency of which a part is kept and the rest divided.
fn blended(frequency: f64, factor: f64, kept: f64) -> f64 {
    kept * frequency + (1.0 - kept) * frequency / factor
}

impl Angles {
    /// The tokens of a sequence.
    pub fn sequence(&self) -> usize {
        self.cosines.dims()[0]
    }

    /// Turns queries or keys, `[batch, heads, sequence, head]`: number `i` of the first half of a
    /// head makes a pair with number `i` of the second. The backward pass turns the other way.
    pub fn apply_rotary(&self, x: &Tensor) -> Result<Tensor> {
        let mut rotated = custom_vjp(
            &[x, &self.cosines, &self.sines],
            |inputs| Ok(vec![rotated(&inputs)?]),
            |inputs| Ok((vec![rotated(&inputs)?], inputs[1..].to_vec())),
            |tables, gradients| {
                let [cosines, sines] = &tables[..] else { return Err(lost()) };
                let back = [gradients[0].clone(), cosines.clone(), (sines * -1.0)?];
                let none = |table: &Tensor| zeros(table.dtype(), table.dims());
                Ok(vec![rotated(&back)?, none(cosines)?, none(sines)?])
            },
        )?;
        rotated.pop().ok_or_else(lost)
    }
}

/// Heads turned by the angles of these cosines and sines.
fn rotated(inputs: &[Tensor]) -> Result<Tensor> {
    let [x, cosines, sines] = inputs else { return Err(lost()) };
    let [_, _, _, head] = dims("heads", x)?;
    let half = head / 2;
    let wide = x.convert(cosines.dtype())?;
    let (a, b) = (wide.narrow(3, 0, half)?, wide.narrow(3, half, 2 * half)?);
    let first = ((&a * cosines)? - (&b * sines)?)?;
    let second = ((&b * cosines)? + (&a * sines)?)?;
    concatenate(&[&first, &second], 3)?.convert(x.dtype())
}

fn lost() -> Error {
    Error::new("rotary", "heads are turned by cosines and sines")
}
