//! `fullshard plan`: whether a run fits a machine that is not here, how fast it will be, and what
//! is in the way.

mod print;
mod search;
mod table1;

use super::train::{self, TrainArgs};
use crate::error::Result;
use crate::format;
use crate::step::StepFlags;
use crate::target::cache_root;
use clap::Args;
use fullshard_checkpoint::{check_place, write_file};
use fullshard_models::layers::attention;
use fullshard_pjrt::plugins::PluginKind;
use fullshard_plan::{
    Budget, Compiler, Frontier, Machine, MemoryEstimate, Rates, Report, Warning, quick,
};
use fullshard_step::StepSpec;
use std::cell::OnceCell;
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
#[command(next_help_heading = "The plan")]
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
    /// What a device costs an hour.
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

pub fn run(args: PlanArgs) -> Result<ExitCode> {
    let PlanArgs { plan, mut train } = args;
    if plan.table1 {
        return table1::run(&plan, &train);
    }
    if let Some(path) = &plan.html {
        check_place(path)?;
    }
    let name = plan.topology.as_deref().unwrap_or_default();
    let machine = Machine::parse(name).map_err(fullshard_plan::Error::from)?;
    train.step.aim_at(machine.kind, machine.devices, &machine.name)?;
    let spec = train::planned(&mut train)?;
    let step = train.step.clone();
    let planner = Planner::new(&machine, &plan, &step, spec.model.attention_form());
    if plan.search {
        return search::run(&plan, train, &planner);
    }
    let report = planner.plan(&spec)?;
    write_page(plan.html.as_deref(), &report, None)?;
    match plan.json {
        true => format::print_json(&report)?,
        false => print::report(&report),
    }
    Ok(exit_code(&report))
}

/// Whether it fits.
fn exit_code(report: &Report) -> ExitCode {
    if report.memory.fits() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plans steps for one machine.
struct Planner<'a> {
    machine: &'a Machine,
    step: &'a StepFlags,
    /// What the model's attention asks for.
    attention: attention::Form,
    /// Whether a compiler is asked, or a formula is enough.
    compiles: bool,
    /// Loaded when it is needed first.
    compiler: OnceCell<Compiler>,
    budget: Budget,
}

impl<'a> Planner<'a> {
    fn new(
        machine: &'a Machine,
        plan: &PlanFlags,
        step: &'a StepFlags,
        attention: attention::Form,
    ) -> Planner<'a> {
        let budget = Budget { tokens: plan.tokens, price: plan.price };
        let formula = plan.quick || (plan.search && plan.compiles == 0);
        let compiler = OnceCell::new();
        Planner { machine, step, attention, compiles: !formula, compiler, budget }
    }

    /// The plan of a step: by the compiler, if it is asked and there may be room.
    fn plan(&self, spec: &StepSpec) -> Result<Report> {
        let mut estimate = quick(spec, self.machine)?;
        estimate.rates = Rates::new(spec, self.machine, estimate.time.step, self.budget);
        if !self.compiles {
            return Ok(estimate);
        }
        check_room(&estimate)?;
        let text = spec.step_program()?.to_text();
        match self.compiler()?.compile(&text, self.machine) {
            Ok(made) => Ok(fullshard_plan::compiled(spec, self.machine, &made, self.budget)?),
            Err(fullshard_plan::Error::NoRoom { reason, temporaries }) => {
                Ok(without_room(estimate, spec, &text, &reason, temporaries))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn compiler(&self) -> Result<&Compiler> {
        if let Some(compiler) = self.compiler.get() {
            return Ok(compiler);
        }
        let target = &self.step.target;
        let (plugin, _) = match target.kind() {
            // All that a GPU's plugin needs to compile is an eighth of what it needs to run.
            PluginKind::Cuda => target.load_compiler()?,
            _ => target.load()?,
        };
        let folder = if self.step.no_cache { None } else { Some(cache_root()?.join("plans")) };
        let options = self.step.compile_options(self.attention)?;
        Ok(self.compiler.get_or_init(|| Compiler { plugin, options, folder }))
    }
}

/// Refuses what cannot fit, before minutes are spent on it.
fn check_room(estimate: &Report) -> Result<(), fullshard_plan::Error> {
    const GIB: f64 = (1_u64 << 30) as f64;
    let (needed, limit) = (estimate.memory.total as f64, estimate.memory.limit as f64);
    if needed <= MemoryEstimate::SURE * limit {
        return Ok(());
    }
    Err(fullshard_plan::Error::TooLarge { needed: needed / GIB, limit: limit / GIB })
}

/// What is left to say of a step that the compiler has no room for: the formula's figures, with
/// the memory that the compiler would need.
fn without_room(
    mut estimate: Report,
    spec: &StepSpec,
    text: &str,
    reason: &str,
    temporaries: Option<u64>,
) -> Report {
    let memory = &mut estimate.memory;
    let state = spec.state_bytes().map_or(0, |state| state.parameters + state.optimizer);
    let needed = temporaries.map_or(memory.total, |temporaries| state + temporaries);
    let missing = needed.max(memory.limit + 1).saturating_sub(memory.total);
    memory.total += missing;
    if let Some(part) = memory.parts.iter_mut().find(|part| part.what == "temporaries") {
        part.bytes += missing;
    }
    estimate.program = Some(fullshard_step::program_hash(text));
    estimate.warnings.push(Warning {
        what: format!("the compiler finds no room: {reason}"),
        remedy: "lower --per_device_train_batch_size, add --remat full, or take more devices; \
                 --search finds the largest batch that fits"
            .to_owned(),
    });
    estimate.notes.push("all figures but the memory are by formula".to_owned());
    estimate
}

/// Writes the page, if one was asked for.
fn write_page(path: Option<&Path>, report: &Report, frontier: Option<&Frontier>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let page = fullshard_plan::page(report, frontier);
    Ok(write_file(path, page)?)
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
