//! `fullshard goodput`: what the time of a run was spent on.

use crate::output::{check_file, local_time, print_json, show};
use clap::Args;
use fullshard::format;
use fullshard::goodput::{self, Generation, Goodput, JOURNAL, SaveInterval};
use fullshard::{Error, Result};
use std::io::IsTerminal;
use std::path::PathBuf;

/// The width of the picture in the terminal.
const WIDTH: usize = 72;

#[derive(Args)]
pub struct GoodputArgs {
    /// The output folder of a run, which may still be going on.
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write a picture of the time to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub fn run(args: &GoodputArgs) -> Result<()> {
    let Some(goodput) = goodput::of(&args.path)? else {
        return Err(Error::file(args.path.join(JOURNAL), "no run has started to train"));
    };
    if let Some(path) = &args.svg {
        check_file("svg", path)?;
        goodput.timeline().save_svg(path)?;
    }
    if args.json {
        return print_json(&goodput);
    }
    print(&goodput);
    if let Some(path) = &args.svg {
        show!("\npicture written to {}", path.display());
    }
    Ok(())
}

fn print(goodput: &Goodput) {
    let wall = format::duration(goodput.wall_s);
    show!(
        "goodput {:.1} % of {wall} since {}\n",
        100.0 * goodput.share(),
        local_time(goodput.started)
    );
    let timeline = goodput.timeline();
    show!("{}\n", timeline.terminal(WIDTH, std::io::stdout().is_terminal()));
    for (kind, time) in timeline.kinds.iter().zip(&goodput.parts).filter(|(_, it)| it.seconds > 0.0)
    {
        let (seconds, percent) = (format::duration(time.seconds), 100.0 * time.share);
        show!("{} {:<14} {seconds:>14} {percent:>6.1} %", kind.letter, kind.name);
    }
    show!("\n{:<10} {:<19} {:<22} {:<14} ended", "generation", "started", "on", "steps");
    for (number, generation) in goodput.generations.iter().enumerate() {
        let last = number + 1 == goodput.generations.len();
        let started = local_time(generation.started);
        let (on, end) = (place(generation), end(generation, last));
        let steps =
            generation.steps.map_or("none".to_owned(), |(from, to)| format!("{from} to {to}"));
        show!("{number:<10} {started:<19} {on:<22} {steps:<14} {end}");
    }
    show!("\n{}", failures(goodput));
    show!("{}", saves(goodput));
    if goodput.earlier_runs > 0 {
        let runs = format::count(goodput.earlier_runs, "earlier run");
        show!("{runs} in the same folder left out");
    }
}

/// The processes and devices of a generation.
fn place(generation: &Generation) -> String {
    let processes = match generation.processes {
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    };
    format!("{processes}, {}", format::count(generation.devices, "device"))
}

fn end(generation: &Generation, last: bool) -> &str {
    match &generation.end {
        Some(end) => end,
        None if last => "goes on, or ended without a record",
        None => "ended without a record",
    }
}

fn failures(goodput: &Goodput) -> String {
    let Some(between) = goodput.between_failures_s() else {
        let restarts = format::count(goodput.restarts(), "restart");
        return format!("no failure seen, {restarts}");
    };
    format!(
        "{}, {}, {} lost; mean time between failures {}",
        format::count(goodput.failures.len(), "failure"),
        format::count(goodput.restarts(), "restart"),
        format::count(goodput.steps_lost as usize, "step"),
        format::duration(between)
    )
}

/// The saves, and how often to save.
fn saves(goodput: &Goodput) -> String {
    let Some(pause) = goodput.pause_s else {
        return "no checkpoint was saved: --save_steps saves some".to_owned();
    };
    let saves = format::count(goodput.saves, "save");
    let saves = format!("{saves}, mean pause {}", format::seconds(pause));
    match goodput.save_interval() {
        Some(SaveInterval { seconds, steps }) => format!(
            "{saves}; suggested: --save_steps {steps}, a save every {}",
            format::duration(seconds)
        ),
        None => format!("{saves}; no interval is suggested without a failure"),
    }
}
