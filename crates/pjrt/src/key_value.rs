//! The key-value store through which the plugins of a job find one another.
//!
//! A plugin calls the three callbacks from threads of its own for as long as its client lives.

use crate::error::Code;
use crate::sys;
use crate::value;
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Keys and values that all processes of a job share. A key is written once.
pub trait KeyValueStore: Send + Sync {
    /// The value of a key; waits for it.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, KeyValueError>;

    /// The value of a key, if it is there now.
    fn try_get(&self, key: &str) -> Result<Vec<u8>, KeyValueError>;

    /// Adds a key.
    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError>;
}

/// An error of a [`KeyValueStore`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyValueError {
    /// `try_get` of a key that is not there.
    #[error("the key is not there")]
    NotFound,
    /// `put` of a key that is there.
    #[error("the key is there already")]
    AlreadyExists,
    /// `get` of a key that did not arrive in time.
    #[error("the key did not arrive in time; another process may have failed")]
    DeadlineExceeded,
    /// The store cannot be reached.
    #[error("the key-value store is unavailable: {0}")]
    Unavailable(String),
}

impl KeyValueError {
    fn code(&self) -> Code {
        match self {
            KeyValueError::NotFound => Code::NotFound,
            KeyValueError::AlreadyExists => Code::AlreadyExists,
            KeyValueError::DeadlineExceeded => Code::DeadlineExceeded,
            KeyValueError::Unavailable(_) => Code::Unavailable,
        }
    }
}

/// A store that a plugin can call. It must outlive the client that was created with it.
pub(crate) struct Callbacks {
    /// Boxed, since a plugin takes a thin pointer that does not move.
    store: Box<Arc<dyn KeyValueStore>>,
}

impl Callbacks {
    pub(crate) fn new(store: Arc<dyn KeyValueStore>) -> Callbacks {
        Callbacks { store: Box::new(store) }
    }

    /// Sets the callbacks of a client to be created.
    pub(crate) fn set(&self, call: &mut sys::ClientCreate) {
        // The callbacks only read it; the type is mutable in C.
        let store = (&raw const *self.store).cast_mut().cast::<c_void>();
        call.kv_get_callback = Some(get);
        call.kv_get_user_arg = store;
        call.kv_try_get_callback = Some(try_get);
        call.kv_try_get_user_arg = store;
        call.kv_put_callback = Some(put);
        call.kv_put_user_arg = store;
    }
}

unsafe extern "C" fn get(args: *mut sys::KeyValueGetArgs) -> *mut sys::Error {
    // SAFETY: the plugin passes live arguments that nothing else uses during the call.
    let args = unsafe { &mut *args };
    let timeout = Duration::from_millis(u64::try_from(args.timeout_in_ms).unwrap_or(0));
    // SAFETY: the arguments are live, with the store that we passed.
    let found = unsafe {
        ask(args.user_arg, args.key, args.key_size, |store, key| store.get(key, timeout))
    };
    let answer = found.and_then(|value| allocate(&value)).map(|(value, size)| {
        (args.value, args.value_size) = (value, size);
        args.value_deleter = Some(free);
    });
    // SAFETY: the plugin passes a live function.
    unsafe { report(answer, args.callback_error) }
}

unsafe extern "C" fn try_get(args: *mut sys::KeyValueTryGetArgs) -> *mut sys::Error {
    // SAFETY: the plugin passes live arguments that nothing else uses during the call.
    let args = unsafe { &mut *args };
    // SAFETY: the arguments are live, with the store that we passed.
    let found =
        unsafe { ask(args.user_arg, args.key, args.key_size, |store, key| store.try_get(key)) };
    let answer = found.and_then(|value| allocate(&value)).map(|(value, size)| {
        (args.value, args.value_size) = (value, size);
        args.value_deleter = Some(free);
    });
    // SAFETY: the plugin passes a live function.
    unsafe { report(answer, args.callback_error) }
}

unsafe extern "C" fn put(args: *mut sys::KeyValuePutArgs) -> *mut sys::Error {
    // SAFETY: the plugin passes live arguments.
    let args = unsafe { &*args };
    // SAFETY: value and size belong together.
    let value = unsafe { value::slice(args.value.cast::<u8>(), args.value_size) };
    // SAFETY: the arguments are live, with the store that we passed.
    let added =
        unsafe { ask(args.user_arg, args.key, args.key_size, |store, key| store.put(key, value)) };
    // SAFETY: the plugin passes a live function.
    unsafe { report(added, args.callback_error) }
}

/// Why a callback failed.
struct Failure {
    code: Code,
    message: String,
}

/// Null, or an error of the plugin.
///
/// # Safety
/// `callback_error` points to a live function of a plugin.
unsafe fn report(
    answer: Result<(), Failure>,
    callback_error: *const sys::CallbackError,
) -> *mut sys::Error {
    let Err(Failure { code, message }) = answer else { return std::ptr::null_mut() };
    // SAFETY: the caller promises the function, and the message outlives the call.
    unsafe { (*callback_error)(code.raw(), message.as_ptr().cast(), message.len()) }
}

/// Calls the store. A panic becomes a failure: it must not unwind into the plugin.
///
/// # Safety
/// `store` is the pointer of live [`Callbacks`], and `key` points to `key_size` live bytes.
unsafe fn ask<T>(
    store: *mut c_void,
    key: *const c_char,
    key_size: usize,
    request: impl FnOnce(&dyn KeyValueStore, &str) -> Result<T, KeyValueError>,
) -> Result<T, Failure> {
    // SAFETY: the caller promises both.
    let (store, key) = unsafe {
        (&*store.cast::<Arc<dyn KeyValueStore>>(), value::slice(key.cast::<u8>(), key_size))
    };
    let Ok(key) = std::str::from_utf8(key) else {
        let message = format!("the key `{}` is not text", key.escape_ascii());
        return Err(Failure { code: Code::InvalidArgument, message });
    };
    match catch_unwind(AssertUnwindSafe(|| request(store.as_ref(), key))) {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(Failure { code: error.code(), message: format!("`{key}`: {error}") }),
        Err(_) => {
            let message = format!("`{key}`: the key-value store panicked");
            Err(Failure { code: Code::Internal, message })
        }
    }
}

/// A copy for the plugin, which frees it with [`free`]: that gets no size, so it is not Rust's.
fn allocate(value: &[u8]) -> Result<(*mut c_char, usize), Failure> {
    // SAFETY: any size may be requested; null is checked.
    let copy = unsafe { libc::malloc(value.len().max(1)) }.cast::<u8>();
    if copy.is_null() {
        let message = format!("no memory for a value of {} bytes", value.len());
        return Err(Failure { code: Code::ResourceExhausted, message });
    }
    // SAFETY: the copy is new and at least as long as the value.
    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), copy, value.len()) };
    Ok((copy.cast(), value.len()))
}

unsafe extern "C" fn free(value: *mut c_char) {
    // SAFETY: the plugin passes what `allocate` returned, once.
    unsafe { libc::free(value.cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::args;
    use std::collections::HashMap;
    use std::ptr;
    use std::sync::Mutex;

    /// A store in memory, which panics at some keys and is unavailable at others.
    #[derive(Default)]
    struct Memory(Mutex<HashMap<String, Vec<u8>>>);

    impl KeyValueStore for Memory {
        fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, KeyValueError> {
            assert_eq!(timeout, Duration::from_millis(250));
            self.try_get(key).map_err(|_| KeyValueError::DeadlineExceeded)
        }

        fn try_get(&self, key: &str) -> Result<Vec<u8>, KeyValueError> {
            assert_ne!(key, "panic");
            let values = self.0.lock().unwrap();
            values.get(key).cloned().ok_or(KeyValueError::NotFound)
        }

        fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError> {
            if key == "closed" {
                return Err(KeyValueError::Unavailable("connection closed".to_owned()));
            }
            let mut values = self.0.lock().unwrap();
            if values.contains_key(key) {
                return Err(KeyValueError::AlreadyExists);
            }
            values.insert(key.to_owned(), value.to_vec());
            Ok(())
        }
    }

    /// An error as the test's plugin makes it.
    #[derive(Debug, PartialEq)]
    struct PluginError(Code, String);

    unsafe extern "C" fn callback_error(
        code: i32,
        text: *const c_char,
        size: usize,
    ) -> *mut sys::Error {
        // SAFETY: the callbacks pass a live message.
        let message = unsafe { value::text(text, size) };
        Box::into_raw(Box::new(PluginError(Code::from_raw(code), message))).cast()
    }

    const CALLBACK_ERROR: &sys::CallbackError = &(callback_error as sys::CallbackError);

    /// Takes an error of [`callback_error`].
    fn take(error: *mut sys::Error) -> Result<(), PluginError> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: only `callback_error` makes errors here, and each is taken once.
        Err(*unsafe { Box::from_raw(error.cast::<PluginError>()) })
    }

    /// Copies and frees a value, as a plugin does.
    fn take_value(data: *mut c_char, size: usize, deleter: Option<sys::ValueDeleter>) -> Vec<u8> {
        // SAFETY: a callback has just set all three.
        unsafe {
            let value = value::slice(data.cast::<u8>(), size).to_vec();
            deleter.unwrap()(data);
            value
        }
    }

    /// A client's arguments, from which the test calls the functions as a plugin would.
    struct Plugin(sys::ClientCreate);

    // SAFETY: the arguments point to `Callbacks`, which are `Sync`.
    unsafe impl Sync for Plugin {}

    impl Plugin {
        fn new(callbacks: &Callbacks) -> Plugin {
            let mut call = args::<sys::ClientCreate>();
            callbacks.set(&mut call);
            Plugin(call)
        }

        fn get(&self, key: &[u8], timeout_in_ms: i32) -> Result<Vec<u8>, PluginError> {
            let mut args = sys::KeyValueGetArgs {
                struct_size: size_of::<sys::KeyValueGetArgs>(),
                extension_start: ptr::null_mut(),
                key: key.as_ptr().cast(),
                key_size: key.len(),
                timeout_in_ms,
                callback_error: CALLBACK_ERROR,
                user_arg: self.0.kv_get_user_arg,
                value: ptr::null_mut(),
                value_size: 0,
                value_deleter: None,
            };
            // SAFETY: the arguments are live.
            take(unsafe { self.0.kv_get_callback.unwrap()(&raw mut args) })?;
            Ok(take_value(args.value, args.value_size, args.value_deleter))
        }

        fn try_get(&self, key: &[u8]) -> Result<Vec<u8>, PluginError> {
            let mut args = sys::KeyValueTryGetArgs {
                struct_size: size_of::<sys::KeyValueTryGetArgs>(),
                extension_start: ptr::null_mut(),
                key: key.as_ptr().cast(),
                key_size: key.len(),
                callback_error: CALLBACK_ERROR,
                user_arg: self.0.kv_try_get_user_arg,
                value: ptr::null_mut(),
                value_size: 0,
                value_deleter: None,
            };
            // SAFETY: the arguments are live.
            take(unsafe { self.0.kv_try_get_callback.unwrap()(&raw mut args) })?;
            Ok(take_value(args.value, args.value_size, args.value_deleter))
        }

        fn put(&self, key: &[u8], value: &[u8]) -> Result<(), PluginError> {
            let mut args = sys::KeyValuePutArgs {
                struct_size: size_of::<sys::KeyValuePutArgs>(),
                extension_start: ptr::null_mut(),
                key: key.as_ptr().cast(),
                key_size: key.len(),
                value: value.as_ptr().cast(),
                value_size: value.len(),
                callback_error: CALLBACK_ERROR,
                user_arg: self.0.kv_put_user_arg,
            };
            // SAFETY: the arguments are live.
            take(unsafe { self.0.kv_put_callback.unwrap()(&raw mut args) })
        }
    }

    #[test]
    fn plugins_read_what_they_write_from_any_thread() {
        let callbacks = Callbacks::new(Arc::new(Memory::default()));
        let plugin = Plugin::new(&callbacks);
        let every_byte: Vec<u8> = (0..=255).collect();
        for (key, value) in [("topology/0", every_byte.as_slice()), ("empty", &[])] {
            plugin.put(key.as_bytes(), value).unwrap();
            assert_eq!(plugin.get(key.as_bytes(), 250).unwrap(), value);
            assert_eq!(plugin.try_get(key.as_bytes()).unwrap(), value);
        }
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let plugin = &plugin;
                scope.spawn(move || {
                    for number in 0..100_u8 {
                        let key = [b'a' + thread, b'/', number];
                        let value = [thread, number];
                        plugin.put(&key, &value).unwrap();
                        assert_eq!(plugin.get(&key, 250).unwrap(), value);
                    }
                });
            }
        });
    }

    #[test]
    fn errors_reach_the_plugin_with_code_and_key() {
        let callbacks = Callbacks::new(Arc::new(Memory::default()));
        let plugin = Plugin::new(&callbacks);
        plugin.put(b"once", b"1").unwrap();
        for (answer, code, expected) in [
            (plugin.try_get(b"none").map(drop), Code::NotFound, "`none`: the key is not there"),
            (plugin.get(b"none", 250).map(drop), Code::DeadlineExceeded, "`none`: the key did not"),
            (plugin.put(b"once", b"2"), Code::AlreadyExists, "`once`: the key is there already"),
            (plugin.put(b"closed", b""), Code::Unavailable, "connection closed"),
            (plugin.try_get(b"\xff").map(drop), Code::InvalidArgument, "`\\xff` is not text"),
            (plugin.try_get(b"panic").map(drop), Code::Internal, "`panic`: the key-value store"),
            // A negative time is none at all, at which this store panics.
            (plugin.get(b"once", -1).map(drop), Code::Internal, "panicked"),
        ] {
            let PluginError(found, message) = answer.unwrap_err();
            assert_eq!(found, code, "{message}");
            assert!(message.contains(expected), "{message}");
        }
        assert_eq!(plugin.try_get(b"once").unwrap(), b"1", "the store still works");
    }
}
