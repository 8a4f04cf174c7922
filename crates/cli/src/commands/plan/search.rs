//! `fullshard plan --search`: the best settings for a machine, and their command line.

use super::{PlanFlags, print, say, write_page};
use crate::output::{complain, print_json, quoted, show};
use fullshard::config::RunConfig;
use fullshard::plan::{Frontier, Machine, Progress, search};
use fullshard::{Error, Result, format};
use std::process::ExitCode;

pub fn run(plan: &PlanFlags, config: &RunConfig, machine: &Machine) -> Result<ExitCode> {
    if let Some(policy) = &config.remat.policy {
        complain!(
            "only --remat {policy} is tried: leave out --remat, --gradient_checkpointing and \
             xla_fsdp_grad_ckpt of the FSDP config to try all policies"
        );
    }
    let progress = &mut |progress: Progress<'_>| say(&describe(&progress));
    let found = search(config, machine, plan.options(), plan.effort(), progress)?;
    let Some((best, report)) = &found.best else {
        return Err(Error::Usage(format!(
            "no settings fit {}: use more devices, or a smaller model",
            machine.name
        )));
    };
    write_page(plan.html.as_deref(), report, Some(&found.frontier))?;
    if plan.json {
        print_json(&found.frontier)?;
        return Ok(ExitCode::SUCCESS);
    }
    print::report(report);
    print_frontier(&found.frontier);
    let flags: Vec<String> = best.to_flags().iter().map(|flag| quoted(flag)).collect();
    show!("\nbest command line:\n  fullshard train {}", flags.join(" "));
    Ok(ExitCode::SUCCESS)
}

fn describe(progress: &Progress<'_>) -> String {
    match progress {
        Progress::Estimated { combinations, candidates } => {
            format!("estimated {candidates} candidates of {combinations} combinations")
        }
        Progress::Confirming { candidate, done, most } => {
            format!("compiling {} of at most {most}: {}", done + 1, candidate.flags().join(" "))
        }
        Progress::Confirmed { report, .. } => format!(
            "  {}/step, {:.0} tokens/s, {} of {}",
            format::seconds(report.time.step),
            report.rates.tokens_per_second,
            format::bytes(report.memory.total),
            format::bytes(report.memory.limit)
        ),
        Progress::DoesNotFit { reason, .. } => format!("  {reason}"),
        Progress::TooLong { candidate } => {
            let flags = candidate.flags().join(" ");
            format!("not compiled, it would take longer than --compile_minutes leaves: {flags}")
        }
    }
}

fn print_frontier(frontier: &Frontier) {
    show!("\nmemory vs. speed         memory      tokens/s     MFU  settings");
    for point in &frontier.points {
        let mfu = point.report.rates.mfu;
        show!(
            "  {:<18} {:>10} {:>13.0} {:>7}  {}",
            if point.confirmed { "compiled" } else { "estimated" },
            format::bytes(point.memory()),
            point.speed(),
            mfu.map_or("?".into(), |mfu| format!("{:.1} %", 100.0 * mfu)),
            point.candidate.flags().join(" "),
        );
    }
}
