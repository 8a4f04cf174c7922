//! Examples, tokens and blocks are those of `datasets`, `transformers` and `run_clm`, recorded by
//! `data/record.py`.
#![allow(clippy::unwrap_used)]

mod common;

use common::{GPT2, blocks, corpus, examples, sample};
use fullshard_data::{Grouping, Part, Source};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

#[derive(Deserialize)]
struct Recorded {
    merges_sha256: String,
    tricky: Vec<Tricky>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Tricky {
    text: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Case {
    files: Vec<String>,
    block_size: usize,
    keep_linebreaks: Option<bool>,
    split: Option<String>,
    examples: usize,
    examples_sha256: String,
    tokens: u64,
    tokens_sha256: String,
    blocks: usize,
    first: Vec<i32>,
    last: Vec<i32>,
    blocks_sha256: String,
}

impl Case {
    fn source(&self) -> Source {
        let files: Vec<PathBuf> = self.files.iter().map(|name| sample(name)).collect();
        Source::open(&files, self.keep_linebreaks.unwrap_or(true)).unwrap()
    }

    fn part(&self) -> Part {
        match self.split.as_deref() {
            None => Part::All,
            Some("train[:5%]") => Part::First(5),
            Some("train[5%:]") => Part::Rest(5),
            Some("train[33%:]") => Part::Rest(33),
            Some(other) => panic!("{other}"),
        }
    }

    fn name(&self) -> String {
        format!("{:?} {:?} {:?}", self.files, self.keep_linebreaks, self.split)
    }
}

fn recorded() -> Recorded {
    serde_json::from_slice(&std::fs::read(sample("recorded.json")).unwrap()).unwrap()
}

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest(tokens: impl IntoIterator<Item = i32>) -> String {
    let mut digest = Sha256::new();
    tokens.into_iter().for_each(|token| digest.update(token.to_le_bytes()));
    hex(digest)
}

#[test]
fn examples_match_datasets() {
    for case in recorded().cases.iter().filter(|case| case.split.is_none()) {
        let source = case.source();
        let examples = examples(source.files(), source.keeps_linebreaks()).unwrap();
        let mut digest = Sha256::new();
        for example in &examples {
            digest.update((example.len() as u64).to_le_bytes());
            digest.update(example);
        }
        assert_eq!(examples.len(), case.examples, "{}", case.name());
        assert_eq!(hex(digest), case.examples_sha256, "{}", case.name());
        assert_eq!(source.count().unwrap(), case.examples as u64, "{}", case.name());
    }
}

#[test]
fn tokens_match_gpt2() {
    let tricky = recorded().tricky;
    let texts: Vec<&str> = tricky.iter().map(|tricky| tricky.text.as_str()).collect();
    for (tokens, expected) in GPT2.encode_batch(&texts).unwrap().iter().zip(&tricky) {
        assert_eq!(tokens, &expected.ids, "{:?}", expected.text);
    }
}

#[test]
fn merges_match_gpt2() {
    let directory = tempfile::tempdir().unwrap();
    GPT2.save(directory.path()).unwrap();
    let merges = std::fs::read_to_string(directory.path().join("merges.txt")).unwrap();
    let mut digest = Sha256::new();
    merges.lines().skip(1).for_each(|line| digest.update(format!("{line}\n")));
    assert_eq!(hex(digest), recorded().merges_sha256);
}

#[test]
fn blocks_match_run_clm() {
    let cache = tempfile::tempdir().unwrap();
    for case in recorded().cases {
        let source = case.source();
        let grouped =
            corpus(&source, case.part(), case.block_size, Grouping::Blocks, cache.path()).unwrap();
        let blocks = blocks(&grouped);
        assert_eq!(grouped.examples(), case.examples as u64, "{}", case.name());
        assert_eq!(grouped.text_tokens(), case.tokens, "{}", case.name());
        assert_eq!(blocks.len(), case.blocks, "{}", case.name());
        assert_eq!(blocks.first(), Some(&case.first), "{}", case.name());
        assert_eq!(blocks.last(), Some(&case.last), "{}", case.name());
        assert_eq!(digest(blocks.into_iter().flatten()), case.blocks_sha256, "{}", case.name());
    }
}

#[test]
fn packed_blocks_hold_every_token() {
    let cache = tempfile::tempdir().unwrap();
    for case in recorded().cases {
        let source = case.source();
        let packed =
            corpus(&source, case.part(), case.block_size, Grouping::Packed, cache.path()).unwrap();
        assert_eq!(packed.tokens(), case.tokens, "{}", case.name());
        let tokens = blocks(&packed).into_iter().flatten();
        assert_eq!(digest(tokens), case.tokens_sha256, "{}", case.name());
    }
}
