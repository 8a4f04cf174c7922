//! The start of a job, host by host.
//!
//! Hosts start within some time of one another, and join at one coordinator that serves them one
//! after another. When all are there the first one compiles the step program and sends it to the
//! coordinator's store; the others fetch it from there, again one after another. A host that has it
//! reads its share of a checkpoint. The rates are those of the closed form, [`StartUp`].

use crate::engine::Engine;
use crate::error::Error;
use fullshard_core::Platform;
use fullshard_core::random::Random;
use fullshard_plan::{DISK_RATE, JOIN, STORE_RATE, StartUp};
use serde::Serialize;

/// What the random numbers of a start are for.
const PURPOSE: u64 = 0x7374_6172;

/// A job to start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Launch {
    /// Seconds within which hosts start.
    pub spread: f64,
    /// Seconds to compile the step program.
    pub compile: f64,
    /// Bytes of the compiled program.
    pub program_bytes: u64,
    /// Bytes of the checkpoint that hosts read their shares of.
    pub state_bytes: u64,
}

/// A simulated start beside the closed form. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Started {
    /// Number of hosts.
    pub hosts: usize,
    /// Until all hosts have joined, from the start of the first.
    pub rendezvous: f64,
    /// From the compiled program until the last host has it.
    pub programs: f64,
    /// Until the last host has read its share, from the start of the first.
    pub total: f64,
    /// The total by the closed form.
    pub closed_form: f64,
    /// How much longer the closed form is than the simulation, as a share of it.
    pub error: f64,
}

enum Event {
    /// A host has started and wants to join.
    Came,
    /// The coordinator has answered a host.
    Joined,
    Compiled,
    /// The program is in the store.
    Sent,
    Fetched,
    Read,
}

impl Launch {
    /// Starts the job on a number of hosts.
    pub fn start(&self, hosts: usize, seed: u64) -> Result<Started, Error> {
        let wrong = |flag, value: f64| {
            let reason = "it must be at least 0".to_owned();
            Err(Error::Value { flag, value: value.to_string(), reason })
        };
        for (flag, value) in [("spread_s", self.spread), ("compile_s", self.compile)] {
            if !(value.is_finite() && value >= 0.0) {
                return wrong(flag, value);
            }
        }
        let hosts = hosts.max(1);
        let state = self.state_bytes.div_ceil(hosts as u64);
        // The platform tells the size of a program that is not known.
        let (compile, program) = (Some(self.compile), Some(self.program_bytes));
        let planned = StartUp::of(Platform::Tpu, hosts, state, compile, program);
        let send = self.program_bytes as f64 / STORE_RATE;
        let read = state as f64 / DISK_RATE;
        let mut started = self.run(hosts, send, read, seed);
        started.closed_form = planned.total();
        started.error = started.closed_form / started.total.max(f64::MIN_POSITIVE) - 1.0;
        Ok(started)
    }

    fn run(&self, hosts: usize, send: f64, read: f64, seed: u64) -> Started {
        let mut random = Random::new(seed, PURPOSE);
        let mut engine = Engine::default();
        for _ in 0..hosts {
            engine.at(self.spread * random.unit(), Event::Came);
        }
        let (join, send) = if hosts > 1 { (JOIN, send) } else { (0.0, 0.0) };
        // Until when the coordinator serves others.
        let mut busy: f64 = 0.0;
        let (mut joined, mut compiled, mut rendezvous, mut programs) = (0, 0.0, 0.0, 0.0);
        while let Some(event) = engine.advance() {
            let now = engine.now();
            match event {
                Event::Came => {
                    busy = busy.max(now) + join;
                    engine.at(busy, Event::Joined);
                }
                Event::Joined => {
                    joined += 1;
                    if joined == hosts {
                        rendezvous = now;
                        engine.after(self.compile, Event::Compiled);
                    }
                }
                Event::Compiled => {
                    compiled = now;
                    busy = now + send;
                    engine.at(busy, Event::Sent);
                }
                Event::Sent => {
                    // The first host has what it compiled.
                    engine.after(read, Event::Read);
                    for _ in 1..hosts {
                        busy = busy.max(now) + send;
                        engine.at(busy, Event::Fetched);
                    }
                    programs = now - compiled;
                }
                Event::Fetched => {
                    programs = now - compiled;
                    engine.after(read, Event::Read);
                }
                Event::Read => {}
            }
        }
        let total = engine.now();
        Started { hosts, rendezvous, programs, total, closed_form: 0.0, error: 0.0 }
    }
}
