//! Peak memory while a large file is tokenized:
//! `cargo bench -p fullshard-data --bench large_file -- 5000` for 5000 MB, the default is 200.
//!
//! The file has ordinary lines and one of 100 MB (a tenth of a smaller file). It is created in
//! the temporary directory and removed afterwards, as is the corpus.
#![allow(clippy::unwrap_used)]

use fullshard_data::{Corpus, Grouping, Part, Preparation, Source, Tokenizer};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Instant;

fn main() {
    let megabytes = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(200u64);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.txt");
    write(&path, megabytes * 1_000_000);
    let source = Source::open(&[path], true).unwrap();
    let tokenizer = Tokenizer::gpt2().unwrap();
    println!("before: {}", memory());
    let plan = Preparation {
        source: &source,
        part: Part::All,
        tokenizer: &tokenizer,
        block_size: 1024,
        grouping: Grouping::Blocks,
    };
    let start = Instant::now();
    let mut shown = 0;
    let corpus = Corpus::prepare(&plan, directory.path(), &mut |progress| {
        if progress.done * 20 / progress.total > shown {
            shown = progress.done * 20 / progress.total;
            println!("{:3} %: {}", shown * 5, memory());
        }
    })
    .unwrap();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} MB, {} tokens, {seconds:.0} s, {:.1} MB/s: {}",
        source.bytes() / 1_000_000,
        corpus.text_tokens(),
        source.bytes() as f64 / 1e6 / seconds,
        memory()
    );
}

fn write(path: &std::path::Path, bytes: u64) {
    let sentence = "It was a bright cold day in 1984, and the clocks weren't striking — yet. ";
    let mut file = BufWriter::new(File::create(path).unwrap());
    let long = (bytes / 10).min(100_000_000);
    let (mut written, mut line) = (0, 0u64);
    while written < bytes {
        let repeats = if line == 1000 { long / sentence.len() as u64 } else { 1 + line % 9 };
        for _ in 0..repeats {
            file.write_all(sentence.as_bytes()).unwrap();
        }
        writeln!(file, "{line}").unwrap();
        written += repeats * sentence.len() as u64 + 8;
        line += 1;
    }
}

/// Current and peak memory of this process. Mapped files (the corpus, when it is checked) are not
/// counted in `RssAnon`.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let fields = ["VmHWM", "VmRSS", "RssAnon"];
    let lines = status.lines().filter(|line| fields.iter().any(|name| line.starts_with(name)));
    lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join(", ")
}
