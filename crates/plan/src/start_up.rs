//! How long a job takes to start, and which parts of that grow with its hosts.
//!
//! A host has one process. All processes find one another at one coordinator, and fetch the
//! compiled step program from it, so both take longer with each of them. The first process
//! compiles for all. Devices draw their weights, or hosts read their shares of a checkpoint, at the
//! same time.
//!
//! The rates were measured with debug builds on two cores that ran both ends, without a network
//! between them, and with at most 256 processes. Loading data, the devices' own start and the first
//! step are not part of it.

use crate::error::Error;
use crate::machine::Machine;
use fullshard_core::Platform;
use fullshard_step::StepSpec;
use serde::Serialize;

/// Seconds for a process to join: 32 take 154 ms and 256 take 1.3 s (docs/performance.md).
pub const JOIN: f64 = 5e-3;

/// Bytes per second in and out of the coordinator's store: 10 MiB reach 2 processes in 56 ms and 16
/// in 323 ms (docs/performance.md).
pub const STORE_RATE: f64 = 400e6;

/// The bytes of a compiled step program whose size is not known: those of GPT-2 124M, 52 MB for
/// v4-16 with scanned layers and 1.9 MB for 16 H100s with unrolled ones.
fn typical_program_bytes(platform: Platform) -> u64 {
    match platform {
        Platform::Tpu => 50_000_000,
        Platform::Cuda | Platform::Cpu => 2_000_000,
    }
}

/// Bytes per second at which a host reads a checkpoint. Assumed: disks of the machines in
/// docs/performance.md wrote 0.3 to 1.9 GB/s.
pub const DISK_RATE: f64 = 1e9;

/// The start of a job, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StartUp {
    /// Number of hosts.
    pub hosts: usize,
    /// Number of processes: one per host.
    pub processes: usize,
    /// Until all processes have found one another.
    pub rendezvous: f64,
    /// Compiling the step program on the first process; not known without a compiler.
    pub compile: Option<f64>,
    /// Sending the compiled step program to the other processes.
    pub programs: f64,
    /// The bytes of that program.
    pub program_bytes: u64,
    /// Whether these are typical of the platform, since nothing was compiled.
    pub typical_program: bool,
    /// Reading a checkpoint, each host its share.
    pub weights: f64,
    /// What a further host adds.
    pub per_host: f64,
}

/// A part of the start of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct StartUpPart {
    /// Its name.
    pub what: &'static str,
    /// Its seconds, if they are known.
    pub seconds: Option<f64>,
    /// Whether it grows with the number of hosts, and why.
    pub growth: String,
}

impl StartUp {
    /// The start of a job on a machine, with the seconds of the compiler and the size of the
    /// program, if they are known.
    pub(crate) fn new(
        spec: &StepSpec,
        machine: &Machine,
        compile: Option<f64>,
        program_bytes: Option<u64>,
    ) -> Result<StartUp, Error> {
        let state = spec.host_state_bytes(machine.devices.div_ceil(machine.hosts))?;
        Ok(StartUp::of(machine.kind, machine.hosts, state, compile, program_bytes))
    }

    /// The start of a job on hosts that read `state` bytes each.
    pub fn of(
        platform: Platform,
        hosts: usize,
        state: u64,
        compile: Option<f64>,
        program_bytes: Option<u64>,
    ) -> StartUp {
        let typical_program = program_bytes.is_none();
        let program_bytes = program_bytes.unwrap_or_else(|| typical_program_bytes(platform));
        // The first process sends the program to the store, and each other one fetches it.
        let send = program_bytes as f64 / STORE_RATE;
        let counted = if hosts > 1 { hosts as f64 } else { 0.0 };
        StartUp {
            hosts,
            processes: hosts,
            rendezvous: counted * JOIN,
            compile,
            programs: counted * send,
            program_bytes,
            typical_program,
            weights: state as f64 / DISK_RATE,
            per_host: JOIN + send,
        }
    }

    /// The parts, in order; a job of one process has no others to wait for.
    pub fn parts(&self) -> Vec<StartUpPart> {
        let part = |what, seconds, growth: &str| {
            let growth = growth.to_owned();
            StartUpPart { what, seconds, growth }
        };
        let megabytes = self.program_bytes as f64 / 1e6;
        let typical = if self.typical_program { ", a typical size" } else { "" };
        let fetch = format!("grows with hosts: each fetches {megabytes:.1} MB{typical}");
        let between = [
            part("rendezvous", Some(self.rendezvous), "grows with hosts"),
            part("programs", Some(self.programs), &fetch),
        ];
        let read = "does not grow: each host reads its share of a checkpoint, at 1 GB/s";
        let inside = [
            part("compile", self.compile, "does not grow: the first host compiles for all"),
            part("weights", Some(self.weights), read),
        ];
        between.into_iter().filter(|_| self.processes > 1).chain(inside).collect()
    }

    /// The bytes of a checkpoint that a host reads and writes.
    pub(crate) fn host_state(&self) -> f64 {
        self.weights * DISK_RATE
    }

    /// The sum of the parts that are known.
    pub fn total(&self) -> f64 {
        self.parts().iter().filter_map(|part| part.seconds).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rendezvous_and_programs_grow_linearly_with_hosts() {
        let of = |hosts| StartUp::of(Platform::Cuda, hosts, 1 << 30, Some(60.0), Some(10 << 20));
        let (two, many) = (of(2), of(512));
        assert!((many.rendezvous - 256.0 * two.rendezvous).abs() < 1e-9);
        assert!((many.programs - 256.0 * two.programs).abs() < 1e-9);
        assert!((of(3).total() - two.total() - two.per_host).abs() < 1e-9);
        assert_eq!((many.compile, many.weights), (two.compile, two.weights));
    }

    /// Milliseconds, the least and the most of five runs (docs/performance.md).
    #[test]
    fn measured_times_are_met() {
        let of = |hosts| StartUp::of(Platform::Cuda, hosts, 0, None, Some(10 << 20));
        for (processes, least, most) in
            [(8, 24.0, 147.0), (32, 141.0, 620.0), (256, 1200.0, 1900.0)]
        {
            let planned = 1e3 * of(processes).rendezvous;
            assert!((least..most).contains(&planned), "{processes}: {planned} ms");
        }
        for (processes, least, most) in [(2, 50.0, 137.0), (8, 143.0, 434.0), (16, 297.0, 722.0)] {
            let planned = 1e3 * of(processes).programs;
            assert!((least..most).contains(&planned), "{processes}: {planned} ms");
        }
    }

    #[test]
    fn one_host_waits_for_no_other() {
        let one = StartUp::of(Platform::Tpu, 1, 4_000_000_000, Some(60.0), None);
        assert_eq!((one.rendezvous, one.programs), (0.0, 0.0));
        let parts = one.parts();
        assert_eq!(parts.iter().map(|part| part.what).collect::<Vec<_>>(), ["compile", "weights"]);
        assert_eq!(one.total(), 64.0);
    }

    #[test]
    fn an_unknown_compile_time_is_left_out() {
        let quick = StartUp::of(Platform::Cuda, 4, 0, None, None);
        let growth = |what: &str| {
            let part = quick.parts().into_iter().find(|part| part.what == what).unwrap();
            (part.seconds, part.growth)
        };
        assert!((quick.total() - 4.0 * quick.per_host).abs() < 1e-9);
        assert_eq!(growth("compile").0, None);
        assert!(growth("programs").1.ends_with("each fetches 2.0 MB, a typical size"));
    }
}
