//! The demo's text: readable, deterministic for a seed, and of the stated entropy.
#![allow(clippy::unwrap_used)]

mod common;

use fullshard_data::demo::Demo;
use fullshard_data::{Source, Tokenizer};
use std::collections::{HashMap, HashSet};

fn text(seed: u64, tokens: u64, part: u64) -> String {
    let mut text = Vec::new();
    Demo::new(seed).write_text(&mut text, tokens, part).unwrap();
    String::from_utf8(text).unwrap()
}

/// Empirical nats per token given the previous `order` tokens: plug-in estimate with the usual bias
/// correction.
fn empirical_entropy(tokens: &[u32], order: usize) -> f64 {
    let mut contexts: HashMap<&[u32], HashMap<u32, u64>> = HashMap::new();
    for window in tokens.windows(order + 1) {
        *contexts.entry(&window[..order]).or_default().entry(window[order]).or_default() += 1;
    }
    let total = (tokens.len() - order) as f64;
    let of_context = |next: &HashMap<u32, u64>| {
        let seen = next.values().sum::<u64>() as f64;
        let nats: f64 = next.values().map(|&n| -(n as f64) * (n as f64 / seen).ln()).sum();
        nats + (next.len() as f64 - 1.0) / 2.0
    };
    contexts.values().map(of_context).sum::<f64>() / total
}

#[test]
fn entropies_match_a_long_text() {
    let demo = Demo::new(1);
    let text = text(1, 2_000_000, 0);
    let lines: Vec<&str> = text.lines().collect();
    let tokens = demo.tokenizer().unwrap().encode_batch(&lines).unwrap().concat();
    for (order, exact) in
        [(0, demo.unigram_entropy()), (1, demo.bigram_entropy()), (2, demo.entropy())]
    {
        let found = empirical_entropy(&tokens, order);
        assert!((found / exact - 1.0).abs() < 0.005, "order {order}: {found}, expected {exact}");
    }
}

/// The digested text has every word, so that any change of the words changes the digest.
#[test]
fn digests_identify_sources() {
    let digest = |seed| Demo::new(seed).digest().unwrap();
    assert_eq!(digest(7), digest(7));
    assert_ne!(digest(7), digest(8));
    let (text, tokenizer) = (text(7, 10_000, 0), Demo::new(7).tokenizer().unwrap());
    let lines: Vec<&str> = text.lines().collect();
    let words: HashSet<u32> =
        tokenizer.encode_batch(&lines).unwrap().into_iter().flatten().collect();
    assert_eq!(words.len(), tokenizer.vocabulary() - 1, "all but the unknown word");
}

#[test]
fn two_words_of_context_lower_the_entropy() {
    for seed in 0..5 {
        let demo = Demo::new(seed);
        println!(
            "seed {seed}: {:.3} nats without context, {:.3} given one word, {:.3} given two",
            demo.unigram_entropy(),
            demo.bigram_entropy(),
            demo.entropy()
        );
        assert!((1.7..2.2).contains(&demo.entropy()));
        assert!(demo.bigram_entropy() > 1.2 * demo.entropy());
        assert!(demo.unigram_entropy() > 1.3 * demo.bigram_entropy());
        let floor = demo.floor(128);
        assert!(demo.entropy() < floor && floor < 1.01 * demo.entropy());
    }
    assert_ne!(Demo::new(0).entropy(), Demo::new(1).entropy());
}

#[test]
fn text_is_determined_by_the_seed() {
    assert_eq!(text(1, 1000, 0), text(1, 1000, 0));
    assert_ne!(text(1, 1000, 0), text(2, 1000, 0));
    assert_ne!(text(1, 1000, 0), text(1, 1000, 1));
}

#[test]
fn lines_are_sentences() {
    for line in text(3, 2000, 0).lines() {
        let words: Vec<&str> = line.trim_end_matches('.').split(' ').collect();
        assert!(line.ends_with('.') && words.len() >= 5, "{line}");
        assert!("the a every my your our".split(' ').any(|article| article == words[0]), "{line}");
    }
}

#[test]
fn written_text_has_no_unknown_words() {
    let directory = tempfile::tempdir().unwrap();
    let files = Demo::write(directory.path(), 5000, 4).unwrap();
    let tokenizer = Tokenizer::open(directory.path().to_str().unwrap()).unwrap();
    let lines = common::examples(std::slice::from_ref(&files.train), true).unwrap();
    let tokens = tokenizer.encode_batch(&lines).unwrap().concat();
    assert!((5000..5200).contains(&tokens.len()), "{}", tokens.len());
    let unknown = tokenizer.token("<unk>").unwrap();
    assert_eq!(tokenizer.vocabulary(), unknown as usize + 1);
    assert!(tokens.iter().all(|&token| token < unknown));
    assert_eq!(tokenizer.encode_batch(&["fox xyzzy"]).unwrap()[0][1], unknown);
    assert!(Source::open(&[files.validation], true).unwrap().count().unwrap() > 20);
}
