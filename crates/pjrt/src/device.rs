//! Devices: descriptions and memory stats.

use crate::error::{Error, Result};
use crate::plugin::Plugin;
use crate::sys::{self, args};
use crate::value::{self, NamedValues, Value};

/// A static description of a device, also of one that is not present.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceDescription {
    /// The global device id in the job or topology.
    pub id: i32,
    /// The process it belongs to.
    pub process: i32,
    /// The vendor's name for it, such as `NVIDIA H200`.
    pub kind: String,
    /// Other attributes the plugin reports.
    pub attributes: NamedValues,
}

impl DeviceDescription {
    /// Copies a description out of the plugin.
    ///
    /// # Safety
    /// `raw` is a live description of `plugin`.
    pub(crate) unsafe fn read(
        plugin: &Plugin,
        raw: *mut sys::DeviceDescription,
    ) -> Result<DeviceDescription> {
        let mut id = sys::DeviceDescriptionId { description: raw, ..args() };
        let mut process = sys::DeviceDescriptionProcessIndex { description: raw, ..args() };
        let mut kind = sys::DeviceDescriptionKind { description: raw, ..args() };
        let mut attributes = sys::DeviceDescriptionAttributes { description: raw, ..args() };
        // SAFETY: the caller promises a live description, and what the calls return lives as long.
        unsafe {
            plugin.call(&mut id)?;
            plugin.call(&mut process)?;
            plugin.call(&mut kind)?;
            plugin.call(&mut attributes)?;
            Ok(DeviceDescription {
                id: id.id,
                process: process.process_index,
                kind: value::text(kind.text, kind.text_size),
                attributes: value::from_raw(attributes.attributes, attributes.num_attributes),
            })
        }
    }

    /// The device's coordinates in its torus, if any.
    pub fn coordinates(&self) -> Option<&[i64]> {
        self.attribute("coords").and_then(|value| match value {
            Value::Ints(ints) => Some(ints.as_slice()),
            _ => None,
        })
    }

    /// An attribute by name.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

/// A device of a client.
pub struct Device {
    plugin: &'static Plugin,
    pub(crate) raw: *mut sys::Device,
    local_id: i32,
    description: DeviceDescription,
    memories: Vec<(String, *mut sys::Memory)>,
}

// SAFETY: PJRT devices may be used from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Memory stats of a device. What the plugin does not report is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct MemoryStats {
    /// Bytes in use.
    pub in_use: u64,
    /// Peak bytes in use.
    pub peak: Option<u64>,
    /// The limit in bytes.
    pub limit: Option<u64>,
    /// The largest single allocation so far.
    pub largest_allocation: Option<u64>,
}

impl Device {
    /// # Safety
    /// `raw` is a device of a live client of `plugin`.
    pub(crate) unsafe fn read(plugin: &'static Plugin, raw: *mut sys::Device) -> Result<Device> {
        let mut description = sys::DeviceGetDescription { device: raw, ..args() };
        let mut local_id = sys::DeviceLocalHardwareId { device: raw, ..args() };
        let mut memories = sys::DeviceAddressableMemories { device: raw, ..args() };
        // SAFETY: the caller promises a live device, and what the calls return lives as long.
        unsafe {
            plugin.call(&mut description)?;
            plugin.call(&mut local_id)?;
            plugin.call(&mut memories)?;
            Ok(Device {
                plugin,
                raw,
                local_id: local_id.local_hardware_id,
                description: DeviceDescription::read(plugin, description.description)?,
                memories: value::slice(memories.memories, memories.num_memories)
                    .iter()
                    .map(|&memory| Ok((memory_kind(plugin, memory)?, memory)))
                    .collect::<Result<_>>()?,
            })
        }
    }

    /// The description of the device.
    pub fn description(&self) -> &DeviceDescription {
        &self.description
    }

    /// The device's local hardware id in this process.
    pub fn local_id(&self) -> i32 {
        self.local_id
    }

    /// The kinds of memory it can use, such as `device` and `pinned_host`.
    pub fn memory_kinds(&self) -> impl Iterator<Item = &str> {
        self.memories.iter().map(|(kind, _)| kind.as_str())
    }

    /// The memory of a kind.
    pub(crate) fn memory(&self, kind: &str) -> Result<*mut sys::Memory> {
        let found = self.memories.iter().find(|(known, _)| known == kind);
        found.map(|(_, memory)| *memory).ok_or_else(|| Error::NoSuchMemory {
            kind: kind.to_owned(),
            known: self.memory_kinds().map(str::to_owned).collect(),
        })
    }

    /// Memory stats; an error where the plugin does not report them, as on CPU.
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        let mut call = sys::DeviceMemoryStats { device: self.raw, ..args() };
        // SAFETY: a `Device` is only reachable through its client, so it is live.
        unsafe { self.plugin.call(&mut call) }?;
        Ok(MemoryStats {
            in_use: u64::try_from(call.bytes_in_use).unwrap_or(0),
            peak: call.peak_bytes_in_use.get(),
            limit: call.bytes_limit.get(),
            largest_allocation: call.largest_alloc_size.get(),
        })
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}, {})", self.description.id, self.description.kind)
    }
}

/// # Safety
/// `memory` is a memory of a live client of `plugin`.
unsafe fn memory_kind(plugin: &Plugin, memory: *mut sys::Memory) -> Result<String> {
    let mut call = sys::MemoryKind { memory, ..args() };
    // SAFETY: the caller promises a live memory, whose kind lives as long as it does.
    unsafe {
        plugin.call(&mut call)?;
        Ok(value::text(call.text, call.text_size))
    }
}
