//! The `fullshard` binary: parses the command line and calls the library.
#![forbid(unsafe_code)]

mod attention;
mod commands;
mod error;
mod flag;
mod format;
mod plan;
mod program;
mod step;
mod target;
mod tensors;

use clap::{CommandFactory, Parser, Subcommand};
use commands::train::{self, Mode};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Train models too big for one device: parameters, gradients and optimizer state fully sharded
/// over CPU, GPU and TPU devices.
#[derive(Parser)]
#[command(name = "fullshard", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Show more: what the cache does, and XLA's own log lines.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model on text; without arguments, a demo that needs no data.
    #[command(allow_negative_numbers = true)]
    Train(Box<commands::train::TrainArgs>),
    /// The same, as Hugging Face's script of this name is called.
    #[command(name = "run_clm", alias = "run-clm", allow_negative_numbers = true)]
    RunClm(Box<commands::train::TrainArgs>),
    /// Show the devices of this machine, their memory and their plugins.
    Devices(commands::devices::DevicesArgs),
    /// Compile a StableHLO program, run it, and show its results, memory and time.
    Exec(commands::exec::ExecArgs),
    /// Compile a StableHLO program for a TPU slice or GPUs that are not here.
    Compile(commands::compile::CompileArgs),
    /// Measure the training step of a model: time, tokens a second, MFU, memory and collectives.
    Bench(commands::bench::BenchArgs),
    /// Know before you launch: whether a run fits a TPU slice or other machine that is not here,
    /// how fast it will be, and what is in the way.
    #[command(allow_negative_numbers = true)]
    Plan(Box<commands::plan::PlanArgs>),
    /// List, install and remove device plugins.
    Plugins(commands::plugins::PluginsArgs),
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn run() -> error::Result<ExitCode> {
    let arguments = train::file::expanded(&Cli::command(), std::env::args_os().collect())?;
    let cli = Cli::parse_from(with_dashes(arguments.into_iter()));
    start_logging(cli.verbose);
    match cli.command {
        Command::Train(args) => return train::run(*args, Mode::Train),
        Command::RunClm(args) => return train::run(*args, Mode::RunClm),
        Command::Devices(args) => commands::devices::run(&args)?,
        Command::Exec(args) => commands::exec::run(&args)?,
        Command::Compile(args) => commands::compile::run(&args)?,
        Command::Bench(args) => commands::bench::run(&args)?,
        Command::Plan(args) => return commands::plan::run(*args),
        Command::Plugins(args) => commands::plugins::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Flags may be written with underscores, as in Hugging Face's scripts: `--fsdp_config` is
/// `--fsdp-config`. Values stay as they are.
fn with_dashes(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    arguments.map(|argument| match argument.to_str() {
        Some(text) if text.starts_with("--") => {
            let (flag, value) = text.split_at(text.find('=').unwrap_or(text.len()));
            OsString::from(flag.replace('_', "-") + value)
        }
        _ => argument,
    })
}

/// Our log goes to standard error; the variable FULLSHARD_LOG overrides the level.
fn start_logging(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose).min(3)];
    let filter = EnvFilter::try_from_env("FULLSHARD_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    fullshard_pjrt::set_verbose(verbose > 0);
}
