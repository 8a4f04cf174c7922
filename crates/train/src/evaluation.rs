//! The loss on examples that are not trained on.

use crate::error::Error;
use crate::evaluator::{Evaluator, PendingLoss};
use crate::report::Values;
use crate::source::{BatchSource, TokenBatches};
use fullshard_data::Corpus;
use fullshard_pjrt::Array;
use std::sync::Arc;
use std::time::Instant;

/// What is evaluated on.
#[derive(Clone)]
pub struct Evaluation {
    /// The batches; an epoch of them is evaluated on.
    pub batches: Arc<dyn BatchSource>,
    /// Sequences in a batch, on all devices together.
    pub sequences: usize,
}

/// What came of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluated {
    /// The mean loss over all labels.
    pub loss: f64,
    /// Examples.
    pub samples: u64,
    /// Batches.
    pub steps: u64,
    /// Seconds.
    pub runtime: f64,
}

impl Evaluation {
    /// The evaluation on a corpus, so many sequences at once.
    pub fn on_corpus(corpus: Arc<Corpus>, sequences: usize) -> Evaluation {
        Evaluation { batches: Arc::new(TokenBatches::evaluation(corpus, sequences)), sequences }
    }

    /// Evaluates parameters; gives nothing if it was stopped.
    pub fn run(
        &self,
        evaluator: &mut Evaluator<'_>,
        parameters: &[Array],
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Evaluated>, Error> {
        evaluator.prepare(self.sequences)?;
        let start = Instant::now();
        let steps = self.batches.steps_per_epoch();
        let mut total = (0.0, 0.0);
        let mut add = |pending: PendingLoss| -> Result<(), Error> {
            let (sum, count) = pending.wait()?;
            total = (total.0 + f64::from(sum), total.1 + f64::from(count));
            Ok(())
        };
        let mut behind = None;
        for batch in self.batches.batches(0..steps)? {
            if stop() {
                return Ok(None);
            }
            let pending = evaluator.evaluate(parameters, &batch?.tensors)?;
            let done =
                if evaluator.launches_ahead() { behind.replace(pending) } else { Some(pending) };
            done.map_or(Ok(()), &mut add)?;
        }
        behind.map_or(Ok(()), &mut add)?;
        Ok(Some(Evaluated {
            loss: total.0 / total.1.max(1.0),
            samples: self.batches.examples(),
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
