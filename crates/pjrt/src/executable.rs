//! Executables: compiled programs, their memory and cost analysis.

use crate::client::ClientHandle;
use crate::error::{Error, Result};
use crate::hlo;
use crate::order;
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
    owner: Owner,
}

/// The creator of an executable, which must outlive it.
pub(crate) enum Owner {
    Client(Arc<ClientHandle>),
    Topology(#[allow(dead_code)] Arc<TopologyHandle>),
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

/// The memory of a compiled program per device, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CompiledMemory {
    /// The arguments.
    pub arguments: u64,
    /// The results.
    pub outputs: u64,
    /// Results that alias donated arguments.
    pub aliased: u64,
    /// Temporary buffers.
    pub temporaries: u64,
    /// The generated code.
    pub code: u64,
    /// Arguments, results and temporaries in host memory.
    pub host: u64,
    /// Peak live memory, where the compiler reports it.
    pub peak: Option<u64>,
}

impl CompiledMemory {
    /// The device memory needed to run the program.
    pub fn total(&self) -> u64 {
        let parts = [self.arguments, self.outputs, self.temporaries];
        parts.into_iter().fold(0_u64, u64::saturating_add).saturating_sub(self.aliased)
    }
}

/// An optimized program as the plugin returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptimizedProgram {
    /// The format's name, such as `hlo_with_config`.
    pub format: String,
    /// The program.
    pub code: Vec<u8>,
}

impl OptimizedProgram {
    /// Decodes the program.
    pub fn module(&self) -> Result<hlo::Module> {
        Ok(hlo::Module::decode(&self.format, &self.code)?)
    }

    /// Decodes only the program's parameters and results.
    pub fn signature(&self) -> Result<hlo::Signature> {
        Ok(hlo::Signature::decode(&self.format, &self.code)?)
    }
}

impl Executable {
    /// Takes ownership of an executable of the plugin.
    ///
    /// # Safety
    /// `raw` is a live executable of `plugin`, created by `owner`, that nothing else destroys.
    pub(crate) unsafe fn from_raw(
        plugin: &'static Plugin,
        raw: *mut sys::Executable,
        owner: Owner,
    ) -> Executable {
        Executable { plugin, raw, owner }
    }

    /// The program's name.
    pub fn name(&self) -> Result<String> {
        let mut call = sys::ExecutableName { executable: self.raw, ..args() };
        self.call(&mut call)?;
        // SAFETY: the call succeeded, so it filled both fields.
        Ok(unsafe { value::text(call.text, call.text_size) })
    }

    /// Number of results per device.
    pub fn num_outputs(&self) -> Result<usize> {
        let mut call = sys::ExecutableNumOutputs { executable: self.raw, ..args() };
        self.call(&mut call)?;
        Ok(call.num_outputs)
    }

    /// Number of devices it runs on, over all processes.
    pub(crate) fn num_partitions(&self) -> Result<usize> {
        let mut call = sys::ExecutableNumPartitions { executable: self.raw, ..args() };
        self.call(&mut call)?;
        Ok(call.num_partitions)
    }

    /// Its memory per device.
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
            // The field was added in 0.72; before, and where not filled, it stays zero.
            peak: Some(bytes(call.peak_memory)).filter(|&peak| peak > 0),
        })
    }

    /// The compiler's cost analysis. Loop bodies count once.
    pub fn cost_analysis(&self) -> Result<NamedValues> {
        let mut call = sys::ExecutableGetCostAnalysis { executable: self.raw, ..args() };
        self.call(&mut call)?;
        // SAFETY: the call succeeded, so it filled both fields.
        Ok(unsafe { value::from_raw(call.properties, call.num_properties) })
    }

    /// The optimized program.
    pub fn optimized_program(&self) -> Result<OptimizedProgram> {
        // SAFETY: integers and raw pointers, for which zero is valid.
        let mut program: sys::Program = unsafe { std::mem::zeroed() };
        program.struct_size = size_of::<sys::Program>();
        let mut call = args::<sys::ExecutableOptimizedProgram>();
        call.executable = self.raw;
        call.program = &raw mut program;
        // The first call returns the size, the second fills the buffer.
        self.call(&mut call)?;
        let mut code = vec![0_u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        self.call(&mut call)?;
        code.truncate(program.code_size);
        // SAFETY: the calls succeeded, and the format's name lives in the plugin.
        let format = unsafe { value::text(program.format, program.format_size) };
        Ok(OptimizedProgram { format, code })
    }

    /// Serializes the compiled program for [`crate::Client::load`] of the same plugin.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let mut call = sys::ExecutableSerialize { executable: self.raw, ..args() };
        self.call(&mut call)?;
        // SAFETY: the call succeeded, so the bytes live until the deleter runs, once.
        let bytes = unsafe {
            let bytes = value::slice(call.bytes.cast::<u8>(), call.bytes_size).to_vec();
            if let Some(deleter) = call.deleter {
                deleter(call.backing);
            }
            bytes
        };
        if !self.loses_order()? {
            return Ok(seal(&bytes));
        }
        let unknown = || Error::UnknownForm { plugin: self.plugin.name() };
        order::restore(&bytes).map(|bytes| seal(&bytes)).ok_or_else(unknown)
    }

    /// Whether its collectives lose their order in serialized form.
    fn loses_order(&self) -> Result<bool> {
        let on_cpu = matches!(&self.owner, Owner::Client(client) if client.is_cpu());
        Ok(on_cpu && !hlo::collectives(&self.optimized_program()?.module()?).is_empty())
    }

    /// Calls a function whose only pointer is this executable or something as live.
    fn call<A: Args>(&self, call: &mut A) -> Result<()> {
        // SAFETY: the executable is live, and the only other pointers in the arguments are to
        // locals of the callers above that outlive the call.
        unsafe { self.plugin.call(call) }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let mut call = sys::ExecutableDestroy { executable: self.raw, ..args() };
        // A failure is ignored.
        let _ = self.call(&mut call);
    }
}
