//! Rotary position embeddings: each pair of elements of a query or key is rotated by an angle
//! proportional to the position, at the frequency of the pair.

use super::dims;
use crate::scope::Scope;
use fullshard_graph::{
    DType, Error, Result, Tensor, concatenate, constant, custom_vjp, iota, zeros,
};
use std::f64::consts::TAU;

/// The parameters of a rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// The head dimension, which is even.
    pub head: usize,
    /// The base of the frequencies.
    pub theta: f64,
    /// How frequencies are scaled for sequences longer than in the original training.
    pub scaling: Scaling,
}

/// Scaling of frequencies.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// No scaling.
    Default,
    /// All frequencies are divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// The base grows for sequences longer than the maximum of the model.
    Dynamic {
        /// The factor of the growth.
        factor: f64,
        /// The maximum sequence length of the model.
        positions: usize,
    },
    /// Low frequencies are divided, high ones unchanged, those between interpolated linearly.
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// The scale of queries and keys.
        attention_factor: f64,
        /// Pairs with at least this many rotations in the original sequence are unchanged.
        beta_fast: f64,
        /// Pairs with at most this many rotations are fully divided.
        beta_slow: f64,
        /// Whether the bounds of the interpolation are rounded outward to integers.
        truncate: bool,
        /// The original maximum sequence length.
        original: f64,
    },
    /// Like YaRN, but interpolated by the number of rotations, and without attention factor.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Pairs with fewer rotations in the original sequence are fully divided.
        low: f64,
        /// Pairs with more rotations are unchanged.
        high: f64,
        /// The original maximum sequence length.
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
    /// The maximum sequence length of a model with a number of positions: dynamic scaling extends
    /// it.
    pub fn max_sequence(&self, positions: usize) -> usize {
        match self.scaling {
            Scaling::Dynamic { factor, .. } => (positions as f64 * factor) as usize,
            _ => positions,
        }
    }

    /// The angles of the positions of a sequence, or of this device's tokens of it, computed in `f32` in a module with a name and the
    /// model's class for it.
    pub fn angles(
        &self,
        nn: &Scope<'_>,
        name: &str,
        class: &'static str,
        sequence: usize,
    ) -> Result<Angles> {
        let tables = nn.module_outputs(name, class, |nn| {
            let pairs = self.head / 2;
            let full = nn.context().map_or(sequence, |context| context.sequence(sequence));
            let frequencies: Vec<f32> =
                self.frequencies(full).iter().map(|&frequency| frequency as f32).collect();
            let positions = match nn.context() {
                Some(context) => {
                    let positions = context.positions(sequence)?.convert(DType::F32)?;
                    positions.expand(1)?.broadcast_to(&[sequence, pairs])?
                }
                None => iota(DType::F32, &[sequence, pairs], 0)?,
            };
            let angles = (positions * constant(&[1, pairs], &frequencies)?)?;
            let attention_scaling = self.attention_scaling();
            let table = |table: Tensor| nn.buffer(&(table * attention_scaling)?);
            Ok(vec![table(angles.cos()?)?, table(angles.sin()?)?])
        })?;
        Ok(Angles { cosines: tables[0].clone(), sines: tables[1].clone() })
    }

    /// The scale of cosines and sines.
    pub fn attention_scaling(&self) -> f64 {
        match self.scaling {
            Scaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }

    /// The frequency of each pair for a sequence length, in radians per position.
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
                // The fractional index of the pair with this many rotations in the original
                // sequence.
                let pair = |rotations: f64| {
                    width * (original / (rotations * TAU)).ln() / (2.0 * self.theta.ln())
                };
                let (mut from, mut to) = (pair(beta_fast), pair(beta_slow));
                if truncate {
                    (from, to) = (from.floor(), to.ceil());
                }
                let (from, mut to) = (from.max(0.0), to.min(width - 1.0));
                if from == to {
                    to += 0.001;
                }
                let ramp = |pair: usize| ((pair as f64 - from) / (to - from)).clamp(0.0, 1.0);
                let blend = |(pair, f)| blended(f, factor, 1.0 - ramp(pair));
                powers(self.theta).enumerate().map(blend).collect()
            }
            Scaling::Llama3 { factor, low, high, original } => {
                let smooth = |f: f64| ((original * f / TAU - low) / (high - low)).clamp(0.0, 1.0);
                powers(self.theta).map(|f| blended(f, factor, smooth(f))).collect()
            }
        }
    }
}

/// Interpolates between a frequency and the divided frequency.
fn blended(frequency: f64, factor: f64, smooth: f64) -> f64 {
    smooth * frequency + (1.0 - smooth) * frequency / factor
}

impl Angles {
    /// The sequence length.
    pub fn sequence(&self) -> usize {
        self.cosines.dims()[0]
    }

    /// Rotates queries or keys, `[batch, heads, sequence, head]`: element `i` of the first half of
    /// a head is paired with element `i` of the second. The backward pass rotates by the negated
    /// angles.
    pub fn apply_rotary(&self, x: &Tensor) -> Result<Tensor> {
        let mut rotated = custom_vjp(
            &[x, &self.cosines, &self.sines],
            |inputs| Ok(vec![rotated(&inputs)?]),
            |inputs| Ok((vec![rotated(&inputs)?], inputs[1..].to_vec())),
            |tables, gradients| {
                let [cosines, sines] = &tables[..] else { return Err(invalid_inputs()) };
                let inputs = [gradients[0].clone(), cosines.clone(), (sines * -1.0)?];
                let none = |table: &Tensor| zeros(table.dtype(), table.dims());
                Ok(vec![rotated(&inputs)?, none(cosines)?, none(sines)?])
            },
        )?;
        rotated.pop().ok_or_else(invalid_inputs)
    }
}

/// Heads rotated by the angles of these cosines and sines.
fn rotated(inputs: &[Tensor]) -> Result<Tensor> {
    let [x, cosines, sines] = inputs else { return Err(invalid_inputs()) };
    let [_, _, _, head] = dims("heads", x)?;
    let half = head / 2;
    let upcast = x.convert(cosines.dtype())?;
    let (a, b) = (upcast.narrow(3, 0, half)?, upcast.narrow(3, half, 2 * half)?);
    let first = ((&a * cosines)? - (&b * sines)?)?;
    let second = ((&b * cosines)? + (&a * sines)?)?;
    concatenate(&[&first, &second], 3)?.convert(x.dtype())
}

fn invalid_inputs() -> Error {
    Error::new("rotary", "expected heads, cosines and sines")
}
