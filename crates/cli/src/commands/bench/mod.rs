//! `fullshard bench`: how fast a model trains here, and on what it spends its memory.

mod args;
mod breakdown;
mod exchanges;
mod print;
mod report;

use crate::error::{Error, Result};
use crate::format;
use crate::target::compile_cache;
use args::StepArgs;
use clap::{Args, Subcommand};
use fullshard_pjrt::Client;
use fullshard_pjrt::plugins::PluginKind;
use fullshard_step::StepSpec;
use fullshard_train::{Compiler, Runner};
use report::{PlanReport, StepReport};
use std::fs;
use std::path::Path;
use std::time::Instant;

#[derive(Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Measure training steps on made-up tokens.
    #[command(allow_negative_numbers = true)]
    Step(Box<StepArgs>),
}

pub fn run(args: &BenchArgs) -> Result<()> {
    match &args.what {
        What::Step(args) => run_step(args),
    }
}

fn run_step(args: &StepArgs) -> Result<()> {
    let spec = args.spec()?;
    let bench = args.bench();
    let options = args.step.compile_options(spec.model.attention_form())?;
    let plan = PlanReport::new(args, &spec)?;
    if args.plan {
        return match args.json {
            true => format::print_json(&plan),
            false => {
                print::plan(&plan);
                Ok(())
            }
        };
    }
    if !args.json {
        print::plan(&plan);
    }
    if let Some(path) = &args.text {
        return write_text(&spec, path);
    }
    let client = client(args)?;
    if args.breakdown {
        breakdown::check(&client, args.step.target.kind())?;
    }
    let cache = if args.step.no_cache { None } else { Some(compile_cache()?) };
    let compiler = Compiler { client: &client, cache, options };
    let start = Instant::now();
    let mut runner = Runner::new(&compiler, &spec, bench.seed)?;
    let setup = start.elapsed().as_secs_f64();
    let measured = bench.run(&mut runner, spec.batch, spec.model.dimensions().vocabulary)?;
    let mut report = StepReport::new(&compiler, &spec, &runner, setup, measured, plan)?;
    // What was measured is worth having even where a profile says nothing.
    let taken = args.breakdown.then(|| breakdown::take(&mut runner, &bench, report.chip));
    let (broken_down, error) = match taken.transpose() {
        Ok(broken_down) => (broken_down, None),
        Err(error) => (None, Some(error)),
    };
    report.breakdown = broken_down;
    match args.json {
        true => format::print_json(&report)?,
        false => print::measured(&report),
    }
    error.map_or(Ok(()), Err)
}

fn write_text(spec: &StepSpec, path: &Path) -> Result<()> {
    let text = spec.step_program()?.to_text();
    fs::write(path, text).map_err(|error| Error::file(path, error))?;
    println!("the step is written to {}", path.display());
    Ok(())
}

/// The devices to measure on. Plans and texts are for TPUs that are elsewhere as well.
fn client(args: &StepArgs) -> Result<Client> {
    args.step.client().map_err(|error| match (args.step.target.kind(), error) {
        (PluginKind::Tpu, error @ (Error::Pjrt(_) | Error::Plugin(_))) => Error::Usage(format!(
            "no TPU can be used here: {error}; --plan tells what one would have to hold, --text \
             writes the step for `fullshard compile`, and --device cpu measures on virtual devices"
        )),
        (_, error) => error,
    })
}
