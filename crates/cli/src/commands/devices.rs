//! `fullshard devices`: what is here, its memory, and where its plugin came from.

use crate::error::Result;
use crate::format;
use crate::target::{Target, kinds_to_show};
use clap::Args;
use fullshard_pjrt::plugins::{Located, PluginKind, Store, find};
use fullshard_pjrt::{Client, Device, MemoryStats, Plugin, Value};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Args)]
pub struct DevicesArgs {
    #[command(flatten)]
    target: Target,
    /// How many virtual devices the CPU is to show.
    #[arg(long, value_name = "N", default_value_t = 1)]
    num_devices: usize,
    /// Print JSON for machines.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    kind: PluginKind,
    plugin: PathBuf,
    origin: String,
    api_version: String,
    stablehlo_version: Option<String>,
    profiler: bool,
    platform_version: Option<String>,
    devices: Vec<Row>,
    problem: Option<String>,
}

#[derive(Serialize)]
struct Row {
    id: i32,
    kind: String,
    process: i32,
    coordinates: Option<Vec<i64>>,
    memory_kinds: Vec<String>,
    memory: Option<MemoryStats>,
}

pub fn run(args: &DevicesArgs) -> Result<()> {
    let mut reports = Vec::new();
    for kind in kinds_to_show(&args.target)? {
        let target = Target { device: Some(kind), ..args.target.clone() };
        // The CPU is always there and what was asked for must be; the rest only if found.
        let asked_for = args.target.device.is_some() || kind == PluginKind::Cpu;
        if asked_for || find(kind, None, &Store::default_location()?)?.is_some() {
            reports.push(report(&target, args.num_devices, args.target.device.is_some())?);
        }
    }
    if args.json {
        return format::print_json(&reports);
    }
    reports.iter().for_each(print);
    Ok(())
}

/// Describes one plugin and its devices. That a plugin found by the way has no devices here is
/// part of the report; that one asked for has none is an error.
fn report(target: &Target, devices: usize, must_work: bool) -> Result<Report> {
    let (plugin, located) = target.load()?;
    match target.client(devices) {
        Ok((client, _)) => Ok(describe(plugin, &located, Some(&client), None)),
        Err(error) if must_work => Err(error),
        Err(error) => Ok(describe(plugin, &located, None, Some(error.to_string()))),
    }
}

fn describe(
    plugin: &Plugin,
    located: &Located,
    client: Option<&Client>,
    problem: Option<String>,
) -> Report {
    let (major, minor) = plugin.api_version();
    Report {
        kind: located.kind,
        plugin: located.path.clone(),
        origin: located.origin.to_string(),
        api_version: format!("{major}.{minor}"),
        stablehlo_version: stablehlo_version(plugin),
        profiler: plugin.has_profiler(),
        platform_version: client.map(|client| client.platform_version().to_owned()),
        devices: client.map_or(Vec::new(), |client| client.devices().iter().map(row).collect()),
        problem,
    }
}

fn stablehlo_version(plugin: &Plugin) -> Option<String> {
    let attribute =
        plugin.attributes().iter().find(|(name, _)| name == "stablehlo_current_version");
    match attribute {
        Some((_, Value::Ints(parts))) => {
            let parts: Vec<String> = parts.iter().map(i64::to_string).collect();
            Some(parts.join("."))
        }
        _ => None,
    }
}

fn row(device: &Device) -> Row {
    let description = device.description();
    Row {
        id: description.id,
        kind: description.kind.clone(),
        process: description.process,
        coordinates: description.coordinates().map(<[i64]>::to_vec),
        memory_kinds: device.memory_kinds().map(str::to_owned).collect(),
        memory: device.memory_stats().ok(),
    }
}

fn print(report: &Report) {
    println!("{} ({})", report.kind, format::count(report.devices.len(), "device"));
    println!("  plugin   {} ({})", report.plugin.display(), report.origin);
    let stablehlo = report.stablehlo_version.as_deref().unwrap_or("unknown");
    let profiler = if report.profiler { "profiler" } else { "no profiler" };
    println!("  version  PJRT API {}, StableHLO {stablehlo}, {profiler}", report.api_version);
    if let Some(version) = report.platform_version.as_deref().filter(|text| !text.is_empty()) {
        println!("  platform {}", version.lines().collect::<Vec<_>>().join("; "));
    }
    if let Some(problem) = &report.problem {
        println!("  no devices here: {problem}");
    }
    for device in &report.devices {
        let place = match &device.coordinates {
            Some(coordinates) => format!(" at {coordinates:?}"),
            None => String::new(),
        };
        println!("  device {:<3} {}{place}, {}", device.id, device.kind, memory_words(device));
    }
}

fn memory_words(device: &Row) -> String {
    let kinds = device.memory_kinds.join(", ");
    match &device.memory {
        Some(MemoryStats { in_use, limit: Some(limit), .. }) => {
            format!("{} of {} in use ({kinds})", format::bytes(*in_use), format::bytes(*limit))
        }
        Some(MemoryStats { in_use, .. }) => format!("{} in use ({kinds})", format::bytes(*in_use)),
        None => format!("the host's memory ({kinds})"),
    }
}
