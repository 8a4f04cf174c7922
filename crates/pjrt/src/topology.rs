//! Topologies: compiling for machines that are not here.

use crate::accelerator::TpuSlice;
use crate::compile::CompileOptions;
use crate::compile::raw_program;
use crate::device::DeviceDescription;
use crate::environment;
use crate::error::Result;
use crate::executable::Executable;
use crate::plugin::Plugin;
use crate::sys::{self, args};
use crate::value::{self, NamedValues, Value};

/// A description of a machine, enough to compile for.
pub struct Topology {
    plugin: &'static Plugin,
    raw: *mut sys::Topology,
    devices: Vec<DeviceDescription>,
}

// SAFETY: PJRT topologies may be used from any thread.
unsafe impl Send for Topology {}
// SAFETY: as above.
unsafe impl Sync for Topology {}

impl Topology {
    /// The topology that the plugin knows by `name`, with its options.
    pub fn new(plugin: &'static Plugin, name: &str, options: &NamedValues) -> Result<Topology> {
        let values = value::to_raw(options);
        let mut call = args::<sys::TopologyCreate>();
        call.topology_name = name.as_ptr().cast();
        call.topology_name_size = name.len();
        call.create_options = values.as_ptr();
        call.num_options = values.len();
        let environment = environment::reading();
        // SAFETY: name and options outlive the call.
        unsafe { plugin.call(&mut call) }?;
        drop(environment);
        let mut topology = Topology { plugin, raw: call.topology, devices: Vec::new() };
        topology.devices = topology.list_devices()?;
        // Plugins list devices host by host. In the order of their ids, which follow the torus,
        // neighbours are neighbours; in any other the TPU compiler gives up on gathering around
        // rings and makes each gather a sum of the whole tensor.
        topology.devices.sort_by_key(|device| device.id);
        Ok(topology)
    }

    /// A slice of a TPU pod, described by libtpu.
    pub fn tpu(plugin: &'static Plugin, slice: &TpuSlice) -> Result<Topology> {
        let ints = |values: &[usize]| Value::Ints(values.iter().map(|&v| v as i64).collect());
        let options = vec![
            ("chips_per_host_bounds".to_owned(), ints(&slice.chips_per_host())),
            ("wrap".to_owned(), ints(&slice.wrap().map(usize::from))),
            ("chip_config_name".to_owned(), Value::Text(slice.chip_config().to_owned())),
            ("num_slices".to_owned(), Value::Int(1)),
        ];
        Topology::new(plugin, &slice.topology_name(), &options)
    }

    fn list_devices(&self) -> Result<Vec<DeviceDescription>> {
        let mut call = args::<sys::TopologyGetDeviceDescriptions>();
        call.topology = self.raw;
        // SAFETY: the topology is live, and so are the descriptions it gives.
        unsafe {
            self.plugin.call(&mut call)?;
            value::slice(call.descriptions, call.num_descriptions)
                .iter()
                .map(|&description| DeviceDescription::read(self.plugin, description))
                .collect()
        }
    }

    /// The devices of the machine.
    pub fn devices(&self) -> &[DeviceDescription] {
        &self.devices
    }

    /// What the plugin says of the machine.
    pub fn attributes(&self) -> Result<NamedValues> {
        let mut call = sys::TopologyAttributes { topology: self.raw, ..args() };
        // SAFETY: the topology is live, and so is what it gives.
        unsafe {
            self.plugin.call(&mut call)?;
            Ok(value::from_raw(call.attributes, call.num_attributes))
        }
    }

    /// The memory of each device, in bytes, where the plugin tells.
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
        let ids: Vec<i32> = self.devices.iter().map(|device| device.id).collect();
        options.assign_devices(&ids)?;
        let encoded = options.encode();
        let program = raw_program(text);
        let mut call = args::<sys::Compile>();
        call.topology = self.raw;
        call.program = &raw const program;
        call.compile_options = encoded.as_ptr().cast();
        call.compile_options_size = encoded.len();
        // SAFETY: the topology is live, and program and options outlive the call.
        unsafe {
            self.plugin.call(&mut call)?;
            Ok(Executable::from_raw(self.plugin, call.executable))
        }
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        let mut call = sys::TopologyDestroy { topology: self.raw, ..args() };
        // SAFETY: the topology is ours and is not used again. Nothing can be done about a failure.
        let _ = unsafe { self.plugin.call(&mut call) };
    }
}
