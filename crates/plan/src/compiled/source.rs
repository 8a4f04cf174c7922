//! What a compiler makes of a step program, kept so that the same is not compiled twice.

use crate::error::Error;
use crate::machine::Machine;
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
    /// Whether it was kept from before.
    pub cached: bool,
    /// The compiler, with its version.
    pub compiler: String,
    /// The bytes of a device that a program may use, where the compiler says.
    pub limit: Option<u64>,
}

/// Compiles programs for machines that need not be here.
pub struct AheadCompiler {
    /// The compiler.
    pub plugin: &'static Plugin,
    /// How.
    pub options: CompileOptions,
    /// Where what it makes is kept, if anywhere.
    pub folder: Option<PathBuf>,
}

/// What is kept of a compile, before the program itself.
#[derive(Serialize, Deserialize)]
struct Kept {
    memory: CompiledMemory,
    seconds: f64,
    limit: Option<u64>,
    format: String,
}

impl AheadCompiler {
    /// What the compiler makes of a program for a machine.
    pub fn compile(&self, text: &str, machine: &Machine) -> Result<Made, Error> {
        let path = match &self.folder {
            Some(folder) => {
                let key = compile_key(self.plugin, text, &self.options, &machine.name)?;
                Some(folder.join(format!("{key}.plan")))
            }
            None => None,
        };
        if let Some(made) = path.as_deref().and_then(|path| self.read(path, text)) {
            return Ok(made);
        }
        let start = Instant::now();
        let (kept, program) = self.anew(text, machine, start)?;
        if let Some(path) = &path
            && let Err(error) = write(path, &kept, &program.code)
        {
            tracing::warn!(path = %path.display(), %error, "the compiled program was not kept");
        }
        self.made(text, kept, program.module()?, false)
    }

    fn anew(
        &self,
        text: &str,
        machine: &Machine,
        start: Instant,
    ) -> Result<(Kept, OptimizedProgram), Error> {
        let kept = |executable: &Executable, limit| -> Result<_, Error> {
            let seconds = start.elapsed().as_secs_f64();
            let program = executable.optimized_program()?;
            let (memory, format) = (executable.memory()?, program.format.clone());
            Ok((Kept { memory, seconds, limit, format }, program))
        };
        match machine.kind {
            Platform::Tpu => {
                let topology = Topology::tpu(
                    self.plugin,
                    &TpuSlice::parse(&machine.name).map_err(fullshard_pjrt::Error::from)?,
                )?;
                self.ahead(text, &topology, kept)
            }
            Platform::Cuda => {
                let topology = Topology::gpu(
                    self.plugin,
                    &GpuTarget::parse(&machine.name).map_err(fullshard_pjrt::Error::from)?,
                )?;
                self.ahead(text, &topology, kept)
            }
            Platform::Cpu => {
                let count = ClientOptions::new().cpu_device_count(machine.devices);
                let client = Client::new(self.plugin, &count)?;
                let loaded = client.compile(text, &self.options).map_err(Error::of_compiler)?;
                kept(loaded.executable(), None)
            }
        }
    }

    /// Compiles ahead of time.
    fn ahead<T>(
        &self,
        text: &str,
        topology: &Topology,
        kept: impl FnOnce(&Executable, Option<u64>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let executable = topology.compile(text, &self.options).map_err(Error::of_compiler)?;
        kept(&executable, topology.memory_limit())
    }

    /// What was kept; none if there is nothing or it cannot be read.
    fn read(&self, path: &Path, text: &str) -> Option<Made> {
        let bytes = fs::read(path).ok()?;
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        let kept: Kept = serde_json::from_slice(&bytes[..end]).ok()?;
        let module = Module::decode(&kept.format, &bytes[end + 1..]).ok()?;
        self.made(text, kept, module, true).ok()
    }

    fn made(&self, text: &str, kept: Kept, module: Module, cached: bool) -> Result<Made, Error> {
        let Kept { memory, seconds, limit, .. } = kept;
        let (program, compiler) = (program_hash(text), name(self.plugin));
        Ok(Made { program, memory, module, seconds, cached, compiler, limit })
    }
}

/// A line of JSON, then the program, under its name only when all of it is there.
fn write(path: &Path, kept: &Kept, code: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(&mut file, kept)?;
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
