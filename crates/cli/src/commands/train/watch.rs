//! Prints the progress of a run: bars, and a line per log.

use crate::bar;
use crate::output::say;
use fullshard::format;
use fullshard::run::{DataProgress, Purpose};
use fullshard_data::Corpus;
use fullshard_data::hub::Download;
use fullshard_train::report::Values;
use fullshard_train::{
    Callback, DeviceMemory, Error, Evaluated, Metrics, SaveResult, Saved, StartUp,
};
use indicatif::ProgressBar;
use std::path::Path;

/// Prints the progress of training.
pub struct Watch {
    bar: ProgressBar,
    steps: u64,
    steps_per_epoch: u64,
    /// Whether the logged memory is measured by the device.
    measured: bool,
}

impl Watch {
    pub fn new(
        schedule: &fullshard_train::TrainSchedule,
        memory: Option<DeviceMemory>,
        shown: bool,
    ) -> Watch {
        Watch {
            bar: bar::steps(schedule.steps, shown),
            steps: schedule.steps,
            steps_per_epoch: schedule.steps_per_epoch.max(1),
            measured: matches!(memory, Some(DeviceMemory::Measured(_))),
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| say!("{line}"));
    }

    fn line(&self, step: u64, values: &Values) -> String {
        let of = |name: &str| values.get(name).map(|number| number.as_f64());
        let number = |name: &str| of(name).unwrap_or(f64::NAN);
        let percent = |name: &str| 100.0 * number(name);
        let mfu = match of("mfu") {
            Some(_) => format!(
                "MFU {:.1} % (6·N) {:.1} % (PaLM)  HFU {:.1} % (6·N) {:.1} % (PaLM)",
                percent("mfu"),
                percent("mfu_palm"),
                percent("hfu"),
                percent("hfu_palm")
            ),
            None => "MFU unknown".to_owned(),
        };
        let memory = match of("device_memory") {
            Some(bytes) if self.measured => format!("{} in use", format::bytes(bytes as u64)),
            Some(bytes) => format!("{} compiled", format::bytes(bytes as u64)),
            None => "memory unknown".to_owned(),
        };
        format!(
            "step {step}/{}  epoch {:.2}  loss {:.4}  grad norm {:.3}  lr {:.3e}  {:.0} tokens/s  \
             {}/step  {mfu}  {memory}  input wait {}",
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
        self.bar.set_message(format!("loss {:.4}", metrics.loss));
        self.bar.set_position(step);
        Ok(())
    }

    fn on_start_up(&mut self, start_up: &StartUp) -> Result<(), Error> {
        self.say(&start_up.to_string());
        Ok(())
    }

    fn on_log(&mut self, step: u64, values: &Values) -> Result<(), Error> {
        self.say(&self.line(step, values));
        Ok(())
    }

    fn on_evaluate(&mut self, step: u64, evaluated: &Evaluated) -> Result<(), Error> {
        self.say(&format!(
            "step {step}/{}  evaluation loss {:.4}  perplexity {:.3}  in {}",
            self.steps,
            evaluated.loss,
            evaluated.perplexity(),
            format::seconds(evaluated.runtime)
        ));
        Ok(())
    }

    fn on_saved(&mut self, saved: &SaveResult) -> Result<(), Error> {
        let Ok(Saved { path, step, bytes, pause, write, memory, .. }) = saved else {
            return Ok(());
        };
        let rate = *bytes as f64 / write.as_secs_f64().max(1e-9);
        let copies = match memory {
            0 => "training waited, without copies".to_owned(),
            memory => format!("from {} of copies", format::bytes(*memory)),
        };
        self.say(&format!(
            "step {step}/{}  checkpoint of {} in {}  paused {}  written in {} at {}/s {copies}",
            self.steps,
            format::bytes(*bytes),
            path.display(),
            format::seconds(pause.as_secs_f64()),
            format::seconds(write.as_secs_f64()),
            format::bytes(rate as u64),
        ));
        Ok(())
    }

    fn on_profile(&mut self, path: &Path) -> Result<(), Error> {
        self.say(&format!("profile written to {}", path.display()));
        Ok(())
    }
}

/// Shows the progress of downloads and tokenization.
#[derive(Default)]
pub struct DataBar {
    bar: Option<ProgressBar>,
}

impl DataBar {
    /// Removes the bar.
    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn purpose_name(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Train => "training data",
        Purpose::Evaluate => "evaluation data",
    }
}

impl DataProgress for DataBar {
    fn fetching(&mut self, name: &str) {
        say!("downloading {name} unless cached");
    }

    fn downloading(&mut self, download: Download<'_>) {
        if self.bar.as_ref().is_some_and(|bar| bar.message() != download.file) {
            self.clear();
        }
        let bar = self.bar.get_or_insert_with(|| bar::bytes("downloading", download.size));
        bar.set_message(download.file.to_owned());
        bar.set_position(download.bytes);
    }

    fn fetched(&mut self) {
        self.clear();
    }

    fn column(&mut self, purpose: Purpose, column: &str) {
        say!("{}: column `{column}`, since none is called `text`", purpose_name(purpose));
    }

    fn tokenizing(&mut self, purpose: Purpose, bytes: u64, of: u64, tokens: u64) {
        let bar = self.bar.get_or_insert_with(|| bar::bytes(purpose_name(purpose), of));
        bar.set_position(bytes);
        bar.set_message(format!("{tokens} tokens"));
    }

    fn tokenized(&mut self, purpose: Purpose, corpus: &Corpus) {
        self.clear();
        say!(
            "{}: {} tokens in {} blocks of {}{}",
            purpose_name(purpose),
            corpus.tokens(),
            corpus.blocks(),
            corpus.block_size(),
            if corpus.reused() { ", from the token cache" } else { "" }
        );
    }
}
