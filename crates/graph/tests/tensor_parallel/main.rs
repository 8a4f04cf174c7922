//! Tensor and sequence parallelism by annotations: the collectives over an automatic axis that
//! compilers insert, against those that Megatron writes by hand.
//!
//! Megatron's per block: two all-reduces forward and two backward; with sequence parallelism as
//! many pairs of an all-gather and a reduce-scatter.
#![allow(clippy::unwrap_used)]

mod block;
mod vocabulary;

use block::{Attention, Block, PLAIN, SEQUENCE_PARALLEL};
use fullshard_graph::Program;
use fullshard_pjrt::CompileOptions;
use fullshard_pjrt::hlo::{CollectiveKind, Members, Module, collective, runs_per_launch};
use fullshard_pjrt::plugins::Platform;
use fullshard_testing::{CLIENT, compile_ahead};
use std::collections::BTreeMap;
use vocabulary::{Form, VOCABULARY};

/// The collectives over `tensor` by kind: how many, where combined ones count as several, and bytes.
type Counts = BTreeMap<CollectiveKind, (usize, u64)>;

fn compiled(program: &Program, kind: Platform) -> Module {
    let (text, options) = (program.to_text(), CompileOptions::new(program.devices()));
    let optimized = match kind {
        Platform::Cpu => CLIENT.compile(&text, &options).unwrap().executable().optimized_program(),
        kind => compile_ahead(kind, &text, &options).unwrap().optimized_program(),
    };
    optimized.unwrap().module().unwrap()
}

/// The collectives over `tensor`, except those of a few KiB: gradients of norms, tokens, losses.
fn over_tensor(program: &Program, kind: Platform) -> Counts {
    const SMALL: u64 = 16 << 10;
    let module = compiled(program, kind);
    let runs = runs_per_launch(&module);
    let mut counts = Counts::new();
    for instruction in module.instructions().filter(|it| it.collective_kind().is_some()) {
        let found = collective(&module, instruction).unwrap();
        // Groups of neighbors: `tensor` is the last axis.
        let neighbors = |group: &[usize]| group.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let over_tensor = matches!(&found.members, Members::Group(group) if neighbors(group));
        let bytes = found.bytes.unwrap();
        if over_tensor && bytes > SMALL {
            let row = counts.entry(found.kind).or_default();
            let runs = runs.count(instruction.computation).unwrap();
            row.0 += found.combined * runs as usize;
            row.1 += bytes * runs;
        }
    }
    counts
}

fn numbers(counts: &Counts) -> Vec<(CollectiveKind, usize)> {
    counts.iter().map(|(&kind, &(count, _))| (kind, count)).collect()
}

#[track_caller]
fn check(block: Block, platform: Platform, expected: &[(CollectiveKind, usize)]) {
    let found = over_tensor(&block.program(), platform);
    assert_eq!(numbers(&found), expected, "{block:?}: {found:?}");
}

use CollectiveKind::{AllGather, AllReduce, AllToAll, ReduceScatter};

#[test]
fn tensor_parallel_block_reduces_twice_per_pass() {
    check(PLAIN, Platform::Cpu, &[(AllReduce, 4)]);
    check(Block { attention: Attention::NotAnnotated, ..PLAIN }, Platform::Cpu, &[(AllReduce, 4)]);
    check(Block { attention: Attention::PerShard, ..PLAIN }, Platform::Cpu, &[(AllReduce, 4)]);
}

/// The CPU compiler has no reduce-scatters of its own: it slices all-reduces.
#[test]
fn sequence_parallel_block_gathers_and_scatters_twice_per_pass() {
    let expected = [(AllGather, 4), (AllReduce, 4)];
    check(SEQUENCE_PARALLEL, Platform::Cpu, &expected);
    let per_shard = Block { attention: Attention::PerShard, ..SEQUENCE_PARALLEL };
    check(per_shard, Platform::Cpu, &expected);
}

#[test]
fn recomputed_block_gathers_again() {
    let block = Block { remat: true, ..SEQUENCE_PARALLEL };
    check(block, Platform::Cpu, &[(AllGather, 6), (AllReduce, 5)]);
}

/// The backward pass of a scan normalizes again rather than save what is gathered: the third pair
/// of all-gathers, as Megatron's.
#[test]
fn scanned_blocks_gather_normalized_inputs_again() {
    let scanned = |block| Block { layers: Some(3), ..block };
    check(scanned(PLAIN), Platform::Cpu, &[(AllReduce, 12)]);
    check(scanned(SEQUENCE_PARALLEL), Platform::Cpu, &[(AllGather, 18), (AllReduce, 12)]);
}

/// Without an annotation the gradient of attention follows the sequence of the residual stream, and
/// the compiler moves between sequence and heads.
#[test]
fn attention_without_annotation_is_resharded() {
    let block = Block { attention: Attention::NotAnnotated, ..SEQUENCE_PARALLEL };
    let found = over_tensor(&block.program(), Platform::Cpu);
    assert!(found[&AllToAll].0 > 0 && found[&AllGather].0 > 4, "{found:?}");
}

/// A collective over a manual axis is opaque to the partitioner, which gathers its operand over the
/// automatic axes first.
#[test]
fn weights_gathered_outside_a_nested_region_are_gathered_twice() {
    let block = Block { gather_shards: false, ..PLAIN };
    let found = over_tensor(&block.program(), Platform::Cpu);
    let (weights, bytes) = found[&AllGather];
    assert!(weights >= 4 && bytes >= 6 << 20, "{found:?}");
}

/// Vocabulary-parallel forms that gather no logits and no table: the stream at most.
#[test]
fn vocabulary_is_not_gathered() {
    for (embedding, form) in [(true, Form::Gather), (false, Form::Gather), (false, Form::OneHot)] {
        for sequence in [false, true] {
            let found = over_tensor(&vocabulary::program(form, embedding, sequence), Platform::Cpu);
            let stream = (block::BATCH / 2 * block::SEQUENCE * block::WIDTH * 4) as u64;
            let gathers = if sequence { 1 } else { 0 };
            let gathered = found.get(&AllGather).copied().unwrap_or_default();
            assert_eq!(gathered, (gathers, gathers as u64 * stream), "{form:?} {found:?}");
            assert_eq!(found[&AllReduce], (1, stream), "{form:?} {found:?}");
        }
    }
}

/// Along a sharded sequence a one-hot lookup gathers the table instead.
#[test]
fn one_hot_lookup_gathers_the_table_along_a_sharded_sequence() {
    let found = over_tensor(&vocabulary::program(Form::OneHot, true, true), Platform::Cpu);
    let table = (VOCABULARY * block::WIDTH * 4) as u64;
    assert_eq!(found[&AllGather], (1, table), "{found:?}");
}

/// Regions inside scans inside regions, by the compilers for TPUs and GPUs.
#[test]
fn other_compilers_scan() {
    for platform in [Platform::Tpu, Platform::Cuda] {
        check(Block { layers: Some(3), ..PLAIN }, platform, &[(AllReduce, 12)]);
    }
}

/// The same by the compilers for TPUs and GPUs, which make reduce-scatters.
#[test]
fn other_compilers_scatter() {
    for platform in [Platform::Tpu, Platform::Cuda] {
        check(PLAIN, platform, &[(AllReduce, 4)]);
        let found = over_tensor(&SEQUENCE_PARALLEL.program(), platform);
        let count = |kind| found.get(&kind).map_or(0, |(count, _)| *count);
        assert_eq!(count(AllGather), 4, "{platform}: {found:?}");
        // The TPU compiler combines some that are as small as here into an all-reduce.
        let reduced = count(ReduceScatter) + count(AllReduce);
        assert!(reduced == 4 && count(ReduceScatter) >= 2, "{platform}: {found:?}");
    }
}
