//! `fullshard simulate`: jobs whose hosts fail, collectives on tori and the start of jobs, event by
//! event, beside the closed forms that plans use.

mod collectives;
mod job;
mod start_up;

use crate::output::show;
use clap::{Args, Subcommand};
use fullshard::Result;
use std::process::ExitCode;

#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct SimulateArgs {
    #[command(subcommand)]
    what: What,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum What {
    /// Replay a job whose hosts fail and are repaired: its goodput, by what its time is spent on.
    ///
    /// Exits with 1 if failures leave no progress.
    Job(Box<job::JobArgs>),
    /// Run collectives on tori message by message, beside the closed forms.
    Collectives(collectives::CollectivesArgs),
    /// Start a job on more and more hosts, beside the closed form.
    #[command(name = "start-up")]
    StartUp(start_up::StartUpArgs),
}

pub fn run(args: &SimulateArgs) -> Result<ExitCode> {
    match &args.what {
        What::Job(job) => return job::run(job, args.json),
        What::Collectives(collectives) => collectives::run(collectives, args.json)?,
        What::StartUp(start_up) => start_up::run(start_up, args.json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn row(what: &str, text: &str) {
    show!("{what:<20} {text}");
}

/// How much longer one is than another, without a sign where there is no difference.
fn difference(share: f64) -> String {
    let percent = (1e4 * share).round() / 100.0;
    if percent == 0.0 { "0.00 %".to_owned() } else { format!("{percent:+.2} %") }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}
