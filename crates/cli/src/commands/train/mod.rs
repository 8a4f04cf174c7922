//! `fullshard train` and `fullshard run_clm`: text in, a trained model out.
//!
//! Everything that can be wrong is found in the order of what it costs: flags and files, text,
//! devices, memory, and only then is anything compiled.

mod args;
mod bar;
mod course;
mod data;
mod demo;
pub mod file;
mod memory;
mod model;
mod output;
mod prepare;
mod signals;
mod unsupported;
mod watch;

pub use args::TrainArgs;
pub use prepare::planned;

use crate::attention::AttentionReport;
use crate::error::{Error, Result};
use crate::target::compile_cache;
use crate::{format, plan};
use data::Corpora;
use fullshard_data::{Batches, Corpus, Order};
use fullshard_pjrt::Client;
use fullshard_train::report::{Curve, EventWriter, TerminalStyle, Values, metrics_block};
use fullshard_train::{
    Compiled, Compiler, DeviceMemory, EvalRunner, Evaluated, Evaluation, Runner, TokenBatches,
    TrainSchedule, Trained, Training,
};
use memory::{Limit, Needed};
use prepare::Prepared;
use signals::{Signal, Signals};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use watch::Watch;

/// Which of the two commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `train`, which has a demo and trains unless told otherwise.
    Train,
    /// `run_clm`, which does what Hugging Face's script of that name does.
    RunClm,
}

pub fn run(args: TrainArgs, mode: Mode) -> Result<ExitCode> {
    let mut run = Prepared::new(args, mode)?;
    if let Some(demo) = &run.demo {
        demo.introduce(run.args.step.devices(), run.block());
        let files = demo.write(&run.cache)?;
        run.args.data.train_file = vec![files.train];
        run.args.data.validation_file = vec![files.validation];
    }
    let corpora = Corpora::prepare(&run)?;
    let training_set = match corpora.train {
        Some(corpus) => Some(TrainingSet::new(&run, corpus)?),
        None => None,
    };
    let client = run.args.step.client()?;
    check(&run, &client)?;
    let compiler = Compiler {
        client: &client,
        cache: if run.args.step.no_cache { None } else { Some(compile_cache()?) },
        options: run.compile_options.clone(),
    };
    let sequences = run.args.run.eval_batch() * run.args.step.devices();
    let evaluation = corpora.evaluation.map(|corpus| Evaluation::on_corpus(corpus, sequences));
    let ended = match training_set {
        Some(set) => train_and_evaluate(&run, &compiler, set, evaluation)?,
        None => evaluate_alone(&run, &compiler, evaluation)?,
    };
    let evaluated = match ended {
        Ended::Done(evaluated) => evaluated,
        Ended::Stopped(signal) => return Ok(ExitCode::from(signal.exit_code)),
    };
    if let Some(demo) = &run.demo {
        demo.conclude(evaluated.as_ref(), run.output.folder(), run.block());
    }
    Ok(ExitCode::SUCCESS)
}

/// How a run ended.
enum Ended {
    /// By itself, perhaps with an evaluation.
    Done(Option<Evaluated>),
    Stopped(Signal),
}

fn train_and_evaluate(
    run: &Prepared,
    compiler: &Compiler<'_>,
    set: TrainingSet,
    evaluation: Option<Evaluation>,
) -> Result<Ended> {
    let (mut runner, compile_time) = compile(run, compiler, evaluation.as_ref())?;
    let signals = Signals::watch()?;
    let trained = train(run, &mut runner, set, evaluation.clone(), &signals, compile_time)?;
    if let Some(signal) = signals.came().filter(|_| trained.stopped) {
        println!(
            "stopped by {} after step {} of {}: the model is as it was then, and nothing more was \
             evaluated",
            signal.name, trained.state.global_step, trained.state.max_steps
        );
        return Ok(Ended::Stopped(signal));
    }
    let Some(evaluation) = evaluation.filter(|_| run.does.evaluate) else {
        return Ok(Ended::Done(None));
    };
    let evaluated = match trained.evaluated {
        Some(evaluated) => Some(evaluated),
        None => runner.evaluate(&evaluation, &|| signals.came().is_some())?,
    };
    conclude(run, evaluated, trained.state.epoch, &signals)
}

/// Evaluates the model that a run begins with, for which no step is compiled.
fn evaluate_alone(
    run: &Prepared,
    compiler: &Compiler<'_>,
    evaluation: Option<Evaluation>,
) -> Result<Ended> {
    let Some(evaluation) = evaluation else { return Ok(Ended::Done(None)) };
    let mut runner = compile_evaluation(run, compiler, evaluation.sequences)?;
    let signals = Signals::watch()?;
    let evaluated = runner.evaluate(&evaluation, &|| signals.came().is_some())?;
    conclude(run, evaluated, 0.0, &signals)
}

/// Writes and tells what the last evaluation came to, or that it was not finished.
fn conclude(
    run: &Prepared,
    evaluated: Option<Evaluated>,
    epoch: f64,
    signals: &Signals,
) -> Result<Ended> {
    if let Some(evaluated) = &evaluated {
        let values = results(evaluated, epoch);
        run.output.evaluation(&values)?;
        println!("\n{}", metrics_block("eval", &values));
    } else if let Some(signal) = signals.came() {
        println!("stopped by {} during the evaluation, of which nothing is kept", signal.name);
        return Ok(Ended::Stopped(signal));
    }
    Ok(Ended::Done(evaluated))
}

/// The text to train on, and how long that takes.
struct TrainingSet {
    corpus: Arc<Corpus>,
    batches: Batches,
    course: TrainSchedule,
}

impl TrainingSet {
    fn new(run: &Prepared, corpus: Arc<Corpus>) -> Result<TrainingSet> {
        let (flags, batch) = (&run.args.run, run.spec.batch);
        let batches = Batches {
            order: Order::shuffled(flags.data_seed.unwrap_or(flags.seed), corpus.blocks()),
            accumulation: batch.accumulation,
            sequences: batch.sequences,
            drop_last: flags.dataloader_drop_last,
        };
        if batches.steps_per_epoch() == 0 {
            return Err(Error::Usage(format!(
                "there are {} blocks to train on, but a step takes {}: leave out \
                 --dataloader_drop_last, lower --per_device_train_batch_size, or give more text",
                corpus.blocks(),
                batches.rows()
            )));
        }
        let course = TrainSchedule::new(run.course, batches.steps_per_epoch())?;
        Ok(TrainingSet { corpus, batches, course })
    }
}

/// What the devices have to say before anything is compiled.
fn check(run: &Prepared, client: &Client) -> Result<()> {
    let step = &run.args.step;
    if run.args.run.profile.is_some() && !client.plugin().has_profiler() {
        let platform = client.platform_name();
        return Err(Error::Usage(format!(
            "--profile cannot be honoured: the plugin of {platform} has no profiler"
        )));
    }
    println!();
    plan::print(&run.spec, step)?;
    let needed = Needed::new(&run.spec, step.target.kind(), run.does.train)?;
    needed.print();
    if run.spec.placement.options.forms.fused_attention {
        println!("{}", AttentionReport::new(&run.spec));
    }
    if let Some(limit) = Limit::of(client, step) {
        println!("{:<20} {} ({})", "there are", format::bytes(limit.bytes), limit.of);
        needed.check(&run.spec, step, &limit)?;
    }
    Ok(())
}

/// Compiles the programs and makes the state; says how many seconds it took.
fn compile<'a>(
    run: &'a Prepared,
    compiler: &'a Compiler<'a>,
    evaluation: Option<&Evaluation>,
) -> Result<(Runner<'a>, f64)> {
    println!("\ncompiling ...");
    let start = Instant::now();
    let seed = run.args.run.seed;
    let mut runner = match &run.weights {
        Some(weights) => Runner::with_weights(compiler, &run.spec, seed, weights)?,
        None => Runner::new(compiler, &run.spec, seed)?,
    };
    if let Some(evaluation) = evaluation {
        runner.prepare_evaluation(evaluation)?;
    }
    let time = start.elapsed().as_secs_f64();
    print_compiled("step", runner.program(), time);
    Ok((runner, time))
}

/// Compiles what evaluates, and makes or reads the parameters.
fn compile_evaluation<'a>(
    run: &'a Prepared,
    compiler: &'a Compiler<'a>,
    sequences: usize,
) -> Result<EvalRunner<'a>> {
    println!("\ncompiling ...");
    let start = Instant::now();
    let (spec, seed) = (&run.spec, run.args.run.seed);
    let runner = match &run.weights {
        Some(weights) => EvalRunner::with_weights(compiler, spec, sequences, weights)?,
        None => EvalRunner::new(compiler, spec, seed, sequences)?,
    };
    if let Some(program) = runner.program() {
        print_compiled("evaluation", program, start.elapsed().as_secs_f64());
    }
    Ok(runner)
}

fn print_compiled(what: &str, program: &Compiled, seconds: f64) {
    let cached =
        if program.cached { format!(" (the {what} from the cache)") } else { String::new() };
    println!("compiled in {}{cached}", format::seconds(seconds));
    println!("{what} program {}\n", program.hash);
}

/// Trains, and writes the model and what came of it.
fn train(
    run: &Prepared,
    runner: &mut Runner<'_>,
    set: TrainingSet,
    evaluation: Option<Evaluation>,
    signals: &Signals,
    compile_time: f64,
) -> Result<Trained> {
    let (flags, batch) = (&run.args.run, run.spec.batch);
    let TrainingSet { corpus, batches, course } = set;
    let samples = corpus.blocks();
    let training = Training {
        schedule: course,
        lr_schedule: run.schedule,
        learning_rate: run.args.step.rate(),
        batches: Arc::new(TokenBatches::training(corpus, batches)),
        evaluation: evaluation.filter(|_| run.does.evaluate_during),
        profile: flags.profile.clone(),
        stop: &|| signals.came().is_some(),
    };
    let folder = run.output.folder();
    let events = if run.does.report { Some(EventWriter::create(folder)?) } else { None };
    let mut watch = Watch::new(&course, DeviceMemory::of(runner), events, !flags.disable_tqdm);
    println!(
        "training for {} ({} an epoch), each on {} sequences of {} tokens",
        format::count(course.steps as usize, "step"),
        course.steps_per_epoch,
        batch.sequences * batch.accumulation,
        batch.tokens,
    );
    let trained = training.run(runner, &mut watch);
    watch.finish();
    let trained = trained?;
    let mut values = trained.values.clone();
    values.insert("train_samples".to_owned(), samples.into());
    values.insert("compile_time".to_owned(), compile_time.into());
    watch.log(trained.state.global_step, &values)?;
    let curve = watch.curve(format!("loss of {}", run.spec.model.tree().class));
    let curve = match &run.demo {
        Some(demo) => demo.with_floor(curve, batch.tokens),
        None => curve,
    };
    write(run, runner, &trained, &values, &curve)?;
    Ok(trained)
}

fn write(
    run: &Prepared,
    runner: &Runner<'_>,
    trained: &Trained,
    values: &Values,
    curve: &Curve,
) -> Result<()> {
    run.output.clear()?;
    let bytes = run.output.model(runner, (&run.config, &run.model_type), &run.tokenizer)?;
    run.output.training(&trained.state, values, curve)?;
    println!("\n{}", metrics_block("train", values));
    let colours = std::io::stdout().is_terminal();
    println!("{}", curve.terminal(&TerminalStyle { colours, ..TerminalStyle::default() }));
    let folder = run.output.folder().display();
    println!("the model ({}) and the results are in {folder}", format::bytes(bytes));
    Ok(())
}

/// An evaluation as the results file has it.
fn results(evaluated: &Evaluated, epoch: f64) -> Values {
    let mut values = evaluated.values();
    values.insert("eval_samples".to_owned(), evaluated.samples.into());
    values.insert("perplexity".to_owned(), evaluated.perplexity().into());
    values.insert("epoch".to_owned(), epoch.into());
    values
}
