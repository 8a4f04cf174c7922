//! Measuring training steps on made-up tokens.
//!
//! Steps are measured in two ways. For the rate they are launched as in training, the host one
//! step ahead of what it reads where that pays, and the time of all is divided by their number. For
//! the spread each is launched and waited for by itself, which shows how much one differs from
//! another and what the host adds. A profile is taken of further steps, since taking one costs time.

use crate::error::Error;
use crate::runner::{Metrics, Pending, Runner};
use fullshard_pjrt::HostTensor;
use fullshard_step::BatchShape;
use std::time::Instant;

/// The batches that are made up beforehand and used in turn.
const DISTINCT: usize = 8;

/// How steps are to be measured.
#[derive(Debug, Clone, Copy)]
pub struct Bench {
    /// Steps before the clock runs.
    pub warmup: usize,
    /// Steps measured, once for the rate and once for the spread.
    pub steps: usize,
    /// Whether every step has the same tokens.
    pub fixed_batch: bool,
    /// What tokens are made up from.
    pub seed: u64,
    /// The learning rate of every step.
    pub learning_rate: f64,
}

/// What was measured, times in seconds.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Measured {
    /// Whether each step was launched before the one before it was done.
    pub ahead: bool,
    /// The time of all steps.
    pub total: f64,
    /// The time of a step among those: `total` over their number.
    pub step: f64,
    /// The times of steps that were waited for one by one.
    pub waited: Vec<f64>,
    /// What of those is worth a look.
    pub spread: Spread,
    /// The very first step, before any update.
    #[serde(skip)]
    pub first: Metrics,
    /// The very last.
    #[serde(skip)]
    pub last: Metrics,
}

/// Some times at a glance: the least, the quartiles and the most.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[allow(missing_docs)]
pub struct Spread {
    pub min: f64,
    pub lower_quartile: f64,
    pub median: f64,
    pub upper_quartile: f64,
    pub max: f64,
}

impl Bench {
    /// Measures steps of a runner for a model with so many tokens in its vocabulary.
    pub fn run(
        &self,
        runner: &mut Runner<'_>,
        batch: BatchShape,
        vocabulary: usize,
    ) -> Result<Measured, Error> {
        let batches = self.batches(batch, vocabulary)?;
        let ahead = runner.launches_ahead();
        let mut launch = self.launches(runner, &batches);

        let mut first = None;
        for _ in 0..self.warmup {
            let metrics = launch()?.wait()?;
            first.get_or_insert(metrics);
        }

        let start = Instant::now();
        let in_a_row = in_a_row(&mut launch, self.steps, ahead)?;
        let total = start.elapsed().as_secs_f64();
        let first = first.or(in_a_row);

        let mut waited = Vec::new();
        let mut last = None;
        for _ in 0..self.steps {
            let start = Instant::now();
            last = Some(launch()?.wait()?);
            waited.push(start.elapsed().as_secs_f64());
        }
        match (Spread::of(&waited), first, last) {
            (Some(spread), Some(first), Some(last)) => {
                let step = total / self.steps as f64;
                Ok(Measured { ahead, total, step, waited, spread, first, last })
            }
            _ => Err(fullshard_step::Error::TooFew {
                what: "the number of steps",
                found: 0,
                least: 1,
            }
            .into()),
        }
    }
}

impl Bench {
    /// Profiles further steps of a runner, launched as in training; gives an XSpace.
    pub fn profile(
        &self,
        runner: &mut Runner<'_>,
        batch: BatchShape,
        vocabulary: usize,
        steps: usize,
    ) -> Result<Vec<u8>, Error> {
        let batches = self.batches(batch, vocabulary)?;
        let ahead = runner.launches_ahead();
        let profile = runner.client().plugin().start_profile()?;
        in_a_row(&mut self.launches(runner, &batches), steps, ahead)?;
        Ok(profile.finish()?)
    }

    /// The tokens that steps use in turn.
    fn batches(&self, batch: BatchShape, vocabulary: usize) -> Result<Vec<HostTensor>, Error> {
        let distinct = if self.fixed_batch { 1 } else { DISTINCT };
        (0..distinct as u64).map(|i| tokens(batch, vocabulary, self.seed ^ i)).collect()
    }

    /// Launches one step after another.
    fn launches<'r>(
        &self,
        runner: &'r mut Runner<'_>,
        batches: &'r [HostTensor],
    ) -> impl FnMut() -> Result<Pending, Error> {
        let mut next = batches.iter().cycle();
        let rate = self.learning_rate;
        move || match next.next() {
            Some(tokens) => runner.step(&[tokens, tokens], rate),
            None => Err(fullshard_step::Error::TooFew {
                what: "the number of steps",
                found: 0,
                least: 1,
            }
            .into()),
        }
    }
}

/// Launches steps as in training and waits for all; gives what the first says.
fn in_a_row(
    launch: &mut impl FnMut() -> Result<Pending, Error>,
    steps: usize,
    ahead: bool,
) -> Result<Option<Metrics>, Error> {
    let mut first = None;
    let mut behind: Option<Pending> = None;
    for _ in 0..steps {
        let step = launch()?;
        let done = if ahead { behind.replace(step) } else { Some(step) };
        if let Some(done) = done {
            let metrics = done.wait()?;
            first.get_or_insert(metrics);
        }
    }
    if let Some(done) = behind {
        let metrics = done.wait()?;
        first.get_or_insert(metrics);
    }
    Ok(first)
}

impl Spread {
    /// The spread of some numbers, if there are any.
    pub fn of(numbers: &[f64]) -> Option<Spread> {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        // Between two numbers where a quantile falls between them.
        let at = |share: f64| {
            let place = share * last as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Some(Spread {
            min: at(0.0),
            lower_quartile: at(0.25),
            median: at(0.5),
            upper_quartile: at(0.75),
            max: at(1.0),
        })
    }
}

/// Tokens of a step, all of the vocabulary equally likely.
fn tokens(batch: BatchShape, vocabulary: usize, seed: u64) -> Result<HostTensor, Error> {
    let dims = [batch.accumulation, batch.sequences, batch.tokens];
    let mut state = mixed(seed);
    let draw = |_| {
        state = state.wrapping_add(GOLDEN);
        ((u128::from(mixed(state)) * vocabulary as u128) >> 64) as i32
    };
    let values: Vec<i32> = (0..dims.iter().product()).map(draw).collect();
    Ok(HostTensor::from_values(&dims, &values)?)
}

/// The step of a SplitMix64 generator.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The output of a SplitMix64 generator in a state.
fn mixed(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_lies_between_its_numbers() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0, 5.0]).unwrap();
        let quartiles = [spread.lower_quartile, spread.median, spread.upper_quartile];
        assert_eq!((spread.min, quartiles, spread.max), (1.0, [2.0, 3.0, 4.0], 5.0));
        assert_eq!(Spread::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of(&[7.0]).unwrap().lower_quartile, 7.0);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn tokens_are_of_the_vocabulary_and_use_all_of_it() {
        let batch =
            BatchShape { sequences: 8, tokens: 64, accumulation: 2, sync_each_microbatch: true };
        let draw = |seed| tokens(batch, 37, seed).unwrap().values::<i32>().unwrap();
        let mut seen = draw(1);
        assert_eq!((seen.len(), seen == draw(1), seen == draw(2)), (1024, true, false));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..37).collect::<Vec<i32>>());
    }
}
