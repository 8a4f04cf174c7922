//! The `fullshard` binary: parses flags, calls the library and prints results.
#![forbid(unsafe_code)]
// These panic when the output cannot be written, which would end a run.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bar;
mod commands;
mod flags;
mod log;
mod output;
mod processes;
mod program;
mod tensors;

use clap::{CommandFactory, Parser, Subcommand};
use commands::launch::Launched;
use commands::train::{self, Command as TrainCommand};
use fullshard_pjrt::plugins::{clean_end, watch_crashes};
use output::complain;
use std::ffi::OsString;
use std::process::ExitCode;

/// Train models too big for one device: parameters, gradients and optimizer state fully sharded
/// over CPU, GPU and TPU devices.
#[derive(Parser)]
#[command(name = "fullshard", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print more: cache activity and XLA's logs.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model on text; without arguments, run a demo that needs no data.
    #[command(allow_negative_numbers = true)]
    Train(Box<commands::train::TrainArgs>),
    /// Train with the arguments of Hugging Face's run_clm.py.
    #[command(name = "run_clm", alias = "run-clm", allow_negative_numbers = true)]
    RunClm(Box<commands::train::TrainArgs>),
    /// Start several processes of a command on this machine, as one job.
    Launch(commands::launch::LaunchArgs),
    /// Check that the processes of a job find one another, and measure their barrier.
    Rendezvous(commands::launch::RendezvousArgs),
    /// Print the run config of the given flags, as TOML or JSON.
    #[command(allow_negative_numbers = true)]
    Config(Box<commands::config::ConfigArgs>),
    /// Verify, show, convert and compare checkpoints.
    Checkpoint(commands::checkpoint::CheckpointArgs),
    /// Show what the time of a run was spent on, over all of its restarts.
    Goodput(commands::goodput::GoodputArgs),
    /// List the devices of this machine, their memory and their plugins.
    Devices(commands::devices::DevicesArgs),
    /// Compile and run a StableHLO program, and print its results, memory and time.
    Exec(commands::exec::ExecArgs),
    /// Compile a StableHLO program ahead of time for a TPU slice or GPUs.
    Compile(commands::compile::CompileArgs),
    /// Benchmark the training step of a model: time, tokens/s, MFU, memory and collectives.
    Bench(commands::bench::BenchArgs),
    /// Plan a run for a TPU slice or other machine without access to it: memory, speed and
    /// bottlenecks.
    #[command(allow_negative_numbers = true)]
    Plan(Box<commands::plan::PlanArgs>),
    /// Simulate a job whose hosts fail, collectives on tori, or the start of a job.
    Simulate(commands::simulate::SimulateArgs),
    /// List, install and remove device plugins.
    Plugins(commands::plugins::PluginsArgs),
    /// Print shell completions.
    Completions(commands::shell::CompletionsArgs),
    /// Print the manual page.
    Man,
}

fn main() -> ExitCode {
    watch_crashes();
    let code = run().unwrap_or_else(|error| {
        complain!("error: {error}");
        ExitCode::FAILURE
    });
    clean_end();
    code
}

fn run() -> fullshard::Result<ExitCode> {
    let cli = Cli::parse_from(with_underscores(std::env::args_os()));
    log::start(cli.verbose);
    fullshard_pjrt::set_verbose(cli.verbose > 0);
    match cli.command {
        Command::Train(args) => return train::run(&args, TrainCommand::Train),
        Command::RunClm(args) => return train::run(&args, TrainCommand::RunClm),
        Command::Launch(args) => {
            let launched = launched(args.command()?)?;
            return commands::launch::run(&args, &launched);
        }
        Command::Rendezvous(args) => commands::launch::rendezvous(&args)?,
        Command::Config(args) => commands::config::run(&args)?,
        Command::Checkpoint(args) => return commands::checkpoint::run(&args),
        Command::Goodput(args) => commands::goodput::run(&args)?,
        Command::Devices(args) => commands::devices::run(&args)?,
        Command::Exec(args) => commands::exec::run(&args)?,
        Command::Compile(args) => commands::compile::run(&args)?,
        Command::Bench(args) => return commands::bench::run(&args),
        Command::Plan(args) => return commands::plan::run(&args),
        Command::Simulate(args) => return commands::simulate::run(&args),
        Command::Plugins(args) => commands::plugins::run(&args)?,
        Command::Completions(args) => commands::shell::completions(&args, Cli::command()),
        Command::Man => commands::shell::man(Cli::command())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What a command is that is launched many times. Its flags are checked before.
fn launched(command: &[OsString]) -> fullshard::Result<Launched> {
    let arguments = [OsString::from("fullshard")].into_iter().chain(command.iter().cloned());
    let config = match Cli::parse_from(with_underscores(arguments)).command {
        Command::Train(args) => args.config(TrainCommand::Train)?,
        Command::RunClm(args) => args.config(TrainCommand::RunClm)?,
        Command::Bench(args) => {
            return Ok(Launched { platform: args.platform()?, ..Launched::default() });
        }
        _ => return Ok(Launched::default()),
    };
    Ok(Launched { platform: Some(config.platform()), config: Some(config) })
}

/// Flags have underscores, as in Hugging Face's scripts, and may be written with dashes:
/// `--fsdp-config` is `--fsdp_config`. Values are unchanged.
fn with_underscores(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    arguments.map(|argument| match argument.to_str() {
        Some(text) if text.starts_with("--") => {
            let (flag, value) = text.split_at(text.find('=').unwrap_or(text.len()));
            OsString::from(format!("--{}{value}", flag[2..].replace('-', "_")))
        }
        _ => argument,
    })
}
