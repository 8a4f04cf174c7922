//! What a compiler makes of a step program, and keeping it.

use crate::error::Error;
use crate::machine::Machine;
use fullshard_pjrt::hlo::Module;
use fullshard_pjrt::plugins::PluginKind;
use fullshard_pjrt::{
    Client, ClientOptions, CompileOptions, CompiledMemory, Executable, Plugin, Topology, TpuSlice,
};
use fullshard_train::program_hash;
use std::time::Instant;

/// What a compiler made of a program.
pub struct Made {
    /// The SHA-256 of the program's text.
    pub program: String,
    /// What it needs.
    pub memory: CompiledMemory,
    /// What it does.
    pub module: Module,
    /// Seconds that compiling took.
    pub seconds: f64,
    /// The compiler, with its version.
    pub compiler: String,
    /// The bytes of a device that a program may use, where the compiler says.
    pub limit: Option<u64>,
}

/// Compiles a program for a machine that need not be here.
pub fn compile(
    text: &str,
    machine: &Machine,
    plugin: &'static Plugin,
    options: &CompileOptions,
) -> Result<Made, Error> {
    let start = Instant::now();
    let (executable, limit) = match machine.kind {
        PluginKind::Tpu => {
            let slice = TpuSlice::parse(&machine.name)?;
            let topology = Topology::tpu(plugin, &slice)?;
            (topology.compile(text, options)?, topology.memory_limit())
        }
        PluginKind::Cpu | PluginKind::Cuda => {
            let count = ClientOptions::new().cpu_device_count(machine.devices);
            let client = Client::new(plugin, &count)?;
            let loaded = client.compile(text, options)?;
            return made(text, loaded.executable(), start, plugin, None);
        }
    };
    made(text, &executable, start, plugin, limit)
}

fn made(
    text: &str,
    executable: &Executable,
    start: Instant,
    plugin: &Plugin,
    limit: Option<u64>,
) -> Result<Made, Error> {
    let seconds = start.elapsed().as_secs_f64();
    Ok(Made {
        program: program_hash(text),
        memory: executable.memory()?,
        module: executable.optimized_program()?.module()?,
        seconds,
        compiler: compiler_name(plugin),
        limit,
    })
}

fn compiler_name(plugin: &Plugin) -> String {
    let file = plugin.path().file_stem().map(|name| name.to_string_lossy().into_owned());
    let (major, minor) = plugin.api_version();
    format!("{} (PJRT {major}.{minor})", file.unwrap_or_default())
}
