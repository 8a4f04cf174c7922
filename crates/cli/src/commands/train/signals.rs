//! Signals of a run: Ctrl-C, SIGTERM and SIGHUP stop it after its launch, and end it when the grace
//! time is over or at the second one; SIGUSR1 saves a checkpoint.

use fullshard::{Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use signal_hook::iterator::Signals as Receiver;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The signals that end a run.
const SIGNALS: [(i32, Signal); 3] = [
    (SIGINT, Signal { name: "Ctrl-C", exit_code: 130 }),
    (SIGTERM, Signal { name: "SIGTERM", exit_code: 143 }),
    (SIGHUP, Signal { name: "SIGHUP", exit_code: 129 }),
];

/// The received signals.
pub struct Signals {
    /// The position of the first one that ends the run, counted from 1.
    ending: Arc<AtomicUsize>,
    save: Arc<AtomicBool>,
}

/// A received signal.
#[derive(Debug, Clone, Copy)]
pub struct Signal {
    pub name: &'static str,
    pub exit_code: u8,
}

impl Signal {
    /// One that another process of the job received.
    pub const ELSEWHERE: Signal = Signal { name: "a signal to another process", exit_code: 143 };
}

impl Signals {
    /// From now on, the first signal is recorded, and the process ends after the grace time or at
    /// the second one.
    pub fn watch(grace: Duration) -> Result<Signals> {
        let fail = |error| Error::Usage(format!("cannot watch for signals: {error}"));
        let save = Arc::new(AtomicBool::new(false));
        flag::register(SIGUSR1, Arc::clone(&save)).map_err(fail)?;
        let mut receiver = Receiver::new(SIGNALS.map(|(signal, _)| signal)).map_err(fail)?;
        let ending = Arc::new(AtomicUsize::new(0));
        let first = Arc::clone(&ending);
        std::thread::spawn(move || {
            for number in receiver.forever() {
                let position = SIGNALS.iter().position(|(signal, _)| *signal == number);
                let Some(position) = position else { continue };
                let signal = SIGNALS[position].1;
                if first.swap(position + 1, Ordering::Relaxed) != 0 {
                    std::process::exit(signal.exit_code.into());
                }
                std::thread::spawn(move || end_after(grace, signal));
            }
        });
        Ok(Signals { ending, save })
    }

    /// The received signal that ends the run, if any.
    pub fn received(&self) -> Option<Signal> {
        let position = self.ending.load(Ordering::Relaxed).checked_sub(1)?;
        SIGNALS.get(position).map(|(_, signal)| *signal)
    }

    /// Whether a checkpoint was requested since the last call.
    pub fn takes_save(&self) -> bool {
        self.save.swap(false, Ordering::Relaxed)
    }
}

/// Ends the process when the grace time is over: what is not complete by then is not seen.
fn end_after(grace: Duration, signal: Signal) {
    std::thread::sleep(grace);
    tracing::error!(
        "{} was {} s ago: the process ends now, without what is not yet saved. A longer \
         --preemption_grace_s leaves more time",
        signal.name,
        grace.as_secs_f64()
    );
    std::process::exit(signal.exit_code.into());
}
