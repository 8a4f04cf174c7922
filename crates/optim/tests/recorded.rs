//! Optimizers and schedules against torch and Hugging Face's library.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Placed, TrainingRun, difference, rms, train};
use fullshard_graph::Mesh;
use fullshard_optim::{Adafactor, AdamW, Optimizer, ScheduleOptions, Sgd, StepSize};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Recorded {
    shapes: Vec<Vec<usize>>,
    initial: Vec<Vec<f32>>,
    learning_rates: Vec<f64>,
    gradient_exponents: Vec<i32>,
    gradients: Vec<Vec<Vec<f32>>>,
    runs: BTreeMap<String, RecordedRun>,
}

#[derive(Deserialize)]
struct RecordedRun {
    parameters: Vec<Vec<f32>>,
    states: Vec<BTreeMap<String, Vec<f32>>>,
}

impl Recorded {
    fn training_run(&self) -> TrainingRun {
        let steps = self.gradients.iter().zip(&self.gradient_exponents);
        let gradients = steps.map(|(gradients, exponent)| {
            let scaled = |gradient: &Vec<f32>| {
                vec![gradient.iter().map(|number| number * 2_f32.powi(*exponent)).collect()]
            };
            gradients.iter().map(scaled).collect()
        });
        TrainingRun {
            initial: self.initial.iter().map(|values| vec![values.clone()]).collect(),
            gradients: gradients.collect(),
            learning_rates: self.learning_rates.clone(),
        }
    }
}

/// Trains on one device and compares parameters and state with a recorded run.
#[track_caller]
fn check(name: &str, optimizer: &dyn Optimizer) {
    let recorded: Recorded = serde_json::from_str(include_str!("data/optimizers.json")).unwrap();
    let parameters: Vec<Placed> =
        recorded.shapes.iter().map(|dims| Placed::replicated(dims)).collect();
    let mesh = Mesh::new(&[("fsdp", 1)]).unwrap();
    let trained = train(optimizer, &mesh, &parameters, &recorded.training_run());
    let run = &recorded.runs[name];
    for (i, trained) in trained.iter().enumerate() {
        let what = format!("{name}, {:?}", recorded.shapes[i]);
        let found: Vec<f32> = trained.parameter.values().unwrap();
        let expected = &run.parameters[i];
        let worst = difference(&found, expected, rms(expected));
        println!("{what}: parameter {worst:e}");
        assert!(worst < 1e-6, "{what}: parameter {worst:e}");
        assert_eq!(trained.slots.len(), run.states[i].len(), "{what}");
        for (slot, _, found) in &trained.slots {
            let found: Vec<f32> = found.values().unwrap();
            let expected = &run.states[i][*slot];
            let scale = unit(name, slot, expected, &run.parameters[i]);
            let worst = difference(&found, expected, scale);
            println!("{what}: {slot} {worst:e}");
            assert!(worst < 1e-6, "{what}: {slot} {worst:e}");
        }
    }
}

/// The scale that errors of a slot are relative to, where its numbers are smaller.
fn unit(name: &str, slot: &str, expected: &[f32], parameter: &[f32]) -> f32 {
    match slot {
        // Sums of squares: nothing cancels.
        _ if slot.contains("sq") => 0.0,
        // A mean of steps of both signs, which can cancel to far less than one step adds: a tenth
        // of the last learning rate, scaled by the parameter.
        "exp_avg" if name == "adafactor_beta1" => rms(expected).max(5e-4 * rms(parameter)),
        _ => rms(expected),
    }
}

#[test]
fn adamw() {
    check("adamw", &AdamW { weight_decay: 0.1, ..AdamW::default() });
}

#[test]
fn adafactor() {
    let decaying = Adafactor { weight_decay: 0.1, ..Adafactor::trainer() };
    check("adafactor_trainer", &decaying);
    check("adafactor_paper", &Adafactor::paper());
    let step_size = StepSize::Relative { warmup: true };
    check("adafactor_paper_warmup", &Adafactor { step_size, ..Adafactor::paper() });
    check("adafactor_beta1", &Adafactor { beta1: Some(0.9), scale_parameter: true, ..decaying });
}

#[test]
fn sgd() {
    check("sgd", &Sgd::default());
    let momentum = Sgd { momentum: 0.9, weight_decay: 0.1, ..Sgd::default() };
    check("sgd_momentum", &Sgd { dampening: 0.3, ..momentum });
    check("sgd_nesterov", &Sgd { nesterov: true, ..momentum });
}

#[derive(Deserialize)]
struct RecordedSchedules {
    learning_rate: f64,
    total: u64,
    runs: Vec<RecordedSchedule>,
}

#[derive(Deserialize)]
struct RecordedSchedule {
    name: String,
    options: KnownOptions,
    warmup: u64,
    factors: Vec<f64>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct KnownOptions {
    num_cycles: Option<f64>,
    power: Option<f64>,
    lr_end: Option<f64>,
    min_lr: Option<f64>,
    min_lr_rate: Option<f64>,
    min_lr_ratio: Option<f64>,
    warmup_lr_rate: Option<f64>,
    timescale: Option<u64>,
    num_stable_steps: Option<u64>,
    num_decay_steps: Option<u64>,
    warmup_type: Option<String>,
    decay_type: Option<String>,
}

#[test]
fn schedules() {
    let recorded: RecordedSchedules =
        serde_json::from_str(include_str!("data/schedules.json")).unwrap();
    let mut names: Vec<&str> = recorded.runs.iter().map(|run| run.name.as_str()).collect();
    names.dedup();
    let mut missing: Vec<&str> = fullshard_optim::SCHEDULES.to_vec();
    missing.retain(|name| !names.contains(name));
    assert!(missing.is_empty(), "not recorded: {missing:?}");
    for run in &recorded.runs {
        let options = &run.options;
        let shape = |name: &Option<String>| name.as_ref().map(|name| name.parse().unwrap());
        let options = ScheduleOptions {
            learning_rate: Some(recorded.learning_rate),
            num_cycles: options.num_cycles,
            power: options.power,
            lr_end: options.lr_end,
            min_lr: options.min_lr,
            min_lr_rate: options.min_lr_rate,
            min_lr_ratio: options.min_lr_ratio,
            warmup_lr_rate: options.warmup_lr_rate,
            timescale: options.timescale,
            num_stable_steps: options.num_stable_steps,
            num_decay_steps: options.num_decay_steps,
            warmup_type: shape(&options.warmup_type),
            decay_type: shape(&options.decay_type),
        };
        let schedule = options.schedule(&run.name).unwrap();
        for (step, expected) in run.factors.iter().enumerate() {
            let found = schedule.factor(step as u64, run.warmup, recorded.total);
            let what = format!("{schedule:?} at {step}, warmup {}", run.warmup);
            assert!((found - expected).abs() <= 1e-12, "{what}: {found} for {expected}");
        }
    }
}
