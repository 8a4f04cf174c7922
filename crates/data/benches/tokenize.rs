//! Tokenization throughput, compared with the `tokenizers` Python package in the same run:
//! `FULLSHARD_BENCH_PYTHON=python cargo bench -p fullshard-data --bench tokenize`.
//!
//! The text is synthetic (words by Zipf's law, some of them rare), or the file in
//! `FULLSHARD_BENCH_TEXT`. Each is run several times; the fastest run counts.
#![allow(clippy::unwrap_used)]

use fullshard_data::{Corpus, Grouping, Part, Preparation, Source, Tokenizer};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const MEGABYTES: usize = 32;
const ROUNDS: usize = 3;

fn main() {
    let directory = tempfile::tempdir().unwrap();
    let tokenizer = Tokenizer::gpt2().unwrap();
    tokenizer.save(directory.path()).unwrap();
    let text = std::env::var_os("FULLSHARD_BENCH_TEXT")
        .map_or_else(|| synthetic(directory.path(), &tokenizer), PathBuf::from);
    let source = Source::open(std::slice::from_ref(&text), true).unwrap();
    let megabytes = source.bytes() as f64 / 1e6;
    println!("{megabytes:.0} MB, {} threads", std::thread::available_parallelism().unwrap());
    let report = |name: &str, tokens: u64, seconds: f64| {
        println!("{name:<34} {:6.2} MB/s   {tokens} tokens", megabytes / seconds);
    };

    let mut lines = Vec::new();
    source
        .examples(&mut |line, _| {
            lines.push(line.to_owned());
            ControlFlow::Continue(())
        })
        .unwrap();
    let (tokens, seconds) = fastest(|| {
        lines
            .chunks(10_000)
            .map(|lines| tokenizer.encode_batch(lines).unwrap().iter().map(Vec::len).sum::<usize>())
            .sum::<usize>() as u64
    });
    report("fullshard, lines in memory", tokens, seconds);

    let plan = Preparation {
        source: &source,
        part: Part::All,
        tokenizer: &tokenizer,
        block_size: 1024,
        grouping: Grouping::Packed,
    };
    let (tokens, seconds) = fastest(|| {
        let cache = tempfile::tempdir().unwrap();
        Corpus::prepare(&plan, cache.path(), &mut |_| {}).unwrap().tokens()
    });
    report("fullshard, file to corpus on disk", tokens, seconds);

    match std::env::var_os("FULLSHARD_BENCH_PYTHON") {
        None => println!("FULLSHARD_BENCH_PYTHON is not set: no comparison"),
        Some(python) => {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/tokenize.py");
            let output = Command::new(python)
                .arg(script)
                .args([&directory.path().join("tokenizer.json"), &text])
                .arg(ROUNDS.to_string())
                .output()
                .unwrap();
            let stdout = String::from_utf8(output.stdout).unwrap();
            let (tokens, seconds) = stdout.trim().split_once(' ').unwrap();
            report(
                "tokenizers (Python), in memory",
                tokens.parse().unwrap(),
                seconds.parse().unwrap(),
            );
        }
    }
}

fn fastest(mut run: impl FnMut() -> u64) -> (u64, f64) {
    let mut best = (0, f64::INFINITY);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let tokens = run();
        best = (tokens, best.1.min(start.elapsed().as_secs_f64()));
    }
    best
}

/// Lines of words of one to three GPT-2 tokens, the n-th with frequency 1/n.
fn synthetic(directory: &Path, tokenizer: &Tokenizer) -> PathBuf {
    let token = |id: u32| tokenizer.decode(&[id]).unwrap();
    let parts: Vec<String> = (300..20_000)
        .map(token)
        .map(|part| part.trim().to_owned())
        .filter(|part| part.chars().all(char::is_alphabetic) && !part.is_empty())
        .collect();
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    let mut text = String::new();
    while text.len() < MEGABYTES * 1_000_000 {
        let rank = (200_000f64.powf(random())) as usize;
        for extra in 0..=(rank > 2_000) as usize + (rank > 20_000) as usize {
            text.push_str(&parts[(rank * (7 * extra + 1)) % parts.len()]);
        }
        text.push_str(if random() < 0.08 { ".\n" } else { " " });
    }
    let path = directory.join("text.txt");
    std::fs::write(&path, text).unwrap();
    path
}
