//! CPU custom calls, computed in this process.
//!
//! The CPU plugin's own matmuls are slow in some orientations and very slow in batches, so programs
//! for it may call [`MATMUL`] instead; and [`LOSS`] for everything between the last layer and its
//! gradient, which would otherwise write and read every logit many times. Handlers are registered
//! when a CPU client is created.

mod exponential;
mod frame;
mod loss;
mod matmul;

pub use loss::LOSS;
pub use matmul::MATMUL;

use crate::error::{Error, Result};
use crate::plugin::Plugin;
use crate::sys;
use frame::Frame;
use std::ffi::c_void;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The platform name of CPU handlers.
const PLATFORM: &str = "Host";

/// Number of threads one call may use.
static THREADS: AtomicUsize = AtomicUsize::new(1);

/// Registers the handlers with a CPU plugin, for a client with `devices` devices.
pub(crate) fn register(plugin: &'static Plugin, devices: usize) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    THREADS.store((cores / devices.max(1)).max(1), Ordering::Relaxed);
    let mut registered = plugin.has_handlers.lock().unwrap_or_else(PoisonError::into_inner);
    if !*registered {
        register_handler(plugin, MATMUL, matmul_handler)?;
        register_handler(plugin, LOSS, loss_handler)?;
        *registered = true;
    }
    Ok(())
}

fn register_handler(plugin: &'static Plugin, name: &str, handler: sys::Handler) -> Result<()> {
    let missing = || Error::MissingExtension { plugin: plugin.name(), extension: "custom call" };
    let extension = plugin.extension(sys::EXTENSION_FFI).ok_or_else(missing)?;
    // SAFETY: an extension is never freed.
    if unsafe { (*extension).struct_size } < size_of::<sys::FfiExtension>() {
        return Err(missing());
    }
    // SAFETY: an extension of this kind has this type, and is long enough.
    let function = unsafe { (*extension.cast::<sys::FfiExtension>()).register_handler };
    let function = function.ok_or_else(missing)?;
    let mut call = sys::RegisterHandler {
        struct_size: size_of::<sys::RegisterHandler>(),
        target_name: name.as_ptr().cast(),
        target_name_size: name.len(),
        handler,
        platform_name: PLATFORM.as_ptr().cast(),
        platform_name_size: PLATFORM.len(),
        traits: 0,
    };
    // SAFETY: the names outlive the call, and the handler is a static function.
    let error = unsafe { function(&raw mut call) };
    // SAFETY: null, or an error that is ours.
    unsafe { plugin.take_error("PJRT_FFI_Register_Handler", error) }
}

/// The handler of [`MATMUL`].
unsafe extern "C" fn matmul_handler(frame: *mut sys::CallFrame) -> *mut c_void {
    // SAFETY: the plugin calls handlers with a live frame.
    let frame = unsafe { Frame::new(frame) };
    frame.answer(|frame| matmul::run(frame, THREADS.load(Ordering::Relaxed)))
}

/// The handler of [`LOSS`].
unsafe extern "C" fn loss_handler(frame: *mut sys::CallFrame) -> *mut c_void {
    // SAFETY: the plugin calls handlers with a live frame.
    let frame = unsafe { Frame::new(frame) };
    frame.answer(|frame| loss::run(frame, THREADS.load(Ordering::Relaxed)))
}
