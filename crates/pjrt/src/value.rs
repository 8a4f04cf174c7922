//! Named values: plugin options and attributes.

use crate::sys;
use std::ffi::c_int;
use std::ptr;

/// A value of a kind that plugins support.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A string.
    Text(String),
    /// An integer.
    Int(i64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A float.
    Float(f32),
    /// A boolean.
    Bool(bool),
}

/// Values by name, in the order given.
pub type NamedValues = Vec<(String, Value)>;

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Int(int) => write!(f, "{int}"),
            Value::Ints(ints) => write!(f, "{ints:?}"),
            Value::Float(float) => write!(f, "{float}"),
            Value::Bool(boolean) => write!(f, "{boolean}"),
        }
    }
}

/// The C form of `values`. It borrows them by pointer, so `values` must outlive it.
pub(crate) fn to_raw(values: &[(String, Value)]) -> Vec<sys::NamedValue> {
    values.iter().map(|(name, value)| raw_value(name, value)).collect()
}

fn raw_value(name: &str, value: &Value) -> sys::NamedValue {
    let (kind, value, value_size): (c_int, sys::NamedValueUnion, usize) = match value {
        Value::Text(text) => {
            (sys::named::STRING, sys::NamedValueUnion { string: text.as_ptr().cast() }, text.len())
        }
        Value::Int(int) => (sys::named::INT64, sys::NamedValueUnion { int64: *int }, 1),
        Value::Ints(ints) => {
            (sys::named::INT64_LIST, sys::NamedValueUnion { int64_list: ints.as_ptr() }, ints.len())
        }
        Value::Float(float) => (sys::named::FLOAT, sys::NamedValueUnion { float: *float }, 1),
        Value::Bool(boolean) => (sys::named::BOOL, sys::NamedValueUnion { boolean: *boolean }, 1),
    };
    sys::NamedValue {
        struct_size: size_of::<sys::NamedValue>(),
        extension_start: ptr::null_mut(),
        name: name.as_ptr().cast(),
        name_size: name.len(),
        kind,
        value,
        value_size,
    }
}

/// Copies values out of the plugin, skipping unknown kinds.
///
/// # Safety
/// `values` points to `count` live values of a plugin, or `count` is zero.
pub(crate) unsafe fn from_raw(values: *const sys::NamedValue, count: usize) -> NamedValues {
    // SAFETY: the caller promises `count` live values.
    let values = unsafe { slice(values, count) };
    // SAFETY: as above; each value's pointers live as long as it does.
    values.iter().filter_map(|value| unsafe { read_value(value) }).collect()
}

/// # Safety
/// `raw` is a live value of a plugin.
unsafe fn read_value(raw: &sys::NamedValue) -> Option<(String, Value)> {
    // SAFETY: name and sizes belong together.
    let name = unsafe { text(raw.name, raw.name_size) };
    // SAFETY: `kind` selects the live member of the union.
    let value = unsafe {
        match raw.kind {
            sys::named::STRING => Value::Text(text(raw.value.string, raw.value_size)),
            sys::named::INT64 => Value::Int(raw.value.int64),
            sys::named::INT64_LIST => {
                Value::Ints(slice(raw.value.int64_list, raw.value_size).to_vec())
            }
            sys::named::FLOAT => Value::Float(raw.value.float),
            sys::named::BOOL => Value::Bool(raw.value.boolean),
            _ => return None,
        }
    };
    Some((name, value))
}

/// Copies a string of a plugin.
///
/// # Safety
/// `data` points to `size` live bytes, or `size` is zero.
pub(crate) unsafe fn text(data: *const std::ffi::c_char, size: usize) -> String {
    // SAFETY: the caller promises `size` live bytes.
    let bytes = unsafe { slice(data.cast::<u8>(), size) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// A slice over plugin memory; null is empty.
///
/// # Safety
/// `data` points to `len` live values, or is null, or `len` is zero.
pub(crate) unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller promises `len` live values.
    unsafe { std::slice::from_raw_parts(data, len) }
}
