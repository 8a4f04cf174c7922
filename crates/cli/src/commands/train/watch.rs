//! What a person sees of a run: a bar, a line each time something is logged, and TensorBoard.

use super::bar;
use crate::format;
use fullshard_train::report::{Curve, EventWriter, Values};
use fullshard_train::{Callback, DeviceMemory, Error, Evaluated, Metrics};
use indicatif::ProgressBar;
use std::path::Path;

/// Shows a run and keeps its losses.
pub struct Watch {
    bar: ProgressBar,
    events: Option<EventWriter>,
    steps: u64,
    steps_per_epoch: u64,
    /// Whether the memory that is logged is what the device says.
    measured: bool,
    /// Steps and losses.
    losses: Vec<(f64, f64)>,
    /// Steps and evaluation losses.
    evaluations: Vec<(f64, f64)>,
}

impl Watch {
    pub fn new(
        course: &fullshard_train::TrainSchedule,
        memory: Option<DeviceMemory>,
        events: Option<EventWriter>,
        shown: bool,
    ) -> Watch {
        Watch {
            bar: bar::steps(course.steps, shown),
            events,
            steps: course.steps,
            steps_per_epoch: course.steps_per_epoch.max(1),
            measured: matches!(memory, Some(DeviceMemory::Measured(_))),
            losses: Vec::new(),
            evaluations: Vec::new(),
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// The picture of the losses.
    pub fn curve(self, title: String) -> Curve {
        Curve { title, losses: self.losses, evaluations: self.evaluations, floor: None }
    }

    /// Logs values that are not of a step, such as the results.
    pub fn log(&mut self, step: u64, values: &Values) -> Result<(), Error> {
        match &mut self.events {
            Some(events) => Ok(events.log(step, values)?),
            None => Ok(()),
        }
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| println!("{line}"));
    }

    fn line(&self, step: u64, values: &Values) -> String {
        let of = |name: &str| values.get(name).map(|number| number.as_f64());
        let number = |name: &str| of(name).unwrap_or(f64::NAN);
        let mfu = match (of("mfu"), of("mfu_palm")) {
            (Some(post), Some(palm)) => {
                format!("MFU {:.1} % (6N) {:.1} % (PaLM)", 100.0 * post, 100.0 * palm)
            }
            _ => "MFU unknown".to_owned(),
        };
        let memory = match of("device_memory") {
            Some(bytes) if self.measured => format!("{} in use", format::bytes(bytes as u64)),
            Some(bytes) => format!("{} compiled", format::bytes(bytes as u64)),
            None => "memory unknown".to_owned(),
        };
        format!(
            "step {step}/{}  epoch {:.2}  loss {:.4}  grad norm {:.3}  lr {:.3e}  {:.0} tokens/s  \
             {} a step  {mfu}  {memory}  input wait {}",
            self.steps,
            step as f64 / self.steps_per_epoch as f64,
            number("loss"),
            number("grad_norm"),
            number("learning_rate"),
            number("tokens_per_second"),
            format::seconds(number("step_time")),
            format::seconds(number("input_wait")),
        )
    }
}

impl Callback for Watch {
    fn on_step(&mut self, step: u64, metrics: Metrics) -> Result<(), Error> {
        self.losses.push((step as f64, f64::from(metrics.loss)));
        self.bar.set_message(format!("loss {:.4}", metrics.loss));
        self.bar.set_position(step);
        Ok(())
    }

    fn on_log(&mut self, step: u64, values: &Values) -> Result<(), Error> {
        self.say(&self.line(step, values));
        self.log(step, values)
    }

    fn on_evaluate(&mut self, step: u64, evaluated: &Evaluated) -> Result<(), Error> {
        self.evaluations.push((step as f64, evaluated.loss));
        self.say(&format!(
            "step {step}/{}  evaluation loss {:.4}  perplexity {:.3}  in {}",
            self.steps,
            evaluated.loss,
            evaluated.perplexity(),
            format::seconds(evaluated.runtime)
        ));
        self.log(step, &evaluated.values())
    }

    fn on_profile(&mut self, path: &Path) -> Result<(), Error> {
        self.say(&format!("profile written to {}", path.display()));
        Ok(())
    }
}
