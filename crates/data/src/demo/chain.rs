//! A second-order Markov chain over words, with its exact entropy.
//!
//! The probability of a word after two others is proportional to `exp(a[second][word] +
//! b[first][word])` among the words that the grammar allows, with `a` and `b` drawn from the seed.
//! Most of it depends on the word two positions back (`b` is wide, `a` narrow): the loss of a model
//! that sees only the last word stays well above that of one that looks further, so attention has
//! to be learned. Since the two terms add up, a small model learns it quickly.

use super::grammar::Words;
use fullshard_core::random::Random;

/// Standard deviation of the log weights by the last word, and by the one before it.
const LAST: f64 = 0.5;
const BEFORE: f64 = 1.4;

/// The chain for a seed.
pub(super) struct Chain {
    words: usize,
    /// `[first][second][word]`: the probability of a word after two others.
    probs: Vec<f64>,
    /// `[first][second]`: the stationary probability of the pair.
    pairs: Vec<f64>,
}

impl Chain {
    pub(super) fn new(words: &Words, seed: u64) -> Self {
        let n = words.len();
        let mut random = Random::new(seed, 1);
        let mut table = |spread: f64| -> Vec<f64> {
            (0..n * n).map(|_| (spread * random.normal()).exp()).collect()
        };
        let (last, before) = (table(LAST), table(BEFORE));
        let mut probs = Vec::with_capacity(n * n * n);
        for first in 0..n {
            for second in 0..n {
                let weight = |word: usize| {
                    let chosen = last[second * n + word] * before[first * n + word];
                    words.weight(first, second, word) * chosen
                };
                let total: f64 = (0..n).map(weight).sum();
                probs.extend((0..n).map(|word| weight(word) / total));
            }
        }
        let pairs = stationary(n, &probs);
        Self { words: n, probs, pairs }
    }

    /// The probabilities of all words after two others.
    fn after(&self, first: usize, second: usize) -> &[f64] {
        let start = (first * self.words + second) * self.words;
        &self.probs[start..start + self.words]
    }

    /// Samples a word after two others.
    pub(super) fn draw(&self, first: usize, second: usize, random: &mut Random) -> usize {
        let mut left = random.unit();
        let probs = self.after(first, second);
        let last = probs.iter().rposition(|&prob| prob > 0.0).unwrap_or(0);
        probs[..last]
            .iter()
            .position(|&prob| {
                left -= prob;
                left < 0.0
            })
            .unwrap_or(last)
    }

    /// Nats per word given the two previous words: the entropy of the source.
    pub(super) fn entropy(&self) -> f64 {
        let each = self.pairs.iter().zip(self.probs.chunks(self.words));
        each.map(|(&pair, probs)| pair * entropy(probs)).sum()
    }

    /// Nats per word given only the previous word.
    pub(super) fn bigram_entropy(&self) -> f64 {
        self.pairs.chunks(self.words).map(entropy).sum::<f64>() - entropy(&self.frequencies())
    }

    /// Nats per word given only word frequencies.
    pub(super) fn unigram_entropy(&self) -> f64 {
        entropy(&self.frequencies())
    }

    /// The frequency of each word.
    fn frequencies(&self) -> Vec<f64> {
        self.pairs.chunks(self.words).map(|row| row.iter().sum()).collect()
    }
}

/// The stationary distribution of pairs, by power iteration with half steps from a uniform start
/// until convergence. Half steps converge even if the grammar is periodic.
fn stationary(n: usize, probs: &[f64]) -> Vec<f64> {
    let mut pairs = vec![1.0 / (n * n) as f64; n * n];
    loop {
        let mut next: Vec<f64> = pairs.iter().map(|pair| pair / 2.0).collect();
        for (at, &pair) in pairs.iter().enumerate().filter(|(_, pair)| **pair > 1e-18) {
            let second = at % n;
            let into = &mut next[second * n..(second + 1) * n];
            for (into, prob) in into.iter_mut().zip(&probs[at * n..(at + 1) * n]) {
                *into += pair / 2.0 * prob;
            }
        }
        let change: f64 = next.iter().zip(&pairs).map(|(new, old)| (new - old).abs()).sum();
        pairs = next;
        if change < 1e-12 {
            return pairs;
        }
    }
}

/// -Σ p ln p
fn entropy(probs: &[f64]) -> f64 {
    probs.iter().filter(|prob| **prob > 0.0).map(|prob| -prob * prob.ln()).sum()
}
