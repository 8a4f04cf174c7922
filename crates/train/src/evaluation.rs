//! The loss on text that is not trained on.

use crate::error::Error;
use crate::evaluator::{Evaluator, PendingLoss};
use crate::report::Values;
use fullshard_data::{Batch, Batches, Corpus, Loader, Order};
use fullshard_pjrt::HostTensor;
use std::sync::Arc;
use std::time::Instant;

/// What is evaluated on.
#[derive(Clone)]
pub struct Evaluation {
    /// The blocks.
    pub corpus: Arc<Corpus>,
    /// Sequences that all devices together compute at once.
    pub sequences: usize,
}

/// What came of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluated {
    /// The mean loss over all labels.
    pub loss: f64,
    /// Blocks.
    pub samples: u64,
    /// Batches.
    pub steps: u64,
    /// Seconds.
    pub runtime: f64,
}

impl Evaluation {
    /// Evaluates the parameters as they are; nothing comes of it if somebody wants it to stop.
    pub fn run(
        &self,
        evaluator: &mut Evaluator<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Evaluated>, Error> {
        evaluator.prepare(self.sequences)?;
        let start = Instant::now();
        let batches = Batches {
            order: Order::sequential(self.corpus.blocks()),
            accumulation: 1,
            sequences: self.sequences,
            drop_last: false,
        };
        let steps = batches.steps_per_epoch();
        let tokens = self.corpus.block_size();
        let mut total = (0.0, 0.0);
        let mut add = |pending: PendingLoss| -> Result<(), Error> {
            let (sum, count) = pending.wait()?;
            total = (total.0 + f64::from(sum), total.1 + f64::from(count));
            Ok(())
        };
        let mut behind = None;
        for batch in Loader::start(Arc::clone(&self.corpus), batches, 0..steps)? {
            if stop() {
                return Ok(None);
            }
            let [tokens, labels] = tensors(&batch, &[self.sequences, tokens])?;
            let pending = evaluator.evaluate(&tokens, &labels)?;
            let done =
                if evaluator.launches_ahead() { behind.replace(pending) } else { Some(pending) };
            done.map_or(Ok(()), &mut add)?;
        }
        behind.map_or(Ok(()), &mut add)?;
        Ok(Some(Evaluated {
            loss: total.0 / total.1.max(1.0),
            samples: self.corpus.blocks(),
            steps,
            runtime: start.elapsed().as_secs_f64(),
        }))
    }
}

impl Evaluated {
    /// The exponential of the loss; infinite if that is too large.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }

    /// Its figures by the names that Trainer gives them.
    pub fn values(&self) -> Values {
        Values::from([
            ("eval_loss".to_owned(), self.loss.into()),
            ("eval_runtime".to_owned(), self.runtime.into()),
            ("eval_samples_per_second".to_owned(), (self.samples as f64 / self.runtime).into()),
            ("eval_steps_per_second".to_owned(), (self.steps as f64 / self.runtime).into()),
        ])
    }
}

/// The tokens and labels of a batch.
pub(crate) fn tensors(batch: &Batch, dims: &[usize]) -> Result<[HostTensor; 2], Error> {
    let tokens = HostTensor::from_values(dims, &batch.tokens)?;
    Ok([tokens, HostTensor::from_values(dims, &batch.labels)?])
}
