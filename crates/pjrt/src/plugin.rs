//! A loaded plugin: its function table and calls into it.

use crate::environment;
use crate::error::{Code, Error, Result};
use crate::sys::{self, Args, Table, args};
use crate::value::{self, NamedValues};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

/// A PJRT plugin, loaded once per process and never unloaded (plugins do not support that).
pub struct Plugin {
    table: *const Table,
    path: PathBuf,
    attributes: NamedValues,
    /// Whether our custom call handlers are registered.
    pub(crate) has_handlers: Mutex<bool>,
}

// SAFETY: the table is immutable, and PJRT functions may be called from any thread.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

static LOADED: LazyLock<Mutex<HashMap<PathBuf, &'static Plugin>>> = LazyLock::new(Mutex::default);

impl Plugin {
    /// Loads the plugin at `path`, or returns the one already loaded from there.
    ///
    /// The first load in a process sets environment variables that plugins read (see the
    /// architecture notes), so call it before starting threads that read the environment other
    /// than through Rust's standard library.
    pub fn load(path: &Path) -> Result<&'static Plugin> {
        let path =
            path.canonicalize().map_err(|source| Error::Io { path: path.to_owned(), source })?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plugin) = loaded.get(&path) {
            return Ok(plugin);
        }
        environment::prepare(&path);
        let mut plugin = environment::with_stderr_silenced(|| {
            let plugin = Plugin::open(path.clone())?;
            plugin.check_table()?;
            // SAFETY: the arguments hold no pointers.
            unsafe { plugin.call(&mut args::<sys::PluginInitialize>()) }?;
            Ok::<_, Error>(plugin)
        })?;
        plugin.attributes = plugin.read_attributes();
        let plugin: &'static Plugin = Box::leak(Box::new(plugin));
        loaded.insert(path, plugin);
        Ok(plugin)
    }

    fn open(path: PathBuf) -> Result<Plugin> {
        // SAFETY: loading runs the library's initializers, as the user requested.
        let library =
            unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
                Error::NotALibrary { path: path.clone(), reason: error.to_string() }
            })?;
        let library = std::mem::ManuallyDrop::new(library);
        type GetApi = unsafe extern "C" fn() -> *const Table;
        // SAFETY: PJRT fixes the type of this symbol.
        let get_api = unsafe { library.get::<GetApi>(b"GetPjrtApi\0") }
            .map_err(|_| Error::NoEntryPoint { path: path.clone() })?;
        // SAFETY: the function takes no arguments and returns a table that is never freed, or null.
        let table = unsafe { get_api() };
        if table.is_null() {
            return Err(Error::BadTable { path, reason: "GetPjrtApi returned null".into() });
        }
        Ok(Plugin { table, path, attributes: Vec::new(), has_handlers: Mutex::new(false) })
    }

    /// Rejects tables that cannot be used safely.
    fn check_table(&self) -> Result<()> {
        let bad = |reason: String| Err(Error::BadTable { path: self.path.clone(), reason });
        // SAFETY: the table is never freed.
        let size = unsafe { (*self.table).struct_size };
        if size < size_of::<Table>() {
            return bad(format!("it reports a size of {size} bytes"));
        }
        let (major, minor) = self.api_version();
        if major != 0 {
            return bad(format!("API {major}.{minor}, but only 0.x is supported"));
        }
        let needed = [
            (sys::ErrorDestroy::SLOT, "report errors"),
            (sys::ErrorMessage::SLOT, "report errors"),
            (sys::ErrorGetCode::SLOT, "report errors"),
            (sys::EventDestroy::SLOT, "signal completion"),
            (sys::EventAwait::SLOT, "signal completion"),
            (sys::EventOnReady::SLOT, "signal completion"),
        ];
        for (slot, what) in needed {
            // SAFETY: the table is never freed.
            if unsafe { Table::function(self.table, slot) }.is_none() {
                return bad(format!("it cannot {what}"));
            }
        }
        Ok(())
    }

    /// The attributes the plugin reports; old ones report none.
    fn read_attributes(&self) -> NamedValues {
        let mut call = args::<sys::PluginAttributes>();
        // SAFETY: the arguments hold no pointers.
        match unsafe { self.call(&mut call) } {
            // SAFETY: the call succeeded, so it filled both fields.
            Ok(()) => unsafe { value::from_raw(call.attributes, call.num_attributes) },
            Err(_) => Vec::new(),
        }
    }

    /// The file the plugin was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the C API the plugin was built with.
    pub fn api_version(&self) -> (i32, i32) {
        // SAFETY: the table is never freed.
        unsafe { ((*self.table).major, (*self.table).minor) }
    }

    /// The attributes of the plugin, such as its StableHLO version.
    pub fn attributes(&self) -> &[(String, crate::Value)] {
        &self.attributes
    }

    /// Whether the plugin has the profiler extension.
    pub fn has_profiler(&self) -> bool {
        self.extension(sys::EXTENSION_PROFILER).is_some()
    }

    /// The extension of a kind, if the plugin has it.
    pub(crate) fn extension(&self, kind: c_int) -> Option<*const sys::ExtensionBase> {
        // SAFETY: the table is never freed.
        let mut next = unsafe { (*self.table).extension_start };
        while !next.is_null() {
            // SAFETY: the chain is made of live extension structs and ends with null.
            let extension = unsafe { &*next };
            if extension.kind == kind {
                return Some(next);
            }
            next = extension.next;
        }
        None
    }

    /// The plugin's name in messages.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Calls the function whose argument struct is `A`.
    ///
    /// # Safety
    /// Every pointer in `args` is valid for its use by that function.
    pub(crate) unsafe fn call<A: Args>(&self, args: &mut A) -> Result<()> {
        // SAFETY: the table is never freed.
        let Some(function) = (unsafe { Table::function(self.table, A::SLOT) }) else {
            let (major, minor) = self.api_version();
            return Err(Error::MissingFunction {
                plugin: self.name(),
                version: format!("{major}.{minor}"),
                function: A::NAME,
            });
        };
        // SAFETY: `A` is the argument struct of the function in this slot, and the caller vouches
        // for its pointers.
        let error = unsafe { function((&raw mut *args).cast::<c_void>()) };
        // SAFETY: PJRT functions return null or an error that the caller owns.
        unsafe { self.take_error(A::NAME, error) }
    }

    /// Converts an error of the plugin and frees it.
    ///
    /// # Safety
    /// `error` is null or an error of this plugin that is ours to free.
    pub(crate) unsafe fn take_error(
        &self,
        function: &'static str,
        error: *mut sys::Error,
    ) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        let mut message = args::<sys::ErrorMessage>();
        message.error = error;
        let mut code = args::<sys::ErrorGetCode>();
        code.error = error;
        let mut destroy = args::<sys::ErrorDestroy>();
        destroy.error = error;
        // SAFETY: the error is live until `destroy`, and the text is copied before.
        let message = unsafe {
            self.call_void(&mut message);
            // If the code is unavailable it stays zero, which is unknown.
            if let Some(get_code) = Table::function(self.table, sys::ErrorGetCode::SLOT) {
                get_code((&raw mut code).cast::<c_void>());
            }
            let text = value::text(message.message, message.message_size);
            self.call_void(&mut destroy);
            text
        };
        Err(Error::Call { function, code: Code::from_raw(code.code), message })
    }

    /// Calls one of the functions that return nothing.
    ///
    /// # Safety
    /// `A` is one of those, and as for [`Plugin::call`].
    unsafe fn call_void<A: Args>(&self, args: &mut A) {
        // SAFETY: the table is never freed, the function in this slot has that type, and the
        // caller vouches for the pointers.
        unsafe {
            if let Some(function) = Table::function(self.table, A::SLOT) {
                let function = std::mem::transmute::<sys::Function, sys::VoidFunction>(function);
                function((&raw mut *args).cast::<c_void>());
            }
        }
    }

    /// Returns the object that a call created, or an error if it is null.
    pub(crate) fn check_made<T>(&self, raw: *mut T, function: &'static str) -> Result<*mut T> {
        if raw.is_null() {
            let what = format!("{function} succeeded but returned null");
            return Err(Error::BadPlugin { plugin: self.name(), what });
        }
        Ok(raw)
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("path", &self.path).finish_non_exhaustive()
    }
}
