//! A second-order Markov chain over words, with its entropy worked out exactly.
//!
//! The chance of a word after two others is proportional to `exp(a[second][word] +
//! b[first][word])` among the words that the grammar allows, with `a` and `b` drawn from the seed.
//! Most of it hangs on the word two back (`b` is wide, `a` narrow): a model that sees only the
//! last word stays well above one that looks further, so attention has to be learnt. And since the
//! two add up, a small model can learn it quickly.

use super::grammar::Words;
use crate::random::Random;

/// How far the chances spread by the last word, and by the one before it.
const LAST: f64 = 0.5;
const BEFORE: f64 = 1.4;

/// The chain of a seed.
pub(super) struct Chain {
    words: usize,
    /// `[first][second][word]`: the chance of a word after two others.
    chances: Vec<f64>,
    /// `[first][second]`: how often the two words follow each other, in the long run.
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
        let mut chances = Vec::with_capacity(n * n * n);
        for first in 0..n {
            for second in 0..n {
                let weight = |word: usize| {
                    let chosen = last[second * n + word] * before[first * n + word];
                    words.weight(first, second, word) * chosen
                };
                let total: f64 = (0..n).map(weight).sum();
                chances.extend((0..n).map(|word| weight(word) / total));
            }
        }
        let pairs = long_run(n, &chances);
        Self { words: n, chances, pairs }
    }

    /// The chances of all words after two others.
    fn after(&self, first: usize, second: usize) -> &[f64] {
        let start = (first * self.words + second) * self.words;
        &self.chances[start..start + self.words]
    }

    /// A word after two others, drawn.
    pub(super) fn draw(&self, first: usize, second: usize, random: &mut Random) -> usize {
        let mut left = random.unit();
        let chances = self.after(first, second);
        let last = chances.iter().rposition(|&chance| chance > 0.0).unwrap_or(0);
        chances[..last]
            .iter()
            .position(|&chance| {
                left -= chance;
                left < 0.0
            })
            .unwrap_or(last)
    }

    /// Nats a word for one who knows the two words before it: the entropy of the source.
    pub(super) fn entropy(&self) -> f64 {
        let each = self.pairs.iter().zip(self.chances.chunks(self.words));
        each.map(|(&pair, chances)| pair * entropy(chances)).sum()
    }

    /// Nats a word for one who knows only the word before it.
    pub(super) fn bigram_entropy(&self) -> f64 {
        self.pairs.chunks(self.words).map(entropy).sum::<f64>() - entropy(&self.shares())
    }

    /// Nats a word for one who knows only how often words come.
    pub(super) fn unigram_entropy(&self) -> f64 {
        entropy(&self.shares())
    }

    /// How often each word comes.
    fn shares(&self) -> Vec<f64> {
        self.pairs.chunks(self.words).map(|row| row.iter().sum()).collect()
    }
}

/// How often pairs follow each other in the long run: half a step at a time from anywhere, until
/// nothing moves any more. Half steps settle even where the grammar has a rhythm.
fn long_run(n: usize, chances: &[f64]) -> Vec<f64> {
    let mut pairs = vec![1.0 / (n * n) as f64; n * n];
    loop {
        let mut next: Vec<f64> = pairs.iter().map(|pair| pair / 2.0).collect();
        for (at, &pair) in pairs.iter().enumerate().filter(|(_, pair)| **pair > 1e-18) {
            let second = at % n;
            let into = &mut next[second * n..(second + 1) * n];
            for (into, chance) in into.iter_mut().zip(&chances[at * n..(at + 1) * n]) {
                *into += pair / 2.0 * chance;
            }
        }
        let moved: f64 = next.iter().zip(&pairs).map(|(new, old)| (new - old).abs()).sum();
        pairs = next;
        if moved < 1e-12 {
            return pairs;
        }
    }
}

/// -Σ p ln p
fn entropy(chances: &[f64]) -> f64 {
    chances.iter().filter(|chance| **chance > 0.0).map(|chance| -chance * chance.ln()).sum()
}
