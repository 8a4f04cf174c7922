//! Sources of batches: a text corpus, or custom data.

use crate::error::Error;
use fullshard_data::{BatchOrigin, Batches, Corpus, Loader, Order};
use fullshard_pjrt::HostTensor;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The batch of one step, in host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct HostBatch {
    /// The step, counted over all epochs from 0.
    pub step: u64,
    /// The tensors, in the order of the task's inputs.
    pub tensors: Vec<HostTensor>,
    /// Number of examples, without padding.
    pub examples: u64,
    /// Time that the training loop waited for it.
    pub waited: Duration,
}

impl HostBatch {
    /// The batch for its step if a number of batches was passed over.
    pub(crate) fn of_step(mut self, passed_over: u64) -> HostBatch {
        self.step -= passed_over;
        self
    }
}

/// Batches in step order.
pub type HostBatches<'a> = Box<dyn Iterator<Item = Result<HostBatch, Error>> + 'a>;

/// Batches of examples, for training or evaluation.
pub trait BatchSource: Send + Sync {
    /// Examples per epoch.
    fn examples(&self) -> u64;

    /// Steps per epoch.
    fn steps_per_epoch(&self) -> u64;

    /// The batches of a range of steps, counted over all epochs. Slow work should be prefetched on
    /// a separate thread: devices wait for batches that are not ready.
    fn batches(&self, steps: Range<u64>) -> Result<HostBatches<'_>, Error>;
}

/// A corpus as prefetched batches of tokens and labels.
#[derive(Debug)]
pub struct TokenBatches {
    corpus: Arc<Corpus>,
    batches: Batches,
    /// The dimensions of both tensors.
    dims: Vec<usize>,
    /// The least number of prefetched batches.
    prefetch: usize,
    /// The sequences of each microbatch that this process needs.
    sequences: Range<usize>,
}

impl TokenBatches {
    /// Training batches: `[accumulation, sequences, tokens]`.
    pub fn training(corpus: Arc<Corpus>, batches: Batches) -> TokenBatches {
        let dims = vec![batches.accumulation, batches.sequences, corpus.block_size()];
        TokenBatches { corpus, batches, dims, prefetch: 1, sequences: 0..batches.sequences }
    }

    /// Evaluation batches, all blocks once and in order: `[sequences, tokens]`.
    pub fn evaluation(corpus: Arc<Corpus>, sequences: usize) -> TokenBatches {
        let order = Order::sequential(corpus.blocks());
        let origin = BatchOrigin::default();
        let batches = Batches { order, accumulation: 1, sequences, drop_last: false, origin };
        let dims = vec![sequences, corpus.block_size()];
        TokenBatches { corpus, batches, dims, prefetch: 1, sequences: 0..sequences }
    }

    /// Only some sequences of each microbatch: those of the devices of this process, see
    /// [`StepSpec::process_sequences`](fullshard_step::StepSpec::process_sequences).
    pub fn of_sequences(mut self, sequences: Range<usize>) -> TokenBatches {
        let dim = self.dims.len() - 2;
        self.dims[dim] = sequences.len();
        self.sequences = sequences;
        self
    }

    /// Prefetches at least this number of batches: those of a launch.
    pub fn prefetch(mut self, batches: usize) -> TokenBatches {
        self.prefetch = batches;
        self
    }

    fn host_batch(&self, batch: fullshard_data::Batch) -> Result<HostBatch, Error> {
        let tokens = HostTensor::from_values(&self.dims, &batch.tokens)?;
        let labels = HostTensor::from_values(&self.dims, &batch.labels)?;
        Ok(HostBatch {
            step: batch.step,
            tensors: vec![tokens, labels],
            examples: batch.rows as u64,
            waited: batch.waited,
        })
    }
}

impl BatchSource for TokenBatches {
    fn examples(&self) -> u64 {
        self.corpus.blocks()
    }

    fn steps_per_epoch(&self) -> u64 {
        self.batches.steps_per_epoch()
    }

    fn batches(&self, steps: Range<u64>) -> Result<HostBatches<'_>, Error> {
        let corpus = Arc::clone(&self.corpus);
        let (prefetch, sequences) = (self.prefetch, self.sequences.clone());
        let loader = Loader::of_sequences(corpus, self.batches, steps, prefetch, sequences)?;
        Ok(Box::new(loader.map(|batch| self.host_batch(batch))))
    }
}
