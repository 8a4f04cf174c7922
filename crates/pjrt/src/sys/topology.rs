//! Topologies: descriptions of machines that may not be present.

use super::{Client, DeviceDescription, Executable, NamedValue, Program, Topology, call_args};
use std::ffi::c_char;

call_args! {
    TopologyCreate = 82, "PJRT_TopologyDescription_Create" {
        topology_name: *const c_char,
        topology_name_size: usize,
        create_options: *const NamedValue,
        num_options: usize,
        topology: *mut Topology,
    }
    TopologyDestroy = 83, "PJRT_TopologyDescription_Destroy" { topology: *mut Topology }
    TopologyGetDeviceDescriptions = 86, "PJRT_TopologyDescription_GetDeviceDescriptions" {
        topology: *const Topology,
        descriptions: *const *mut DeviceDescription,
        num_descriptions: usize,
    }
    TopologyAttributes = 88, "PJRT_TopologyDescription_Attributes" {
        topology: *mut Topology,
        attributes: *const NamedValue,
        num_attributes: usize,
    }
    Compile = 89, "PJRT_Compile" {
        topology: *const Topology,
        program: *const Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        client: *mut Client,
        executable: *mut Executable,
    }
}
