//! The profiler extension: a second, smaller function table with its own error type.

use super::{ExtensionBase, VoidFunction};
use std::ffi::{c_char, c_void};

/// The extension in the plugin's chain.
#[repr(C)]
pub(crate) struct ProfilerExtension {
    pub base: ExtensionBase,
    pub api: *const ProfilerApi,
}

/// A generic profiler function.
pub(crate) type ProfilerFunction = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// The profiler's function table, up to the last function we call.
#[repr(C)]
pub(crate) struct ProfilerApi {
    pub struct_size: usize,
    private: *mut c_void,
    pub error_destroy: Option<VoidFunction>,
    pub error_message: Option<VoidFunction>,
    pub error_get_code: Option<ProfilerFunction>,
    pub create: Option<ProfilerFunction>,
    pub destroy: Option<ProfilerFunction>,
    pub start: Option<ProfilerFunction>,
    pub stop: Option<ProfilerFunction>,
    pub collect_data: Option<ProfilerFunction>,
}

/// Arguments of `error_destroy`.
#[repr(C)]
pub(crate) struct ProfilerErrorDestroy {
    pub struct_size: usize,
    pub private: *mut c_void,
    pub error: *mut c_void,
}

/// Arguments of `error_message`.
#[repr(C)]
pub(crate) struct ProfilerErrorMessage {
    pub struct_size: usize,
    pub private: *mut c_void,
    pub error: *const c_void,
    pub message: *const c_char,
    pub message_size: usize,
}

/// Arguments of `create`.
#[repr(C)]
pub(crate) struct ProfilerCreate {
    pub struct_size: usize,
    pub options: *const c_char,
    pub options_size: usize,
    pub profiler: *mut c_void,
}

/// Arguments of `destroy`, `start` and `stop`.
#[repr(C)]
pub(crate) struct ProfilerHandle {
    pub struct_size: usize,
    pub profiler: *mut c_void,
}

/// Arguments of `collect_data`.
#[repr(C)]
pub(crate) struct ProfilerCollectData {
    pub struct_size: usize,
    pub profiler: *mut c_void,
    pub buffer: *mut u8,
    pub buffer_size: usize,
}
