//! What plugins read from the environment: how much they log, and what has no other way in.
//!
//! Plugins write to standard error by themselves and take their threshold from the environment
//! when they are loaded, so it has to be set before that.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Held while the environment is set and while a plugin may read it.
static ENVIRONMENT: Mutex<()> = Mutex::new(());

/// Keeps the environment as it is while a plugin reads it.
pub(crate) fn reading() -> MutexGuard<'static, ()> {
    ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets XLA's own log lines through (they are quiet by default). It takes effect for plugins
/// loaded afterwards.
pub fn set_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
}

/// Sets, once, what plugins read from the environment. What the user has set stays.
pub(crate) fn prepare(plugin: &Path) {
    let _writing = reading();
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
    // Plugins of other kinds may come not to know these flags, and an unknown one is fatal.
    if plugin.file_name().is_some_and(|name| name.to_string_lossy().contains("cpu")) {
        static ONCE: Once = Once::new();
        ONCE.call_once(be_patient_with_collectives);
    }
}

/// Virtual CPU devices may far outnumber cores, and the runtime ends the process when one is
/// 40 seconds late to a collective. The limit is read from the process's flags alone.
fn be_patient_with_collectives() {
    const DAY: u32 = 24 * 60 * 60;
    let mut flags = std::env::var("XLA_FLAGS").unwrap_or_default();
    for flag in ["terminate_timeout_seconds", "warn_stuck_timeout_seconds"] {
        let flag = format!("--xla_cpu_collective_call_{flag}");
        if !flags.contains(&flag) {
            flags = format!("{flags} {flag}={DAY}");
        }
    }
    set("XLA_FLAGS", flags.trim());
}

fn has_tpu() -> bool {
    Path::new("/dev/accel0").exists() || Path::new("/dev/vfio/0").exists()
}

/// Does `load` with standard error closed to the plugin, unless log lines are wanted: some that
/// are written while a plugin is loaded heed no threshold.
pub(crate) fn hushed<T>(load: impl FnOnce() -> T) -> T {
    if VERBOSE.load(Ordering::Relaxed) {
        return load();
    }
    let stderr = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 0);
    let nowhere = File::options().write(true).open("/dev/null");
    let (Ok(stderr), Ok(nowhere)) = (stderr, nowhere) else { return load() };
    let silenced = rustix::stdio::dup2_stderr(nowhere).is_ok();
    let loaded = load();
    if silenced {
        // It was open a moment ago, so it can be put back.
        let _ = rustix::stdio::dup2_stderr(stderr);
    }
    loaded
}

fn set_default(name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        set(name, value);
    }
}

fn set(name: &str, value: &str) {
    // SAFETY: std's own accesses are serialised with this one, and plugins read the environment
    // while they are loaded and make clients and topologies, all of which `ENVIRONMENT` keeps
    // apart from this.
    unsafe { std::env::set_var(name, value) };
}
