//! Executables: compiled programs and what their compiler says of them.

use crate::client::ClientHandle;
use crate::error::Result;
use crate::hlo;
use crate::plugin::Plugin;
use crate::seal::seal;
use crate::sys::{self, Args, args};
use crate::topology::TopologyHandle;
use crate::value::{self, NamedValues};
use std::sync::Arc;

/// A compiled program, loaded on devices or not.
pub struct Executable {
    plugin: &'static Plugin,
    raw: *mut sys::Executable,
    _owner: Owner,
}

/// What an executable was made by, and must not outlive.
pub(crate) enum Owner {
    Client(#[allow(dead_code)] Arc<ClientHandle>),
    Topology(#[allow(dead_code)] Arc<TopologyHandle>),
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

/// The memory a compiled program takes on each device, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CompiledMemory {
    /// The arguments.
    pub arguments: u64,
    /// The results.
    pub outputs: u64,
    /// The part of the results that lies in donated arguments.
    pub aliased: u64,
    /// What it needs besides while it runs.
    pub temporaries: u64,
    /// The program itself.
    pub code: u64,
    /// Arguments, results and temporaries that lie in the host's memory.
    pub host: u64,
    /// The most that is alive at once, where the compiler says so.
    pub peak: Option<u64>,
}

impl CompiledMemory {
    /// What has to fit into the device for the program to run.
    pub fn total(&self) -> u64 {
        let parts = [self.arguments, self.outputs, self.temporaries];
        parts.into_iter().fold(0_u64, u64::saturating_add).saturating_sub(self.aliased)
    }
}

/// An optimized program as the plugin hands it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptimizedProgram {
    /// The format's name, such as `hlo_with_config`.
    pub format: String,
    /// The program.
    pub code: Vec<u8>,
}

impl OptimizedProgram {
    /// Reads the program into its typed form.
    pub fn module(&self) -> Result<hlo::Module> {
        Ok(hlo::Module::decode(&self.format, &self.code)?)
    }

    /// Reads the program's parameters and results alone.
    pub fn signature(&self) -> Result<hlo::Signature> {
        Ok(hlo::Signature::decode(&self.format, &self.code)?)
    }
}

impl Executable {
    /// Takes ownership of an executable of the plugin.
    ///
    /// # Safety
    /// `raw` is a live executable of `plugin`, made by `owner`, that nobody else destroys.
    pub(crate) unsafe fn from_raw(
        plugin: &'static Plugin,
        raw: *mut sys::Executable,
        owner: Owner,
    ) -> Executable {
        Executable { plugin, raw, _owner: owner }
    }

    /// The program's name.
    pub fn name(&self) -> Result<String> {
        let mut call = sys::ExecutableName { executable: self.raw, ..args() };
        self.call(&mut call)?;
        // SAFETY: the call succeeded, so it filled both fields.
        Ok(unsafe { value::text(call.text, call.text_size) })
    }

    /// How many results each device gives.
    pub fn num_outputs(&self) -> Result<usize> {
        let mut call = sys::ExecutableNumOutputs { executable: self.raw, ..args() };
        self.call(&mut call)?;
        Ok(call.num_outputs)
    }

    /// The memory it takes on each device.
    pub fn memory(&self) -> Result<CompiledMemory> {
        let mut call = sys::ExecutableGetCompiledMemoryStats { executable: self.raw, ..args() };
        self.call(&mut call)?;
        let bytes = |raw: i64| u64::try_from(raw).unwrap_or(0);
        let host = [call.host_argument_size, call.host_output_size, call.host_temp_size];
        let host = host.into_iter().fold(0, i64::saturating_add);
        Ok(CompiledMemory {
            arguments: bytes(call.argument_size),
            outputs: bytes(call.output_size),
            aliased: bytes(call.alias_size),
            temporaries: bytes(call.temp_size),
            code: bytes(call.generated_code_size),
            host: bytes(host.saturating_sub(call.host_alias_size)),
            // The field came with 0.72; before, and where not filled, it stays zero.
            peak: Some(bytes(call.peak_memory)).filter(|&peak| peak > 0),
        })
    }

    /// The compiler's own estimate of the work in it. Loop bodies count once.
    pub fn cost_analysis(&self) -> Result<NamedValues> {
        let mut call = sys::ExecutableGetCostAnalysis { executable: self.raw, ..args() };
        self.call(&mut call)?;
        // SAFETY: the call succeeded, so it filled both fields.
        Ok(unsafe { value::from_raw(call.properties, call.num_properties) })
    }

    /// The program after optimisation.
    pub fn optimized_program(&self) -> Result<OptimizedProgram> {
        // SAFETY: integers and raw pointers, for which zero is valid.
        let mut program: sys::Program = unsafe { std::mem::zeroed() };
        program.struct_size = size_of::<sys::Program>();
        let mut call = args::<sys::ExecutableOptimizedProgram>();
        call.executable = self.raw;
        call.program = &raw mut program;
        // The first call tells the size, the second fills the space.
        self.call(&mut call)?;
        let mut code = vec![0_u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        self.call(&mut call)?;
        code.truncate(program.code_size);
        // SAFETY: the calls succeeded, and the format's name lives in the plugin.
        let format = unsafe { value::text(program.format, program.format_size) };
        Ok(OptimizedProgram { format, code })
    }

    /// The compiled program as bytes that [`crate::Client::load`] of the same plugin takes.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let mut call = sys::ExecutableSerialize { executable: self.raw, ..args() };
        self.call(&mut call)?;
        // SAFETY: the call succeeded, so the bytes live until the deleter runs, once.
        unsafe {
            let bytes = seal(value::slice(call.bytes.cast::<u8>(), call.bytes_size));
            if let Some(deleter) = call.deleter {
                deleter(call.backing);
            }
            Ok(bytes)
        }
    }

    /// Calls a function whose only pointer is this executable or something as live.
    fn call<A: Args>(&self, call: &mut A) -> Result<()> {
        // SAFETY: the executable is live, and the callers above put no other pointer into the
        // arguments than to locals that outlive the call.
        unsafe { self.plugin.call(call) }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let mut call = sys::ExecutableDestroy { executable: self.raw, ..args() };
        // Nothing can be done about a failure.
        let _ = self.call(&mut call);
    }
}
