//! Keeping XLA's own log lines quiet, and other settings that plugins read from the environment.
//!
//! Plugins write to standard error by themselves and take their threshold from the environment
//! when they are loaded, so it has to be set before that.

use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Lets XLA's own log lines through (they are quiet by default). It takes effect for plugins
/// loaded afterwards.
pub fn set_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
}

/// Sets, once, what plugins read from the environment. What the user has set stays.
pub(crate) fn prepare_environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let verbose = VERBOSE.load(Ordering::Relaxed);
        set_default("TF_CPP_MIN_LOG_LEVEL", if verbose { "0" } else { "3" });
        // libtpu takes a machine-wide lock, which the compiler alone does not need.
        set_default("ALLOW_MULTIPLE_LIBTPU_LOAD", "1");
        if !has_tpu() {
            // Else libtpu waits minutes for a metadata server that is not there, and then
            // complains of what it did not learn. None of it matters to the compiler.
            set_default("TPU_SKIP_MDS_QUERY", "1");
            set_default("TPU_ACCELERATOR_TYPE", "v4-8");
            set_default("TPU_WORKER_HOSTNAMES", "localhost");
            set_default("TPU_WORKER_ID", "0");
        }
    });
}

fn has_tpu() -> bool {
    Path::new("/dev/accel0").exists() || Path::new("/dev/vfio/0").exists()
}

fn set_default(name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        // SAFETY: runs once, before the first plugin is loaded, so no foreign code of ours reads
        // the environment yet, and std's own accesses are serialised with this one.
        unsafe { std::env::set_var(name, value) };
    }
}
