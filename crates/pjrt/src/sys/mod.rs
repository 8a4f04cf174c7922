//! The C side of PJRT, declared by hand for the calls we make.
//!
//! Every PJRT function takes one pointer to an argument struct and (except two that report and free
//! errors) returns an error pointer, and the function table is append-only. So the table needs no
//! struct: a call is its argument struct, which has its *slot* in the table ([`Args::SLOT`]), and
//! [`Table::function`] checks the slot against the size the plugin reports. A plugin too old to
//! have a slot yields `None`, never an out-of-bounds read.
//!
//! Layouts follow API version 0.114. Older plugins read a prefix of our structs and newer ones may
//! need more than we have, which they report as an error, so each struct has its own size and
//! starts zeroed.

#[cfg(test)]
mod abi;
mod buffer;
mod client;
mod executable;
mod ffi;
mod profiler;
mod topology;

pub(crate) use buffer::*;
pub(crate) use client::*;
pub(crate) use executable::*;
pub(crate) use ffi::*;
pub(crate) use profiler::*;
pub(crate) use topology::*;

use std::ffi::{c_char, c_int, c_void};

/// Objects owned by the plugin, only ever handled by pointer.
macro_rules! opaque {
    ($($name:ident),* $(,)?) => {$(
        #[repr(C)]
        pub(crate) struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque!(
    Error,
    Event,
    Client,
    Device,
    Memory,
    DeviceDescription,
    Topology,
    Executable,
    LoadedExecutable,
    Buffer,
    ExecuteContext,
    SerializedExecutable,
);

/// An argument struct of one PJRT function.
///
/// # Safety
/// The type is `repr(C)` with the layout the function at `SLOT` expects, begins with
/// `struct_size` and `extension_start`, and all-zero bytes are a valid value of it.
pub(crate) unsafe trait Args: Sized {
    /// The C name of the function, for messages.
    const NAME: &'static str;
    /// The position of the function in the table.
    const SLOT: usize;
}

/// Zeroed arguments with their size set, for call sites to fill in.
pub(crate) fn args<A: Args>() -> A {
    // SAFETY: `Args` promises that zero bytes are a valid value.
    let mut args: A = unsafe { std::mem::zeroed() };
    // SAFETY: `Args` promises that the struct is `repr(C)` and begins with `struct_size`.
    unsafe { (&raw mut args).cast::<usize>().write(size_of::<A>()) };
    args
}

/// Declares argument structs: `Name = slot, "C name" { fields }`.
macro_rules! call_args {
    ($($name:ident = $slot:literal, $c_name:literal { $($field:ident : $ty:ty),* $(,)? })*) => {$(
        #[repr(C)]
        pub(crate) struct $name {
            pub struct_size: usize,
            pub extension_start: *mut $crate::sys::ExtensionBase,
            $(pub $field: $ty,)*
        }

        // SAFETY: `repr(C)`, begins with the two common fields, and holds only integers, bools,
        // raw pointers and optional functions, for all of which zero is valid.
        unsafe impl $crate::sys::Args for $name {
            const NAME: &'static str = $c_name;
            const SLOT: usize = $slot;
        }
    )*};
}
pub(crate) use call_args;

/// The common header of optional extensions.
#[repr(C)]
pub(crate) struct ExtensionBase {
    pub struct_size: usize,
    pub kind: c_int,
    pub next: *mut ExtensionBase,
}

/// `PJRT_Extension_Type_Gpu_Custom_Call`, which only GPU plugins have.
pub(crate) const EXTENSION_GPU_CUSTOM_CALL: c_int = 0;

/// `PJRT_Extension_Type_Profiler`.
pub(crate) const EXTENSION_PROFILER: c_int = 1;

/// A generic PJRT function.
pub(crate) type Function = unsafe extern "C" fn(*mut c_void) -> *mut Error;

/// One of the two that return nothing, because they report errors.
pub(crate) type VoidFunction = unsafe extern "C" fn(*mut c_void);

/// The fixed prefix of `PJRT_Api`; the function table follows it.
#[repr(C)]
pub(crate) struct Table {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    version_size: usize,
    version_extension: *mut ExtensionBase,
    pub major: c_int,
    pub minor: c_int,
}

impl Table {
    /// The function in `slot`, if the plugin's table is long enough and has one there.
    ///
    /// # Safety
    /// `table` points to the live function table of a plugin.
    pub(crate) unsafe fn function(table: *const Table, slot: usize) -> Option<Function> {
        let offset = size_of::<Table>() + slot * size_of::<Function>();
        // SAFETY: the caller promises a live table.
        let size = unsafe { (*table).struct_size };
        if offset + size_of::<Function>() > size {
            return None;
        }
        // SAFETY: the slot is within the size the plugin reports, and a null entry is `None`.
        unsafe { table.byte_add(offset).cast::<Option<Function>>().read() }
    }
}

call_args! {
    ErrorDestroy = 0, "PJRT_Error_Destroy" { error: *mut Error }
    ErrorMessage = 1, "PJRT_Error_Message" {
        error: *const Error,
        message: *const c_char,
        message_size: usize,
    }
    ErrorGetCode = 2, "PJRT_Error_GetCode" { error: *const Error, code: c_int }
    PluginInitialize = 3, "PJRT_Plugin_Initialize" {}
    PluginAttributes = 4, "PJRT_Plugin_Attributes" {
        attributes: *const NamedValue,
        num_attributes: usize,
    }
    EventDestroy = 5, "PJRT_Event_Destroy" { event: *mut Event }
    EventIsReady = 6, "PJRT_Event_IsReady" { event: *mut Event, is_ready: bool }
    EventAwait = 8, "PJRT_Event_Await" { event: *mut Event }
    EventOnReady = 9, "PJRT_Event_OnReady" {
        event: *mut Event,
        callback: Option<unsafe extern "C" fn(*mut Error, *mut c_void)>,
        user_arg: *mut c_void,
    }
}

/// The kinds of value a [`NamedValue`] can hold.
pub(crate) mod named {
    use std::ffi::c_int;

    pub(crate) const STRING: c_int = 0;
    pub(crate) const INT64: c_int = 1;
    pub(crate) const INT64_LIST: c_int = 2;
    pub(crate) const FLOAT: c_int = 3;
    pub(crate) const BOOL: c_int = 4;
}

/// An option or attribute: a name with a value of one of five kinds.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NamedValue {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub name: *const c_char,
    pub name_size: usize,
    pub kind: c_int,
    pub value: NamedValueUnion,
    pub value_size: usize,
}

/// The value; `NamedValue::kind` selects the live member.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union NamedValueUnion {
    pub string: *const c_char,
    pub int64: i64,
    pub int64_list: *const i64,
    pub float: f32,
    pub boolean: bool,
}
