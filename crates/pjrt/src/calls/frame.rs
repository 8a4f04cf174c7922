//! The call frame of a custom call: operands, results and attributes, with checked access.

use crate::sys;
use half::bf16;
use std::ffi::{CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

/// The execute stage of a call.
const EXECUTE: c_int = 3;

/// XLA's `INTERNAL` error code.
const INTERNAL: c_int = 13;

/// A tensor of a call, of any element type.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    pub data: *mut c_void,
    /// As XLA numbers them.
    pub dtype: c_int,
    pub elements: usize,
}

// SAFETY: whoever uses the data has to know that its call is still running, on any thread.
unsafe impl Send for Tensor {}

impl Tensor {
    pub(super) fn address(self) -> Address {
        Address(self.data)
    }
}

/// An address to be used on another thread.
#[derive(Clone, Copy)]
pub(super) struct Address(*mut c_void);

// SAFETY: whoever uses it has to know that the memory is live, on any thread.
unsafe impl Send for Address {}

impl Address {
    pub(super) fn new(data: *mut c_void) -> Address {
        Address(data)
    }

    pub(super) fn get(self) -> *mut c_void {
        self.0
    }
}

/// A running call.
pub(super) struct Frame<'a> {
    raw: &'a sys::CallFrame,
}

/// A tensor of a call, of a known element type.
pub(super) struct Elements<T> {
    pub data: *mut T,
    pub elements: usize,
}

/// An element type of calls.
pub(super) trait Element: Copy + Send + Sync + 'static {
    /// As XLA numbers them.
    const DTYPE: c_int;
}

impl Element for f32 {
    const DTYPE: c_int = sys::TYPE_F32;
}

impl Element for bf16 {
    const DTYPE: c_int = sys::TYPE_BF16;
}

impl Element for i64 {
    const DTYPE: c_int = sys::TYPE_S64;
}

impl Element for i32 {
    const DTYPE: c_int = sys::TYPE_S32;
}

impl<T: Element> Elements<T> {
    /// The values.
    ///
    /// # Safety
    /// Their call is still running.
    pub(super) unsafe fn values<'a>(&self) -> &'a [T] {
        // SAFETY: `data` points to `elements` values, live as the caller promises.
        unsafe { slice::from_raw_parts(self.data, self.elements) }
    }

    /// The values, mutable.
    ///
    /// # Safety
    /// Their call is still running, they belong to a result, and there is no other reference.
    pub(super) unsafe fn values_mut<'a>(&self) -> &'a mut [T] {
        // SAFETY: `data` points to `elements` values, unaliased as the caller promises.
        unsafe { slice::from_raw_parts_mut(self.data, self.elements) }
    }

    /// The elements from `offset` on.
    pub(super) fn from(self, offset: i64) -> Result<Elements<T>, String> {
        match usize::try_from(offset) {
            Ok(offset) if offset < self.elements => {
                // SAFETY: the offset is inside the tensor.
                let data = unsafe { self.data.add(offset) };
                Ok(Elements { data, elements: self.elements - offset })
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
        // SAFETY: the plugin's table is never freed.
        create_error(unsafe { &*self.raw.api }, message)
    }

    /// Makes the call asynchronous: it ends when the promise is kept, and until then its tensors
    /// and attributes are live.
    pub(super) fn promise(&self) -> Result<Promise, String> {
        let api = self.asynchronous_api()?;
        let mut create = sys::FutureCreate {
            struct_size: size_of::<sys::FutureCreate>(),
            extension_start: ptr::null_mut(),
            future: ptr::null_mut(),
        };
        // SAFETY: the table is live, and the arguments are those of the function.
        let error = unsafe { api.future_create.map(|function| function(&raw mut create)) };
        destroy_error(api, error.unwrap_or_default());
        if create.future.is_null() {
            return Err("the plugin did not create a future".into());
        }
        // SAFETY: the frame is live, and only the plugin reads the field, after the handler.
        unsafe { *self.raw.future.get() = create.future };
        Ok(Promise { api, future: create.future })
    }

    /// The local number of the device that runs the call.
    pub(super) fn device(&self) -> Result<usize, String> {
        let api = self.asynchronous_api()?;
        let mut get = sys::DeviceOrdinalGet {
            struct_size: size_of::<sys::DeviceOrdinalGet>(),
            extension_start: ptr::null_mut(),
            context: self.raw.context,
            ordinal: -1,
        };
        // SAFETY: the table and the context are live, and the arguments are those of the function.
        let error = unsafe { api.device_ordinal_get.map(|function| function(&raw mut get)) };
        destroy_error(api, error.unwrap_or_default());
        usize::try_from(get.ordinal).map_err(|_| "the plugin does not report the device".into())
    }

    /// The plugin's table, if it is new enough for asynchronous calls.
    fn asynchronous_api(&self) -> Result<&'static sys::FfiApi, String> {
        // SAFETY: the plugin's table is never freed.
        let api = unsafe { &*self.raw.api };
        if api.struct_size < size_of::<sys::FfiApi>() {
            return Err("the plugin is too old for asynchronous custom calls".into());
        }
        Ok(api)
    }

    /// An operand.
    pub(super) fn operand<T: Element>(&self, index: usize) -> Result<Elements<T>, String> {
        elements(&self.raw.arguments, index).map_err(|reason| format!("operand {index} {reason}"))
    }

    /// An operand of any type.
    pub(super) fn any_operand(&self, index: usize) -> Result<Tensor, String> {
        any_tensor(&self.raw.arguments, index).map_err(|why| format!("operand {index} {why}"))
    }

    /// A result of any type.
    pub(super) fn any_result(&self, index: usize) -> Result<Tensor, String> {
        any_tensor(&self.raw.results, index).map_err(|why| format!("result {index} {why}"))
    }

    /// A result.
    pub(super) fn result<T: Element>(&self, index: usize) -> Result<Elements<T>, String> {
        elements(&self.raw.results, index).map_err(|reason| format!("result {index} {reason}"))
    }

    /// An attribute of `N` integers.
    pub(super) fn integers<const N: usize>(&self, name: &str) -> Result<[i64; N], String> {
        let list = self.integer_list(name).and_then(|list| list.try_into().ok());
        list.ok_or_else(|| format!("there is no attribute `{name}` of {N} integers"))
    }

    /// An attribute of any number of integers.
    pub(super) fn integer_list(&self, name: &str) -> Option<Vec<i64>> {
        let value = self.attribute(name, sys::ATTRIBUTE_ARRAY)?;
        // SAFETY: an attribute of this kind has this type.
        let array = unsafe { &*value.cast::<sys::ArrayAttribute>() };
        if array.dtype != sys::TYPE_S64 {
            return None;
        }
        let data = array.data.cast::<i64>();
        // SAFETY: the array has as many integers as it states, perhaps unaligned.
        Some((0..array.size).map(|i| unsafe { data.add(i).read_unaligned() }).collect())
    }

    /// An attribute of one integer.
    pub(super) fn integer(&self, name: &str) -> Result<i64, String> {
        self.scalar(name).ok_or_else(|| format!("there is no attribute `{name}` of one integer"))
    }

    /// An attribute of one float.
    pub(super) fn float(&self, name: &str) -> Result<f32, String> {
        self.scalar(name).ok_or_else(|| format!("there is no attribute `{name}` of one float"))
    }

    fn scalar<T: Element>(&self, name: &str) -> Option<T> {
        let value = self.attribute(name, sys::ATTRIBUTE_SCALAR)?;
        // SAFETY: an attribute of this kind has this type.
        let scalar = unsafe { &*value.cast::<sys::ScalarAttribute>() };
        // SAFETY: a number of this type has these bytes, perhaps unaligned.
        (scalar.dtype == T::DTYPE).then(|| unsafe { scalar.value.cast::<T>().read_unaligned() })
    }

    /// The value of an attribute of a kind.
    fn attribute(&self, name: &str, kind: c_int) -> Option<*const c_void> {
        let attributes = &self.raw.attributes;
        (0..usize::try_from(attributes.size).unwrap_or(0)).find_map(|i| {
            // SAFETY: the frame has as many names, types and values as it states, all live.
            unsafe {
                let span = &**attributes.names.add(i);
                let is_it = slice::from_raw_parts(span.data, span.len) == name.as_bytes()
                    && *attributes.types.add(i) == kind;
                is_it.then(|| *attributes.values.add(i))
            }
        })
    }
}

/// The end of an asynchronous call.
pub(super) struct Promise {
    api: &'static sys::FfiApi,
    future: *mut c_void,
}

// SAFETY: futures may be completed on any thread.
unsafe impl Send for Promise {}

impl Promise {
    /// Ends the call. May run the rest of the program on this thread.
    pub(super) fn keep(mut self, outcome: Result<(), String>) {
        self.complete(outcome);
    }

    fn complete(&mut self, outcome: Result<(), String>) {
        let future = std::mem::replace(&mut self.future, ptr::null_mut());
        if future.is_null() {
            return;
        }
        let extension_start = ptr::null_mut();
        let error = match outcome {
            Ok(()) => {
                let struct_size = size_of::<sys::FutureSetAvailable>();
                let mut set = sys::FutureSetAvailable { struct_size, extension_start, future };
                // SAFETY: the table is live, and the future is completed once.
                unsafe { self.api.future_set_available.map(|function| function(&raw mut set)) }
            }
            Err(message) => {
                let struct_size = size_of::<sys::FutureSetError>();
                let error = create_error(self.api, message);
                let mut set = sys::FutureSetError { struct_size, extension_start, future, error };
                // SAFETY: as above, and the plugin takes the error.
                unsafe { self.api.future_set_error.map(|function| function(&raw mut set)) }
            }
        };
        destroy_error(self.api, error.unwrap_or_default());
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.complete(Err("an asynchronous custom call was abandoned".into()));
    }
}

fn create_error(api: &sys::FfiApi, message: String) -> *mut c_void {
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    let mut create = sys::FfiErrorCreate {
        struct_size: size_of::<sys::FfiErrorCreate>(),
        extension_start: ptr::null_mut(),
        message: message.as_ptr(),
        code: INTERNAL,
    };
    // SAFETY: the table is live, and the message outlives the call, which copies it.
    unsafe { api.error_create.map_or(ptr::null_mut(), |function| function(&raw mut create)) }
}

/// Frees an error of the plugin, if there is one.
fn destroy_error(api: &sys::FfiApi, error: *mut c_void) {
    let mut destroy = sys::FfiErrorDestroy {
        struct_size: size_of::<sys::FfiErrorDestroy>(),
        extension_start: ptr::null_mut(),
        error,
    };
    if !error.is_null()
        && let Some(function) = api.error_destroy
    {
        // SAFETY: the error is ours.
        unsafe { function(&raw mut destroy) };
    }
}

fn elements<T: Element>(
    buffers: &sys::CallBuffers,
    index: usize,
) -> Result<Elements<T>, &'static str> {
    let tensor = any_tensor(buffers, index)?;
    if tensor.dtype != T::DTYPE {
        return Err("has the wrong element type");
    }
    Ok(Elements { data: tensor.data.cast(), elements: tensor.elements })
}

fn any_tensor(buffers: &sys::CallBuffers, index: usize) -> Result<Tensor, &'static str> {
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
    let elements = dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).product();
    Ok(Tensor { data: buffer.data, dtype: buffer.dtype, elements })
}
