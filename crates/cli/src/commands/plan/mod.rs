//! `fullshard plan`: whether a run fits a machine that is not here, how fast it will be, and what
//! is in the way.

mod print;

use super::train::{self, TrainArgs};
use crate::error::{Error, Result};
use crate::format;
use crate::target::cache_root;
use clap::Args;
use fullshard_pjrt::Plugin;
use fullshard_plan::{Budget, Compiler, Machine, Report};
use fullshard_train::Recipe;

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
#[command(next_help_heading = "The plan")]
struct PlanFlags {
    /// The machine: a TPU slice such as v4-8 or v4:2x2x1, GPUs such as h200:8, or cpu:4.
    #[arg(long, value_name = "MACHINE")]
    topology: Option<String>,
    /// Tokens to train on, for the days it takes.
    #[arg(long, value_name = "N", value_parser = positive)]
    tokens: Option<f64>,
    /// What a chip costs an hour.
    #[arg(long, value_name = "X", value_parser = positive)]
    price: Option<f64>,
    /// Print JSON for machines.
    #[arg(long)]
    json: bool,
}

pub fn run(args: PlanArgs) -> Result<ExitCode> {
    let PlanArgs { plan, mut train } = args;
    let name = plan.topology.as_deref().ok_or_else(|| {
        Error::Usage("there is nothing to plan for: name a machine with --topology v4-8".into())
    })?;
    let machine = Machine::parse(name).map_err(fullshard_plan::Error::from)?;
    train.step.aim_at(machine.kind, machine.devices, &machine.name)?;
    let recipe = train::planned(&mut train)?;
    let budget = Budget { tokens: plan.tokens, price: plan.price };
    let (plugin, _) = train.step.target.load()?;
    let report = compiled(&recipe, &machine, plugin, &train, budget)?;
    match plan.json {
        true => format::print_json(&report)?,
        false => print::report(&report),
    }
    Ok(if report.memory.fits() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn compiled(
    recipe: &Recipe,
    machine: &Machine,
    plugin: &'static Plugin,
    train: &TrainArgs,
    budget: Budget,
) -> Result<Report> {
    let text = recipe.step_program()?.to_text();
    let folder = if train.step.no_cache { None } else { Some(cache_root()?.join("plans")) };
    let compiler = Compiler { plugin, options: train.step.compile_options()?, folder };
    let made = compiler.compile(&text, machine)?;
    Ok(fullshard_plan::compiled(recipe, machine, &made, budget)?)
}

/// A number above zero, perhaps with an exponent.
fn positive(text: &str) -> std::result::Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "a number is needed, such as 3e11")?;
    match number.is_finite() && number > 0.0 {
        true => Ok(number),
        false => Err("it must be above 0".into()),
    }
}
