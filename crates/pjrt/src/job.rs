//! The devices of a job of several processes, numbered process by process.
//!
//! Every process has the same number of devices, so the numbers of its own are a range.

use crate::client::{Client, ClientHandle};
use crate::device::DeviceDescription;
use crate::error::{Error, Result};
use fullshard_core::Process;

impl Client {
    /// The place of this process in its job.
    pub fn process(&self) -> Process {
        self.handle.process
    }

    /// The devices of all processes, in the order of their numbers in the job: by process, then by
    /// id. The CPU plugin knows only one process; there the others are assumed to have the same
    /// devices, and ids count over the job.
    pub fn global_devices(&self) -> &[DeviceDescription] {
        &self.handle.global_devices
    }

    /// The number of devices over all processes.
    pub fn device_count(&self) -> usize {
        self.handle.global_devices.len()
    }
}

impl ClientHandle {
    /// Whether programs of this client run on the devices of several processes. On CPU each process
    /// has a program of its own.
    pub(crate) fn spans_processes(&self) -> bool {
        !self.process.is_alone() && !self.is_cpu()
    }

    /// The devices of all processes, given those of this one.
    pub(crate) fn find_global_devices(&self) -> Result<Vec<DeviceDescription>> {
        let local = self.devices.iter().map(|device| device.description().clone()).collect();
        if !self.spans_processes() {
            return Ok(on_every_process(local, self.process));
        }
        let mut all = self.describe_all_devices()?;
        all.sort_by_key(|device| (device.process, device.id));
        self.check_place(&local)?;
        check_equal(&all, self.process.count)?;
        Ok(all)
    }

    /// Checks that the plugin agrees which process this is.
    fn check_place(&self, local: &[DeviceDescription]) -> Result<()> {
        let Process { index, count } = self.process;
        match local.iter().find(|device| usize::try_from(device.process) != Ok(index)) {
            Some(device) => {
                let (plugin, found) = (self.plugin.name(), device.process);
                Err(Error::OtherProcess { plugin, index, count, found })
            }
            None => Ok(()),
        }
    }

    /// The position of the first of this process's `shards` in a tiling over `devices` devices:
    /// those of the job, or some of this process. None if there should be more or fewer shards.
    pub(crate) fn first_position(&self, devices: usize, shards: usize) -> Option<usize> {
        if self.process.is_alone() || devices != self.global_devices.len() {
            return (devices == shards).then_some(0);
        }
        let positions = self.process.positions(self.devices.len());
        (positions.len() == shards).then_some(positions.start)
    }
}

/// The same devices on every process. A process alone has those of the plugin.
fn on_every_process(local: Vec<DeviceDescription>, process: Process) -> Vec<DeviceDescription> {
    if process.is_alone() {
        return local;
    }
    let on = |index: usize| {
        let numbers = Process { index, ..process }.positions(local.len());
        let place = move |(device, number): (&DeviceDescription, usize)| DeviceDescription {
            id: i32::try_from(number).unwrap_or(i32::MAX),
            process: i32::try_from(index).unwrap_or(i32::MAX),
            ..device.clone()
        };
        local.iter().zip(numbers).map(place)
    };
    (0..process.count).flat_map(on).collect()
}

/// Checks that each of `count` processes has the same number of devices.
fn check_equal(all: &[DeviceDescription], count: usize) -> Result<()> {
    let mut devices = vec![0; count];
    for device in all {
        let process = usize::try_from(device.process).unwrap_or(0);
        if process >= devices.len() {
            devices.resize(process + 1, 0);
        }
        devices[process] += 1;
    }
    let is_equal = devices.len() == count && devices.windows(2).all(|pair| pair[0] == pair[1]);
    if is_equal { Ok(()) } else { Err(Error::UnequalDevices { count, devices }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(processes: &[i32]) -> Vec<DeviceDescription> {
        let device = |(id, &process): (i32, &i32)| DeviceDescription {
            id,
            process,
            kind: "cpu".to_owned(),
            attributes: Vec::new(),
        };
        (0..).zip(processes).map(device).collect()
    }

    #[test]
    fn processes_have_equal_numbers_of_devices() {
        check_equal(&devices(&[0, 1, 0, 1]), 2).unwrap();
        for (processes, count, expected) in [
            (&[0, 0, 1][..], 2, "2 processes of a job need the same number of devices"),
            (&[0, 0, 1], 2, "[2, 1] on processes 0 to 1"),
            (&[0, 0], 2, "[2, 0] on processes 0 to 1"),
            (&[0, 1, 2], 2, "[1, 1, 1] on processes 0 to 2"),
        ] {
            let error = check_equal(&devices(processes), count).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn cpu_devices_are_numbered_over_the_job() {
        let local = devices(&[0, 0]);
        assert_eq!(on_every_process(local.clone(), Process::alone()), local);
        let all = on_every_process(local, Process::new(1, 3).unwrap());
        let places: Vec<_> = all.iter().map(|device| (device.process, device.id)).collect();
        assert_eq!(places, [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]);
    }
}
