//! `fullshard plan --search`: the best settings for a machine, and the command line to use.

use super::{PlanFlags, Planner, print, say, write_page};
use crate::commands::train::{self, TrainArgs};
use crate::error::{Error, Result};
use crate::format;
use fullshard_plan::{Callbacks, Candidate, Frontier, Point, Progress, Report, search};
use fullshard_step::StepSpec;
use std::cell::RefCell;
use std::process::ExitCode;

pub fn run(plan: &PlanFlags, train: TrainArgs, planner: &Planner<'_>) -> Result<ExitCode> {
    let most = if planner.compiles { plan.compiles } else { 0 };
    if planner.compiles {
        planner.compiler()?;
    }
    let space = train.step.space()?;
    let tried = Tried { step: train.step.clone(), train: RefCell::new(train) };
    let frontier = search(
        &space,
        planner.machine,
        most,
        &mut Callbacks {
            spec: &mut |candidate| tried.spec(candidate).map_err(to_plan),
            confirm: &mut |candidate| confirm(&tried, planner, candidate),
            progress: &mut |progress| say(&told(&progress)),
        },
    )?;
    let Some(best) = &frontier.best else {
        return Err(Error::Usage(format!(
            "nothing fits {}: take more devices, or a smaller model",
            planner.machine.name
        )));
    };
    // With the flags that only this command has: budget and price.
    let report = Report {
        rates: fullshard_plan::Rates::new(
            &tried.spec(&best.candidate)?,
            planner.machine,
            best.report.time.step,
            planner.budget,
        ),
        ..best.report.clone()
    };
    write_page(plan.html.as_deref(), &report, Some(&frontier))?;
    if plan.json {
        format::print_json(&frontier)?;
        return Ok(ExitCode::SUCCESS);
    }
    print::report(&report);
    print_frontier(&frontier);
    println!("\nthe best, as a command line:\n  fullshard train {}", tried.flags(best)?.join(" "));
    Ok(ExitCode::SUCCESS)
}

/// The flags that were given, and what a search puts in their place.
struct Tried {
    step: crate::step::StepFlags,
    train: RefCell<TrainArgs>,
}

impl Tried {
    fn spec(&self, candidate: &Candidate) -> Result<StepSpec> {
        let mut train = self.train.borrow_mut();
        train.step = self.step.clone();
        train.step.choose(candidate)?;
        train.run.per_device_train_batch_size = Some(candidate.batch);
        train::planned(&mut train)
    }

    /// The flags of a point, with those that were given and stay as they are.
    fn flags(&self, point: &Point) -> Result<Vec<String>> {
        let mut step = self.step.clone();
        step.choose(&point.candidate)?;
        let mut flags = point.candidate.flags();
        if let Some(config) = &step.fsdp_config {
            flags.extend(["--fsdp_config".to_owned(), quoted(config)]);
        }
        flags.extend(["--device", step.target.kind().name()].map(str::to_owned));
        flags.extend(["--num_cores".to_owned(), step.devices().to_string()]);
        flags.extend(kept_flags());
        Ok(flags)
    }
}

/// A search goes on after candidates that there cannot be, whatever the reason.
fn to_plan(error: Error) -> fullshard_plan::Error {
    match error {
        Error::Plan(error) => error,
        Error::Step(error) => error.into(),
        Error::Pjrt(error) => error.into(),
        other => fullshard_plan::Error::NoRoom { reason: other.to_string(), temporaries: None },
    }
}

fn confirm(
    tried: &Tried,
    planner: &Planner<'_>,
    candidate: &Candidate,
) -> Result<Report, fullshard_plan::Error> {
    let spec = tried.spec(candidate).map_err(to_plan)?;
    planner.plan(&spec).map_err(to_plan)
}

/// The flags of this command line that a search leaves alone and `train` takes.
fn kept_flags() -> Vec<String> {
    const CHOSEN: &[&str] = &[
        "per-device-train-batch-size",
        "remat",
        "scan-layers",
        "fsdp",
        "gather-ahead",
        "fsdp-config",
        "gradient-checkpointing",
    ];
    const OURS: &[&str] =
        &["topology", "quick", "search", "compiles", "tokens", "price", "html", "json"];
    let mut kept = Vec::new();
    let mut skipping = false;
    for argument in std::env::args().skip(2) {
        let flag = argument.strip_prefix("--").map(|flag| flag.replace('_', "-"));
        if let Some(flag) = flag {
            let name = flag.split('=').next().unwrap_or_default().to_owned();
            skipping = CHOSEN.contains(&name.as_str()) || OURS.contains(&name.as_str());
        }
        if !skipping {
            kept.push(quoted(&argument));
        }
    }
    kept
}

/// An argument as a shell takes it.
fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+".contains(c);
    match !argument.is_empty() && argument.chars().all(plain) {
        true => argument.to_owned(),
        false => format!("'{}'", argument.replace('\'', r"'\''")),
    }
}

fn told(progress: &Progress<'_>) -> String {
    match progress {
        Progress::Estimated { combinations, candidates } => {
            format!("{candidates} batches of {combinations} combinations estimated")
        }
        Progress::Confirming { candidate, done, most } => {
            format!("compiling {} of at most {most}: {}", done + 1, candidate.flags().join(" "))
        }
        Progress::Confirmed { report, .. } => format!(
            "  {} a step, {:.0} tokens/s, {} of {}",
            format::seconds(report.time.step),
            report.rates.tokens_per_second,
            format::bytes(report.memory.total),
            format::bytes(report.memory.limit)
        ),
        Progress::Refused { reason, .. } => format!("  {reason}"),
    }
}

fn print_frontier(frontier: &Frontier) {
    println!("\nmemory against speed     memory      tokens/s     MFU  settings");
    for point in &frontier.points {
        let mfu = point.report.rates.mfu;
        println!(
            "  {:<18} {:>10} {:>13.0} {:>7}  {}",
            if point.confirmed { "compiled" } else { "estimated" },
            format::bytes(point.memory()),
            point.speed(),
            mfu.map_or("?".into(), |mfu| format!("{:.1} %", 100.0 * mfu)),
            point.candidate.flags().join(" "),
        );
    }
}
