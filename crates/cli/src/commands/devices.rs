//! `fullshard devices`: lists devices, their memory and their plugins.

use crate::flags::{DeviceFlags, Flagged};
use crate::output::{print_json, show};
use clap::Args;
use fullshard::config::{Device as DeviceConfig, RunConfig};
use fullshard::format;
use fullshard::{Error, Result};
use fullshard_core::Platform;
use fullshard_pjrt::plugins::{Located, Store, find};
use fullshard_pjrt::{Device, MemoryStats, Plugin, Value};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Args)]
pub struct DevicesArgs {
    #[command(flatten)]
    target: Flagged<DeviceFlags>,
    /// Number of virtual CPU devices.
    #[arg(long = "num_devices", value_name = "N", default_value_t = 1)]
    num_devices: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    kind: Platform,
    plugin: Option<PluginRow>,
    devices: Vec<DeviceRow>,
    problem: Option<String>,
}

#[derive(Serialize)]
struct PluginRow {
    path: PathBuf,
    origin: String,
    api_version: String,
    stablehlo_version: Option<String>,
    profiler: bool,
    platform_version: Option<String>,
}

#[derive(Serialize)]
struct DeviceRow {
    id: i32,
    kind: String,
    process: i32,
    coordinates: Option<Vec<i64>>,
    memory_kinds: Vec<String>,
    memory: Option<MemoryStats>,
}

pub fn run(args: &DevicesArgs) -> Result<()> {
    let target = args.target.config(|_| Ok(RunConfig::default()))?.device;
    let requested = target.platform.is_some();
    let mut reports = Vec::new();
    for kind in kinds_to_show(&target)? {
        // The CPU plugin is downloaded if needed; others are listed if found.
        if requested || kind == Platform::Cpu || is_installed(kind)? {
            let target = DeviceConfig { platform: Some(kind), ..target.clone() };
            reports.push(report(kind, &target, args.num_devices));
        }
    }
    match reports.first().and_then(|report| report.problem.clone()) {
        Some(problem) if requested => return Err(Error::Usage(problem)),
        _ => {}
    }
    if args.json {
        return print_json(&reports);
    }
    reports.iter().for_each(print);
    Ok(())
}

/// The requested platform, or all.
fn kinds_to_show(device: &DeviceConfig) -> Result<Vec<Platform>> {
    match device.platform {
        Some(kind) => Ok(vec![kind]),
        None if device.plugin.is_some() => {
            Err(Error::Usage("--plugin needs --device for its platform".into()))
        }
        None => Ok(Platform::ALL.to_vec()),
    }
}

fn is_installed(kind: Platform) -> Result<bool> {
    Ok(find(kind, None, &Store::default_location()?)?.is_some())
}

fn report(kind: Platform, target: &DeviceConfig, devices: usize) -> Report {
    let (plugin, located) = match target.load() {
        Ok(loaded) => loaded,
        Err(error) => {
            let problem = Some(error.to_string());
            return Report { kind, plugin: None, devices: Vec::new(), problem };
        }
    };
    let client = target.client(devices).map(|(client, _)| client);
    let platform_version = client.as_ref().ok().map(|client| client.platform_version().to_owned());
    Report {
        kind,
        plugin: Some(PluginRow { platform_version, ..plugin_row(plugin, located) }),
        devices: client
            .as_ref()
            .map_or(Vec::new(), |client| client.devices().iter().map(device_row).collect()),
        problem: client.err().map(|error| error.to_string()),
    }
}

fn plugin_row(plugin: &Plugin, located: Located) -> PluginRow {
    let (major, minor) = plugin.api_version();
    PluginRow {
        path: located.path,
        origin: located.origin.to_string(),
        api_version: format!("{major}.{minor}"),
        stablehlo_version: stablehlo_version(plugin),
        profiler: plugin.has_profiler(),
        platform_version: None,
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

fn device_row(device: &Device) -> DeviceRow {
    let description = device.description();
    DeviceRow {
        id: description.id,
        kind: description.kind.clone(),
        process: description.process,
        coordinates: description.coordinates().map(<[i64]>::to_vec),
        memory_kinds: device.memory_kinds().map(str::to_owned).collect(),
        memory: device.memory_stats().ok(),
    }
}

fn print(report: &Report) {
    show!("{} ({})", report.kind, format::count(report.devices.len(), "device"));
    if let Some(plugin) = &report.plugin {
        show!("  plugin   {} ({})", plugin.path.display(), plugin.origin);
        let stablehlo = plugin.stablehlo_version.as_deref().unwrap_or("unknown");
        let profiler = if plugin.profiler { "profiler" } else { "no profiler" };
        show!("  version  PJRT API {}, StableHLO {stablehlo}, {profiler}", plugin.api_version);
        if let Some(version) = plugin.platform_version.as_deref().filter(|text| !text.is_empty()) {
            show!("  platform {}", version.lines().collect::<Vec<_>>().join("; "));
        }
    }
    if let Some(problem) = &report.problem {
        show!("  no devices: {problem}");
    }
    for device in &report.devices {
        let place = match &device.coordinates {
            Some(coordinates) => format!(" at {coordinates:?}"),
            None => String::new(),
        };
        show!("  device {:<3} {}{place}, {}", device.id, device.kind, format_memory(device));
    }
}

fn format_memory(device: &DeviceRow) -> String {
    let kinds = device.memory_kinds.join(", ");
    match &device.memory {
        Some(MemoryStats { in_use, limit: Some(limit), .. }) => {
            format!("{} of {} in use ({kinds})", format::bytes(*in_use), format::bytes(*limit))
        }
        Some(MemoryStats { in_use, .. }) => format!("{} in use ({kinds})", format::bytes(*in_use)),
        None => format!("host memory ({kinds})"),
    }
}
