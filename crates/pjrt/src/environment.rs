//! Environment variables that plugins read: log levels, and settings that have no API.
//!
//! Plugins log to stderr and read their threshold from the environment when loaded, so it has to be
//! set before that.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Enables XLA's logs, which are off by default. Must be called before the first plugin is loaded.
pub fn set_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
}

/// Makes the C library keep freed memory for reuse rather than return it to the system, where
/// supported (glibc). The CPU runtime reallocates its temporaries at every launch, and a training
/// step otherwise spends a tenth of its time on the kernel zeroing pages. Other platforms gain
/// nothing: there all compiling threads would share one arena and its lock.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: these set thresholds of the allocator and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
        libc::mallopt(libc::M_TOP_PAD, 256 << 20);
        // Arenas of other threads are too small for large tensors and would use mmap.
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Sets the environment variables that plugins read, once, before the first is loaded. User
/// settings take precedence.
pub(crate) fn prepare(first_plugin: &Path) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let verbose = VERBOSE.load(Ordering::Relaxed);
        set_default("TF_CPP_MIN_LOG_LEVEL", if verbose { "0" } else { "3" });
        // libtpu takes a machine-wide lock, which compiling does not need.
        set_default("ALLOW_MULTIPLE_LIBTPU_LOAD", "1");
        let is_set = |name: &str| std::env::var_os(name).is_some();
        for (name, value) in absent_tpu(has_tpu(), is_set) {
            set(name, value);
        }
        // A plugin of another kind may not support these flags, and would abort the process.
        if first_plugin.file_name().is_some_and(|name| name.to_string_lossy().contains("cpu")) {
            extend_collective_timeouts();
        }
    });
}

/// Virtual CPU devices may far outnumber cores, and the runtime aborts the process when one is
/// 40 seconds late to a collective. The timeout is only read from `XLA_FLAGS`.
fn extend_collective_timeouts() {
    const DAY: u32 = 24 * 60 * 60;
    let flags = std::env::var_os("XLA_FLAGS").unwrap_or_default();
    let Some(mut flags) = flags.to_str().map(str::to_owned) else { return };
    if !flags.trim().is_empty() && !flags.trim_start().starts_with('-') {
        // The name of a flag file, which the user controls.
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

/// The settings, with their values, that have libtpu compile on a machine without TPUs. None on
/// one with them, and none in a pod, by what its launcher sets: there libtpu finds the other hosts
/// by the metadata server or by these variables, and must not be given only some of them.
///
/// Without them it waits minutes for a metadata server that does not exist, and then logs errors.
/// The compiler does not need any of it.
fn absent_tpu(
    has_tpu: bool,
    is_set: impl Fn(&str) -> bool,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    const POD: [&str; 9] = [
        "TPU_WORKER_ID",
        "TPU_WORKER_HOSTNAMES",
        "TPU_PROCESS_ADDRESSES",
        "TPU_PROCESS_BOUNDS",
        "TPU_PROCESS_PORT",
        "TPU_CHIPS_PER_PROCESS_BOUNDS",
        "MEGASCALE_COORDINATOR_ADDRESS",
        "MEGASCALE_NUM_SLICES",
        "MEGASCALE_SLICE_ID",
    ];
    const SETTINGS: [(&str, &str); 4] = [
        ("TPU_SKIP_MDS_QUERY", "1"),
        ("TPU_ACCELERATOR_TYPE", "v4-8"),
        ("TPU_WORKER_HOSTNAMES", "localhost"),
        ("TPU_WORKER_ID", "0"),
    ];
    let is_absent = !has_tpu && !POD.iter().any(|name| is_set(name));
    SETTINGS.into_iter().filter(move |(name, _)| is_absent && !is_set(name))
}

fn has_tpu() -> bool {
    Path::new("/dev/accel0").exists() || Path::new("/dev/vfio/0").exists()
}

/// Runs `load` with stderr redirected to /dev/null, unless verbose: some lines logged while a
/// plugin is loaded ignore the threshold.
pub(crate) fn with_stderr_silenced<T>(load: impl FnOnce() -> T) -> T {
    let _guard = if VERBOSE.load(Ordering::Relaxed) { None } else { SilencedStderr::new() };
    load()
}

/// Redirects stderr to /dev/null, and restores it when dropped.
struct SilencedStderr {
    stderr: OwnedFd,
}

impl SilencedStderr {
    /// None if stderr is closed.
    fn new() -> Option<SilencedStderr> {
        const FIRST_NON_STANDARD_FD: i32 = 3;
        let stderr = rustix::stdio::stderr();
        let stderr = rustix::io::fcntl_dupfd_cloexec(stderr, FIRST_NON_STANDARD_FD).ok()?;
        let dev_null = File::options().write(true).open("/dev/null").ok()?;
        rustix::stdio::dup2_stderr(dev_null).ok()?;
        Some(SilencedStderr { stderr })
    }
}

impl Drop for SilencedStderr {
    fn drop(&mut self) {
        // The saved descriptor is open, so this does not fail.
        let _ = rustix::stdio::dup2_stderr(&self.stderr);
    }
}

fn set_default(name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        set(name, value);
    }
}

fn set(name: &str, value: &str) {
    // SAFETY: this runs once, before the first plugin is loaded, and std's own accesses are
    // serialized with it. What remains is foreign code that reads the environment on another
    // thread at that moment, which the docs of `Plugin::load` warn about.
    unsafe { std::env::set_var(name, value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(has_tpu: bool, set: &[&str]) -> Vec<&'static str> {
        absent_tpu(has_tpu, |name| set.contains(&name)).map(|(name, _)| name).collect()
    }

    #[test]
    fn a_tpu_is_made_up_only_where_there_is_none() {
        let all =
            ["TPU_SKIP_MDS_QUERY", "TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"];
        assert_eq!(names(false, &[]), all);
        assert_eq!(names(false, &["TPU_ACCELERATOR_TYPE", "XLA_FLAGS"]), [all[0], all[2], all[3]]);
        assert!(names(true, &[]).is_empty(), "a machine with TPUs");
        for pod in ["TPU_WORKER_ID", "TPU_PROCESS_ADDRESSES", "MEGASCALE_COORDINATOR_ADDRESS"] {
            assert!(names(false, &[pod]).is_empty(), "{pod}");
        }
    }
}
