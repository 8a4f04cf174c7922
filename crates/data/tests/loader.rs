//! Batches: the blocks in order, the same from any first step.
#![allow(clippy::unwrap_used)]

mod common;

use common::{blocks, corpus, file};
use fullshard_data::{Batch, BatchOrigin, Batches, Corpus, Grouping, Loader, Order, Part, Source};
use std::sync::Arc;

/// A corpus of `count` blocks of 8 tokens; the last has 3 if it is packed.
fn small(count: usize, grouping: Grouping) -> Arc<Corpus> {
    let directory = tempfile::tempdir().unwrap();
    let words: Vec<String> = (0..count * 8 - 5).map(|word| format!(" {}", word % 10)).collect();
    let source = Source::open(&[file(directory.path(), "a.txt", words.concat())], true).unwrap();
    Arc::new(corpus(&source, Part::All, 8, grouping, directory.path()).unwrap())
}

fn batches(order: Order, drop_last: bool) -> Batches {
    let origin = BatchOrigin::default();
    Batches { order, accumulation: 2, sequences: 3, drop_last, origin }
}

fn load(corpus: &Arc<Corpus>, batches: Batches, steps: std::ops::Range<u64>) -> Vec<Batch> {
    let mut loaded: Vec<Batch> =
        Loader::start(Arc::clone(corpus), batches, steps).unwrap().collect();
    loaded.iter_mut().for_each(|batch| batch.waited = Default::default());
    loaded
}

#[test]
fn an_epoch_has_every_block_once_in_order() {
    let corpus = small(20, Grouping::Packed);
    assert_eq!(corpus.blocks(), 20);
    let order = Order::shuffled(3, 20);
    let batches = batches(order, false);
    assert_eq!(batches.steps_per_epoch(), 4);
    let all = blocks(&corpus);
    for epoch in 0..3 {
        let loaded = load(&corpus, batches, epoch * 4..(epoch + 1) * 4);
        let rows: Vec<&[i32]> = loaded.iter().flat_map(|batch| batch.tokens.chunks(8)).collect();
        let labels: Vec<&[i32]> = loaded.iter().flat_map(|batch| batch.labels.chunks(8)).collect();
        assert_eq!(loaded.iter().map(|batch| batch.rows).collect::<Vec<_>>(), [6, 6, 6, 2]);
        for position in 0..24 {
            let block = order.block(epoch, position).map_or(&[][..], |block| &all[block as usize]);
            let (tokens, labels) = (rows[position as usize], labels[position as usize]);
            assert_eq!(&tokens[..block.len()], block);
            assert_eq!(&labels[..block.len()], block);
            assert!(tokens[block.len()..].iter().all(|&token| token == 0));
            assert!(labels[block.len()..].iter().all(|&label| label == -100));
        }
    }
}

#[test]
fn a_run_can_start_at_any_step() {
    let corpus = small(20, Grouping::Blocks);
    let batches = batches(Order::shuffled(3, corpus.blocks()), false);
    let all = load(&corpus, batches, 0..11);
    for first in 0..11 {
        assert_eq!(load(&corpus, batches, first..11), all[first as usize..]);
    }
    assert_eq!(all.iter().map(|batch| batch.step).collect::<Vec<_>>(), (0..11).collect::<Vec<_>>());
}

#[test]
fn drop_last_leaves_only_full_steps() {
    let corpus = small(20, Grouping::Blocks); // 19 blocks
    let batches = batches(Order::shuffled(3, corpus.blocks()), true);
    assert_eq!(batches.steps_per_epoch(), 3);
    assert!(load(&corpus, batches, 0..7).iter().all(|batch| batch.rows == 6));
}

#[test]
fn sequential_order_is_first_to_last() {
    let corpus = small(13, Grouping::Blocks);
    let loaded = load(&corpus, batches(Order::sequential(12), false), 0..2);
    let tokens: Vec<i32> = loaded.iter().flat_map(|batch| batch.tokens.clone()).collect();
    assert_eq!(tokens, blocks(&corpus).concat());
}

#[test]
fn a_loader_can_be_dropped_early() {
    let corpus = small(20, Grouping::Blocks);
    let order = Order::shuffled(3, corpus.blocks());
    let mut loader =
        Loader::start(Arc::clone(&corpus), batches(order, false), 0..u64::MAX).unwrap();
    assert_eq!(loader.next().map(|batch| batch.step), Some(0));
    drop(loader);
    assert_eq!(Arc::strong_count(&corpus), 1, "the worker is still running");
}

#[test]
fn rejects_impossible_batches() {
    let corpus = small(5, Grouping::Blocks);
    let error =
        |batches| Loader::start(Arc::clone(&corpus), batches, 0..1).unwrap_err().to_string();
    let order = Order::sequential(4);
    assert!(error(Batches { sequences: 0, ..batches(order, false) }).contains("sequences"));
    assert!(error(batches(order, true)).contains("fewer blocks than one step"));
    assert!(error(batches(Order::sequential(0), false)).contains("blocks is 0"));
}

/// Batches of another size go on where those before ended, in the same order.
#[test]
fn batches_go_on_at_an_origin() {
    let before = batches(Order::shuffled(3, 23), false);
    let position = before.position(5);
    assert_eq!(position, (1, 6), "23 blocks are 4 steps of 6");
    let origin = BatchOrigin { step: 5, epoch: 1, block: 6 };
    let after = Batches { accumulation: 1, sequences: 4, origin, ..before };
    assert_eq!((after.steps_left(), after.steps_per_epoch()), (5, 6));
    let seen: Vec<u64> = (5..10).flat_map(|step| after.blocks(step)).collect();
    let expected: Vec<u64> = (6..23).filter_map(|block| before.order.block(1, block)).collect();
    assert_eq!(seen, expected);
    assert_eq!(after.position(10), (2, 0));
    let next: Vec<u64> = after.blocks(10).collect();
    let expected: Vec<u64> = (0..4).filter_map(|block| before.order.block(2, block)).collect();
    assert_eq!(next, expected);
}
