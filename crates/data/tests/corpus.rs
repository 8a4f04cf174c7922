//! The token cache: reused, and rebuilt when an input changes or the file is damaged.
#![allow(clippy::unwrap_used)]

mod common;

use common::{GPT2, blocks, corpus, file};
use fullshard_data::demo::Demo;
use fullshard_data::{Corpus, Error, Grouping, Part, Preparation, Progress, Source, Tokenizer};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

struct Setup {
    directory: tempfile::TempDir,
}

impl Setup {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        file(directory.path(), "a.txt", "A line of text.\n".repeat(500));
        Self { directory }
    }

    fn cache(&self) -> PathBuf {
        self.directory.path().join("cache")
    }

    fn source(&self) -> Source {
        Source::open(&[self.directory.path().join("a.txt")], true).unwrap()
    }

    fn corpus(&self) -> Corpus {
        corpus(&self.source(), Part::All, 32, Grouping::Blocks, &self.cache()).unwrap()
    }

    fn cached(&self) -> usize {
        std::fs::read_dir(self.cache()).unwrap().count()
    }
}

#[test]
fn text_is_tokenized_once() {
    let setup = Setup::new();
    let first = setup.corpus();
    let second = setup.corpus();
    assert!(!first.reused() && second.reused());
    assert_eq!(first.path(), second.path());
    assert_eq!(blocks(&first), blocks(&second));
    assert_eq!(first.tokens(), 2976); // of 3000
}

#[test]
fn reopened_tokenizers_hit_the_cache() {
    let setup = Setup::new();
    setup.corpus();
    GPT2.save(setup.directory.path()).unwrap();
    let opened = Tokenizer::open(setup.directory.path().to_str().unwrap()).unwrap();
    for tokenizer in [Tokenizer::gpt2().unwrap(), opened] {
        let plan = Preparation {
            source: &setup.source(),
            part: Part::All,
            tokenizer: &tokenizer,
            block_size: 32,
            grouping: Grouping::Blocks,
        };
        assert!(Corpus::prepare(&plan, &setup.cache(), &mut |_| {}).unwrap().reused());
    }
}

#[test]
fn every_input_changes_the_cache_key() {
    let setup = Setup::new();
    let source = setup.source();
    let bare = Source::open(source.files(), false).unwrap();
    let demo = Demo::new(1).tokenizer().unwrap();
    let plan = Preparation {
        source: &source,
        part: Part::All,
        tokenizer: &GPT2,
        block_size: 32,
        grouping: Grouping::Blocks,
    };
    let prepare = |plan: Preparation| Corpus::prepare(&plan, &setup.cache(), &mut |_| {}).unwrap();
    for (before, plan) in [
        plan,
        Preparation { source: &bare, ..plan },
        Preparation { part: Part::First(50), ..plan },
        Preparation { part: Part::Rest(50), ..plan },
        Preparation { tokenizer: &demo, ..plan },
        Preparation { block_size: 31, ..plan },
        Preparation { grouping: Grouping::Packed, ..plan },
    ]
    .into_iter()
    .enumerate()
    {
        assert!(!prepare(plan).reused());
        assert_eq!(setup.cached(), before + 1);
    }
    file(setup.directory.path(), "a.txt", "Another text.\n".repeat(500));
    assert!(!prepare(plan).reused());
}

#[test]
fn damaged_files_are_rebuilt() {
    let setup = Setup::new();
    let intact = setup.corpus();
    let path = intact.path().unwrap().to_owned();
    let expected = blocks(&intact);
    drop(intact);
    let good = std::fs::read(&path).unwrap();
    let mut damaged: Vec<Vec<u8>> = [0, 10, 64, good.len() / 2, good.len() - 1]
        .iter()
        .map(|&length| good[..length].to_vec())
        .collect();
    for at in [0, 9, 17, 25, 33, 48, 60, 64, good.len() - 1] {
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        damaged.push(flipped);
    }
    damaged.push([good.as_slice(), b"more"].concat());
    for content in damaged {
        std::fs::write(&path, content).unwrap();
        let rebuilt = setup.corpus();
        assert!(!rebuilt.reused());
        assert_eq!(blocks(&rebuilt), expected);
        assert_eq!(std::fs::read(&path).unwrap(), good);
    }
    assert_eq!(setup.cached(), 1);
}

#[test]
fn concurrent_preparations_do_not_conflict() {
    let setup = Setup::new();
    let expected = blocks(&setup.corpus());
    std::fs::remove_dir_all(setup.cache()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(blocks(&setup.corpus()), expected));
        }
    });
    assert_eq!(setup.cached(), 1);
}

#[test]
fn large_vocabularies_take_four_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let words: Vec<String> = (0..70_000).map(|word| format!("\"w{word}\":{word}")).collect();
    let json = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
        "pre_tokenizer":{{"type":"WhitespaceSplit"}},"post_processor":null,"decoder":null,
        "model":{{"type":"WordLevel","vocab":{{{}}},"unk_token":"w0"}}}}"#,
        words.join(",")
    );
    let path = file(directory.path(), "tokenizer.json", json);
    let tokenizer = Tokenizer::open(path.to_str().unwrap()).unwrap();
    let text = file(directory.path(), "a.txt", "w1 w65535 w65536 w69999 other\n");
    let source = Source::open(&[text], true).unwrap();
    let plan = Preparation {
        source: &source,
        part: Part::All,
        tokenizer: &tokenizer,
        block_size: 5,
        grouping: Grouping::Blocks,
    };
    let corpus = Corpus::prepare(&plan, directory.path(), &mut |_| {}).unwrap();
    assert_eq!(blocks(&corpus), [[1, 65535, 65536, 69999, 0]]);
}

#[test]
fn take_keeps_the_first_blocks() {
    let setup = Setup::new();
    let expected = blocks(&setup.corpus());
    let taken = setup.corpus().take(10);
    assert_eq!(blocks(&taken), expected[..10]);
    assert_eq!((taken.blocks(), taken.tokens()), (10, 320));
    assert_eq!(taken.read(10, &mut [0; 32]), 0);
    assert_eq!(setup.corpus().take(1000).blocks(), 93);
}

#[test]
fn parts_partition_the_examples() {
    let setup = Setup::new();
    let part = |part| corpus(&setup.source(), part, 1, Grouping::Packed, &setup.cache()).unwrap();
    let (first, rest) = (part(Part::First(5)), part(Part::Rest(5)));
    assert_eq!((first.examples(), rest.examples()), (25, 475));
    assert_eq!([blocks(&first), blocks(&rest)].concat(), blocks(&part(Part::All)));
}

#[test]
fn progress_reaches_the_total() {
    let setup = Setup::new();
    file(setup.directory.path(), "a.txt", "A line of text.\n".repeat(500_000));
    let source = setup.source();
    let plan = Preparation {
        source: &source,
        part: Part::All,
        tokenizer: &Demo::new(1).tokenizer().unwrap(),
        block_size: 32,
        grouping: Grouping::Blocks,
    };
    let mut seen: Vec<Progress> = Vec::new();
    Corpus::prepare(&plan, &setup.cache(), &mut |progress| seen.push(progress)).unwrap();
    assert!(seen.len() > 3 && seen.is_sorted_by(|a, b| a.done <= b.done && a.tokens <= b.tokens));
    assert!(seen.iter().all(|progress| progress.total == 8_000_000));
    assert_eq!(seen.last().map(|progress| progress.done), Some(8_000_000));
}

#[test]
fn errors_name_the_cause_and_leave_no_files() {
    let setup = Setup::new();
    let prepare = |part, block_size, cache: &Path| {
        corpus(&setup.source(), part, block_size, Grouping::Blocks, cache).unwrap_err()
    };
    assert!(prepare(Part::All, 0, &setup.cache()).to_string().contains("--block_size"));
    for percent in [0, 100] {
        let text = prepare(Part::First(percent), 8, &setup.cache()).to_string();
        assert!(text.contains("--validation_split_percentage"), "{text}");
    }
    assert!(!setup.cache().exists());
    let short = prepare(Part::All, 100_000, &setup.cache());
    assert!(matches!(short, Error::NoBlocks { tokens: 3000, block_size: 100_000, .. }), "{short}");
    file(setup.directory.path(), "a.txt", b"fine\n\xff\n");
    assert!(matches!(prepare(Part::All, 1, &setup.cache()), Error::NotUtf8 { line: 2, .. }));
    assert_eq!(setup.cached(), 0);
    let blocked = prepare(Part::All, 1, &setup.directory.path().join("a.txt"));
    assert!(matches!(blocked, Error::NotUtf8 { line: 2, .. }), "of the text, not of the cache");
}

/// Size and modification time of the text stay the same.
#[test]
fn edits_with_a_restored_time_are_seen() {
    let setup = Setup::new();
    let before = setup.corpus();
    let path = setup.directory.path().join("a.txt");
    let modified = path.metadata().unwrap().modified().unwrap();
    let restore = || File::options().append(true).open(&path).unwrap().set_modified(modified);
    // Times of change are as coarse as the clock of the kernel.
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(&path, "B line of text.\n".repeat(500)).unwrap();
    restore().unwrap();
    let edited = setup.corpus();
    assert!(!edited.reused() && blocks(&edited) != blocks(&before));

    // The same with another file in its place.
    let other = file(setup.directory.path(), "other", "C line of text.\n".repeat(500));
    std::fs::rename(other, &path).unwrap();
    restore().unwrap();
    let replaced = setup.corpus();
    assert!(!replaced.reused() && blocks(&replaced) != blocks(&edited));
}

#[test]
fn unwritable_cache_is_not_fatal() {
    let setup = Setup::new();
    let cached = setup.corpus();
    assert!(cached.uncached().is_none());
    let blocked = file(setup.directory.path(), "file", "where the folder should be");
    let names = || std::fs::read_dir(setup.directory.path()).unwrap().count();
    let before = names();
    for cache in [blocked.clone(), blocked.join("below")] {
        let corpus = corpus(&setup.source(), Part::All, 32, Grouping::Blocks, &cache).unwrap();
        assert_eq!(blocks(&corpus), blocks(&cached));
        assert_eq!((corpus.reused(), corpus.path()), (false, None));
        let reason = corpus.uncached().unwrap().to_string();
        assert!(reason.contains(&format!("cannot write {}", cache.display())), "{reason}");
    }
    assert_eq!(names(), before);
}

#[test]
fn tokenizing_again_replaces_the_cache_file() {
    let setup = Setup::new();
    let path = setup.corpus().path().unwrap().to_owned();
    let inode = || path.metadata().unwrap().ino();
    let before = inode();
    let source = setup.source();
    let plan = Preparation {
        source: &source,
        part: Part::All,
        tokenizer: &GPT2,
        block_size: 32,
        grouping: Grouping::Blocks,
    };
    let mapped = setup.corpus();
    let again = Corpus::tokenize(&plan, &setup.cache(), &mut |_| {}).unwrap();
    assert!(!again.reused() && inode() != before);
    assert_eq!(blocks(&again), blocks(&mapped));
}

#[test]
fn temporary_files_of_killed_processes_are_removed() {
    let setup = Setup::new();
    setup.corpus();
    let days = Duration::from_secs(2 * 24 * 3600);
    for name in [".tmpAbCdEf", ".fullshard-AbCdEf"] {
        let orphan = File::create(setup.cache().join(name)).unwrap();
        orphan.set_modified(SystemTime::now() - days).unwrap();
    }
    assert_eq!(setup.cached(), 3);
    corpus(&setup.source(), Part::All, 16, Grouping::Blocks, &setup.cache()).unwrap();
    assert_eq!(setup.cached(), 2, "two corpora");
}
