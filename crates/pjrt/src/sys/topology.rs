//! Topologies: descriptions of machines that need not be present.

use super::{Client, DeviceDescription, Executable, NamedValue, Program, Topology, args};
use std::ffi::c_char;

args! {
    TopologyCreate = 82, "PJRT_TopologyDescription_Create" {
        topology_name: *const c_char,
        topology_name_size: usize,
        create_options: *const NamedValue,
        num_options: usize,
        topology: *mut Topology,
    }
    TopologyDestroy = 83, "PJRT_TopologyDescription_Destroy" { topology: *mut Topology }
    TopologyPlatformName = 84, "PJRT_TopologyDescription_PlatformName" {
        topology: *const Topology,
        text: *const c_char,
        text_size: usize,
    }
    TopologyPlatformVersion = 85, "PJRT_TopologyDescription_PlatformVersion" {
        topology: *mut Topology,
        text: *const c_char,
        text_size: usize,
    }
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
