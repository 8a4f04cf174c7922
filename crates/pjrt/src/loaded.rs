//! Loaded executables: programs on the devices that run them.

use crate::array::ArrayType;
use crate::client::{Client, ClientHandle};
use crate::compile::{CompileOptions, Flag, raw_program};
use crate::error::{Error, Result};
use crate::executable::{CompiledMemory, Executable, Owner};
use crate::seal::unseal;
use crate::signature::{DeviceLayout, Signature};
use crate::sys::{self, Args, args};
use crate::value;
use std::sync::Arc;

/// A compiled program on the devices that run it.
pub struct LoadedExecutable {
    pub(crate) handle: LoadedHandle,
    executable: Executable,
    name: String,
    signature: Signature,
    pub(crate) parameters: Vec<Arc<DeviceLayout>>,
    pub(crate) results: Vec<Arc<DeviceLayout>>,
    devices: Vec<usize>,
    /// The number of devices over all processes.
    pub(crate) partitions: usize,
    /// The types of arguments and results over all processes, where the program does not have
    /// them.
    pub(crate) across: Option<[Vec<ArrayType>; 2]>,
    pub(crate) memory: CompiledMemory,
}

/// A loaded executable of the plugin, destroyed when dropped.
pub(crate) struct LoadedHandle {
    pub(crate) client: Arc<ClientHandle>,
    pub(crate) raw: *mut sys::LoadedExecutable,
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for LoadedHandle {}
// SAFETY: as above.
unsafe impl Sync for LoadedHandle {}

impl Client {
    /// Compiles StableHLO text for devices of this client.
    pub fn compile(&self, text: &str, options: &CompileOptions) -> Result<LoadedExecutable> {
        let encoded = self.complete_options(options)?.encode();
        let program = raw_program(text);
        let mut call = args::<sys::ClientCompile>();
        call.client = self.handle.raw;
        call.program = &raw const program;
        call.compile_options = encoded.as_ptr().cast();
        call.compile_options_size = encoded.len();
        // SAFETY: the client is live, and program and options outlive the call.
        unsafe {
            self.handle.plugin.call(&mut call)?;
            LoadedExecutable::from_raw(&self.handle, call.executable, sys::ClientCompile::NAME)
        }
    }

    /// Loads a program serialized by [`Executable::serialize`] with the same plugin and device
    /// kind. The bytes contain machine code: load only what you would run.
    pub fn load(&self, serialized: &[u8]) -> Result<LoadedExecutable> {
        let payload = unseal(serialized).ok_or(Error::DamagedProgram)?;
        let mut call = args::<sys::ExecutableDeserializeAndLoad>();
        call.client = self.handle.raw;
        call.serialized_executable = payload.as_ptr().cast();
        call.serialized_executable_size = payload.len();
        // SAFETY: the client is live, and the bytes, whose digest matches, outlive the call.
        unsafe {
            self.handle.plugin.call(&mut call)?;
            let name = sys::ExecutableDeserializeAndLoad::NAME;
            LoadedExecutable::from_raw(&self.handle, call.loaded_executable, name)
        }
    }

    /// The options with a device assigned to every partition.
    pub(crate) fn complete_options(&self, options: &CompileOptions) -> Result<CompileOptions> {
        let mut options = options.clone();
        let ids: Vec<i32> = self.devices().iter().map(|device| device.description().id).collect();
        if !self.handle.spans_processes() {
            options.assign_devices(&ids)?;
            return Ok(options);
        }
        let all: Vec<i32> = self.global_devices().iter().map(|device| device.id).collect();
        options.assign_job_devices(&all, &ids)?;
        if self.platform_name() == "cuda" {
            // By default processes share the work of autotuning, and wait for those that load the
            // program instead of compiling it.
            options.default_flag("xla_gpu_shard_autotuning", &Flag::Bool(false));
        }
        Ok(options)
    }
}

impl LoadedExecutable {
    /// Takes ownership of what `function` of the plugin returned.
    ///
    /// # Safety
    /// `raw` is null or a live loaded executable of that client that nothing else destroys.
    unsafe fn from_raw(
        client: &Arc<ClientHandle>,
        raw: *mut sys::LoadedExecutable,
        function: &'static str,
    ) -> Result<LoadedExecutable> {
        let raw = client.plugin.check_made(raw, function)?;
        let handle = LoadedHandle { client: client.clone(), raw };
        let executable = handle.executable()?;
        let name = executable.name()?;
        let devices = handle.list_devices()?;
        let interface = executable.optimized_program()?.signature()?;
        let partitions = match client.spans_processes() {
            true => executable.num_partitions()?,
            false => devices.len(),
        };
        if devices.is_empty() {
            let problem = format!("`{name}` runs on no device of this process");
            return Err(Error::CompileOption(problem));
        }
        let signature = Signature::from_hlo(&name, &interface, partitions)?;
        check_outputs(&executable, &name, signature.results.len())?;
        Ok(LoadedExecutable {
            parameters: DeviceLayout::from_hlo(&signature.parameters, &interface.parameters),
            results: DeviceLayout::from_hlo(&signature.results, &interface.results),
            signature,
            name,
            devices,
            partitions,
            across: None,
            // Without stats the memory check is skipped.
            memory: executable.memory().unwrap_or_default(),
            executable,
            handle,
        })
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The compiled program with its analyses.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    /// Inputs and outputs per device.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The devices of this process that it runs on, by their index in the client, in partition
    /// order.
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }
}

/// Checks that the plugin returns as many results as the program states, since it writes them into
/// a list of that length.
fn check_outputs(executable: &Executable, program: &str, stated: usize) -> Result<()> {
    match executable.num_outputs()? {
        outputs if outputs == stated => Ok(()),
        outputs => Err(Error::UnsupportedType {
            what: format!("the result of `{program}`"),
            found: format!("nested: {stated} tensors in {outputs} results"),
        }),
    }
}

impl std::fmt::Debug for LoadedExecutable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadedExecutable({} on {:?})", self.name, self.devices)
    }
}

impl LoadedHandle {
    fn executable(&self) -> Result<Executable> {
        let mut call = sys::LoadedExecutableGetExecutable { loaded_executable: self.raw, ..args() };
        let plugin = self.client.plugin;
        // SAFETY: the loaded executable is live, and we own the returned executable.
        unsafe {
            plugin.call(&mut call)?;
            let raw =
                plugin.check_made(call.executable, sys::LoadedExecutableGetExecutable::NAME)?;
            Ok(Executable::from_raw(plugin, raw, Owner::Client(self.client.clone())))
        }
    }

    fn list_devices(&self) -> Result<Vec<usize>> {
        let mut call = sys::LoadedExecutableAddressableDevices { executable: self.raw, ..args() };
        // SAFETY: the executable is live, and so are its devices.
        let devices = unsafe {
            self.client.plugin.call(&mut call)?;
            value::slice(call.devices, call.num_devices)
        };
        let count = self.client.devices.len();
        devices
            .iter()
            .map(|&raw| {
                self.client.position(raw).ok_or(Error::NoSuchDevice { index: count, count })
            })
            .collect()
    }
}

impl Drop for LoadedHandle {
    fn drop(&mut self) {
        let mut call = sys::LoadedExecutableDestroy { executable: self.raw, ..args() };
        // SAFETY: the executable is ours and is not used again. A failure is ignored.
        let _ = unsafe { self.client.plugin.call(&mut call) };
    }
}
