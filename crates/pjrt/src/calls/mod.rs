//! CPU custom calls, computed in this process.
//!
//! The CPU plugin's own matmuls are slow in some orientations and very slow in batches, so programs
//! for it may call [`MATMUL`] instead; and [`LOSS`] for everything between the last layer and its
//! gradient, which would otherwise write and read every logit many times; and [`ATTENTION`], whose
//! scores are never all in memory; and [`PAD`], next to which the compiler vectorizes what it would
//! compute element by element together with padding. Programs of several
//! processes communicate by the calls of `mpi`. Handlers are registered when a CPU client is
//! created; those of `mpi` fail unless MPI was started.

mod attention;
mod exponential;
mod frame;
mod loss;
mod matmul;
mod mpi;
mod pad;
mod reduction;

pub use attention::{ATTENTION, ATTENTION_GRADIENTS};
pub use loss::LOSS;
pub use matmul::MATMUL;
pub use mpi::{
    MPI_ALL_GATHER, MPI_ALL_REDUCE, MPI_ALL_TO_ALL, MPI_PERMUTE, MPI_PREFIX, MPI_REDUCE_SCATTER,
    PROCESS_INDEX,
};
pub use pad::PAD;

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

const HANDLERS: [(&str, sys::Handler); 11] = [
    (MATMUL, matmul_handler),
    (LOSS, loss_handler),
    (ATTENTION, attention_handler),
    (ATTENTION_GRADIENTS, attention_gradients_handler),
    (PAD, pad_handler),
    (MPI_ALL_REDUCE, all_reduce_handler),
    (MPI_ALL_GATHER, all_gather_handler),
    (MPI_REDUCE_SCATTER, reduce_scatter_handler),
    (MPI_ALL_TO_ALL, all_to_all_handler),
    (MPI_PERMUTE, permute_handler),
    (PROCESS_INDEX, process_index_handler),
];

/// Registers the handlers with a CPU plugin, for a client with `devices` devices.
pub(crate) fn register(plugin: &'static Plugin, devices: usize) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    THREADS.store((cores / devices.max(1)).max(1), Ordering::Relaxed);
    let mut registered = plugin.has_handlers.lock().unwrap_or_else(PoisonError::into_inner);
    if !*registered {
        for (name, handler) in HANDLERS {
            register_handler(plugin, name, handler)?;
        }
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

/// Declares handlers: `name = function of the frame`.
macro_rules! handlers {
    ($($name:ident = $run:expr;)*) => {$(
        unsafe extern "C" fn $name(frame: *mut sys::CallFrame) -> *mut c_void {
            // SAFETY: the plugin calls handlers with a live frame.
            let frame = unsafe { Frame::new(frame) };
            frame.answer($run)
        }
    )*};
}

handlers! {
    matmul_handler = |frame| matmul::run(frame, THREADS.load(Ordering::Relaxed));
    loss_handler = |frame| loss::run(frame, THREADS.load(Ordering::Relaxed));
    attention_handler = |frame| attention::forward(frame, THREADS.load(Ordering::Relaxed));
    attention_gradients_handler =
        |frame| attention::gradients(frame, THREADS.load(Ordering::Relaxed));
    pad_handler = pad::run;
    all_reduce_handler = mpi::all_reduce;
    all_gather_handler = mpi::all_gather;
    reduce_scatter_handler = mpi::reduce_scatter;
    all_to_all_handler = mpi::all_to_all;
    permute_handler = mpi::permute;
    process_index_handler = mpi::process_index;
}
