//! Ctrl-C and SIGTERM: the first stops a run after its step, the second immediately.

use fullshard::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The signals that end a run, with their exit codes.
const SIGNALS: [(i32, &str, u8); 2] = [(SIGINT, "Ctrl-C", 130), (SIGTERM, "SIGTERM", 143)];

/// The received signals.
pub struct Signals([Arc<AtomicBool>; SIGNALS.len()]);

/// A received signal.
#[derive(Debug, Clone, Copy)]
pub struct Signal {
    pub name: &'static str,
    pub exit_code: u8,
}

impl Signals {
    /// From now on, the first signal is recorded, and the second ends the process.
    pub fn watch() -> Result<Signals> {
        let flags = SIGNALS.map(|_| Arc::new(AtomicBool::new(false)));
        for ((signal, name, exit_code), received) in SIGNALS.into_iter().zip(&flags) {
            let fail = |error| Error::Usage(format!("cannot watch for {name}: {error}"));
            let code = i32::from(exit_code);
            flag::register_conditional_shutdown(signal, code, Arc::clone(received))
                .map_err(fail)?;
            flag::register(signal, Arc::clone(received)).map_err(fail)?;
        }
        Ok(Signals(flags))
    }

    /// The received signal, if any.
    pub fn received(&self) -> Option<Signal> {
        let mut flags = SIGNALS.into_iter().zip(&self.0);
        let received = flags.find(|(_, received)| received.load(Ordering::Relaxed));
        received.map(|((_, name, exit_code), _)| Signal { name, exit_code })
    }
}
