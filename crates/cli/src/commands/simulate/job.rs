//! `fullshard simulate job`.

use super::{percent, row};
use crate::commands::plan::positive;
use crate::output::{check_file, print_json, show};
use clap::Args;
use fullshard::format;
use fullshard::{Error, Result};
use fullshard_checkpoint::write_file;
use fullshard_simulate::job::{Copies, Job, Length, Preset, Saves, Simulated, Stragglers, picture};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

const DAY: f64 = 86_400.0;

#[derive(Args)]
pub struct JobArgs {
    /// Start from a job whose goodput was published: llama-3, gemini or gemini-checkpoints. Other
    /// flags change it.
    #[arg(long, value_name = "NAME")]
    preset: Option<Preset>,
    /// Number of hosts.
    #[arg(long, value_name = "N", required_unless_present = "preset")]
    hosts: Option<usize>,
    /// Number of hosts below which the job waits for a repair; down to it steps take longer in
    /// proportion. Default: all.
    #[arg(long = "min_hosts", value_name = "N")]
    min_hosts: Option<usize>,
    /// Hosts that stand by. What is repaired is added to them. Default: 0.
    #[arg(long, value_name = "N")]
    spares: Option<usize>,
    /// Seconds of a step.
    #[arg(long = "step_s", value_name = "X", required_unless_present = "preset")]
    step_s: Option<f64>,
    /// Number of steps of the job.
    #[arg(long, value_name = "N", conflicts_with = "days",
          required_unless_present_any = ["days", "preset"])]
    steps: Option<u64>,
    /// Days of the job, in place of steps.
    #[arg(long, value_name = "X")]
    days: Option<f64>,
    /// Mean days between failures of one host. Default: no failures.
    #[arg(long = "host_mtbf_days", value_name = "X", conflicts_with = "mtbf_s", value_parser = positive)]
    host_mtbf_days: Option<f64>,
    /// Mean seconds between failures anywhere in the job.
    #[arg(long = "mtbf_s", value_name = "X", value_parser = positive)]
    mtbf_s: Option<f64>,
    /// Seconds after the launch at which a host fails, such as 60,200, as in a drill; in place of
    /// failures at random.
    #[arg(long = "fail_at_s", value_name = "X,...", value_delimiter = ',',
          conflicts_with_all = ["host_mtbf_days", "mtbf_s"])]
    fail_at_s: Vec<f64>,
    /// Mean seconds to repair a host. Default: 0, a process that starts again at once.
    #[arg(long = "repair_s", value_name = "X")]
    repair_s: Option<f64>,
    /// Seconds from a failure until the job knows of it. Default: 10.
    #[arg(long = "detection_s", value_name = "X")]
    detection_s: Option<f64>,
    /// Seconds to restart, until state is loaded; also at the launch. Default: 63.
    #[arg(long = "restart_s", value_name = "X")]
    restart_s: Option<f64>,
    /// Seconds to load a checkpoint. Default: 0.
    #[arg(long = "load_s", value_name = "X")]
    load_s: Option<f64>,
    /// Steps between checkpoints; 0 for none. Default: none.
    #[arg(long = "save_every", value_name = "N")]
    save_every: Option<u64>,
    /// Seconds that steps wait for a checkpoint. Default: 0.
    #[arg(long = "save_pause_s", value_name = "X")]
    save_pause_s: Option<f64>,
    /// Seconds of writing a checkpoint behind the steps; it counts after that. Default: 0.
    #[arg(long = "save_write_s", value_name = "X")]
    save_write_s: Option<f64>,
    /// Steps between copies of the state in the memory of other hosts; 0 for none. Default: none.
    #[arg(long = "copy_every", value_name = "N")]
    copy_every: Option<u64>,
    /// Seconds that steps wait for copies. Default: 0.
    #[arg(long = "copy_pause_s", value_name = "X")]
    copy_pause_s: Option<f64>,
    /// Seconds to recover from copies, in place of loading a checkpoint. Default: 0.
    #[arg(long = "copy_load_s", value_name = "X")]
    copy_load_s: Option<f64>,
    /// Probability that a host is slow in a step. Default: 0.
    #[arg(long = "straggler_probability", value_name = "X")]
    straggler_probability: Option<f64>,
    /// Time of a step with a slow host, as a multiple of its usual time. Default: 1.
    #[arg(long = "straggler_factor", value_name = "X")]
    straggler_factor: Option<f64>,
    /// Seed of the first replay.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Number of replays.
    #[arg(long, value_name = "N", default_value_t = 20)]
    replays: u64,
    /// Write the time by what it was spent on as an SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The replays of a preset beside what was published.
#[derive(Serialize)]
struct Published<'a> {
    #[serde(flatten)]
    simulated: &'a Simulated,
    preset: Option<&'static str>,
    published_goodput: Option<f64>,
}

impl JobArgs {
    fn job(&self) -> Job {
        let base = self.preset.map_or_else(unnamed, Preset::job);
        let hosts = self.hosts.unwrap_or(base.hosts);
        let length = match (self.steps, self.days) {
            (Some(steps), _) => Length::Steps(steps),
            (None, Some(days)) => Length::Seconds(days * DAY),
            (None, None) => base.length,
        };
        let by_job = self.mtbf_s.map(|seconds| seconds * hosts as f64);
        let by_host = self.host_mtbf_days.map(|days| days * DAY);
        Job {
            hosts,
            // A job that needs all hosts needs all of another number too.
            min_hosts: self.min_hosts.unwrap_or(match base.min_hosts == base.hosts {
                true => hosts,
                false => base.min_hosts.min(hosts),
            }),
            spares: self.spares.unwrap_or(base.spares),
            step: self.step_s.unwrap_or(base.step),
            length,
            host_mtbf: match self.fail_at_s.is_empty() {
                true => by_job.or(by_host).unwrap_or(base.host_mtbf),
                false => f64::INFINITY,
            },
            fail_at: self.fail_at_s.clone(),
            repair: self.repair_s.unwrap_or(base.repair),
            detection: self.detection_s.unwrap_or(base.detection),
            restart: self.restart_s.unwrap_or(base.restart),
            load: self.load_s.unwrap_or(base.load),
            saves: self.saves(base.saves),
            copies: self.copies(base.copies),
            stragglers: Stragglers {
                probability: self.straggler_probability.unwrap_or(base.stragglers.probability),
                factor: self.straggler_factor.unwrap_or(base.stragglers.factor),
            },
        }
    }

    fn saves(&self, base: Option<Saves>) -> Option<Saves> {
        let none = Saves { every: 0, pause: 0.0, write: 0.0 };
        let base = base.unwrap_or(none);
        let saves = Saves {
            every: self.save_every.unwrap_or(base.every),
            pause: self.save_pause_s.unwrap_or(base.pause),
            write: self.save_write_s.unwrap_or(base.write),
        };
        (saves.every > 0).then_some(saves)
    }

    fn copies(&self, base: Option<Copies>) -> Option<Copies> {
        let none = Copies { every: 0, pause: 0.0, load: 0.0 };
        let base = base.unwrap_or(none);
        let copies = Copies {
            every: self.copy_every.unwrap_or(base.every),
            pause: self.copy_pause_s.unwrap_or(base.pause),
            load: self.copy_load_s.unwrap_or(base.load),
        };
        (copies.every > 0).then_some(copies)
    }

    /// Rejects flags that would have no effect.
    fn check(&self, job: &Job) -> Result<()> {
        let saves = self.save_pause_s.is_some() || self.save_write_s.is_some();
        let copies = self.copy_pause_s.is_some() || self.copy_load_s.is_some();
        for (given, every, what) in [
            (saves && job.saves.is_none(), "save_every", "save_pause_s and --save_write_s"),
            (copies && job.copies.is_none(), "copy_every", "copy_pause_s and --copy_load_s"),
        ] {
            if given {
                return Err(Error::Usage(format!("--{what} need --{every} N")));
            }
        }
        Ok(())
    }
}

/// A job of which nothing is known.
fn unnamed() -> Job {
    Job {
        hosts: 1,
        min_hosts: 1,
        spares: 0,
        step: 1.0,
        length: Length::Steps(1),
        host_mtbf: f64::INFINITY,
        fail_at: Vec::new(),
        repair: 0.0,
        detection: 10.0,
        restart: 63.0,
        load: 0.0,
        saves: None,
        copies: None,
        stragglers: Stragglers::default(),
    }
}

pub fn run(args: &JobArgs, json: bool) -> Result<ExitCode> {
    let job = args.job();
    args.check(&job)?;
    if let Some(path) = &args.svg {
        check_file("svg", path)?;
    }
    let simulated = job.simulate(args.replays, args.seed)?;
    if let Some(path) = &args.svg {
        write_file(path, picture(&simulated))?;
    }
    let preset = args.preset;
    if json {
        print_json(&Published {
            simulated: &simulated,
            preset: preset.map(Preset::name),
            published_goodput: preset.map(Preset::published),
        })?;
    } else {
        print(&simulated, preset);
    }
    if let Some(warning) = simulated.warning() {
        tracing::warn!("{warning}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(simulated: &Simulated, preset: Option<Preset>) {
    let job = &simulated.job;
    head(job);
    let (goodput, days, failures) = (&simulated.goodput, &simulated.days, &simulated.failures);
    show!();
    row(
        "goodput",
        &format!(
            "{} ± {}, {} to {} in {}",
            percent(goodput.mean),
            percent(goodput.deviation),
            percent(goodput.least),
            percent(goodput.most),
            format::count(simulated.replays, "replay")
        ),
    );
    let none = match job.fail_at.is_empty() {
        true => "none: nothing is stored",
        false => "none for failures at stated times",
    };
    row("closed form", &simulated.expected.map_or(none.to_owned(), percent));
    if let Some(preset) = preset {
        row("published", &format!("{:.0} %", 100.0 * preset.published()));
        row("figures", preset.sources());
    }
    row("steps", &format!("{:.0} that count", simulated.steps));
    row("days", &format!("{:.2} ± {:.2}", days.mean, days.deviation));
    row("failures", &format!("{:.1} ± {:.1}", failures.mean, failures.deviation));
    let total = simulated.parts.total();
    // Drills take minutes.
    let (unit, seconds_each) = if total < DAY { ("seconds", 1.0) } else { ("hours", 3600.0) };
    show!("\ntime                 {unit:>10}     share");
    for (name, seconds) in simulated.parts.named() {
        show!("  {name:<18} {:>10.2} {:>9}", seconds / seconds_each, percent(seconds / total));
    }
}

fn head(job: &Job) {
    let length = match job.length {
        Length::Steps(steps) => format::count(steps as usize, "step"),
        Length::Seconds(seconds) => format!("{:.1} days", seconds / DAY),
    };
    let hosts = format::count(job.hosts, "host");
    show!("{hosts}, {length}, {} per step", format::seconds(job.step));
    let times: Vec<String> = job.fail_at.iter().map(f64::to_string).collect();
    match job.host_mtbf.is_finite() {
        true => row(
            "failure every",
            &format!("{:.0} s ({:.2} days per host)", job.mtbf(), job.host_mtbf / DAY),
        ),
        false if job.fail_at.is_empty() => row("failures", "none"),
        false => row("failures at", &format!("{} s", times.join(", "))),
    }
    row(
        "a failure costs",
        &format!(
            "detection {}, restart {}, load {}",
            format::seconds(job.detection),
            format::seconds(job.restart),
            format::seconds(job.copies.map_or(job.load, |copies| copies.load))
        ),
    );
    if let Some(saves) = job.saves {
        let (pause, write) = (format::seconds(saves.pause), format::seconds(saves.write));
        row("checkpoints", &format!("every {} steps, pause {pause}, write {write}", saves.every));
    }
    if let Some(copies) = job.copies {
        let pause = format::seconds(copies.pause);
        row("copies in memory", &format!("every {} steps, pause {pause}", copies.every));
    }
}
