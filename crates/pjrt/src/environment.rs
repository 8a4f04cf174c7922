//! What plugins read from the environment: how much they log, and what has no other way in.
//!
//! Plugins write to standard error by themselves and take their threshold from the environment
//! when they are loaded, so it has to be set before that.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Lets XLA's own log lines through; they are quiet by default. It must be called before the
/// first plugin is loaded.
pub fn set_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
}

/// Has the C library keep freed memory for the next allocation rather than give it back, where it
/// can (glibc). The CPU runtime allocates its temporaries anew at every launch, and a training
/// step then spends a tenth of its time on the kernel clearing pages. Other platforms gain nothing:
/// there all threads that compile would share one arena and its lock.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: these set thresholds of the allocator and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
        libc::mallopt(libc::M_TOP_PAD, 256 << 20);
        // Arenas of other threads are too small for large tensors, which they would map.
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Sets what plugins read from the environment, once, before the first is loaded. What the user
/// has set stays.
pub(crate) fn prepare(first_plugin: &Path) {
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
        // A plugin of another kind may come not to know these flags, and would end the process.
        if first_plugin.file_name().is_some_and(|name| name.to_string_lossy().contains("cpu")) {
            be_patient_with_collectives();
        }
    });
}

/// Virtual CPU devices may far outnumber cores, and the runtime ends the process when one is
/// 40 seconds late to a collective. The limit is read from the process's flags alone.
fn be_patient_with_collectives() {
    const DAY: u32 = 24 * 60 * 60;
    let flags = std::env::var_os("XLA_FLAGS").unwrap_or_default();
    let Some(mut flags) = flags.to_str().map(str::to_owned) else { return };
    if !flags.trim().is_empty() && !flags.trim_start().starts_with('-') {
        // The name of a file of flags, which are the user's own business.
        return;
    }
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
    let _hush = if VERBOSE.load(Ordering::Relaxed) { None } else { Hush::new() };
    load()
}

/// Keeps standard error closed, and opens it again when dropped.
struct Hush {
    stderr: OwnedFd,
}

impl Hush {
    /// None if there is no standard error to close.
    fn new() -> Option<Hush> {
        const PAST_THE_STANDARD_ONES: i32 = 3;
        let stderr = rustix::stdio::stderr();
        let stderr = rustix::io::fcntl_dupfd_cloexec(stderr, PAST_THE_STANDARD_ONES).ok()?;
        let nowhere = File::options().write(true).open("/dev/null").ok()?;
        rustix::stdio::dup2_stderr(nowhere).ok()?;
        Some(Hush { stderr })
    }
}

impl Drop for Hush {
    fn drop(&mut self) {
        // It was open a moment ago, so it can be opened again.
        let _ = rustix::stdio::dup2_stderr(&self.stderr);
    }
}

fn set_default(name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        set(name, value);
    }
}

fn set(name: &str, value: &str) {
    // SAFETY: this happens once, before the first plugin is loaded, and std's own accesses are
    // serialised with it. What remains is foreign code that reads the environment on another
    // thread at that moment, against which `Plugin::load` warns.
    unsafe { std::env::set_var(name, value) };
}
