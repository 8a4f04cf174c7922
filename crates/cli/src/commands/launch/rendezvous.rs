//! `fullshard rendezvous`: what a job's launcher, network and secret come to, before a model is
//! loaded.

use super::usage;
use crate::output::{complain, show};
use crate::processes::ProcessArgs;
use clap::Args;
use fullshard::Result;
use fullshard_cluster::{Failure, Member, Options, join};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long processes wait for one another once all have come.
const PATIENCE: Duration = Duration::from_secs(60);

/// The barriers that are timed.
const ROUNDS: u32 = 20;

#[derive(Args)]
pub struct RendezvousArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// How long all processes may take to come.
    #[arg(long = "rendezvous_timeout_s", value_name = "SECONDS", default_value_t = 300)]
    timeout_s: u64,
    /// Stay together for this long, with a barrier every second.
    #[arg(long = "stay_s", value_name = "SECONDS", default_value_t = 0)]
    stay_s: u64,
}

pub fn rendezvous(args: &RendezvousArgs) -> Result<()> {
    let Some(launch) = args.process.launch()? else {
        show!("one process: neither flags nor a launcher state others");
        return Ok(());
    };
    let start = Instant::now();
    let options = Options {
        timeout: Duration::from_secs(args.timeout_s),
        progress: Box::new(|waiting| complain!("{waiting}")),
        ..Options::new(env!("CARGO_PKG_VERSION"))
    };
    let member = join(&launch, options).map_err(usage)?;
    let joined = start.elapsed();
    member.on_failure(end);
    let barrier = meet(&member).map_err(usage)?;
    let hosts: BTreeSet<_> = member.hosts().iter().collect();
    let (process, count) = (member.process(), member.count());
    show!("process {process} of {count} on host {}, by {}", member.hosts()[process], launch.by);
    if process == 0 {
        show!(
            "{count} processes on {} found one another in {joined:.1?}; a barrier takes {barrier:.2?}",
            if hosts.len() == 1 { "1 host".to_owned() } else { format!("{} hosts", hosts.len()) }
        );
    }
    for _ in 0..args.stay_s {
        std::thread::sleep(Duration::from_secs(1));
        member.barrier("stay", PATIENCE).map_err(usage)?;
    }
    member.leave(PATIENCE).map_err(usage)
}

/// The time of a barrier.
fn meet(member: &Member) -> Result<Duration, fullshard_cluster::Error> {
    member.barrier("first", PATIENCE)?;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        member.barrier("timed", PATIENCE)?;
    }
    Ok(start.elapsed() / ROUNDS)
}

/// Ends this process, whatever it waits for.
fn end(failure: &Failure) {
    complain!("error: {failure}");
    std::process::exit(1);
}
