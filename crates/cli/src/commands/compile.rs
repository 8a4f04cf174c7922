//! `fullshard compile`: ahead-of-time compilation for other machines.

use crate::output::{check_folder, print_json, show};
use crate::program::ProgramArgs;
use clap::Args;
use fullshard::config::Device;
use fullshard::format;
use fullshard::{Error, Result};
use fullshard_core::Platform;
use fullshard_pjrt::hlo::{self, CollectiveSummary};
use fullshard_pjrt::{
    CompiledMemory, Executable, GpuTarget, OptimizedProgram, Plugin, Topology, TpuSlice,
};
use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args)]
pub struct CompileArgs {
    #[command(flatten)]
    program: ProgramArgs,
    /// Target: a TPU slice such as v4-8, a topology such as v4:2x2x1, several as 2xv4-128, GPUs
    /// such as h200:8, or nodes of them as h100:8x16.
    #[arg(long, value_name = "SLICE")]
    topology: String,
    /// PJRT plugin to use instead of the default one.
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Write the optimized HLO to this file: as text, or as protobuf if the name ends in .pb.
    #[arg(long, value_name = "FILE")]
    hlo: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    program: String,
    slice: String,
    topology: String,
    chips: usize,
    slice_devices: usize,
    devices: usize,
    device_kind: String,
    compile_seconds: f64,
    memory: CompiledMemory,
    memory_total: u64,
    memory_limit: Option<u64>,
    instructions: usize,
    collectives: Vec<Collective>,
    hlo: Option<PathBuf>,
}

#[derive(Serialize)]
struct Collective {
    kind: String,
    asynchronous: bool,
    in_loop: bool,
    group_size: Option<usize>,
    count: u64,
    bytes: Option<u64>,
    runs: Option<u64>,
}

/// The plugin that compiles for a platform.
fn compiler(kind: Platform, plugin: Option<PathBuf>) -> Result<&'static Plugin> {
    Device { platform: Some(kind), plugin, ..Device::default() }.load_compiler()
}

/// A compilation target.
enum Machine {
    Tpu(TpuSlice),
    Gpu(GpuTarget),
}

impl Machine {
    fn parse(text: &str) -> Result<Machine> {
        match GpuTarget::parse(text) {
            Ok(target) => Ok(Machine::Gpu(target)),
            Err(error) if GpuTarget::is_named_by(text) => {
                Err(fullshard_pjrt::Error::from(error).into())
            }
            Err(_) => Ok(Machine::Tpu(TpuSlice::parse(text).map_err(fullshard_pjrt::Error::from)?)),
        }
    }

    fn devices(&self) -> usize {
        match self {
            Machine::Tpu(slice) => slice.devices(),
            Machine::Gpu(target) => target.devices(),
        }
    }

    fn chips(&self) -> usize {
        match self {
            Machine::Tpu(slice) => slice.chips(),
            Machine::Gpu(target) => target.devices(),
        }
    }

    fn topology_name(&self) -> String {
        match self {
            Machine::Tpu(slice) => slice.topology_name(),
            Machine::Gpu(target) => target.to_string(),
        }
    }

    fn topology(&self, plugin: Option<PathBuf>) -> Result<Topology> {
        match self {
            Machine::Tpu(slice) => {
                let plugin = compiler(Platform::Tpu, plugin)?;
                Ok(Topology::tpu(plugin, slice)?)
            }
            Machine::Gpu(target) => {
                let plugin = compiler(Platform::Cuda, plugin)?;
                Ok(Topology::gpu(plugin, target)?)
            }
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Machine::Tpu(slice) => slice.fmt(f),
            Machine::Gpu(target) => target.fmt(f),
        }
    }
}

pub fn run(args: &CompileArgs) -> Result<()> {
    let slice = Machine::parse(&args.topology)?;
    if let Some(path) = &args.hlo {
        check_folder("hlo", path)?;
    }
    let (text, options) = args.program.read()?;
    if options.partitions() > slice.devices() {
        return Err(Error::Usage(format!(
            "the program is for {} devices but {slice} has {}",
            options.partitions(),
            slice.devices()
        )));
    }
    let topology = slice.topology(args.plugin.clone())?;
    let start = Instant::now();
    let executable = topology.compile(&text, &options)?;
    let compile_seconds = start.elapsed().as_secs_f64();
    let optimized = executable.optimized_program()?;
    let module = optimized.module()?;
    if let Some(path) = &args.hlo {
        write_hlo(path, &optimized, &module)?;
    }
    let report = Report {
        compile_seconds,
        devices: options.partitions(),
        hlo: args.hlo.clone(),
        ..describe(&slice, &topology, &executable, &module)?
    };
    if args.json {
        return print_json(&report);
    }
    print(&report);
    Ok(())
}

fn describe(
    slice: &Machine,
    topology: &Topology,
    executable: &Executable,
    module: &hlo::Module,
) -> Result<Report> {
    let device = topology.devices().first();
    let memory = executable.memory()?;
    Ok(Report {
        program: executable.name()?,
        slice: slice.to_string(),
        topology: slice.topology_name(),
        chips: slice.chips(),
        slice_devices: slice.devices(),
        devices: 0,
        device_kind: device.map(|device| device.kind.clone()).unwrap_or_default(),
        compile_seconds: 0.0,
        memory_total: memory.total(),
        memory,
        memory_limit: topology.memory_limit(),
        instructions: module.instructions().count(),
        collectives: hlo::collectives(module).into_iter().map(Collective::from).collect(),
        hlo: None,
    })
}

impl From<CollectiveSummary> for Collective {
    fn from(summary: CollectiveSummary) -> Collective {
        Collective {
            kind: summary.kind.to_string(),
            asynchronous: summary.asynchronous,
            in_loop: summary.in_loop,
            group_size: summary.group_size,
            count: summary.count,
            bytes: summary.bytes,
            runs: summary.runs,
        }
    }
}

fn write_hlo(path: &Path, optimized: &OptimizedProgram, module: &hlo::Module) -> Result<()> {
    let raw = path.extension().is_some_and(|extension| extension == "pb");
    let bytes = if raw { optimized.code.clone() } else { module.to_string().into_bytes() };
    fs::write(path, bytes).map_err(|error| Error::file(path, error))
}

fn print(report: &Report) {
    show!(
        "{} compiled for {} of {} ({}, {}, {}) in {}",
        report.program,
        format::count(report.devices, "device"),
        report.slice,
        report.topology,
        format::count(report.chips, "chip"),
        report.device_kind,
        format::seconds(report.compile_seconds)
    );
    let memory = &report.memory;
    let limit = match report.memory_limit {
        Some(limit) if report.memory_total > limit => {
            format!(" of {}: does not fit", format::bytes(limit))
        }
        Some(limit) => format!(" of {}", format::bytes(limit)),
        None => String::new(),
    };
    show!("memory per device    {}{limit}", format::bytes(report.memory_total));
    for (what, bytes) in [
        ("arguments", memory.arguments),
        ("results", memory.outputs),
        ("donated", memory.aliased),
        ("temporaries", memory.temporaries),
        ("code", memory.code),
    ] {
        show!("  {what:<18} {}", format::bytes(bytes));
    }
    print_collectives(&report.collectives);
    show!("{} instructions", report.instructions);
    if let Some(path) = &report.hlo {
        show!("optimized program written to {}", path.display());
    }
}

fn print_collectives(collectives: &[Collective]) {
    if collectives.is_empty() {
        show!("no collectives");
        return;
    }
    show!("collectives          count         each  group");
    for collective in collectives {
        let how = if collective.asynchronous { ", asynchronous" } else { "" };
        let place = match (collective.in_loop, collective.runs) {
            (true, Some(runs)) => format!(", in a loop of {runs}"),
            (true, None) => ", in a loop of unknown length".into(),
            (false, _) => String::new(),
        };
        show!(
            "  {:<18} {:>5} {:>12} {:>6}{how}{place}",
            collective.kind,
            collective.count,
            collective.bytes.map_or("?".into(), format::bytes),
            collective.group_size.map_or("all".into(), |size| size.to_string()),
        );
    }
}
