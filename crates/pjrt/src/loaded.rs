//! Loaded executables: programs ready to run on a client's devices, and running them.

use crate::buffer::Buffer;
use crate::client::{Client, ClientHandle};
use crate::compile::{CompileOptions, raw_program};
use crate::error::{Error, Result};
use crate::event::OwnedEvent;
use crate::executable::{CompiledMemory, Executable};
use crate::hlo;
use crate::sharding::Sharding;
use crate::sys::{self, args};
use crate::tensor_type::TensorType;
use crate::value;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock};

/// A compiled program on the devices that run it.
pub struct LoadedExecutable {
    client: Arc<ClientHandle>,
    raw: *mut sys::LoadedExecutable,
    executable: Executable,
    name: String,
    signature: Signature,
    devices: Vec<usize>,
    memory: CompiledMemory,
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for LoadedExecutable {}
// SAFETY: as above.
unsafe impl Sync for LoadedExecutable {}

/// What a program takes and gives on each device.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// What it takes.
    pub parameters: Vec<TensorType>,
    /// What it gives.
    pub results: Vec<Arc<TensorType>>,
    /// The parameters whose buffers it may take over, in order.
    pub donated: Vec<usize>,
    /// How each parameter is a part of a logical tensor, where the program says so.
    pub parameter_shardings: Vec<Option<Sharding>>,
    /// How each result is a part of a logical tensor, where the program says so.
    pub result_shardings: Vec<Option<Sharding>>,
}

impl Signature {
    fn from_hlo(program: &str, signature: &hlo::Signature, devices: usize) -> Result<Signature> {
        let types = |shapes: &[hlo::Shape], what: &str| -> Result<Vec<TensorType>> {
            let named = |i| format!("{what} {i} of `{program}`");
            shapes.iter().enumerate().map(|(i, s)| TensorType::from_hlo(s, &named(i))).collect()
        };
        let shardings = |types: &[TensorType], noted: &[Option<hlo::OpSharding>]| {
            let typed = types.iter().zip(noted);
            let read = |ty: &TensorType, noted: &hlo::OpSharding| {
                Sharding::from_hlo(noted, ty.dims.len(), devices).ok()
            };
            typed.map(|(ty, noted)| noted.as_ref().and_then(|noted| read(ty, noted))).collect()
        };
        let parameters = types(&signature.parameters, "argument")?;
        let results = types(&signature.results, "result")?;
        Ok(Signature {
            donated: signature.donated.clone(),
            parameter_shardings: shardings(&parameters, &signature.parameter_shardings),
            result_shardings: shardings(&results, &signature.result_shardings),
            parameters,
            results: results.into_iter().map(Arc::new).collect(),
        })
    }
}

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
            LoadedExecutable::from_raw(&self.handle, call.executable)
        }
    }

    /// Loads a program that [`Executable::serialize`] wrote with the same plugin.
    pub fn load(&self, serialized: &[u8]) -> Result<LoadedExecutable> {
        let mut call = args::<sys::ExecutableDeserializeAndLoad>();
        call.client = self.handle.raw;
        call.serialized_executable = serialized.as_ptr().cast();
        call.serialized_executable_size = serialized.len();
        // SAFETY: the client is live, and the bytes outlive the call.
        unsafe {
            self.handle.plugin.call(&mut call)?;
            LoadedExecutable::from_raw(&self.handle, call.loaded_executable)
        }
    }

    /// The options with a device for every partition.
    pub(crate) fn complete_options(&self, options: &CompileOptions) -> Result<CompileOptions> {
        let mut options = options.clone();
        let ids: Vec<i32> = self.devices().iter().map(|device| device.description().id).collect();
        options.assign_devices(&ids)?;
        Ok(options)
    }
}

impl LoadedExecutable {
    /// Takes ownership of a loaded executable of the plugin.
    ///
    /// # Safety
    /// `raw` is a live loaded executable of that client which nobody else destroys.
    unsafe fn from_raw(
        client: &Arc<ClientHandle>,
        raw: *mut sys::LoadedExecutable,
    ) -> Result<LoadedExecutable> {
        let guard = RawLoaded { client, raw };
        let mut call = sys::LoadedExecutableGetExecutable { loaded_executable: raw, ..args() };
        // SAFETY: the executable is live, and what it gives is ours.
        let executable = unsafe {
            client.plugin.call(&mut call)?;
            Executable::from_raw(client.plugin, call.executable)
        };
        let name = executable.name()?;
        let signature = executable.optimized_program()?.signature()?;
        let devices = guard.list_devices()?;
        let loaded = LoadedExecutable {
            client: client.clone(),
            raw,
            signature: Signature::from_hlo(&name, &signature, devices.len())?,
            name,
            devices,
            // A plugin that cannot tell is not asked to refuse what is too large.
            memory: executable.memory().unwrap_or_default(),
            executable,
        };
        std::mem::forget(guard);
        Ok(loaded)
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the compiler says of the program.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    /// What it takes and gives on each device.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The devices it runs on, by their index in the client, in the order of its partitions.
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }

    /// Runs the program: `arguments[d][a]` is argument `a` on the `d`th of its devices, and so
    /// are the results. It returns when the launch is under way; the results wait by themselves.
    ///
    /// Arguments that the program donates hold nothing afterwards.
    pub fn execute<'a, List: AsRef<[&'a Buffer]>>(
        &self,
        arguments: &[List],
    ) -> Result<Vec<Vec<Buffer>>> {
        self.execute_keeping(arguments, &[])
    }

    /// Runs the program as [`LoadedExecutable::execute`] does, but keeps the arguments at `kept`
    /// even if the program would take them over.
    pub fn execute_keeping<'a, List: AsRef<[&'a Buffer]>>(
        &self,
        arguments: &[List],
        kept: &[i64],
    ) -> Result<Vec<Vec<Buffer>>> {
        self.check_memory()?;
        let inputs = self.check_arguments(arguments)?;
        let inputs: Vec<*const *mut sys::Buffer> =
            inputs.iter().map(|list| list.as_ptr()).collect();
        let width = self.signature.results.len();
        // One list a device, each its own part of one allocation.
        let mut outputs: Vec<*mut sys::Buffer> = vec![ptr::null_mut(); width * inputs.len()];
        let start = outputs.as_mut_ptr();
        let output_lists: Vec<*mut *mut sys::Buffer> =
            (0..inputs.len()).map(|device| start.wrapping_add(device * width)).collect();
        let mut options = sys::ExecuteOptions::new();
        options.launch_id = next_launch_id();
        options.non_donatable_input_indices = kept.as_ptr();
        options.num_non_donatable_input_indices = kept.len();
        let mut call = args::<sys::LoadedExecutableExecute>();
        call.executable = self.raw;
        call.options = &raw mut options;
        call.argument_lists = inputs.as_ptr();
        call.num_devices = inputs.len();
        call.num_args = self.signature.parameters.len();
        call.output_lists = output_lists.as_ptr();
        let mut done: Vec<*mut sys::Event> = vec![ptr::null_mut(); inputs.len()];
        if self.is_on_cpu() {
            call.device_complete_events = done.as_mut_ptr();
            self.client.in_flight.make_room();
        }
        // SAFETY: executable and arguments are live and match the program (checked above), and
        // every list has the length the program needs.
        let result = unsafe { self.client.plugin.call(&mut call) };
        self.note_donations(arguments);
        result?;
        if self.is_on_cpu() {
            // SAFETY: the launch succeeded, so these are live events of ours, and the client
            // that keeps them lets them go first.
            let own = |raw| unsafe { OwnedEvent::from_raw(self.client.plugin, raw) };
            self.client.in_flight.add(done.into_iter().map(own).collect());
        }
        Ok((0..inputs.len())
            .map(|d| self.take_outputs(d, &outputs[d * width..][..width]))
            .collect())
    }

    fn take_outputs(&self, device: usize, outputs: &[*mut sys::Buffer]) -> Vec<Buffer> {
        let typed = outputs.iter().zip(&self.signature.results);
        let device = self.devices[device];
        typed
            // SAFETY: the launch succeeded, so each slot holds a live buffer of ours.
            .map(|(&raw, ty)| unsafe { Buffer::from_raw(&self.client, raw, ty.clone(), device) })
            .collect()
    }

    /// Checks every argument against the program, which plugins do by size alone if at all.
    fn check_arguments<'a, List: AsRef<[&'a Buffer]>>(
        &self,
        arguments: &[List],
    ) -> Result<Vec<Vec<*mut sys::Buffer>>> {
        let program = || self.name.clone();
        if arguments.len() != self.devices.len() {
            let (expected, found) = (self.devices.len(), arguments.len());
            return Err(Error::DeviceCount { program: program(), expected, found });
        }
        let check_device = |(device, list): (usize, &List)| {
            let list = list.as_ref();
            let (expected, found) = (self.signature.parameters.len(), list.len());
            if expected != found {
                return Err(Error::ArgumentCount { program: program(), device, expected, found });
            }
            list.iter()
                .enumerate()
                .map(|(i, buffer)| self.check_argument(device, i, buffer))
                .collect()
        };
        arguments.iter().enumerate().map(check_device).collect()
    }

    fn check_argument(
        &self,
        device: usize,
        argument: usize,
        buffer: &Buffer,
    ) -> Result<*mut sys::Buffer> {
        let program = || self.name.clone();
        if !buffer.is_of(&self.client) {
            return Err(Error::ForeignBuffer { program: program(), argument });
        }
        let parameter = &self.signature.parameters[argument];
        if buffer.ty() != parameter {
            let (expected, found) = (parameter.to_string(), buffer.ty().to_string());
            return Err(Error::ArgumentShape {
                program: program(),
                argument,
                device,
                expected,
                found,
            });
        }
        let (expected, found) = (self.devices[device], buffer.device());
        if expected != found {
            return Err(Error::ArgumentDevice { program: program(), argument, expected, found });
        }
        buffer.live_raw().map_err(|_| Error::Donated {
            what: format!("argument {argument} of `{}` (device {device})", self.name),
        })
    }

    fn note_donations<'a, List: AsRef<[&'a Buffer]>>(&self, arguments: &[List]) {
        for list in arguments {
            for &donated in &self.signature.donated {
                list.as_ref()[donated].note_donation();
            }
        }
    }

    fn is_on_cpu(&self) -> bool {
        self.client.platform == "cpu"
    }

    /// Refuses what the host cannot hold: virtual devices share its memory, and the system
    /// would sooner kill the process than say no.
    fn check_memory(&self) -> Result<()> {
        if !self.is_on_cpu() {
            return Ok(());
        }
        let each = self.memory.outputs.saturating_sub(self.memory.aliased);
        let each = each.saturating_add(self.memory.temporaries);
        let needed = each.saturating_mul(self.devices.len() as u64);
        match *HOST_MEMORY {
            Some(available) if needed > available => {
                Err(Error::TooLarge { program: self.name.clone(), needed, available })
            }
            _ => Ok(()),
        }
    }
}

impl Drop for LoadedExecutable {
    fn drop(&mut self) {
        drop(RawLoaded { client: &self.client, raw: self.raw });
    }
}

impl std::fmt::Debug for LoadedExecutable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadedExecutable({} on {:?})", self.name, self.devices)
    }
}

/// Destroys a loaded executable of the plugin when dropped.
struct RawLoaded<'a> {
    client: &'a Arc<ClientHandle>,
    raw: *mut sys::LoadedExecutable,
}

impl RawLoaded<'_> {
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

impl Drop for RawLoaded<'_> {
    fn drop(&mut self) {
        let mut call = sys::LoadedExecutableDestroy { executable: self.raw, ..args() };
        // SAFETY: the executable is ours and is not used again. Nothing can be done about a
        // failure.
        let _ = unsafe { self.client.plugin.call(&mut call) };
    }
}

/// A number that is not zero and differs from launch to launch, so that hosts which launch in
/// different orders are found out.
fn next_launch_id() -> i32 {
    static LAUNCHES: AtomicI32 = AtomicI32::new(0);
    (LAUNCHES.fetch_add(1, Ordering::Relaxed) & i32::MAX).max(1)
}

/// The bytes of memory the host has.
static HOST_MEMORY: LazyLock<Option<u64>> = LazyLock::new(|| {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
});
