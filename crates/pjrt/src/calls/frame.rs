//! The call frame of a custom call: operands, results and attributes, with checked access.

use crate::sys;
use std::ffi::{CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

/// The execute stage of a call.
const EXECUTE: c_int = 3;

/// XLA's `INTERNAL` error code.
const INTERNAL: c_int = 13;

/// A running call.
pub(super) struct Frame<'a> {
    raw: &'a sys::CallFrame,
}

/// An `f32` tensor of a call.
pub(super) struct Floats {
    pub data: *mut f32,
    pub elements: usize,
}

impl Floats {
    /// The values.
    ///
    /// # Safety
    /// Their call is still running.
    pub(super) unsafe fn values<'a>(&self) -> &'a [f32] {
        // SAFETY: `data` points to `elements` values, live as the caller promises.
        unsafe { slice::from_raw_parts(self.data, self.elements) }
    }

    /// The values, mutable.
    ///
    /// # Safety
    /// Their call is still running, they belong to a result, and there is no other reference.
    pub(super) unsafe fn values_mut<'a>(&self) -> &'a mut [f32] {
        // SAFETY: `data` points to `elements` values, unaliased as the caller promises.
        unsafe { slice::from_raw_parts_mut(self.data, self.elements) }
    }

    /// The elements from `offset` on.
    pub(super) fn from(self, offset: i64) -> Result<Floats, String> {
        match usize::try_from(offset) {
            Ok(offset) if offset < self.elements => {
                // SAFETY: the offset is inside the tensor.
                let data = unsafe { self.data.add(offset) };
                Ok(Floats { data, elements: self.elements - offset })
            }
            _ => Err(format!("offset {offset} is beyond a tensor of {} elements", self.elements)),
        }
    }
}

impl Frame<'_> {
    /// # Safety
    /// `raw` is a live frame of the plugin.
    pub(super) unsafe fn new(raw: *mut sys::CallFrame) -> Self {
        // SAFETY: the caller promises a live frame.
        Frame { raw: unsafe { &*raw } }
    }

    /// Fills in the metadata on a metadata query, otherwise runs the handler. Null is success.
    pub(super) fn answer(&self, run: impl FnOnce(&Self) -> Result<(), String>) -> *mut c_void {
        if self.describe() || self.raw.stage != EXECUTE {
            return ptr::null_mut();
        }
        // A panic must not unwind into the plugin.
        let outcome = catch_unwind(AssertUnwindSafe(|| run(self)));
        match outcome.unwrap_or_else(|_| Err("a custom call panicked".into())) {
            Ok(()) => ptr::null_mut(),
            Err(message) => self.error(message),
        }
    }

    /// Fills in the metadata that the plugin queries when a handler is registered.
    fn describe(&self) -> bool {
        let extension = self.raw.extension_start;
        // SAFETY: null is checked for, and extensions of a frame live as long as it.
        if extension.is_null() || unsafe { (*extension).kind } != sys::FRAME_METADATA {
            return false;
        }
        // SAFETY: an extension of this kind has this type; the plugin's table is live.
        unsafe {
            let metadata = (*extension.cast::<sys::MetadataExtension>()).metadata;
            (*metadata).version.major = (*self.raw.api).version.major;
            (*metadata).version.minor = (*self.raw.api).version.minor;
            (*metadata).traits = 0;
        }
        true
    }

    fn error(&self, message: String) -> *mut c_void {
        let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
        let mut create = sys::FfiErrorCreate {
            struct_size: size_of::<sys::FfiErrorCreate>(),
            extension_start: ptr::null_mut(),
            message: message.as_ptr(),
            code: INTERNAL,
        };
        // SAFETY: the plugin's table is live, and the message outlives the call, which copies it.
        unsafe {
            match (*self.raw.api).error_create {
                Some(error_create) => error_create(&raw mut create),
                None => ptr::null_mut(),
            }
        }
    }

    /// An operand.
    pub(super) fn operand(&self, index: usize) -> Result<Floats, String> {
        floats(&self.raw.arguments, index).map_err(|reason| format!("operand {index} {reason}"))
    }

    /// An operand of `i32`.
    pub(super) fn integer_operand(&self, index: usize) -> Result<&[i32], String> {
        let (data, elements) = tensor(&self.raw.arguments, index, sys::TYPE_S32)
            .map_err(|reason| format!("operand {index} {reason}"))?;
        // SAFETY: the frame has `elements` integers there, live as long as it is.
        Ok(unsafe { slice::from_raw_parts(data.cast(), elements) })
    }

    /// A result.
    pub(super) fn result(&self, index: usize) -> Result<Floats, String> {
        floats(&self.raw.results, index).map_err(|reason| format!("result {index} {reason}"))
    }

    /// An attribute of `N` integers.
    pub(super) fn integers<const N: usize>(&self, name: &str) -> Result<[i64; N], String> {
        let attributes = &self.raw.attributes;
        for i in 0..usize::try_from(attributes.size).unwrap_or(0) {
            // SAFETY: the frame has as many names, types and values as it states, all live.
            let (known, kind, value) = unsafe {
                let span = &**attributes.names.add(i);
                let known = slice::from_raw_parts(span.data, span.len);
                (known, *attributes.types.add(i), *attributes.values.add(i))
            };
            if known != name.as_bytes() || kind != sys::ATTRIBUTE_ARRAY {
                continue;
            }
            // SAFETY: an attribute of this kind has this type.
            let array = unsafe { &*value.cast::<sys::ArrayAttribute>() };
            if array.dtype == sys::TYPE_S64 && array.size == N {
                // SAFETY: the array has `N` integers.
                return Ok(unsafe { ptr::read_unaligned(array.data.cast::<[i64; N]>()) });
            }
        }
        Err(format!("there is no attribute `{name}` of {N} integers"))
    }
}

fn floats(buffers: &sys::CallBuffers, index: usize) -> Result<Floats, &'static str> {
    let (data, elements) = tensor(buffers, index, sys::TYPE_F32)?;
    Ok(Floats { data: data.cast(), elements })
}

/// The data pointer and number of elements of a tensor.
fn tensor(
    buffers: &sys::CallBuffers,
    index: usize,
    dtype: c_int,
) -> Result<(*mut c_void, usize), &'static str> {
    if usize::try_from(buffers.size).unwrap_or(0) <= index {
        return Err("is missing");
    }
    // SAFETY: the frame has as many buffers as it states, with as many dimensions as they state.
    let (buffer, dims) = unsafe {
        let buffer = &**buffers.buffers.add(index);
        let rank = usize::try_from(buffer.rank).unwrap_or(0);
        let dims = if rank == 0 { &[] } else { slice::from_raw_parts(buffer.dims, rank) };
        (buffer, dims)
    };
    if buffer.dtype != dtype {
        return Err("has the wrong element type");
    }
    let elements = dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).product();
    Ok((buffer.data, elements))
}
