//! The `fullshard` binary: flags to a run config, calls of the library, and what a person sees of
//! them.
#![forbid(unsafe_code)]

mod commands;
mod flags;
mod output;
mod program;
mod tensors;

use clap::{Parser, Subcommand};
use commands::train::{self, Command as TrainCommand};
use signal_hook::consts::SIGPIPE;
use signal_hook::flag::register_conditional_shutdown;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Print the run config that flags come to, as TOML or JSON.
    #[command(allow_negative_numbers = true)]
    Config(Box<commands::config::ConfigArgs>),
    /// Show the devices of this machine, their memory and their plugins.
    Devices(commands::devices::DevicesArgs),
    /// Compile a StableHLO program, run it, and show its results, memory and time.
    Exec(commands::exec::ExecArgs),
    /// Compile a StableHLO program for a TPU slice or GPUs that are not here.
    Compile(commands::compile::CompileArgs),
    /// Measure the training step of a model: time, tokens per second, MFU, memory and collectives.
    Bench(commands::bench::BenchArgs),
    /// Plan a run for a TPU slice or other machine that is not here: whether it fits, how fast it
    /// will be, and what slows it down.
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

fn run() -> fullshard::Result<ExitCode> {
    let exits = exit_on_closed_pipe();
    let cli = Cli::parse_from(with_underscores(std::env::args_os()));
    start_logging(cli.verbose);
    // A run goes on when nobody reads what it says any more.
    let trains = matches!(cli.command, Command::Train(_) | Command::RunClm(_));
    exits.store(!trains, Ordering::Relaxed);
    match cli.command {
        Command::Train(args) => return train::run(&args, TrainCommand::Train),
        Command::RunClm(args) => return train::run(&args, TrainCommand::RunClm),
        Command::Config(args) => commands::config::run(&args)?,
        Command::Devices(args) => commands::devices::run(&args)?,
        Command::Exec(args) => commands::exec::run(&args)?,
        Command::Compile(args) => commands::compile::run(&args)?,
        Command::Bench(args) => commands::bench::run(&args)?,
        Command::Plan(args) => return commands::plan::run(&args),
        Command::Plugins(args) => commands::plugins::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends the process as a shell expects, while the flag is set, when what reads its output is gone.
fn exit_on_closed_pipe() -> Arc<AtomicBool> {
    const CODE: i32 = 128 + SIGPIPE;
    let exits = Arc::new(AtomicBool::new(true));
    if let Err(error) = register_conditional_shutdown(SIGPIPE, CODE, Arc::clone(&exits)) {
        tracing::debug!("closed pipes are not watched: {error}");
    }
    exits
}

/// Flags have underscores, as in Hugging Face's scripts, and may be written with dashes:
/// `--fsdp-config` is `--fsdp_config`. Values stay as they are.
fn with_underscores(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    arguments.map(|argument| match argument.to_str() {
        Some(text) if text.starts_with("--") => {
            let (flag, value) = text.split_at(text.find('=').unwrap_or(text.len()));
            OsString::from(format!("--{}{value}", flag[2..].replace('-', "_")))
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
