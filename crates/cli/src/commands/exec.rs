//! `fullshard exec`: compiles and runs a program, and prints its results and time.

use crate::flags::{DeviceFlags, Flagged};
use crate::output::{check_file, print_json, show};
use crate::program::ProgramArgs;
use crate::tensors;
use clap::Args;
use fullshard::config::RunConfig;
use fullshard::device::compile_cache;
use fullshard::format;
use fullshard::{Error, Result};
use fullshard_pjrt::plugins::Located;
use fullshard_pjrt::{
    Array, Buffer, CacheOutcome, Client, CompiledMemory, HostTensor, LoadedExecutable, Value,
    write_profile,
};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Args)]
pub struct ExecArgs {
    #[command(flatten)]
    program: ProgramArgs,
    #[command(flatten)]
    target: Flagged<DeviceFlags>,
    /// Arguments, named arg0, arg1, ...; synthetic if not given.
    #[arg(long, value_name = "FILE.safetensors")]
    inputs: Option<PathBuf>,
    /// Write the results to this file, named out0, out1, ..., instead of printing them.
    #[arg(long, value_name = "FILE.safetensors")]
    outputs: Option<PathBuf>,
    /// Number of timed runs, after one warmup run.
    #[arg(long, value_name = "K", default_value_t = 1)]
    repeat: usize,
    /// Write a profile of the timed runs to this folder, if the plugin has a profiler.
    #[arg(long, value_name = "DIR")]
    profile: Option<PathBuf>,
    /// Disable the compile cache.
    #[arg(long = "no_cache")]
    no_cache: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    program: String,
    plugin: PathBuf,
    device_kind: String,
    devices: usize,
    compile_seconds: f64,
    cache: Option<CacheOutcome>,
    memory: CompiledMemory,
    flops: Option<f64>,
    time: Timing,
    profile: Option<PathBuf>,
    outputs: Option<PathBuf>,
    results: Vec<ResultRow>,
}

/// Time per run. Runs are launched without waiting, as in training, so `seconds` is the device
/// time; `latency` is one run from launch to result.
#[derive(Serialize)]
struct Timing {
    repeat: usize,
    seconds: f64,
    latency: f64,
}

#[derive(Serialize)]
struct ResultRow {
    #[serde(rename = "type")]
    ty: String,
    first: Vec<f64>,
}

pub fn run(args: &ExecArgs) -> Result<()> {
    if args.repeat == 0 {
        return Err(Error::Usage("--repeat must be at least 1".into()));
    }
    if let Some(path) = &args.outputs {
        check_file("outputs", path)?;
    }
    let (text, options) = args.program.read()?;
    let (client, located) =
        args.target.config(|_| Ok(RunConfig::default()))?.device.client(options.partitions())?;
    let start = Instant::now();
    let (program, cache) = if args.no_cache {
        (client.compile(&text, &options)?, None)
    } else {
        let (program, outcome) = compile_cache()?.compile(&client, &text, &options)?;
        (program, Some(outcome))
    };
    let compile_seconds = start.elapsed().as_secs_f64();
    let arguments = match &args.inputs {
        Some(path) => tensors::read_arguments(&client, &program, path)?,
        None => tensors::make_arguments(&client, &program)?,
    };
    let (time, results, profile) = run_timed(args, &client, &program, &arguments)?;
    let types = (0..program.signature().results.len()).map(|index| program.result_type(index));
    let types = types.collect::<Result<Vec<_>, _>>()?;
    let results = Array::gather(&types, results)?;
    let results = results.iter().map(Array::to_host).collect::<Result<Vec<_>, _>>()?;
    if let Some(path) = &args.outputs {
        tensors::write_results(path, &results)?;
    }
    let report = Report {
        compile_seconds,
        cache,
        time,
        profile,
        outputs: args.outputs.clone(),
        results: results.iter().map(row).collect(),
        ..describe(&client, &located, &program)?
    };
    if args.json {
        return print_json(&report);
    }
    print(&report);
    Ok(())
}

type Launched = Vec<Vec<Buffer>>;

fn run_timed(
    args: &ExecArgs,
    client: &Client,
    program: &LoadedExecutable,
    arguments: &[Array],
) -> Result<(Timing, Launched, Option<PathBuf>)> {
    let lists: Vec<Vec<&Buffer>> = (0..program.devices().len())
        .map(|device| arguments.iter().map(|array| &array.shards()[device]).collect())
        .collect();
    // Donated arguments are kept for the next run.
    let kept = &program.signature().donated;
    let launch = || program.execute_keeping(&lists, kept);
    let mut results = launch()?;
    wait(&results)?;
    let profile = args.profile.as_ref().map(|_| client.plugin().start_profile()).transpose()?;

    let start = Instant::now();
    for _ in 0..args.repeat {
        results = launch()?;
    }
    wait(&results)?;
    let seconds = start.elapsed().as_secs_f64() / args.repeat as f64;

    let profile = match (profile, &args.profile) {
        (Some(profile), Some(folder)) => Some(write_profile(folder, &profile.finish()?)?),
        _ => None,
    };
    let start = Instant::now();
    let last = launch()?;
    wait(&last)?;
    let latency = start.elapsed().as_secs_f64();
    Ok((Timing { repeat: args.repeat, seconds, latency }, last, profile))
}

fn wait(results: &Launched) -> Result<()> {
    for buffer in results.iter().flatten() {
        buffer.ready_event()?.wait()?;
    }
    Ok(())
}

fn describe(client: &Client, located: &Located, program: &LoadedExecutable) -> Result<Report> {
    let executable = program.executable();
    let device = client.device(program.devices().first().copied().unwrap_or(0))?;
    Ok(Report {
        program: program.name().to_owned(),
        plugin: located.path.clone(),
        device_kind: device.description().kind.clone(),
        devices: program.devices().len(),
        compile_seconds: 0.0,
        cache: None,
        memory: executable.memory()?,
        flops: executable.cost_analysis().ok().and_then(|costs| {
            costs.into_iter().find_map(|(name, value)| match value {
                Value::Float(flops) if name == "flops" && flops > 0.0 => Some(f64::from(flops)),
                _ => None,
            })
        }),
        time: Timing { repeat: 0, seconds: 0.0, latency: 0.0 },
        profile: None,
        outputs: None,
        results: Vec::new(),
    })
}

fn row(tensor: &HostTensor) -> ResultRow {
    const SHOWN: usize = 8;
    let mut first = tensor.to_f64().unwrap_or_default();
    first.truncate(SHOWN);
    ResultRow { ty: tensor.ty().to_string(), first }
}

fn print(report: &Report) {
    let cache = match report.cache {
        Some(CacheOutcome::Hit) => " (from the cache)",
        _ => "",
    };
    show!(
        "{} on {} ({}), compiled in {}{cache}",
        report.program,
        format::count(report.devices, "device"),
        report.device_kind,
        format::seconds(report.compile_seconds)
    );
    let memory = &report.memory;
    show!(
        "memory per device: {} ({} arguments, {} results, {} temporaries)",
        format::bytes(memory.total()),
        format::bytes(memory.arguments),
        format::bytes(memory.outputs),
        format::bytes(memory.temporaries)
    );
    let rate = match report.flops {
        Some(flops) => format!(", {} per device", format::flops_rate(flops / report.time.seconds)),
        None => String::new(),
    };
    show!(
        "time per run: {} over {}{rate}; latency {}",
        format::seconds(report.time.seconds),
        format::count(report.time.repeat, "run"),
        format::seconds(report.time.latency)
    );
    if let Some(path) = &report.profile {
        show!("profile written to {}", path.display());
    }
    if let Some(path) = &report.outputs {
        show!("results written to {}", path.display());
        return;
    }
    for (i, result) in report.results.iter().enumerate() {
        let values: Vec<String> = result.first.iter().map(|value| format!("{value:.6}")).collect();
        show!("result {i}: {} {}", result.ty, values.join(" "));
    }
}
