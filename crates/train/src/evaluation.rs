//! The loss on held-out examples.

use crate::error::Error;
use crate::evaluator::{Evaluator, PendingLoss};
use crate::report::Values;
use crate::source::{BatchSource, TokenBatches};
use crate::spent::Spent;
use crate::trainer::Run;
use fullshard_data::Corpus;
use fullshard_pjrt::Array;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The data of an evaluation.
#[derive(Clone)]
pub struct Evaluation {
    /// The batches; one epoch is evaluated.
    pub batches: Arc<dyn BatchSource>,
    /// Sequences per batch, over all devices.
    pub sequences: usize,
}

/// The result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluated {
    /// The mean loss over all labels.
    pub loss: f64,
    /// Number of examples.
    pub samples: u64,
    /// Number of batches.
    pub steps: u64,
    /// Time in seconds.
    pub runtime: f64,
}

impl Evaluation {
    /// The evaluation on a corpus, in batches of `sequences`.
    pub fn on_corpus(corpus: Arc<Corpus>, sequences: usize) -> Evaluation {
        Evaluation::on_part(corpus, sequences, 0..sequences)
    }

    /// The same on a process that needs only some sequences of each batch.
    pub fn on_part(corpus: Arc<Corpus>, sequences: usize, part: Range<usize>) -> Evaluation {
        let batches = TokenBatches::evaluation(corpus, sequences).of_sequences(part);
        Evaluation { batches: Arc::new(batches), sequences }
    }

    /// Evaluates parameters; returns `None` if stopped.
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
        let mut in_flight = None;
        for batch in self.batches.batches(0..steps)? {
            if evaluator.agreement()?.stops(stop(), false)? {
                return Ok(None);
            }
            let pending = evaluator.evaluate(parameters, &batch?.tensors)?;
            let done =
                if evaluator.launches_ahead() { in_flight.replace(pending) } else { Some(pending) };
            done.map_or(Ok(()), &mut add)?;
        }
        in_flight.map_or(Ok(()), &mut add)?;
        Ok(Some(Evaluated {
            loss: total.0 / total.1.max(1.0),
            samples: self.batches.examples(),
            steps,
            runtime: start.elapsed().as_secs_f64(),
        }))
    }
}

impl Run<'_, '_, '_> {
    /// Whether the run is resumed after a step whose evaluation a signal stopped.
    pub fn missed_evaluation(&self) -> bool {
        let step = self.state.global_step;
        let is_it = |log: &Values| {
            let of = log.get("step").map(|of| of.as_f64());
            log.contains_key("eval_loss") && of == Some(step as f64)
        };
        step > 0
            && self.training.schedule.evaluates_after(step)
            && !self.state.log_history.iter().any(is_it)
    }

    /// Evaluates, and returns whether the result is the best so far.
    pub fn evaluate(&mut self) -> Result<bool, Error> {
        let Some(evaluation) = &self.training.evaluation else { return Ok(false) };
        let start = Instant::now();
        let timed = self.watchdog.time("evaluating a batch", self.state.global_step);
        let stop = || {
            timed.restart();
            (self.training.stop)()
        };
        let evaluated = self.runner.evaluate(evaluation, &stop)?;
        drop(timed);
        self.watchdog.excuse();
        self.spent_apart(Spent::Evaluation, start.elapsed())?;
        let Some(evaluated) = evaluated else { return Ok(false) };
        self.callback.on_evaluate(self.state.global_step, &evaluated)?;
        self.state.log(evaluated.values());
        self.evaluated = Some(evaluated);
        Ok(self.note_best(&evaluated.values()))
    }
}

impl Evaluated {
    /// The exponential of the loss; infinite on overflow.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }

    /// The metrics by the names that Trainer uses.
    pub fn values(&self) -> Values {
        Values::from([
            ("eval_loss".to_owned(), self.loss.into()),
            ("eval_runtime".to_owned(), self.runtime.into()),
            ("eval_samples_per_second".to_owned(), (self.samples as f64 / self.runtime).into()),
            ("eval_steps_per_second".to_owned(), (self.steps as f64 / self.runtime).into()),
        ])
    }
}
