//! Executables: analyses and execution.

use super::{
    Buffer, Client, Device, Event, Executable, ExecuteContext, ExtensionBase, LoadedExecutable,
    NamedValue, Program, SerializedExecutable, call_args,
};
use std::ffi::{c_char, c_int, c_void};

call_args! {
    ExecutableDestroy = 40, "PJRT_Executable_Destroy" { executable: *mut Executable }
    ExecutableName = 41, "PJRT_Executable_Name" {
        executable: *mut Executable,
        text: *const c_char,
        text_size: usize,
    }
    ExecutableNumPartitions = 43, "PJRT_Executable_NumPartitions" {
        executable: *mut Executable,
        num_partitions: usize,
    }
    ExecutableNumOutputs = 44, "PJRT_Executable_NumOutputs" {
        executable: *mut Executable,
        num_outputs: usize,
    }
    ExecutableGetCostAnalysis = 46, "PJRT_Executable_GetCostAnalysis" {
        executable: *mut Executable,
        num_properties: usize,
        properties: *const NamedValue,
    }
    ExecutableOptimizedProgram = 48, "PJRT_Executable_OptimizedProgram" {
        executable: *mut Executable,
        program: *mut Program,
    }
    ExecutableSerialize = 49, "PJRT_Executable_Serialize" {
        executable: *const Executable,
        bytes: *const c_char,
        bytes_size: usize,
        backing: *mut SerializedExecutable,
        deleter: Option<unsafe extern "C" fn(*mut SerializedExecutable)>,
    }
    LoadedExecutableDestroy = 50, "PJRT_LoadedExecutable_Destroy" {
        executable: *mut LoadedExecutable,
    }
    LoadedExecutableGetExecutable = 51, "PJRT_LoadedExecutable_GetExecutable" {
        loaded_executable: *mut LoadedExecutable,
        executable: *mut Executable,
    }
    LoadedExecutableAddressableDevices = 52, "PJRT_LoadedExecutable_AddressableDevices" {
        executable: *mut LoadedExecutable,
        devices: *const *mut Device,
        num_devices: usize,
    }
    LoadedExecutableExecute = 55, "PJRT_LoadedExecutable_Execute" {
        executable: *mut LoadedExecutable,
        options: *mut ExecuteOptions,
        argument_lists: *const *const *mut Buffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut Buffer,
        device_complete_events: *mut *mut Event,
        execute_device: *mut Device,
    }
    ExecutableDeserializeAndLoad = 56, "PJRT_Executable_DeserializeAndLoad" {
        client: *mut Client,
        serialized_executable: *const c_char,
        serialized_executable_size: usize,
        loaded_executable: *mut LoadedExecutable,
        overridden_compile_options: *const c_char,
        overridden_compile_options_size: usize,
        load_options: *mut c_void,
    }
    ExecutableGetCompiledMemoryStats = 96, "PJRT_Executable_GetCompiledMemoryStats" {
        executable: *mut Executable,
        generated_code_size: i64,
        argument_size: i64,
        output_size: i64,
        alias_size: i64,
        temp_size: i64,
        host_generated_code_size: i64,
        host_argument_size: i64,
        host_output_size: i64,
        host_alias_size: i64,
        host_temp_size: i64,
        peak_memory: i64,
        total_size: i64,
        total_allocation: i64,
        indefinite_allocations: i64,
        peak_unpadded_heap: i64,
    }
}

/// Options of one launch.
#[repr(C)]
pub(crate) struct ExecuteOptions {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub send_callbacks: *mut c_void,
    pub recv_callbacks: *mut c_void,
    pub num_send_ops: usize,
    pub num_recv_ops: usize,
    pub launch_id: c_int,
    pub non_donatable_input_indices: *const i64,
    pub num_non_donatable_input_indices: usize,
    pub context: *mut ExecuteContext,
    pub call_location: *const c_char,
    pub num_tasks: usize,
    pub task_ids: *mut c_int,
    pub incarnation_ids: *mut i64,
    pub multi_slice_config: *mut c_void,
    pub use_major_to_minor_data_layout_for_callbacks: bool,
    pub hlo_output_callbacks: *mut c_void,
    pub num_hlo_output_callbacks: usize,
}

impl ExecuteOptions {
    /// Default options.
    pub(crate) fn new() -> ExecuteOptions {
        // SAFETY: integers, bools and raw pointers, for all of which zero is valid.
        let mut options: ExecuteOptions = unsafe { std::mem::zeroed() };
        options.struct_size = size_of::<ExecuteOptions>();
        options
    }
}
