//! `fullshard train` and `fullshard run_clm`.

mod demo;
mod drill;
mod signals;
mod unsupported;
mod watch;

use crate::flags::{Flagged, RunFlags};
use crate::output::{print_estimate, say};
use crate::processes::{ProcessArgs, end_stuck};
use clap::Args;
use fullshard::bench::AttentionReport;
use fullshard::config::{Given, RunConfig};
use fullshard::run::{Control, Corpora, Finished, Limit, Needed, Run, TrainingSet};
use fullshard::{Membership, Result, format, units};
use fullshard_pjrt::Client;
use fullshard_train::report::{TerminalStyle, metrics_block};
use fullshard_train::{Compiled, Compiler, DeviceMemory, Evaluated, Evaluation};
use signals::{Signal, Signals};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use unsupported::Unsupported;
use watch::{DataBar, Watch};

#[derive(Args)]
pub struct TrainArgs {
    #[command(flatten)]
    run: Flagged<RunFlags>,
    #[command(flatten)]
    unsupported: Unsupported,
    #[command(flatten)]
    processes: ProcessArgs,
}

/// The command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// `train`, which has a demo and trains by default.
    Train,
    /// `run_clm`, which behaves like Hugging Face's script.
    RunClm,
}

impl TrainArgs {
    /// The config of the flags.
    pub fn config(&self, command: Command) -> Result<RunConfig> {
        self.unsupported.check()?;
        self.run.config(|given| base(given, command))
    }

    /// The config of a planned run, which ignores the environment of this machine.
    pub fn planned(&self) -> Result<RunConfig> {
        self.unsupported.check()?;
        self.run.config_of_flags(|_| Ok(RunConfig::default()))
    }
}

/// The base config for the flags of a command.
fn base(given: &Given, command: Command) -> Result<RunConfig> {
    match command {
        Command::Train => RunConfig::base(given),
        Command::RunClm => {
            let mut config = RunConfig::default();
            config.schedule.do_train = Some(false);
            Ok(config)
        }
    }
}

pub fn run(args: &TrainArgs, command: Command) -> Result<ExitCode> {
    let config = args.config(command)?;
    args.processes.run(config.platform(), |membership| run_in(membership, &config))
}

/// Runs in one process of a job.
fn run_in(membership: Arc<Membership>, config: &RunConfig) -> Result<ExitCode> {
    let mut data_bar = DataBar::default();
    let run = Run::prepare_in(membership, config, &mut data_bar)?;
    if let Some(demo) = &run.demo {
        demo::introduce(demo, run.config.devices(), run.block_size());
    }
    let corpora = run.corpora(&mut data_bar)?;
    let training_set = run.training_set(&corpora, run.resumes_from())?;
    let client = run.client()?;
    check(&run, &client)?;
    if let Some(set) = &training_set {
        run.check_disk(&set.schedule)?;
    }
    let compiler = run.compiler(&client)?;
    let ended = match training_set {
        Some(set) => train_and_evaluate(&run, &compiler, set, &corpora)?,
        None => evaluate_only(&run, &compiler, &corpora)?,
    };
    let evaluated = match ended {
        Ended::Done(evaluated) => evaluated,
        Ended::Stopped(signal) => return Ok(ExitCode::from(signal.exit_code)),
    };
    if let Some(demo) = &run.demo {
        demo::conclude(demo, evaluated.as_ref(), run.output.folder(), run.block_size());
    }
    Ok(ExitCode::SUCCESS)
}

/// How a run ended.
enum Ended {
    /// Completed, with the final evaluation if any.
    Done(Option<Evaluated>),
    /// Stopped by a signal.
    Stopped(Signal),
}

/// Prints the run and its memory, and rejects it if it cannot fit.
fn check(run: &Run, client: &Client) -> Result<()> {
    let (spec, settings) = (&run.spec, run.spec.settings());
    say!("");
    say!(
        "{} of {} parameters on {} ({}), {}",
        spec.model.class(),
        format::grouped(spec.parameter_count()),
        format::count(settings.devices, "device"),
        run.config.platform().name(),
        settings.fsdp,
    );
    say!(
        "compute in {}, gradients in {}, {}, remat {}",
        settings.compute_name(),
        settings.reduce_dtype,
        run.config.optimizer.name,
        settings.remat,
    );
    say!("\n{}\n", units::table(spec)?);
    match run.needed()? {
        Needed::Step(estimate) => print_estimate(&estimate),
        Needed::Parameters(bytes) => {
            say!("{:<20} {} per device", "parameters", format::bytes(bytes));
        }
    }
    if spec.placement.options.lowering.fused_attention {
        say!("{}", AttentionReport::new(spec));
    }
    if let Some(limit) = Limit::of(client, &run.config) {
        say!("{:<20} {} ({})", "available memory", format::bytes(limit.bytes), limit.of);
    }
    run.check(client)
}

fn train_and_evaluate(
    run: &Run,
    compiler: &Compiler<'_>,
    set: TrainingSet,
    corpora: &Corpora,
) -> Result<Ended> {
    let evaluation = run.evaluation(corpora)?;
    say!("\ncompiling ...");
    let mut started = run.start(compiler)?;
    if let Some(evaluation) = &evaluation {
        started.runner.prepare_evaluation(evaluation)?;
    }
    print_compiled("step", started.runner.program(), started.compile_time);
    let set = run.training_set(corpora, started.checkpoint)?.unwrap_or(set);
    if let Some(checkpoint) = started.checkpoint {
        let step = checkpoint.manifest().progress.step;
        say!("resumed from {}, after step {step}", checkpoint.folder().display());
    }

    let signals = Signals::watch(grace(run))?;
    let stop = || signals.received().is_some();
    let membership = Arc::clone(run.membership());
    let control = Control {
        stop: &stop,
        save: &|| signals.takes_save(),
        on_save: drill::on_save(),
        on_stuck: Arc::new(move |error| end_stuck(&membership, error)),
    };
    let batch = run.spec.batch;
    say!(
        "training for {} ({} per epoch), {} sequences of {} tokens per step",
        format::count(set.schedule.steps as usize, "step"),
        set.schedule.steps_per_epoch,
        batch.sequences * batch.accumulation,
        batch.tokens,
    );
    let bar = !run.config.logging.disable_tqdm;
    let mut watch = Watch::new(&set.schedule, DeviceMemory::of(&started.runner), bar);
    let finished = run.train(&mut started, set, evaluation.clone(), &control, &mut watch);
    watch.finish();
    let Finished { trained, results, curve, model_bytes, goodput } = finished?;
    say!("\n{}", metrics_block("train", &results));
    let colours = std::io::stdout().is_terminal();
    say!("{}", curve.terminal(&TerminalStyle { colours, ..TerminalStyle::default() }));
    if let Some(goodput) = goodput {
        say!("{goodput}");
    }
    let folder = run.output.folder().display();
    say!("model ({}) and results saved to {folder}", format::bytes(model_bytes));
    if trained.stopped {
        let signal = signals.received().unwrap_or(Signal::ELSEWHERE);
        say!(
            "stopped by {} after step {} of {}: the model of this step is saved, without a final \
             evaluation; go on with --resume_from_checkpoint",
            signal.name,
            trained.state.global_step,
            trained.state.max_steps
        );
        return Ok(Ended::Stopped(signal));
    }
    let runner = &mut started.runner;
    let evaluated = run.evaluate_at_end(runner, &trained, evaluation.as_ref(), &stop)?;
    conclude(run, evaluated, trained.state.epoch, evaluation.is_some(), &signals)
}

/// The time that a run has to end after a signal.
fn grace(run: &Run) -> Duration {
    Duration::try_from_secs_f64(run.config.checkpoint.grace).unwrap_or(Duration::MAX)
}

/// Evaluates the initial model, without compiling a step.
fn evaluate_only(run: &Run, compiler: &Compiler<'_>, corpora: &Corpora) -> Result<Ended> {
    let Some(evaluation): Option<Evaluation> = run.evaluation(corpora)? else {
        return Ok(Ended::Done(None));
    };
    say!("\ncompiling ...");
    let start = Instant::now();
    let mut runner = run.eval_runner(compiler)?;
    if let Some(program) = runner.program() {
        print_compiled("evaluation", program, start.elapsed().as_secs_f64());
    }
    let signals = Signals::watch(grace(run))?;
    let evaluated = runner.evaluate(&evaluation, &|| signals.received().is_some())?;
    run.write_evaluation(evaluated.as_ref(), 0.0)?;
    conclude(run, evaluated, 0.0, true, &signals)
}

/// Prints the final evaluation, or that it was stopped.
fn conclude(
    run: &Run,
    evaluated: Option<Evaluated>,
    epoch: f64,
    evaluates: bool,
    signals: &Signals,
) -> Result<Ended> {
    match &evaluated {
        Some(evaluated) => {
            let values = run.evaluation_values(evaluated, epoch);
            say!("\n{}", metrics_block("eval", &values));
        }
        None => {
            if let Some(signal) = signals.received().filter(|_| evaluates && run.mode.evaluate) {
                say!("stopped by {} during evaluation, results discarded", signal.name);
                return Ok(Ended::Stopped(signal));
            }
        }
    }
    Ok(Ended::Done(evaluated))
}

fn print_compiled(what: &str, program: &Compiled, seconds: f64) {
    let cached = if program.cached { format!(" ({what} from the cache)") } else { String::new() };
    say!("compiled in {}{cached}", format::seconds(seconds));
    say!("{what} program {}\n", program.hash);
}
