//! Batches, prefetched on a background thread.

use crate::{Corpus, Error, Order, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The label of a position that is ignored in the loss.
const IGNORED: i32 = -100;

/// Maximum number of prefetched batches, unless more are requested.
const PREFETCH: usize = 4;

/// How the blocks of a corpus are grouped into batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// The order of the blocks.
    pub order: Order,
    /// Micro-batches per step.
    pub accumulation: usize,
    /// Sequences per micro-batch, over all devices.
    pub sequences: usize,
    /// Whether to drop blocks that do not fill a step at the end of an epoch.
    pub drop_last: bool,
    /// Where batches of another size ended.
    pub origin: BatchOrigin,
}

/// A step, and the position of its first block in the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchOrigin {
    /// The step, counted over all epochs.
    pub step: u64,
    /// The epoch.
    pub epoch: u64,
    /// The position in the epoch.
    pub block: u64,
}

impl Batches {
    /// Sequences per step.
    pub fn rows(&self) -> u64 {
        self.accumulation as u64 * self.sequences as u64
    }

    /// Steps per epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_for(self.order.length())
    }

    /// Steps left in the epoch of the origin.
    pub fn steps_left(&self) -> u64 {
        self.steps_for(self.order.length().saturating_sub(self.origin.block))
    }

    fn steps_for(&self, blocks: u64) -> u64 {
        let rows = self.rows().max(1);
        if self.drop_last { blocks / rows } else { blocks.div_ceil(rows) }
    }

    /// The epoch of a step, and the position of its first block in it.
    pub fn position(&self, step: u64) -> (u64, u64) {
        let BatchOrigin { step: start, epoch, block } = self.origin;
        let (since, left) = (step.saturating_sub(start), self.steps_left());
        if since < left {
            return (epoch, block + since * self.rows());
        }
        let (since, steps) = (since - left, self.steps_per_epoch().max(1));
        (epoch + 1 + since / steps, since % steps * self.rows())
    }

    /// The blocks of a step, counted over all epochs; the last step of an epoch may have fewer.
    pub fn blocks(&self, step: u64) -> impl Iterator<Item = u64> {
        let (epoch, start) = self.position(step);
        let (order, rows) = (self.order, self.rows());
        (start..start + rows).map_while(move |position| order.block(epoch, position))
    }
}

/// The batch of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The step, counted over all epochs.
    pub step: u64,
    /// Tokens `[accumulation, sequences, tokens]`, row-major. Rows past the end of an epoch, and
    /// the end of a shorter block, are 0.
    pub tokens: Vec<i32>,
    /// Labels of the same shape: the tokens, or -100 where there are none. They are not shifted.
    pub labels: Vec<i32>,
    /// Number of rows that are blocks of the corpus, over all processes.
    pub rows: usize,
    /// Time that the consumer waited for it.
    pub waited: Duration,
}

/// Returns batches in order, prefetched on a thread.
#[derive(Debug)]
pub struct Loader {
    batches: Option<Receiver<Batch>>,
    worker: Option<JoinHandle<()>>,
}

impl Loader {
    /// Prefetches the batches of `steps`, counted over all epochs: to resume a run at step 100,
    /// start the range there.
    pub fn start(corpus: Arc<Corpus>, batches: Batches, steps: Range<u64>) -> Result<Self> {
        Loader::with_prefetch(corpus, batches, steps, PREFETCH)
    }

    /// The same with at least this number of prefetched batches, for launches that take several.
    pub fn with_prefetch(
        corpus: Arc<Corpus>,
        batches: Batches,
        steps: Range<u64>,
        prefetch: usize,
    ) -> Result<Self> {
        Loader::of_sequences(corpus, batches, steps, prefetch, 0..batches.sequences)
    }

    /// The same with only some sequences of each micro-batch: those of a process of several. The
    /// order is that of one process.
    pub fn of_sequences(
        corpus: Arc<Corpus>,
        batches: Batches,
        steps: Range<u64>,
        prefetch: usize,
        sequences: Range<usize>,
    ) -> Result<Self> {
        if batches.rows() == 0 {
            let expected = "a step needs at least one";
            return Err(Error::OutOfRange { what: "sequences per step", given: 0, expected });
        }
        if batches.steps_per_epoch() == 0 {
            let expected =
                "fewer blocks than one step needs: use smaller batches, or keep the last batch";
            let given = batches.order.length();
            return Err(Error::OutOfRange { what: "the number of blocks", given, expected });
        }
        let (sender, receiver) = sync_channel(prefetch.max(PREFETCH));
        let work = move || {
            for step in steps {
                if sender.send(fill(&corpus, &batches, step, &sequences)).is_err() {
                    break; // the loader was dropped
                }
            }
        };
        let worker = thread::Builder::new()
            .name("loader".into())
            .spawn(work)
            .map_err(Error::io("start a thread for", "the loader"))?;
        Ok(Self { batches: Some(receiver), worker: Some(worker) })
    }
}

impl Iterator for Loader {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let start = Instant::now();
        let mut batch = self.batches.as_ref()?.recv().ok()?;
        batch.waited = start.elapsed();
        Some(batch)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.batches = None; // stops the worker
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

fn fill(corpus: &Corpus, batches: &Batches, step: u64, sequences: &Range<usize>) -> Batch {
    let (tokens_each, width) = (corpus.block_size(), sequences.len());
    let size = batches.accumulation * width * tokens_each;
    let mut tokens = vec![0; size];
    let mut labels = vec![IGNORED; size];
    let mut rows = 0;
    for (row, block) in batches.blocks(step).enumerate() {
        rows += 1;
        let (microbatch, sequence) = (row / batches.sequences, row % batches.sequences);
        if sequences.contains(&sequence) {
            let place = (microbatch * width + sequence - sequences.start) * tokens_each;
            let tokens = &mut tokens[place..place + tokens_each];
            let length = corpus.read(block, tokens);
            labels[place..place + length].copy_from_slice(&tokens[..length]);
        }
    }
    Batch { step, tokens, labels, rows, waited: Duration::ZERO }
}
