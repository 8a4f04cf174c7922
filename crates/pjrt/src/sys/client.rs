//! Clients, devices and memories.

use super::{
    Client, Device, DeviceDescription, Error, ExtensionBase, LoadedExecutable, Memory, NamedValue,
    call_args,
};
use std::ffi::{c_char, c_int, c_void};

call_args! {
    ClientDmaMap = 110, "PJRT_Client_DmaMap" {
        client: *mut Client,
        data: *mut c_void,
        size: usize,
    }
    ClientDmaUnmap = 111, "PJRT_Client_DmaUnmap" {
        client: *mut Client,
        data: *mut c_void,
    }
    ClientCreate = 10, "PJRT_Client_Create" {
        create_options: *const NamedValue,
        num_options: usize,
        kv_get_callback: Option<KeyValueGet>,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: Option<KeyValuePut>,
        kv_put_user_arg: *mut c_void,
        client: *mut Client,
        kv_try_get_callback: Option<KeyValueTryGet>,
        kv_try_get_user_arg: *mut c_void,
    }
    ClientDestroy = 11, "PJRT_Client_Destroy" { client: *mut Client }
    ClientPlatformName = 12, "PJRT_Client_PlatformName" {
        client: *mut Client,
        text: *const c_char,
        text_size: usize,
    }
    ClientPlatformVersion = 14, "PJRT_Client_PlatformVersion" {
        client: *mut Client,
        text: *const c_char,
        text_size: usize,
    }
    ClientDevices = 15, "PJRT_Client_Devices" {
        client: *mut Client,
        devices: *const *mut Device,
        num_devices: usize,
    }
    ClientAddressableDevices = 16, "PJRT_Client_AddressableDevices" {
        client: *mut Client,
        devices: *const *mut Device,
        num_devices: usize,
    }
    ClientCompile = 20, "PJRT_Client_Compile" {
        client: *mut Client,
        program: *const Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        executable: *mut LoadedExecutable,
    }
    DeviceDescriptionId = 23, "PJRT_DeviceDescription_Id" {
        description: *mut DeviceDescription,
        id: c_int,
    }
    DeviceDescriptionProcessIndex = 24, "PJRT_DeviceDescription_ProcessIndex" {
        description: *mut DeviceDescription,
        process_index: c_int,
    }
    DeviceDescriptionAttributes = 25, "PJRT_DeviceDescription_Attributes" {
        description: *mut DeviceDescription,
        num_attributes: usize,
        attributes: *const NamedValue,
    }
    DeviceDescriptionKind = 26, "PJRT_DeviceDescription_Kind" {
        description: *mut DeviceDescription,
        text: *const c_char,
        text_size: usize,
    }
    DeviceGetDescription = 29, "PJRT_Device_GetDescription" {
        device: *mut Device,
        description: *mut DeviceDescription,
    }
    DeviceLocalHardwareId = 31, "PJRT_Device_LocalHardwareId" {
        device: *mut Device,
        local_hardware_id: c_int,
    }
    DeviceAddressableMemories = 32, "PJRT_Device_AddressableMemories" {
        device: *mut Device,
        memories: *const *mut Memory,
        num_memories: usize,
    }
    DeviceMemoryStats = 34, "PJRT_Device_MemoryStats" {
        device: *mut Device,
        bytes_in_use: i64,
        peak_bytes_in_use: OptionalCount,
        num_allocs: OptionalCount,
        largest_alloc_size: OptionalCount,
        bytes_limit: OptionalCount,
        bytes_reserved: OptionalCount,
        peak_bytes_reserved: OptionalCount,
        bytes_reservable_limit: OptionalCount,
        largest_free_block_bytes: OptionalCount,
        pool_bytes: OptionalCount,
        peak_pool_bytes: OptionalCount,
        peak_allocated_bytes: OptionalCount,
    }
    MemoryKind = 36, "PJRT_Memory_Kind" {
        memory: *mut Memory,
        text: *const c_char,
        text_size: usize,
    }
}

/// Waits for a key; sets the value or returns an error.
pub(crate) type KeyValueGet = unsafe extern "C" fn(*mut KeyValueGetArgs) -> *mut Error;
/// Returns at once when there is no such key; sets the value or returns an error.
pub(crate) type KeyValueTryGet = unsafe extern "C" fn(*mut KeyValueTryGetArgs) -> *mut Error;
/// Adds a key.
pub(crate) type KeyValuePut = unsafe extern "C" fn(*mut KeyValuePutArgs) -> *mut Error;
/// Frees a value that was returned.
pub(crate) type ValueDeleter = unsafe extern "C" fn(*mut c_char);
/// Creates an error of the plugin from a code and a message, which it copies.
pub(crate) type CallbackError = unsafe extern "C" fn(c_int, *const c_char, usize) -> *mut Error;

/// What the plugin passes to [`KeyValueGet`]; the last three fields are set by the callback.
#[repr(C)]
pub(crate) struct KeyValueGetArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub key: *const c_char,
    pub key_size: usize,
    pub timeout_in_ms: c_int,
    pub callback_error: *const CallbackError,
    pub user_arg: *mut c_void,
    pub value: *mut c_char,
    pub value_size: usize,
    pub value_deleter: Option<ValueDeleter>,
}

/// What the plugin passes to [`KeyValueTryGet`]; the last three fields are set by the callback.
#[repr(C)]
pub(crate) struct KeyValueTryGetArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub key: *const c_char,
    pub key_size: usize,
    pub callback_error: *const CallbackError,
    pub user_arg: *mut c_void,
    pub value: *mut c_char,
    pub value_size: usize,
    pub value_deleter: Option<ValueDeleter>,
}

/// What the plugin passes to [`KeyValuePut`].
#[repr(C)]
pub(crate) struct KeyValuePutArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub key: *const c_char,
    pub key_size: usize,
    pub value: *const c_char,
    pub value_size: usize,
    pub callback_error: *const CallbackError,
    pub user_arg: *mut c_void,
}

/// A number that the plugin may omit.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct OptionalCount {
    value: i64,
    is_set: bool,
}

impl OptionalCount {
    /// The number, if set.
    pub(crate) fn get(self) -> Option<u64> {
        self.is_set.then(|| u64::try_from(self.value).ok()).flatten()
    }
}

/// Program text as input, or an optimized program as output.
#[repr(C)]
pub(crate) struct Program {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub code: *mut c_char,
    pub code_size: usize,
    pub format: *const c_char,
    pub format_size: usize,
}
