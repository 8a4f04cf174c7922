//! Ahead-of-time compilation of step programs, with a cache.

use crate::error::Error;
use crate::machine::Machine;
use fullshard_core::cache::temporary_file;
use fullshard_pjrt::hlo::Module;
use fullshard_pjrt::plugins::Platform;
use fullshard_pjrt::{
    Client, ClientOptions, CompileOptions, CompiledMemory, Executable, GpuTarget, OptimizedProgram,
    Plugin, Topology, TpuSlice, compile_key,
};
use fullshard_step::program_hash;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A compiled step program.
pub struct CompiledStep {
    /// The SHA-256 of the program's text.
    pub program: String,
    /// Its memory statistics.
    pub memory: CompiledMemory,
    /// The optimized HLO module.
    pub module: Module,
    /// Compile time in seconds.
    pub seconds: f64,
    /// The bytes of the serialized executable, which processes send one another, if they are known.
    pub serialized: Option<u64>,
    /// Whether it came from the cache.
    pub cached: bool,
    /// The compiler, with its version.
    pub compiler: String,
    /// Bytes available to a program per device, if the compiler reports them.
    pub limit: Option<u64>,
}

/// Compiles programs for machines that need not be attached.
pub struct AheadCompiler {
    /// The plugin with the compiler.
    pub plugin: &'static Plugin,
    /// The compile options.
    pub options: CompileOptions,
    /// The cache folder, if any.
    pub folder: Option<PathBuf>,
}

/// The header of a cache file, before the program.
#[derive(Serialize, Deserialize)]
struct CacheHeader {
    memory: CompiledMemory,
    seconds: f64,
    serialized: Option<u64>,
    limit: Option<u64>,
    format: String,
}

impl AheadCompiler {
    /// Compiles a program for a machine, or reads it from the cache.
    pub fn compile(&self, text: &str, machine: &Machine) -> Result<CompiledStep, Error> {
        let path = match &self.folder {
            Some(folder) => {
                let key = compile_key(self.plugin, text, &self.options, &machine.name)?;
                Some(folder.join(format!("{key}.plan")))
            }
            None => None,
        };
        if let Some(step) = path.as_deref().and_then(|path| self.read(path, text)) {
            return Ok(step);
        }
        let start = Instant::now();
        let (header, program) = self.compile_uncached(text, machine, start)?;
        if let Some(path) = &path
            && let Err(error) = write(path, &header, &program.code)
        {
            tracing::warn!(path = %path.display(), %error, "the compiled program was not cached");
        }
        self.step(text, header, program.module()?, false)
    }

    fn compile_uncached(
        &self,
        text: &str,
        machine: &Machine,
        start: Instant,
    ) -> Result<(CacheHeader, OptimizedProgram), Error> {
        let inspect = |executable: &Executable, limit| -> Result<_, Error> {
            let seconds = start.elapsed().as_secs_f64();
            let program = executable.optimized_program()?;
            let (memory, format) = (executable.memory()?, program.format.clone());
            let serialized = executable.serialize().ok().map(|bytes| bytes.len() as u64);
            Ok((CacheHeader { memory, seconds, serialized, limit, format }, program))
        };
        match machine.kind {
            Platform::Tpu => {
                let topology = Topology::tpu(
                    self.plugin,
                    &TpuSlice::parse(&machine.name).map_err(fullshard_pjrt::Error::from)?,
                )?;
                self.ahead(text, &topology, inspect)
            }
            Platform::Cuda => {
                let topology = Topology::gpu(
                    self.plugin,
                    &GpuTarget::parse(&machine.name).map_err(fullshard_pjrt::Error::from)?,
                )?;
                self.ahead(text, &topology, inspect)
            }
            Platform::Cpu => {
                let count = ClientOptions::new().cpu_device_count(machine.devices);
                let client = Client::new(self.plugin, &count)?;
                let loaded = client.compile(text, &self.options).map_err(Error::from_compiler)?;
                inspect(loaded.executable(), None)
            }
        }
    }

    /// Compiles ahead of time.
    fn ahead<T>(
        &self,
        text: &str,
        topology: &Topology,
        inspect: impl FnOnce(&Executable, Option<u64>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let executable = topology.compile(text, &self.options).map_err(Error::from_compiler)?;
        inspect(&executable, topology.memory_limit())
    }

    /// Reads a cached program; `None` if it is missing or unreadable.
    fn read(&self, path: &Path, text: &str) -> Option<CompiledStep> {
        let bytes = fs::read(path).ok()?;
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        let header: CacheHeader = serde_json::from_slice(&bytes[..end]).ok()?;
        let module = Module::decode(&header.format, &bytes[end + 1..]).ok()?;
        self.step(text, header, module, true).ok()
    }

    fn step(
        &self,
        text: &str,
        header: CacheHeader,
        module: Module,
        cached: bool,
    ) -> Result<CompiledStep, Error> {
        let CacheHeader { memory, seconds, serialized, limit, .. } = header;
        let (program, compiler) = (program_hash(text), name(self.plugin));
        Ok(CompiledStep { program, memory, module, seconds, serialized, cached, compiler, limit })
    }
}

/// Writes a line of JSON and the program, atomically.
fn write(path: &Path, header: &CacheHeader, code: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = temporary_file(folder)?;
    serde_json::to_writer(&mut file, header)?;
    file.write_all(b"\n")?;
    file.write_all(code)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn name(plugin: &Plugin) -> String {
    let file = plugin.path().file_stem().map(|name| name.to_string_lossy().into_owned());
    let (major, minor) = plugin.api_version();
    format!("{} (PJRT {major}.{minor})", file.unwrap_or_default())
}
