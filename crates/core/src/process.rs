//! The place of a process in a job.

use std::ops::Range;

/// The place of a process in a job of one or several, all with the same number of devices.
///
/// Devices are numbered over the job, process by process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its number, from 0.
    pub index: usize,
    /// The number of processes.
    pub count: usize,
}

/// A place that no process of a job has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no process {index} in a job of {count}; processes are counted from 0")]
pub struct BadProcess {
    /// The number given.
    pub index: usize,
    /// The number of processes given.
    pub count: usize,
}

impl Process {
    /// The process `index` of `count`.
    pub fn new(index: usize, count: usize) -> Result<Process, BadProcess> {
        if index < count { Ok(Process { index, count }) } else { Err(BadProcess { index, count }) }
    }

    /// The only process.
    pub fn alone() -> Process {
        Process { index: 0, count: 1 }
    }

    /// Whether there is no other process.
    pub fn is_alone(self) -> bool {
        self.count == 1
    }

    /// The numbers of its devices, where each process has `devices`.
    pub fn positions(self, devices: usize) -> Range<usize> {
        let first = self.index.saturating_mul(devices);
        first..first.saturating_add(devices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_numbered_process_by_process() {
        assert_eq!(Process::alone().positions(4), 0..4);
        let processes: Vec<Process> = (0..3).map(|index| Process::new(index, 3).unwrap()).collect();
        let numbers: Vec<usize> = processes.iter().flat_map(|it| it.positions(2)).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
        assert!(Process::alone().is_alone() && !processes[0].is_alone());
    }

    #[test]
    fn rejects_places_outside_the_job() {
        for (index, count) in [(0, 0), (2, 2), (3, 2)] {
            let error = Process::new(index, count).unwrap_err().to_string();
            assert!(error.contains(&format!("no process {index} in a job of {count}")), "{error}");
        }
    }
}
