//! The stacks of all threads of this process, for one that hangs.
//!
//! Every thread gets a signal, whose handler unwinds it into a static buffer; frames are named
//! afterwards, on the thread that asked. Nothing is allocated or locked in the handler, since the
//! thread may hold any lock. A thread that blocks the signal, or that sleeps in the kernel and cannot be woken,
//! is listed without frames.
//!
//! Names are those that libraries export. Other frames are a file and an offset, which
//! `addr2line -Cfie FILE OFFSET` turns into a function and a line.

use std::ffi::CStr;
use std::fs;
use std::io::{self, Write};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most frames of a thread.
const FRAMES: usize = 128;

/// How long a thread may take to answer.
const ANSWER: Duration = Duration::from_millis(200);

/// How long it may take to unwind once it has begun.
const UNWIND: Duration = Duration::from_secs(5);

/// Values of [`ASKED`] that are no threads.
const NOBODY: i32 = 0;
const UNWINDING: i32 = -1;
const DONE: i32 = -2;

/// The thread that is to write its frames into the buffer, or how far it is.
static ASKED: AtomicI32 = AtomicI32::new(NOBODY);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static BUFFER: [AtomicUsize; FRAMES] = [const { AtomicUsize::new(0) }; FRAMES];

/// The signal, once its handler is installed. One caller at a time asks.
static SIGNAL: Mutex<Option<i32>> = Mutex::new(None);

/// Writes the name, the state and the stack of every thread of this process.
///
/// The handler of a real-time signal that nobody else uses is installed the first time, and stays:
/// a thread may receive the signal late.
pub fn write(out: &mut dyn Write) -> io::Result<()> {
    let mut signal = SIGNAL.lock().unwrap_or_else(PoisonError::into_inner);
    if signal.is_none() {
        *signal = install();
    }
    let mut threads: Vec<i32> = fs::read_dir("/proc/self/task")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    threads.sort_unstable();
    writeln!(out, "process {}, {} threads", std::process::id(), threads.len())?;
    writeln!(out, "addr2line -Cfie FILE OFFSET names a frame, or its .debug file of a release")?;
    for thread in threads {
        writeln!(out, "\n{}", describe(thread))?;
        let Some(frames) = signal.and_then(|signal| ask(thread, signal)) else {
            writeln!(out, "      no answer")?;
            continue;
        };
        for (number, frame) in frames.into_iter().enumerate() {
            writeln!(out, "{number:>4}  {}", name(frame))?;
        }
    }
    out.flush()
}

/// `thread 12 "loader", state S, in futex_wait_queue`.
fn describe(thread: i32) -> String {
    let read = |file: &str| fs::read_to_string(format!("/proc/self/task/{thread}/{file}"));
    let text = |file: &str| read(file).map(|text| text.trim().to_owned()).unwrap_or_default();
    let stat = text("stat");
    // The name, in parentheses, may have spaces.
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    let place = match text("wchan") {
        place if place.is_empty() || place == "0" => String::new(),
        place => format!(", in {place}"),
    };
    format!("thread {thread} \"{}\", state {}{place}", text("comm"), state.unwrap_or("?"))
}

/// Sets who is asked, if it is who is expected.
fn turn(from: i32, to: i32) -> bool {
    let next = |asked| (asked == from).then_some(to);
    ASKED.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok()
}

/// The frames of a thread, the innermost first; none if it does not answer.
fn ask(thread: i32, signal: i32) -> Option<Vec<usize>> {
    if !turn(NOBODY, thread) {
        // A thread before has not left the buffer.
        return None;
    }
    // SAFETY: the system call takes numbers only, and the signal has a handler.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
    let start = Instant::now();
    while sent == 0 && ASKED.load(Ordering::Acquire) == thread && start.elapsed() < ANSWER {
        std::thread::sleep(Duration::from_micros(200));
    }
    if turn(thread, NOBODY) {
        return None;
    }
    while ASKED.load(Ordering::Acquire) != DONE {
        if start.elapsed() > UNWIND {
            return None;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let count = COUNT.load(Ordering::Relaxed).min(FRAMES);
    let frames = BUFFER[..count].iter().map(|frame| frame.load(Ordering::Relaxed)).collect();
    ASKED.store(NOBODY, Ordering::Release);
    Some(frames)
}

/// Installs the handler of a real-time signal that has none; none if all have one.
fn install() -> Option<i32> {
    let free = |signal: &i32| {
        // SAFETY: all zeros is a valid action, and a null pointer leaves the signal as it is.
        unsafe {
            let mut found: libc::sigaction = std::mem::zeroed();
            let known = libc::sigaction(*signal, std::ptr::null(), &mut found) == 0;
            known && found.sa_sigaction == libc::SIG_DFL
        }
    };
    let signal = (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(free)?;
    let mut frames = [std::ptr::null_mut(); 1];
    // SAFETY: the buffer has room for one frame. The first call loads the unwinder, which the
    // handler must not.
    unsafe { libc::backtrace(frames.as_mut_ptr(), 1) };
    // SAFETY: the handler has the signature of a handler without details, and is as careful as
    // handlers must be.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = answer as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, &action, std::ptr::null_mut()) == 0
    };
    installed.then_some(signal)
}

/// The handler: writes the frames of its thread into the buffer, if this thread is still asked.
extern "C" fn answer(_: libc::c_int) {
    // SAFETY: these read a number, and where the thread keeps its last error.
    let (thread, errno) = unsafe { (libc::gettid(), libc::__errno_location()) };
    // SAFETY: the place of the last error is valid while the thread lives.
    let error = unsafe { *errno };
    if turn(thread, UNWINDING) {
        let mut frames = [std::ptr::null_mut(); FRAMES];
        // SAFETY: the buffer has room for as many frames as stated. The unwinder is loaded already
        // and takes no lock that a thread could hold for long.
        let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as libc::c_int) };
        let count = usize::try_from(count).unwrap_or(0);
        // The first is this function.
        let frames = &frames[1.min(count)..count];
        for (place, frame) in BUFFER.iter().zip(frames) {
            place.store(frame.addr(), Ordering::Relaxed);
        }
        COUNT.store(frames.len(), Ordering::Relaxed);
        ASKED.store(DONE, Ordering::Release);
    }
    // SAFETY: as above.
    unsafe { *errno = error };
}

/// `/lib/libc.so.6+0x98d61 clock_nanosleep`: the file and the offset in it, and the function if the
/// file exports it.
fn name(frame: usize) -> String {
    // SAFETY: all zeros is a valid result, and the address is only looked up.
    let found = unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        (libc::dladdr(frame as *const libc::c_void, &mut found) != 0).then_some(found)
    };
    let Some(found) = found else { return format!("{frame:#x}") };
    let text = |text: *const libc::c_char| {
        // SAFETY: names of loaded files and their symbols are strings that stay while the file is
        // loaded, and plugins are never unloaded.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    let file = text(found.dli_fname).unwrap_or_default();
    let offset = frame - found.dli_fbase.addr();
    let function = text(found.dli_sname).map_or(String::new(), |name| format!("  {name}"));
    format!("{file}+{offset:#x}{function}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// A function whose frame is looked for, and the next one.
    #[inline(never)]
    extern "C" fn parked(ready: &std::sync::mpsc::Sender<()>, wake: &Receiver<()>) -> usize {
        let _ = ready.send(());
        let _ = wake.recv();
        // What follows the call keeps it from being a jump.
        std::hint::black_box(1)
    }

    fn stacks() -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The lines of a thread.
    fn of<'a>(stacks: &'a str, thread: &str) -> &'a str {
        let named = format!("\"{thread}\"");
        stacks.split("\n\n").find(|text| text.contains(&named)).unwrap_or_default()
    }

    #[test]
    fn a_parked_thread_is_where_it_waits() {
        let ((ready, is_ready), (wake, waits)) = (channel(), channel());
        let thread = std::thread::Builder::new().name("parked one".into());
        let thread = thread.spawn(move || parked(&ready, &waits)).unwrap();
        is_ready.recv().unwrap();
        // Twice, since the handler stays.
        for _ in 0..2 {
            let stacks = stacks();
            let text = of(&stacks, "parked one");
            assert!(text.contains(", state "), "{stacks}");
            let place = name(parked as *const () as usize);
            let (file, start) = place.split_once('+').unwrap();
            let start = usize::from_str_radix(&start[2..], 16).unwrap();
            let offsets = text.lines().filter_map(|line| {
                let (_, offset) = line.split_once(&format!("{file}+0x"))?;
                usize::from_str_radix(offset.split_whitespace().next()?, 16).ok()
            });
            let inside = |offset: usize| (start..start + 512).contains(&offset);
            assert!(offsets.clone().any(inside), "{start:x}: {stacks}");
            // Below it is what it was called by, up to the start of the thread.
            assert!(offsets.count() > 2, "{stacks}");
            assert!(text.contains("libc.so.6+0x"), "{stacks}");
        }
        wake.send(()).unwrap();
        assert_eq!(thread.join().unwrap(), 1);
    }

    #[test]
    fn a_thread_that_blocks_signals_is_listed() {
        let ((ready, is_ready), (wake, waits)) = (channel(), channel::<()>());
        let thread = std::thread::Builder::new().name("deaf one".into());
        let thread = thread.spawn(move || {
            // SAFETY: the set is filled before it is used.
            unsafe {
                let mut all: libc::sigset_t = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
            }
            ready.send(()).unwrap();
            let _ = waits.recv();
        });
        is_ready.recv().unwrap();
        let stacks = stacks();
        assert!(of(&stacks, "deaf one").contains("no answer"), "{stacks}");
        drop(wake);
        thread.unwrap().join().unwrap();
    }
}
