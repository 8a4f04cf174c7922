//! `fullshard plan`: memory, speed and bottlenecks of a run on a machine, without access to it.

mod print;
mod search;
mod table1;

use super::train::TrainArgs;
use crate::output::{check_file, complain, print_json};
use clap::Args;
use fullshard::plan::{
    Budget, Effort, Failures, Frontier, Machine, PlanOptions, Planner, Report, page,
};
use fullshard::{Error, Result};
use fullshard_checkpoint::write_file;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
pub struct PlanArgs {
    #[command(flatten)]
    plan: PlanFlags,
    /// The flags of `train`, so that the planned step is the trained step.
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Args)]
#[command(next_help_heading = "Plan")]
struct PlanFlags {
    /// Machine: a TPU slice such as v4-8 or v4:2x2x1, several as 2xv4-128, GPUs such as h200:8,
    /// nodes of them as h100:8x16, or cpu:4.
    #[arg(long, value_name = "MACHINE", required_unless_present = "table1")]
    topology: Option<String>,
    /// Estimate by formula, without compiling.
    #[arg(long)]
    quick: bool,
    /// Search the largest batch that fits and the best settings.
    #[arg(long)]
    search: bool,
    /// Maximum number of settings that a search compiles; 0 uses the formula only.
    #[arg(long, value_name = "N", default_value_t = 6, requires = "search")]
    compiles: usize,
    /// Minutes that a search may compile in all; it skips settings that would take longer.
    #[arg(long = "compile_minutes", value_name = "X", default_value_t = 60.0, requires = "search",
          value_parser = positive)]
    compile_minutes: f64,
    /// Number of training tokens, to estimate days of training.
    #[arg(long, value_name = "N", value_parser = positive)]
    tokens: Option<f64>,
    /// Price per device and hour in US dollars, to estimate the cost of training.
    #[arg(long, value_name = "X", value_parser = positive)]
    price: Option<f64>,
    /// Mean days between failures of one host, for the goodput. Default: 264 for GPU hosts (Llama
    /// 3's rate), 1250 for others (that of TPU v4).
    #[arg(long = "host_mtbf_days", value_name = "X", value_parser = positive)]
    host_mtbf_days: Option<f64>,
    /// Seconds from a known failure until hosts load a checkpoint. Default: 63, and what grows with
    /// hosts.
    #[arg(long = "restart_s", value_name = "X", value_parser = positive)]
    restart_s: Option<f64>,
    /// Compare predictions with the six published runs of the PyTorch/XLA FSDP blog post.
    #[arg(long, conflicts_with_all = ["topology", "search", "html"])]
    table1: bool,
    /// Write the report as an HTML page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the optimized HLO of the compiled step, in the order of its schedule.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "search", "table1"])]
    hlo: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl PlanFlags {
    fn options(&self) -> PlanOptions {
        let budget = Budget { tokens: self.tokens, price: self.price };
        let (host_mtbf_days, restart) = (self.host_mtbf_days, self.restart_s);
        let failures = Failures { host_mtbf_days, restart, save_steps: None };
        PlanOptions { quick: self.quick, budget, failures }
    }

    fn effort(&self) -> Effort {
        Effort { compiles: self.compiles, seconds: 60.0 * self.compile_minutes }
    }

    fn machine(&self) -> Result<Machine> {
        parse_machine(self.topology.as_deref().unwrap_or_default())
    }
}

pub fn parse_machine(name: &str) -> Result<Machine> {
    Machine::parse(name).map_err(|error| Error::Plan(error.into()))
}

pub fn run(args: &PlanArgs) -> Result<ExitCode> {
    let plan = &args.plan;
    let config = args.train.planned()?;
    if plan.table1 {
        return table1::run(plan, &config);
    }
    if let Some(path) = &plan.html {
        check_file("html", path)?;
    }
    if let Some(path) = &plan.hlo {
        check_file("hlo", path)?;
    }
    let machine = plan.machine()?;
    let config = config.for_machine(&machine)?;
    let spec = config.planned_spec()?;
    for warning in config.warnings(&spec) {
        tracing::warn!("{warning}");
    }
    if plan.search {
        return search::run(plan, &config, &machine);
    }
    let planner = Planner::new(&config, &machine, plan.options());
    let report = planner.with_hlo(plan.hlo.clone()).plan(&spec)?;
    write_page(plan.html.as_deref(), &report, None)?;
    match plan.json {
        true => print_json(&report)?,
        false => print::report(&report),
    }
    Ok(exit_code(&report))
}

/// Success if the run fits.
fn exit_code(report: &Report) -> ExitCode {
    if report.memory.fits() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes the HTML page, if requested.
fn write_page(path: Option<&Path>, report: &Report, frontier: Option<&Frontier>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    Ok(write_file(path, page(report, frontier))?)
}

/// Prints progress to standard error, if it is a terminal.
fn say(text: &str) {
    if std::io::stderr().is_terminal() {
        complain!("{text}");
    }
}

/// Parses a positive number, such as `3e11`.
pub fn positive(text: &str) -> std::result::Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "must be a number, such as 3e11")?;
    match number.is_finite() && number > 0.0 {
        true => Ok(number),
        false => Err("it must be above 0".into()),
    }
}
