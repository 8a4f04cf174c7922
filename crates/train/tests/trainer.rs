//! The training loop on virtual CPU devices: learning, stopping, and state that must not change.
#![allow(clippy::unwrap_used)]

mod common;

use common::{adamw, compiler, spec};
use fullshard_checkpoint::ExportOptions;
use fullshard_data::demo::Demo;
use fullshard_data::{BatchOrigin, Batches, Corpus, Grouping, Order, Part, Preparation, Source};
use fullshard_models::IGNORED;
use fullshard_optim::Schedule;
use fullshard_parallel::{FsdpConfig, PlacementOptions, ShardedParam};
use fullshard_pjrt::{Array, HostTensor};
use fullshard_step::{BatchShape, Ordered, StepSpec};
use fullshard_train::report::Values;
use fullshard_train::{
    BatchSource, Callback, Error, EvalRunner, Evaluated, Evaluation, Every, Guards, HostBatch,
    HostBatches, Metrics, Runner, TokenBatches, TrainSchedule, TrainScheduleOptions, Trained,
    Training,
};
use std::path::PathBuf;
use std::sync::Arc;

const BLOCK: usize = 12;
const SEQUENCES: usize = 8;
const STEPS: u64 = 5;

/// Text whose last batch of an epoch is not full.
struct Text {
    train: Arc<Corpus>,
    validation: Arc<Corpus>,
    vocabulary: usize,
    _folder: tempfile::TempDir,
}

impl Text {
    fn new() -> Text {
        let folder = tempfile::tempdir().unwrap();
        let files = Demo::write(folder.path(), 400, 3).unwrap();
        let tokenizer = Demo::new(3).tokenizer().unwrap();
        let corpus = |file: PathBuf| {
            let source = Source::open(&[file], true).unwrap();
            let plan = Preparation {
                source: &source,
                part: Part::All,
                tokenizer: &tokenizer,
                block_size: BLOCK,
                grouping: Grouping::Packed,
            };
            Arc::new(Corpus::prepare(&plan, folder.path(), &mut |_| ()).unwrap())
        };
        let (train, validation) = (corpus(files.train), corpus(files.validation));
        Text { train, validation, vocabulary: tokenizer.vocabulary(), _folder: folder }
    }

    fn spec(&self, devices: usize) -> StepSpec {
        let config = format!(
            r#"{{"model_type": "gpt2", "vocab_size": {}, "n_positions": {BLOCK}, "n_embd": 12,
                "n_layer": 2, "n_head": 2, "resid_pdrop": 0.1, "embd_pdrop": 0, "attn_pdrop": 0}}"#,
            self.vocabulary
        );
        let fsdp = r#"{"transformer_layer_cls_to_wrap": "GPT2Block"}"#;
        let fsdp_config = FsdpConfig::from_json(fsdp).unwrap();
        let options = PlacementOptions {
            config: fsdp_config,
            scan_layers: true,
            ..PlacementOptions::default()
        };
        let batch = BatchShape {
            sequences: SEQUENCES,
            tokens: BLOCK,
            accumulation: 1,
            sync_each_microbatch: true,
        };
        spec(&config, devices, &options, batch, adamw())
    }

    fn train(&self, devices: usize, rate: f64, stop: &dyn Fn() -> bool) -> Run {
        let (compiler, spec) = (compiler(devices), self.spec(devices));
        let mut runner = Runner::new(&compiler, &spec, 42).unwrap();
        let batches = Batches {
            order: Order::shuffled(42, self.train.blocks()),
            accumulation: 1,
            sequences: SEQUENCES,
            drop_last: false,
            origin: BatchOrigin::default(),
        };
        let options = TrainScheduleOptions {
            max_steps: Some(STEPS),
            logging: Every::Steps(2.0),
            evaluation: Every::Steps(3.0),
            ..TrainScheduleOptions::default()
        };
        let corpus = Arc::clone(&self.validation);
        let training = Training {
            schedule: TrainSchedule::new(options, batches.steps_per_epoch()).unwrap(),
            lr_schedule: Schedule::Constant,
            learning_rate: rate,
            batches: Arc::new(TokenBatches::training(Arc::clone(&self.train), batches)),
            evaluation: Some(Evaluation::on_corpus(corpus, SEQUENCES)),
            profile: None,
            stop,
            saving: None,
            resumed: None,
            guards: Guards::default(),
        };
        let mut seen = Seen::default();
        let trained = training.run(&mut runner, &mut seen);
        Run { trained, seen }
    }
}

/// The result of a run, and what its callback received.
struct Run {
    trained: Result<Trained, Error>,
    seen: Seen,
}

#[derive(Default)]
struct Seen {
    metrics: Vec<Metrics>,
    logs: Vec<(u64, Values)>,
    evaluations: Vec<(u64, Evaluated)>,
}

impl Callback for Seen {
    fn on_step(&mut self, _: u64, metrics: Metrics) -> Result<(), Error> {
        self.metrics.push(metrics);
        Ok(())
    }

    fn on_log(&mut self, step: u64, values: &Values) -> Result<(), Error> {
        self.logs.push((step, values.clone()));
        Ok(())
    }

    fn on_evaluate(&mut self, step: u64, evaluated: &Evaluated) -> Result<(), Error> {
        self.evaluations.push((step, *evaluated));
        Ok(())
    }
}

fn assert_close(found: f64, expected: f64, what: &str) {
    assert!((found / expected - 1.0).abs() < 1e-5, "{what}: {found}, expected {expected}");
}

/// The same batches, weights and dropout on any number of devices; bitwise equal when repeated.
#[test]
fn devices_change_nothing_but_rounding() {
    let text = Text::new();
    // The last batch of the epoch has fewer blocks than others.
    assert!(!text.train.blocks().is_multiple_of(SEQUENCES as u64));
    let never = || false;
    let one = text.train(1, 1e-2, &never);
    let again = text.train(1, 1e-2, &never);
    assert_eq!(one.seen.metrics, again.seen.metrics);
    assert_eq!(one.seen.evaluations[0].1.loss, again.seen.evaluations[0].1.loss);
    let losses: Vec<f32> = one.seen.metrics.iter().map(|metrics| metrics.loss).collect();
    assert!(losses[4] < losses[0] - 0.1, "{losses:?}");
    for devices in [2, 4, 8] {
        let many = text.train(devices, 1e-2, &never);
        assert_eq!(many.seen.metrics.len(), STEPS as usize);
        for (step, (many, one)) in many.seen.metrics.iter().zip(&one.seen.metrics).enumerate() {
            let what = format!("{devices} devices, step {step}");
            assert_close(many.loss.into(), one.loss.into(), &what);
            assert_close(many.gradient_norm.into(), one.gradient_norm.into(), &what);
            assert_eq!(many.labels, one.labels, "{what}");
        }
        let (many, one) = (many.seen.evaluations[0].1, one.seen.evaluations[0].1);
        assert_close(many.loss, one.loss, &format!("evaluation on {devices} devices"));
    }

    // Logs are means of the steps since the last.
    let seen = &one.seen;
    let steps: Vec<u64> = seen.logs.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [2, 4]);
    let mean = (f64::from(losses[2]) + f64::from(losses[3])) / 2.0;
    assert_close(seen.logs[1].1["loss"].as_f64(), mean, "the second log");
    assert_eq!(seen.evaluations.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [3]);
    let trained = one.trained.unwrap();
    let mean = losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / losses.len() as f64;
    assert_close(trained.values["train_loss"].as_f64(), mean, "the mean of all");
    let history = &trained.state.log_history;
    assert_eq!(history.len(), 2 + 1 + 1, "two logs, an evaluation and the results");
    assert_eq!((trained.state.global_step, trained.stopped, trained.evaluated), (5, false, None));
    let epoch = STEPS as f64 / text.train.blocks().div_ceil(SEQUENCES as u64) as f64;
    assert_eq!(trained.state.epoch, epoch);
}

/// The loss of an evaluation is over all labels: padding rows do not count.
#[test]
fn evaluation_counts_each_block_once() {
    let text = Text::new();
    assert!(!text.validation.blocks().is_multiple_of(SEQUENCES as u64));
    let (compiler, spec) = (compiler(2), text.spec(2));
    let mut runner = Runner::new(&compiler, &spec, 1).unwrap();
    let corpus = Arc::clone(&text.validation);
    let evaluation = Evaluation::on_corpus(corpus, SEQUENCES);
    assert_eq!(runner.evaluate(&evaluation, &|| true).unwrap(), None);
    let all = runner.evaluate(&evaluation, &|| false).unwrap().unwrap();
    assert_eq!(all.samples, text.validation.blocks());
    let (mut sum, mut count) = (0.0, 0.0);
    for block in 0..text.validation.blocks() {
        let mut tokens = vec![0; SEQUENCES * BLOCK];
        let mut labels = vec![IGNORED; SEQUENCES * BLOCK];
        let length = text.validation.read(block, &mut tokens[..BLOCK]);
        labels[..length].copy_from_slice(&tokens[..length]);
        let batch = [tokens, labels]
            .map(|values| HostTensor::from_values(&[SEQUENCES, BLOCK], &values).unwrap());
        let (loss, labels) = runner.evaluate_batch(&batch).unwrap().wait().unwrap();
        assert_eq!(labels as usize, length - 1);
        (sum, count) = (sum + f64::from(loss), count + f64::from(labels));
    }
    assert_close(all.loss, sum / count, "block by block");
    assert_close(all.perplexity(), (sum / count).exp(), "perplexity");
}

/// Evaluation without a step program and optimizer state gives the same loss as with them.
#[test]
fn evaluation_needs_no_step_program() {
    let text = Text::new();
    let (compiler, spec) = (compiler(2), text.spec(2));
    let corpus = Arc::clone(&text.validation);
    let evaluation = Evaluation::on_corpus(corpus, SEQUENCES);
    let loss = |evaluated: Option<Evaluated>| evaluated.unwrap().loss.to_bits();
    let mut runner = Runner::new(&compiler, &spec, 42).unwrap();
    let with_step = loss(runner.evaluate(&evaluation, &|| false).unwrap());
    let folder = tempfile::tempdir().unwrap();
    runner.export(folder.path(), &ExportOptions::default()).unwrap();
    let weights = fullshard_checkpoint::Weights::open(folder.path()).unwrap();
    let initialized = EvalRunner::new(&compiler, &spec, 42, SEQUENCES).unwrap();
    let read = EvalRunner::with_weights(&compiler, &spec, SEQUENCES, &weights).unwrap();
    for mut alone in [initialized, read] {
        assert_eq!(alone.parameters().arrays().len(), runner.state().parameters.len());
        let hash = alone.program().unwrap().hash.clone();
        assert_eq!(loss(alone.evaluate(&evaluation, &|| false).unwrap()), with_step);
        assert_eq!(alone.program().unwrap().hash, hash, "compiled for its batches at once");
    }
}

/// The step during which a stop is requested is the last one, and its update is kept.
#[test]
fn a_run_stops_after_the_current_step() {
    let text = Text::new();
    let calls = std::cell::Cell::new(0);
    let run = text.train(1, 1e-2, &|| {
        calls.set(calls.get() + 1);
        calls.get() > 3
    });
    let trained = run.trained.unwrap();
    assert!(trained.stopped);
    assert_eq!((trained.state.global_step, run.seen.metrics.len()), (3, 3));
}

/// With an excessive learning rate, the run ends at the first step that is not finite.
#[test]
fn non_finite_loss_ends_the_run() {
    let run = Text::new().train(2, 1e30, &|| false);
    let trained = run.trained.unwrap();
    let error = trained.not_finite.unwrap();
    let step = error.step;
    assert_eq!(trained.state.global_step, step - 1);
    assert_eq!(run.seen.metrics.len() as u64, step - 1);
    assert!(step > 1 && run.seen.metrics.iter().all(|metrics| metrics.loss.is_finite()));
    let text = error.to_string();
    assert!(
        text.contains(&format!("step {step} has")) && text.contains("--learning_rate"),
        "{text}"
    );
}

/// The state does not change at a non-finite step or after it, and the metrics stay non-finite.
#[test]
fn non_finite_steps_update_nothing() {
    let text = Text::new();
    let (compiler, spec) = (compiler(2), text.spec(2));
    let mut runner = Runner::new(&compiler, &spec, 42).unwrap();
    let tokens = common::tokens(spec.batch, text.vocabulary, 0);
    let state = |runner: &Runner<'_>| -> Vec<Vec<u8>> {
        let host = |array: &fullshard_pjrt::Array| array.to_host().unwrap().into_bytes();
        runner.state().each_ref().flatten().into_iter().map(host).collect()
    };
    let mut before = state(&runner);
    let good = runner.step(&[&tokens, &tokens], 1e30).unwrap().wait().unwrap();
    assert!(good.loss.is_finite() && state(&runner) != before, "a good step changes the state");
    before = state(&runner);
    let bad = runner.step(&[&tokens, &tokens], 1e-3).unwrap();
    let after = runner.step(&[&tokens, &tokens], 1e-3).unwrap();
    for (what, metrics) in [("bad", bad.wait().unwrap()), ("after", after.wait().unwrap())] {
        assert!(!metrics.loss.is_finite() || !metrics.gradient_norm.is_finite(), "{what}");
    }
    assert!(state(&runner) == before, "the state is as it was before the bad step");
}

/// Exported weights are read back unchanged, for any number of devices and layout of layers.
#[test]
fn exported_weights_are_read_back() {
    let text = Text::new();
    let folder = tempfile::tempdir().unwrap();
    let (on_two, two) = (compiler(2), text.spec(2));
    let runner = Runner::new(&on_two, &two, 42).unwrap();
    let exported = runner.export(folder.path(), &ExportOptions::default()).unwrap();
    assert_eq!(exported.unwrap().bytes, 4 * two.parameter_count() as u64);
    let weights = fullshard_checkpoint::Weights::open(folder.path()).unwrap();
    let names: Vec<&str> = weights.names().collect();
    assert_eq!(names.len(), 4 + 2 * 12);
    assert!(names.contains(&"transformer.h.1.mlp.c_fc.weight"), "{names:?}");
    let second = weights.read_f32("transformer.h.1.mlp.c_fc.weight").unwrap();
    let stacked = runner.parameters().get("transformer.h.*.mlp.c_fc.weight").unwrap();
    assert_eq!(second, stacked[stacked.len() / 2..]);

    let (on_four, four) = (compiler(4), text.spec(4));
    let back = Runner::with_weights(&on_four, &four, 1, &weights).unwrap();
    for param in &four.placement.parameters {
        let [out, back] =
            [&runner, &back].map(|runner| runner.parameters().get(&param.name).unwrap());
        assert_eq!(out, back, "{}", param.name);
    }
}

/// Batches that are generated on request, until one fails.
struct Generated {
    batch: BatchShape,
    vocabulary: usize,
    good: u64,
}

impl BatchSource for Generated {
    fn examples(&self) -> u64 {
        3 * SEQUENCES as u64
    }

    fn steps_per_epoch(&self) -> u64 {
        3
    }

    fn batches(&self, steps: std::ops::Range<u64>) -> Result<HostBatches<'_>, Error> {
        Ok(Box::new(steps.map(|step| {
            if step >= self.good {
                return Err(Error::Source("an unreadable file".into()));
            }
            let tokens = common::tokens(self.batch, self.vocabulary, step as usize);
            let (tensors, examples) = (vec![tokens.clone(), tokens], SEQUENCES as u64);
            Ok(HostBatch { step, tensors, examples, waited: std::time::Duration::ZERO })
        })))
    }
}

/// Records the losses.
struct Losses(Vec<f32>);

impl Callback for Losses {
    fn on_step(&mut self, _: u64, metrics: Metrics) -> Result<(), Error> {
        self.0.push(metrics.loss);
        Ok(())
    }
}

/// A layer that is taken out of a stack on the devices is the one in the full values.
#[test]
fn layers_are_taken_out_of_stacks() {
    let text = Text::new();
    let (compiler, spec) = (compiler(2), text.spec(2));
    let runner = Runner::new(&compiler, &spec, 42).unwrap();
    let stacked = spec.placement.parameters.iter().enumerate().filter(|(_, p)| p.stack.is_some());
    let mut count = 0;
    for (index, param) in stacked {
        let all = runner.parameters().get(&param.name).unwrap();
        let (program, _) = spec.layer_program(index).unwrap();
        let compiled = compiler.compile(&program).unwrap();
        let alone = ShardedParam { stack: None, ..param.clone() };
        for (layer, expected) in all.chunks(alone.elements()).enumerate() {
            let number = HostTensor::from_values(&[], &[layer as i32]).unwrap();
            let tiling = compiled.program.argument_type(1).unwrap().tiling;
            let number = Array::from_host(compiler.client, &number, tiling, &[0, 1]).unwrap();
            let stack = &runner.state().parameters[index];
            let result = compiled.program.execute_arrays(&[stack, &number]).unwrap();
            let values: Vec<f32> = result[0].to_host().unwrap().values().unwrap();
            assert!(alone.unpack(&values) == expected, "{} {layer}", param.name);
            count += 1;
        }
    }
    assert_eq!(count, 2 * 12);
}

/// A run takes batches from a custom source, and ends where one cannot be loaded.
#[test]
fn trains_on_custom_batch_sources() {
    let text = Text::new();
    let (compiler, spec, vocabulary) = (compiler(1), text.spec(1), text.vocabulary);
    let options = TrainScheduleOptions { max_steps: Some(4), ..Default::default() };
    let training = Training {
        schedule: TrainSchedule::new(options, 3).unwrap(),
        lr_schedule: Schedule::Constant,
        learning_rate: 1e-2,
        batches: Arc::new(Generated { batch: spec.batch, vocabulary, good: 3 }),
        evaluation: None,
        profile: None,
        stop: &|| false,
        saving: None,
        resumed: None,
        guards: Guards::default(),
    };
    let mut losses = Losses(Vec::new());
    let mut runner = Runner::new(&compiler, &spec, 42).unwrap();
    let error = training.run(&mut runner, &mut losses).unwrap_err();
    assert!(matches!(error, Error::Source(_)), "{error}");
    assert!(error.to_string().contains("an unreadable file"), "{error}");
    assert_eq!(losses.0.len(), 3);

    let mut runner = Runner::new(&compiler, &spec, 42).unwrap();
    for (step, loss) in losses.0.iter().enumerate() {
        let tokens = common::tokens(spec.batch, vocabulary, step);
        let metrics = runner.step(&[&tokens, &tokens], 1e-2).unwrap().wait().unwrap();
        assert_eq!(metrics.loss, *loss, "step {step}");
    }
}

/// A batch with other tensors than the step takes is rejected by name.
#[test]
fn rejects_mismatched_batches() {
    let text = Text::new();
    let (compiler, spec) = (compiler(1), text.spec(1));
    let mut runner = Runner::new(&compiler, &spec, 42).unwrap();
    let tokens = common::tokens(spec.batch, text.vocabulary, 0);
    let error = |result: Result<_, Error>| result.err().unwrap().to_string();
    let alone = error(runner.step(&[&tokens], 0.0));
    assert!(alone.contains("1 tensors") && alone.contains("input_ids, labels"), "{alone}");
    let short = HostTensor::from_values(&[1, 1, 1], &[0_i32]).unwrap();
    let wrong = error(runner.step(&[&tokens, &short], 0.0));
    assert!(wrong.starts_with("labels: "), "{wrong}");
    assert_eq!(runner.steps(), 0);
    assert!(runner.step(&[&tokens, &tokens], 0.0).unwrap().wait().unwrap().loss.is_finite());
}
