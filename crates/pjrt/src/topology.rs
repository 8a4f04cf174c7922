//! Topologies: ahead-of-time compilation for machines that are not present.

use crate::compile::{CompileOptions, Flag, raw_program};
use crate::device::DeviceDescription;
use crate::error::Result;
use crate::executable::{Executable, Owner};
use crate::gpu_target;
use crate::plugin::Plugin;
use crate::sys::{self, Args, args};
use crate::value::{self, NamedValues, Value};
use fullshard_core::{GpuTarget, TpuSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A description of a machine to compile for.
pub struct Topology {
    handle: Arc<TopologyHandle>,
    devices: Vec<DeviceDescription>,
    /// Compiler flags for every program.
    flags: Vec<(&'static str, Flag)>,
}

/// Shared by a topology and the programs compiled for it.
pub(crate) struct TopologyHandle {
    plugin: &'static Plugin,
    raw: *mut sys::Topology,
}

// SAFETY: PJRT topologies may be used from any thread.
unsafe impl Send for TopologyHandle {}
// SAFETY: as above.
unsafe impl Sync for TopologyHandle {}

impl Topology {
    /// The topology that the plugin calls `name`, with its options.
    pub fn new(plugin: &'static Plugin, name: &str, options: &NamedValues) -> Result<Topology> {
        let values = value::to_raw(options);
        let mut call = args::<sys::TopologyCreate>();
        call.topology_name = name.as_ptr().cast();
        call.topology_name_size = name.len();
        call.create_options = values.as_ptr();
        call.num_options = values.len();
        // SAFETY: name and options outlive the call.
        unsafe { plugin.call(&mut call) }?;
        let raw = plugin.check_made(call.topology, sys::TopologyCreate::NAME)?;
        let handle = TopologyHandle { plugin, raw };
        Ok(Topology {
            devices: handle.list_devices()?,
            handle: Arc::new(handle),
            flags: Vec::new(),
        })
    }

    /// Slices of TPU pods, described by libtpu.
    pub fn tpu(plugin: &'static Plugin, slice: &TpuSlice) -> Result<Topology> {
        let cores = if slice.generation().megacore { "megacore" } else { "default" };
        let ints = |values: &[usize]| Value::Ints(values.iter().map(|&v| v as i64).collect());
        let options = vec![
            ("chips_per_host_bounds".to_owned(), ints(&slice.chips_per_host())),
            ("wrap".to_owned(), ints(&slice.wrap().map(usize::from))),
            ("chip_config_name".to_owned(), Value::Text(cores.to_owned())),
            ("num_slices".to_owned(), Value::Int(slice.slices() as i64)),
        ];
        Topology::new(plugin, &slice.topology_name(), &options)
    }

    /// GPUs of one or several nodes, described to the CUDA plugin.
    pub fn gpu(plugin: &'static Plugin, target: &GpuTarget) -> Result<Topology> {
        let options = vec![
            ("target_config".to_owned(), Value::Text(gpu_target::description(target))),
            ("topology".to_owned(), Value::Text(gpu_target::arrangement(target))),
        ];
        let mut topology = Topology::new(plugin, &target.to_string(), &options)?;
        if let Some(folder) = cuda_tools(plugin.path()) {
            let folder = Flag::Text(folder.to_string_lossy().into_owned());
            topology.flags.push(("xla_gpu_cuda_data_dir", folder));
        }
        // Kernels of its own for small collectives need one node's links, and for 64 devices of
        // eight nodes the compiler ends the process over them.
        if target.nodes() > 1 {
            let none = Flag::Text(String::new());
            topology.flags.push(("xla_gpu_experimental_use_collective_kernels", none));
        }
        Ok(topology)
    }

    /// The devices of the machine.
    pub fn devices(&self) -> &[DeviceDescription] {
        &self.devices
    }

    /// The attributes of the machine.
    pub fn attributes(&self) -> Result<NamedValues> {
        let mut call = sys::TopologyAttributes { topology: self.handle.raw, ..args() };
        // SAFETY: the topology is live, and so is what it returns.
        unsafe {
            self.handle.plugin.call(&mut call)?;
            Ok(value::from_raw(call.attributes, call.num_attributes))
        }
    }

    /// The memory per device in bytes, where the plugin reports it.
    pub fn memory_limit(&self) -> Option<u64> {
        let attributes = self.attributes().ok()?;
        let limit = attributes.into_iter().find(|(name, _)| name == "device_memory_bytes_limit");
        match limit {
            Some((_, Value::Int(bytes))) => u64::try_from(bytes).ok(),
            _ => None,
        }
    }

    /// Compiles StableHLO text for the machine.
    pub fn compile(&self, text: &str, options: &CompileOptions) -> Result<Executable> {
        let mut options = options.clone();
        for (name, flag) in &self.flags {
            options.default_flag(name, flag);
        }
        let ids: Vec<i32> = self.devices.iter().map(|device| device.id).collect();
        options.assign_devices(&ids)?;
        let encoded = options.encode();
        let program = raw_program(text);
        let mut call = args::<sys::Compile>();
        call.topology = self.handle.raw;
        call.program = &raw const program;
        call.compile_options = encoded.as_ptr().cast();
        call.compile_options_size = encoded.len();
        // SAFETY: the topology is live, and program and options outlive the call.
        unsafe {
            let plugin = self.handle.plugin;
            plugin.call(&mut call)?;
            let raw = plugin.check_made(call.executable, sys::Compile::NAME)?;
            Ok(Executable::from_raw(plugin, raw, Owner::Topology(self.handle.clone())))
        }
    }
}

/// The folder with `ptxas` and libdevice for the CUDA compiler, where packages install it next to
/// the plugin.
fn cuda_tools(plugin: &Path) -> Option<PathBuf> {
    let packages = plugin.ancestors().nth(3)?;
    let folders = ["nvidia/cu13", "nvidia/cuda_nvcc"].map(|folder| packages.join(folder));
    folders.into_iter().find(|folder| folder.join("bin/ptxas").is_file())
}

impl TopologyHandle {
    fn list_devices(&self) -> Result<Vec<DeviceDescription>> {
        let mut call = args::<sys::TopologyGetDeviceDescriptions>();
        call.topology = self.raw;
        // SAFETY: the topology is live, and so are the descriptions it returns.
        unsafe {
            self.plugin.call(&mut call)?;
            value::slice(call.descriptions, call.num_descriptions)
                .iter()
                .map(|&description| DeviceDescription::read(self.plugin, description))
                .collect()
        }
    }
}

impl Drop for TopologyHandle {
    fn drop(&mut self) {
        let mut call = sys::TopologyDestroy { topology: self.raw, ..args() };
        // SAFETY: the topology is ours and is not used again. A failure is ignored.
        let _ = unsafe { self.plugin.call(&mut call) };
    }
}
