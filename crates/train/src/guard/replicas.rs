//! Silent corruption: values that should be equal, and are not.
//!
//! Where most of the state has replicas, their checksums are compared across devices. Where it has
//! none, a step is run twice from the same state and batch, and each device's results are compared
//! with its own. Either check comes before whatever is saved after the same step, so that a
//! checkpoint of a step that was checked is good.
//!
//! Both assume programs that repeat bit for bit on equal devices.

use crate::compiler::Compiled;
use crate::error::{Error, mismatch};
use crate::launch::StepLauncher;
use crate::runner::Runner;
use crate::source::HostBatch;
use crate::trainer::Run;
use fullshard_core::Process;
use fullshard_pjrt::Array;
use fullshard_step::{CHECKSUMS, Ordered};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Instant;

/// Devices whose values differ from those of others, or from their own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Corrupt {
    /// The step after which this was found, counted from 1.
    pub step: u64,
    /// The last step after which nothing was found; that at which the run began if there is none.
    pub good: u64,
    /// How it was found.
    pub by: CheckedBy,
    /// The devices: those in the minority. Without a majority, all that differ.
    pub devices: Vec<DevicePlace>,
    /// The tensors that differ, by their names in the state.
    pub tensors: Vec<String>,
}

/// A device of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevicePlace {
    /// Its process.
    pub process: usize,
    /// Its number among all devices of the job.
    pub device: usize,
}

/// How devices are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckedBy {
    /// Replicas are compared.
    Replicas,
    /// A step is run twice.
    Repeating,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place =
            |place: &DevicePlace| format!("device {} of process {}", place.device, place.process);
        let devices: Vec<String> = self.devices.iter().map(place).collect();
        let devices = devices.join(" and ");
        let tensor = self.tensors.first().map_or("", String::as_str);
        let others = match self.tensors.len() {
            0 | 1 => String::new(),
            more => format!(" and {} more", more - 1),
        };
        let Corrupt { step, good, .. } = self;
        match (self.by, self.devices.len()) {
            (CheckedBy::Replicas, 1) => write!(
                f,
                "after step {step} {devices} has other values of `{tensor}`{others} than all its \
                 replicas"
            )?,
            (CheckedBy::Replicas, _) => write!(
                f,
                "after step {step} replicas of `{tensor}`{others} differ: those of {devices}"
            )?,
            (CheckedBy::Repeating, _) => write!(
                f,
                "after step {step} {devices} computes other values of `{tensor}`{others} when a \
                 step is repeated"
            )?,
        }
        write!(
            f,
            " (--check_replicas). Memory or a processor may be faulty: take its host out of \
             service, and resume from a checkpoint of step {good} or before. Nothing is saved of \
             this state"
        )
    }
}

/// Checks a run every few steps.
pub(crate) struct Checker {
    every: u64,
    program: Program,
    /// The names of the tensors.
    names: Vec<String>,
    /// The last step that was good.
    good: u64,
}

enum Program {
    Replicas(Box<Compiled>),
    Repeating(Box<StepLauncher>),
}

/// The checksums of all tensors on a device.
type Row = Vec<u32>;

impl Checker {
    /// Compiles the program of a check that is made every `every` steps.
    pub fn new(runner: &Runner<'_>, every: u64) -> Result<Checker, Error> {
        let (spec, compiler) = (runner.spec(), runner.compiler());
        let program = match spec.has_replicas()? {
            true => Program::Replicas(Box::new(compiler.compile(&spec.state_checksums()?)?)),
            false => {
                let program = compiler.compile(&spec.step_checksums()?)?;
                let launcher = StepLauncher::new(program, 1, &spec.step_arguments()?)?;
                Program::Repeating(Box::new(launcher))
            }
        };
        Ok(Checker { every, program, names: spec.checked_names()?, good: runner.steps() })
    }

    /// Whether to check after a launch.
    fn is_due(&self, launched: &[HostBatch], step: u64) -> bool {
        let before = step.saturating_sub(launched.len() as u64);
        step / self.every > before / self.every
    }

    /// Checks the state after a step. A repeated step has this batch and learning rate.
    fn check(
        &mut self,
        runner: &Runner<'_>,
        step: u64,
        batch: &HostBatch,
        rate: f64,
    ) -> Result<(), Error> {
        let process = runner.client().process();
        let (by, differing) = match &self.program {
            Program::Replicas(program) => {
                let state = runner.state().each_ref().flatten();
                let mut results = program.program.execute_arrays(&state)?;
                let all = rows(&results.pop().ok_or_else(no_result)?)?;
                // Every device has the rows of all.
                let rows = all.into_values().next().unwrap_or_default();
                let each = self.names.len().saturating_sub(1) * CHECKSUMS;
                let rows: Vec<Row> = rows.chunks(each.max(1)).map(<[u32]>::to_vec).collect();
                (CheckedBy::Replicas, minorities(&state, &rows)?)
            }
            Program::Repeating(launcher) => {
                let run = || rows(&runner.step_checksums(launcher, &batch.tensors, rate)?);
                let (first, second) = (run()?, run()?);
                (CheckedBy::Repeating, changes(&first, &second))
            }
        };
        if differing.is_empty() {
            self.good = step;
            return Ok(());
        }
        let each = runner.client().device_count() / process.count.max(1);
        Err(Error::Corrupt(Box::new(self.corrupt(step, by, &differing, process, each))))
    }

    fn corrupt(
        &self,
        step: u64,
        by: CheckedBy,
        differing: &BTreeSet<(usize, usize)>,
        process: Process,
        each: usize,
    ) -> Corrupt {
        let place = |device: usize| DevicePlace {
            process: if process.is_alone() { 0 } else { device / each.max(1) },
            device,
        };
        let devices: BTreeSet<DevicePlace> =
            differing.iter().map(|(device, _)| place(*device)).collect();
        let tensors: BTreeSet<usize> = differing.iter().map(|(_, tensor)| *tensor).collect();
        let name = |tensor: usize| self.names.get(tensor).cloned().unwrap_or_default();
        Corrupt {
            step,
            good: self.good,
            by,
            devices: devices.into_iter().collect(),
            tensors: tensors.into_iter().map(name).collect(),
        }
    }
}

/// The numbers on each device of this process, by its position.
fn rows(array: &Array) -> Result<BTreeMap<usize, Row>, Error> {
    let row = |(position, shard): (usize, &fullshard_pjrt::Buffer)| {
        Ok((position, shard.to_host()?.values::<u32>()?))
    };
    array.positions().zip(array.shards()).map(row).collect()
}

fn no_result() -> Error {
    mismatch("checksums", "no result", "one")
}

/// The devices and tensors whose checksums differ from those of most replicas, given the row of each
/// device.
fn minorities(state: &[&Array], rows: &[Row]) -> Result<BTreeSet<(usize, usize)>, Error> {
    let mut found = BTreeSet::new();
    for (tensor, array) in state.iter().enumerate() {
        let mut tiles: BTreeMap<usize, BTreeMap<&[u32], Vec<usize>>> = BTreeMap::new();
        for (device, row) in rows.iter().enumerate() {
            let tile = array.tiling().tile(device, &array.ty().dims)?.index;
            let sums = &row[tensor * CHECKSUMS..][..CHECKSUMS];
            tiles.entry(tile).or_default().entry(sums).or_default().push(device);
        }
        for equal in tiles.values().filter(|equal| equal.len() > 1) {
            let most = equal.values().map(Vec::len).max().unwrap_or(0);
            let majorities = equal.values().filter(|devices| devices.len() == most).count();
            let odd = equal.values().filter(|devices| majorities > 1 || devices.len() < most);
            found.extend(odd.flatten().map(|device| (*device, tensor)));
        }
    }
    Ok(found)
}

/// The devices and tensors whose checksums are not those of the first time.
fn changes(
    first: &BTreeMap<usize, Row>,
    second: &BTreeMap<usize, Row>,
) -> BTreeSet<(usize, usize)> {
    let of_device = |(device, row): (&usize, &Row)| {
        let again = second.get(device).map_or(&[][..], Vec::as_slice);
        let pairs = row.chunks(CHECKSUMS).zip(again.chunks(CHECKSUMS)).enumerate();
        let odd = pairs.filter(|(_, (first, second))| first != second);
        odd.map(|(tensor, _)| (*device, tensor)).collect::<Vec<_>>()
    };
    first.iter().flat_map(of_device).collect()
}

impl Run<'_, '_, '_> {
    /// Checks the state after a launch, if it is time.
    pub fn check_devices(&mut self, launched: &[HostBatch], step: u64) -> Result<(), Error> {
        let due = self.checker.as_ref().is_some_and(|checker| checker.is_due(launched, step));
        let Some(batch) = launched.last().filter(|_| due) else { return Ok(()) };
        self.catch_up()?;
        let (start, rate) = (Instant::now(), self.rate(batch));
        let timed = self.watchdog.time("checking replicas", step);
        if let Some(checker) = &mut self.checker {
            checker.check(self.runner, step, batch, rate)?;
        }
        drop(timed);
        self.meter.exclude(start.elapsed());
        Ok(())
    }
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;
