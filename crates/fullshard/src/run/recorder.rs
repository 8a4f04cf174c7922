//! Records losses and TensorBoard logs of a run.

use crate::error::Result;
use fullshard_train::report::{Curve, EventWriter, Values};
use fullshard_train::{Callback, Error, Evaluated, Metrics};
use std::path::Path;

/// Records losses, writes TensorBoard files and calls the next callback.
pub(super) struct Recorder<'a> {
    next: &'a mut dyn Callback,
    events: Option<EventWriter>,
    /// Steps and losses.
    losses: Vec<(f64, f64)>,
    /// Steps and evaluation losses.
    evaluations: Vec<(f64, f64)>,
}

impl<'a> Recorder<'a> {
    pub fn new(
        next: &'a mut dyn Callback,
        folder: &Path,
        tensorboard: bool,
    ) -> Result<Recorder<'a>> {
        let events = if tensorboard { Some(EventWriter::create(folder)?) } else { None };
        Ok(Recorder { next, events, losses: Vec::new(), evaluations: Vec::new() })
    }

    /// Writes values such as the results.
    pub fn write(&mut self, step: u64, values: &Values) -> Result<(), Error> {
        match &mut self.events {
            Some(events) => Ok(events.log(step, values)?),
            None => Ok(()),
        }
    }

    /// The loss curve.
    pub fn curve(self, title: String) -> Curve {
        Curve { title, losses: self.losses, evaluations: self.evaluations, floor: None }
    }
}

impl Callback for Recorder<'_> {
    fn on_step(&mut self, step: u64, metrics: Metrics) -> Result<(), Error> {
        self.losses.push((step as f64, f64::from(metrics.loss)));
        self.next.on_step(step, metrics)
    }

    fn on_log(&mut self, step: u64, values: &Values) -> Result<(), Error> {
        self.next.on_log(step, values)?;
        self.write(step, values)
    }

    fn on_evaluate(&mut self, step: u64, evaluated: &Evaluated) -> Result<(), Error> {
        self.evaluations.push((step as f64, evaluated.loss));
        self.next.on_evaluate(step, evaluated)?;
        self.write(step, &evaluated.values())
    }

    fn on_profile(&mut self, path: &Path) -> Result<(), Error> {
        self.next.on_profile(path)
    }
}
