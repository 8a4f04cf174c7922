//! `fullshard plan`: whether a run fits a machine that is not here, how fast it will be, and what
//! slows it down.

mod print;
mod search;
mod table1;

use super::train::TrainArgs;
use crate::output::print_json;
use clap::Args;
use fullshard::plan::{Budget, Frontier, Machine, PlanOptions, Planner, Report, page};
use fullshard::{Error, Result};
use fullshard_checkpoint::{check_place, write_file};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
pub struct PlanArgs {
    #[command(flatten)]
    plan: PlanFlags,
    /// Everything that `train` takes, so that what is planned is what is trained.
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Args)]
#[command(next_help_heading = "Plan")]
struct PlanFlags {
    /// The machine: a TPU slice such as v4-8 or v4:2x2x1, GPUs such as h200:8, or cpu:4.
    #[arg(long, value_name = "MACHINE", required_unless_present = "table1")]
    topology: Option<String>,
    /// Estimate by formula, without a compiler.
    #[arg(long)]
    quick: bool,
    /// Find the largest batch that fits and the best settings.
    #[arg(long)]
    search: bool,
    /// How many settings a search compiles at most; 0 believes the formula.
    #[arg(long, value_name = "N", default_value_t = 6, requires = "search")]
    compiles: usize,
    /// Tokens to train on, for the days it takes.
    #[arg(long, value_name = "N", value_parser = positive)]
    tokens: Option<f64>,
    /// What a device costs per hour.
    #[arg(long, value_name = "X", value_parser = positive)]
    price: Option<f64>,
    /// The six published runs of the post on FSDP for PyTorch/XLA, predicted beside measured.
    #[arg(long, conflicts_with_all = ["topology", "search", "html"])]
    table1: bool,
    /// Write the report as a page to look at.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON for machines.
    #[arg(long)]
    json: bool,
}

impl PlanFlags {
    fn options(&self) -> PlanOptions {
        let budget = Budget { tokens: self.tokens, price: self.price };
        PlanOptions { quick: self.quick, budget }
    }

    fn machine(&self) -> Result<Machine> {
        parse_machine(self.topology.as_deref().unwrap_or_default())
    }
}

fn parse_machine(name: &str) -> Result<Machine> {
    Machine::parse(name).map_err(|error| Error::Plan(error.into()))
}

pub fn run(args: &PlanArgs) -> Result<ExitCode> {
    let plan = &args.plan;
    let config = args.train.planned()?;
    if plan.table1 {
        return table1::run(plan, &config);
    }
    if let Some(path) = &plan.html {
        check_place(path)?;
    }
    let machine = plan.machine()?;
    let config = config.aimed_at(&machine)?;
    let spec = config.planned_spec()?;
    for warning in config.warnings(&spec) {
        tracing::warn!("{warning}");
    }
    if plan.search {
        return search::run(plan, &config, &machine);
    }
    let report = Planner::new(&config, &machine, plan.options()).plan(&spec)?;
    write_page(plan.html.as_deref(), &report, None)?;
    match plan.json {
        true => print_json(&report)?,
        false => print::report(&report),
    }
    Ok(exit_code(&report))
}

/// Whether it fits.
fn exit_code(report: &Report) -> ExitCode {
    if report.memory.fits() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes the page, if one was asked for.
fn write_page(path: Option<&Path>, report: &Report, frontier: Option<&Frontier>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    Ok(write_file(path, page(report, frontier))?)
}

/// Says on standard error what is going on, if a person is watching.
fn say(text: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("{text}");
    }
}

/// A number above zero, perhaps with an exponent.
fn positive(text: &str) -> std::result::Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "a number is needed, such as 3e11")?;
    match number.is_finite() && number > 0.0 {
        true => Ok(number),
        false => Err("it must be above 0".into()),
    }
}
