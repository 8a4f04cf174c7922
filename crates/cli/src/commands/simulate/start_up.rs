//! `fullshard simulate start-up`.

use super::difference;
use crate::flags::count;
use crate::output::{print_json, show};
use clap::Args;
use fullshard::{Error, Result, format};
use fullshard_simulate::start_up::{Launch, Started};

/// The most hosts to start.
const MOST: usize = 1 << 20;

#[derive(Args)]
pub struct StartUpArgs {
    /// The most hosts; from one on, each time twice as many.
    #[arg(long = "max_hosts", value_name = "N", default_value_t = 4096, value_parser = count)]
    max_hosts: usize,
    /// Seconds within which hosts start.
    #[arg(long = "spread_s", value_name = "X", default_value_t = 0.0)]
    spread_s: f64,
    /// Seconds to compile the step program.
    #[arg(long = "compile_s", value_name = "X", default_value_t = 60.0)]
    compile_s: f64,
    /// Megabytes of the compiled program: GPT-2 124M has 52 on TPUs and 2 on GPUs.
    #[arg(long = "program_mb", value_name = "X", default_value_t = 50.0)]
    program_mb: f64,
    /// Gigabytes of the checkpoint, of which each host reads its share.
    #[arg(long = "state_gb", value_name = "X", default_value_t = 240.0)]
    state_gb: f64,
    /// Seed of the times at which hosts start.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

pub fn run(args: &StartUpArgs, json: bool) -> Result<()> {
    if !(1..=MOST).contains(&args.max_hosts) {
        return Err(Error::Usage(format!(
            "--max_hosts is {}: it must be from 1 to {MOST}",
            args.max_hosts
        )));
    }
    for (flag, value) in [("program_mb", args.program_mb), ("state_gb", args.state_gb)] {
        if !(value.is_finite() && value >= 0.0) {
            return Err(Error::Usage(format!("--{flag} is {value}: it must be at least 0")));
        }
    }
    let launch = Launch {
        spread: args.spread_s,
        compile: args.compile_s,
        program_bytes: (1e6 * args.program_mb) as u64,
        state_bytes: (1e9 * args.state_gb) as u64,
    };
    let doubled = std::iter::successors(Some(1), |hosts| Some(2 * hosts));
    let mut counts: Vec<usize> = doubled.take_while(|hosts| *hosts < args.max_hosts).collect();
    counts.push(args.max_hosts);
    let started: Result<Vec<Started>, _> =
        counts.into_iter().map(|hosts| launch.start(hosts, args.seed)).collect();
    let started = started?;
    if json {
        return print_json(&started);
    }
    show!("hosts  rendezvous    programs       total  closed form  difference");
    for row in &started {
        show!(
            "{:>5} {:>11} {:>11} {:>11} {:>12} {:>11}",
            row.hosts,
            format::seconds(row.rendezvous),
            format::seconds(row.programs),
            format::seconds(row.total),
            format::seconds(row.closed_form),
            difference(row.error)
        );
    }
    Ok(())
}
