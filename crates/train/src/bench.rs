//! Benchmarks training steps on synthetic tokens.
//!
//! Steps are measured in two ways. For throughput they are launched as in training, with the host
//! one launch ahead where that pays, and the total time is divided by their number. For the spread
//! each launch is waited for separately, which shows the variation between steps and the host
//! overhead. A profile is taken of further steps, since profiling costs time.
//!
//! Launches of several steps are measured whole, and their times divided by their steps. What they
//! gain shows beside single steps, which the same run measures too.

use crate::error::Error;
use crate::launch::{Metrics, Pending};
use crate::runner::Runner;
use fullshard_pjrt::HostTensor;
use fullshard_step::BatchShape;
use std::time::Instant;

/// Number of synthetic batches, which are used in rotation.
const DISTINCT: usize = 8;

/// Settings of a benchmark.
#[derive(Debug, Clone, Copy)]
pub struct Bench {
    /// Warm-up steps before timing; a launch that they begin is completed.
    pub warmup: usize,
    /// Steps measured, once for throughput and once for the spread; a launch that they begin is
    /// completed.
    pub steps: usize,
    /// Whether every step has the same tokens.
    pub fixed_batch: bool,
    /// The seed of the synthetic tokens.
    pub seed: u64,
    /// The learning rate of every step.
    pub learning_rate: f64,
}

/// Measurements, with times in seconds.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Measured {
    /// Whether each launch was made before the previous one was done.
    pub ahead: bool,
    /// Total time of all steps.
    pub total: f64,
    /// Time per step: `total` over their number.
    pub step: f64,
    /// Time per step if each is a launch of its own, where launches have several.
    pub single: Option<f64>,
    /// Times per step of launches that were waited for separately.
    pub waited: Vec<f64>,
    /// Summary of those times.
    pub spread: Spread,
    /// Metrics of the first step, before any update.
    #[serde(skip)]
    pub first: Metrics,
    /// Metrics of the last step.
    #[serde(skip)]
    pub last: Metrics,
}

/// Summary of times: minimum, quartiles and maximum.
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
    /// Measures steps of a runner for a model with this vocabulary size.
    pub fn run(
        &self,
        runner: &mut Runner<'_>,
        batch: BatchShape,
        vocabulary: usize,
    ) -> Result<Measured, Error> {
        let batches = self.batches(batch, vocabulary)?;
        let ahead = runner.launches_ahead();
        let iterations = runner.spec().iterations_per_loop;
        let launches = self.steps.div_ceil(iterations);
        let mut launch = self.launches(runner, &batches, iterations);

        let warmup = self.warmup.div_ceil(iterations);
        let (first, total) = time_launches(&mut launch, warmup, launches, ahead)?;

        let mut waited = Vec::new();
        let mut last = None;
        for _ in 0..launches {
            let start = Instant::now();
            last = Some(launch()?.wait()?);
            waited.push(start.elapsed().as_secs_f64() / iterations as f64);
        }
        drop(launch);

        let single = match iterations {
            1 => None,
            _ => Some(self.single_step(runner, &batches, ahead)?),
        };
        match (Spread::of(&waited), first, last) {
            (Some(spread), Some(first), Some(last)) => {
                let step = total / (launches * iterations) as f64;
                Ok(Measured { ahead, total, step, single, waited, spread, first, last })
            }
            _ => Err(fullshard_step::Error::TooFew {
                what: "the number of steps",
                found: 0,
                least: 1,
            }
            .into()),
        }
    }

    /// The time of a step in launches of one.
    fn single_step(
        &self,
        runner: &mut Runner<'_>,
        batches: &[HostTensor],
        ahead: bool,
    ) -> Result<f64, Error> {
        runner.prepare(1)?;
        let mut launch = self.launches(runner, batches, 1);
        let (_, total) = time_launches(&mut launch, self.warmup.max(1), self.steps, ahead)?;
        Ok(total / self.steps as f64)
    }
}

impl Bench {
    /// Profiles further launches of a runner, as in training; returns an XSpace.
    pub fn profile(
        &self,
        runner: &mut Runner<'_>,
        batch: BatchShape,
        vocabulary: usize,
        launches: usize,
    ) -> Result<Vec<u8>, Error> {
        let batches = self.batches(batch, vocabulary)?;
        let ahead = runner.launches_ahead();
        let profile = runner.client().plugin().start_profile()?;
        let iterations = runner.spec().iterations_per_loop;
        run_launches(&mut self.launches(runner, &batches, iterations), launches, ahead)?;
        Ok(profile.finish()?)
    }

    /// The batches that steps use in rotation.
    fn batches(&self, batch: BatchShape, vocabulary: usize) -> Result<Vec<HostTensor>, Error> {
        let distinct = if self.fixed_batch { 1 } else { DISTINCT };
        (0..distinct as u64).map(|i| tokens(batch, vocabulary, self.seed ^ i)).collect()
    }

    /// A function that makes the next launch of some steps.
    fn launches<'r>(
        &self,
        runner: &'r mut Runner<'_>,
        batches: &'r [HostTensor],
        iterations: usize,
    ) -> impl FnMut() -> Result<Pending, Error> {
        let mut next = batches.iter().cycle();
        let rates = vec![self.learning_rate; iterations];
        move || {
            let batches: Vec<_> =
                next.by_ref().take(iterations).map(|tokens| [tokens, tokens]).collect();
            let batches: Vec<&[_]> = batches.iter().map(|batch| &batch[..]).collect();
            runner.launch(&batches, &rates)
        }
    }
}

/// Times launches after others that are not timed, and returns the metrics of the first step.
fn time_launches(
    launch: &mut impl FnMut() -> Result<Pending, Error>,
    warmup: usize,
    launches: usize,
    ahead: bool,
) -> Result<(Option<Metrics>, f64), Error> {
    let first = run_launches(launch, warmup, false)?;
    let start = Instant::now();
    let first_timed = run_launches(launch, launches, ahead)?;
    Ok((first.or(first_timed), start.elapsed().as_secs_f64()))
}

/// Launches as in training and waits for all; returns the metrics of the first step.
fn run_launches(
    launch: &mut impl FnMut() -> Result<Pending, Error>,
    launches: usize,
    ahead: bool,
) -> Result<Option<Metrics>, Error> {
    let mut first = None;
    let mut read = |done: Pending| -> Result<(), Error> {
        let metrics = done.wait_all()?;
        first = first.or(metrics.first().copied());
        Ok(())
    };
    let mut in_flight: Option<Pending> = None;
    for _ in 0..launches {
        let launched = launch()?;
        let done = if ahead { in_flight.replace(launched) } else { Some(launched) };
        done.map_or(Ok(()), &mut read)?;
    }
    in_flight.map_or(Ok(()), &mut read)?;
    Ok(first)
}

impl Spread {
    /// The spread of numbers; `None` if there are none.
    pub fn of(numbers: &[f64]) -> Option<Spread> {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        // Interpolates between the two nearest numbers.
        let at = |quantile: f64| {
            let index = quantile * last as f64;
            let (below, above) = (sorted[index.floor() as usize], sorted[index.ceil() as usize]);
            below + (above - below) * index.fract()
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

/// Tokens of a step, uniform over the vocabulary.
fn tokens(batch: BatchShape, vocabulary: usize, seed: u64) -> Result<HostTensor, Error> {
    let dims = [batch.accumulation, batch.sequences, batch.tokens];
    let mut state = mix(seed);
    let draw = |_| {
        state = state.wrapping_add(GOLDEN);
        ((u128::from(mix(state)) * vocabulary as u128) >> 64) as i32
    };
    let values: Vec<i32> = (0..dims.iter().product()).map(draw).collect();
    Ok(HostTensor::from_values(&dims, &values)?)
}

/// The increment of the SplitMix64 generator.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The output of the SplitMix64 generator for a state.
fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_interpolates_quartiles() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0, 5.0]).unwrap();
        let quartiles = [spread.lower_quartile, spread.median, spread.upper_quartile];
        assert_eq!((spread.min, quartiles, spread.max), (1.0, [2.0, 3.0, 4.0], 5.0));
        assert_eq!(Spread::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of(&[7.0]).unwrap().lower_quartile, 7.0);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn tokens_cover_the_vocabulary() {
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
