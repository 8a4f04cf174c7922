//! Ctrl-C and SIGTERM: the first stops a run after its step, the second at once.

use fullshard::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The signals that end a run, with the code a process exits with that they end.
const SIGNALS: [(i32, &str, u8); 2] = [(SIGINT, "Ctrl-C", 130), (SIGTERM, "SIGTERM", 143)];

/// Which of them came.
pub struct Signals([Arc<AtomicBool>; SIGNALS.len()]);

/// A signal that came.
#[derive(Debug, Clone, Copy)]
pub struct Signal {
    pub name: &'static str,
    pub exit_code: u8,
}

impl Signals {
    /// From here on a first signal is noted, and a second one ends the process.
    pub fn watch() -> Result<Signals> {
        let flags = SIGNALS.map(|_| Arc::new(AtomicBool::new(false)));
        for ((signal, name, exit_code), came) in SIGNALS.into_iter().zip(&flags) {
            let refuse = |error| Error::Usage(format!("cannot watch for {name}: {error}"));
            let code = i32::from(exit_code);
            flag::register_conditional_shutdown(signal, code, Arc::clone(came)).map_err(refuse)?;
            flag::register(signal, Arc::clone(came)).map_err(refuse)?;
        }
        Ok(Signals(flags))
    }

    /// The signal that came, if one did.
    pub fn came(&self) -> Option<Signal> {
        let mut flags = SIGNALS.into_iter().zip(&self.0);
        let came = flags.find(|(_, came)| came.load(Ordering::Relaxed));
        came.map(|((_, name, exit_code), _)| Signal { name, exit_code })
    }
}
