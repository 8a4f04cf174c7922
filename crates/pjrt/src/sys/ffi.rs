//! Custom calls: the extension that registers handlers, and their call frame.
//!
//! Only what our handlers read is declared. Frames are created by the plugin, so ours are prefixes
//! of its structs.

use super::{Error, ExtensionBase};
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};

/// `PJRT_Extension_Type_FFI`.
pub(crate) const EXTENSION_FFI: c_int = 5;

/// The extension in the plugin's chain.
#[repr(C)]
pub(crate) struct FfiExtension {
    pub base: ExtensionBase,
    type_register: *const c_void,
    user_data_add: *const c_void,
    pub register_handler: Option<unsafe extern "C" fn(*mut RegisterHandler) -> *mut Error>,
}

/// A custom call handler.
pub(crate) type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut c_void;

/// Arguments of `register_handler`.
#[repr(C)]
pub(crate) struct RegisterHandler {
    pub struct_size: usize,
    pub target_name: *const c_char,
    pub target_name_size: usize,
    pub handler: Handler,
    pub platform_name: *const c_char,
    pub platform_name_size: usize,
    pub traits: c_int,
}

/// The common header of a frame's extensions.
#[repr(C)]
pub(crate) struct FrameExtension {
    pub struct_size: usize,
    pub kind: c_int,
    pub next: *mut FrameExtension,
}

/// The extension kind of a metadata query.
pub(crate) const FRAME_METADATA: c_int = 1;

/// The metadata query extension.
#[repr(C)]
pub(crate) struct MetadataExtension {
    pub base: FrameExtension,
    pub metadata: *mut Metadata,
}

/// The metadata of a handler.
#[repr(C)]
pub(crate) struct Metadata {
    pub struct_size: usize,
    pub version: FfiVersion,
    pub traits: u32,
}

/// The version of the FFI API.
#[repr(C)]
pub(crate) struct FfiVersion {
    pub struct_size: usize,
    pub extension_start: *mut FrameExtension,
    pub major: c_int,
    pub minor: c_int,
}

/// The prefix of the plugin's function table for handlers.
#[repr(C)]
pub(crate) struct FfiApi {
    pub struct_size: usize,
    pub extension_start: *mut FrameExtension,
    pub version: FfiVersion,
    internal: *const c_void,
    pub error_create: Option<unsafe extern "C" fn(*mut FfiErrorCreate) -> *mut c_void>,
    error_get_message: *const c_void,
    pub error_destroy: Option<unsafe extern "C" fn(*mut FfiErrorDestroy)>,
    handler_register: *const c_void,
    stream_get: *const c_void,
    type_register: *const c_void,
    context_get: *const c_void,
    state_set: *const c_void,
    state_get: *const c_void,
    memory_allocate: *const c_void,
    memory_free: *const c_void,
    pool_schedule: *const c_void,
    pool_threads: *const c_void,
    pub future_create: Option<unsafe extern "C" fn(*mut FutureCreate) -> *mut c_void>,
    pub future_set_available: Option<unsafe extern "C" fn(*mut FutureSetAvailable) -> *mut c_void>,
    pub future_set_error: Option<unsafe extern "C" fn(*mut FutureSetError) -> *mut c_void>,
    run_id_get: *const c_void,
    pub device_ordinal_get: Option<unsafe extern "C" fn(*mut DeviceOrdinalGet) -> *mut c_void>,
}

/// Arguments of `error_destroy`.
#[repr(C)]
pub(crate) struct FfiErrorDestroy {
    pub struct_size: usize,
    pub extension_start: *mut FrameExtension,
    pub error: *mut c_void,
}

/// Arguments of `future_create`, which sets `future`.
#[repr(C)]
pub(crate) struct FutureCreate {
    pub struct_size: usize,
    pub extension_start: *mut FrameExtension,
    pub future: *mut c_void,
}

/// Arguments of `future_set_available`.
#[repr(C)]
pub(crate) struct FutureSetAvailable {
    pub struct_size: usize,
    pub extension_start: *mut FrameExtension,
    pub future: *mut c_void,
}

/// Arguments of `future_set_error`, which takes the error.
#[repr(C)]
pub(crate) struct FutureSetError {
    pub struct_size: usize,
    pub extension_start: *mut FrameExtension,
    pub future: *mut c_void,
    pub error: *mut c_void,
}

/// Arguments of `device_ordinal_get`, which sets `ordinal`.
#[repr(C)]
pub(crate) struct DeviceOrdinalGet {
    pub struct_size: usize,
    pub extension_start: *mut FrameExtension,
    pub context: *mut c_void,
    pub ordinal: i32,
}

/// Arguments of `error_create`.
#[repr(C)]
pub(crate) struct FfiErrorCreate {
    pub struct_size: usize,
    pub extension_start: *mut FrameExtension,
    pub message: *const c_char,
    pub code: c_int,
}

/// Operands or results of a call.
#[repr(C)]
pub(crate) struct CallBuffers {
    struct_size: usize,
    extension_start: *mut FrameExtension,
    pub size: i64,
    types: *const c_int,
    pub buffers: *const *const CallBuffer,
}

/// A tensor of a call.
#[repr(C)]
pub(crate) struct CallBuffer {
    struct_size: usize,
    extension_start: *mut FrameExtension,
    pub dtype: c_int,
    pub data: *mut c_void,
    pub rank: i64,
    pub dims: *const i64,
}

/// The attributes of a call, by name.
#[repr(C)]
pub(crate) struct CallAttributes {
    struct_size: usize,
    extension_start: *mut FrameExtension,
    pub size: i64,
    pub types: *const c_int,
    pub names: *const *const ByteSpan,
    pub values: *const *const c_void,
}

/// A string without a null terminator.
#[repr(C)]
pub(crate) struct ByteSpan {
    pub data: *const u8,
    pub len: usize,
}

/// The attribute kind of an array of numbers.
pub(crate) const ATTRIBUTE_ARRAY: c_int = 1;

/// The attribute kind of a number.
pub(crate) const ATTRIBUTE_SCALAR: c_int = 3;

/// A number attribute.
#[repr(C)]
pub(crate) struct ScalarAttribute {
    pub dtype: c_int,
    pub value: *const c_void,
}

/// An array attribute.
#[repr(C)]
pub(crate) struct ArrayAttribute {
    pub dtype: c_int,
    pub size: usize,
    pub data: *const c_void,
}

/// Element types, as XLA numbers them.
pub(crate) const TYPE_S32: c_int = 4;
pub(crate) const TYPE_S64: c_int = 5;
pub(crate) const TYPE_F32: c_int = 11;
pub(crate) const TYPE_BF16: c_int = 16;

/// A call frame.
#[repr(C)]
pub(crate) struct CallFrame {
    pub struct_size: usize,
    pub extension_start: *mut FrameExtension,
    pub api: *const FfiApi,
    pub context: *mut c_void,
    pub stage: c_int,
    pub arguments: CallBuffers,
    pub results: CallBuffers,
    pub attributes: CallAttributes,
    /// Set by a handler that returns before its results are there.
    pub future: UnsafeCell<*mut c_void>,
}
