//! The same run on fewer processes than it was made for: devices and mesh shrink, accumulation
//! grows, so that a step has the batch that it had and the loss curve goes on.

use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::job::Membership;
use fullshard_core::MeshSpec;
use fullshard_parallel::rules::{CONTEXT, TENSOR};

impl RunConfig {
    /// The config of a run in this generation of its job.
    pub(crate) fn in_generation(&self, membership: &Membership) -> Result<RunConfig> {
        let now = membership.process().count;
        let full = membership.generation.full_processes.unwrap_or(now);
        let mut config = self.on_processes(full, now)?;
        config.output.overwrite |= membership.generation.number > 0;
        Ok(config)
    }

    /// The devices of a run that was made for `full` processes and has `now`.
    pub fn on_processes(&self, full: usize, now: usize) -> Result<RunConfig> {
        let mut config = self.clone();
        config.processes = now;
        if full == now {
            return Ok(config);
        }
        let part = |size: usize| (size * now).is_multiple_of(full).then(|| size * now / full);
        if let Some(devices) = self.mesh.devices {
            let fewer = part(devices).ok_or_else(|| {
                Error::Usage(format!(
                    "--num_cores is {devices} for {full} processes, which {now} processes cannot \
                     have in part"
                ))
            })?;
            config.mesh.devices = Some(fewer);
        }
        if let Some(shape) = self.mesh.shape.as_ref().filter(|shape| shape.devices().is_some()) {
            config.mesh.shape = Some(smaller(shape, part, full, now)?);
        }
        Ok(config)
    }

    /// Keeps the batch of a run that was made for `full` processes and has those that it has: with
    /// more accumulation and, where that does not suffice, fewer sequences per device. The devices
    /// are counted before.
    pub fn keep_batch(&mut self, full: usize) -> Result<()> {
        let shards = self.batch_shards()?;
        let schedule = &mut self.schedule;
        let (per_device, accumulation) =
            (schedule.per_device_batch, schedule.gradient_accumulation_steps);
        let sequences = per_device * shards * full * accumulation / self.processes;
        let fits = |per_device: &usize| sequences.is_multiple_of(shards * per_device);
        let Some(fewer) = (1..=per_device).rev().find(fits) else {
            return Err(Error::Usage(format!(
                "a step of {sequences} sequences cannot be shared by {shards} devices equally, with \
                 {} of {full} processes",
                self.processes
            )));
        };
        schedule.per_device_batch = fewer;
        schedule.gradient_accumulation_steps = sequences / (shards * fewer);
        Ok(())
    }

    /// Whether the run can go on with `now` of `full` processes.
    pub fn fits_processes(&self, full: usize, now: usize) -> bool {
        let shrunk = self.on_processes(full, now);
        shrunk.is_ok_and(|mut config| {
            config.mesh.devices.get_or_insert(now);
            config.keep_batch(full).is_ok()
        })
    }
}

/// A mesh with fewer devices along the first axis that shards the batch and can have fewer.
fn smaller(
    shape: &MeshSpec,
    part: impl Fn(usize) -> Option<usize>,
    full: usize,
    now: usize,
) -> Result<MeshSpec> {
    let batch = shape.axes().filter(|(axis, _)| ![TENSOR, CONTEXT].contains(axis));
    let mut sizes = batch.filter_map(|(axis, size)| Some((axis, part(size?)?)));
    match sizes.next() {
        Some((axis, size)) => Ok(shape.clone().with_size(axis, size)),
        None => Err(Error::Usage(format!(
            "--mesh is {shape} for {full} processes, of which no axis can be {now}/{full}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn config(devices: usize, per_device: usize, accumulation: usize) -> RunConfig {
        let mut config = RunConfig::default();
        config.mesh.devices = Some(devices);
        config.schedule.per_device_batch = per_device;
        config.schedule.gradient_accumulation_steps = accumulation;
        config
    }

    fn shrunk(config: &RunConfig, full: usize, now: usize) -> Result<(usize, usize, usize)> {
        let mut config = config.on_processes(full, now)?;
        config.keep_batch(full)?;
        let schedule = &config.schedule;
        Ok((config.devices(), schedule.per_device_batch, schedule.gradient_accumulation_steps))
    }

    #[test]
    fn steps_keep_their_batch() {
        assert_eq!(shrunk(&config(8, 4, 1), 4, 4).unwrap(), (8, 4, 1));
        assert_eq!(shrunk(&config(8, 4, 1), 4, 2).unwrap(), (4, 4, 2));
        assert_eq!(shrunk(&config(8, 4, 3), 4, 1).unwrap(), (2, 4, 12));
        // 32 sequences on 6 devices: none.
        assert!(shrunk(&config(8, 4, 1), 4, 3).is_err());
        // 48 sequences on 6 devices, 4 at a time.
        assert_eq!(shrunk(&config(8, 6, 1), 4, 3).unwrap(), (6, 4, 2));
        assert!(config(8, 6, 1).fits_processes(4, 3) && !config(8, 4, 1).fits_processes(4, 3));
    }

    #[test]
    fn meshes_shrink_along_an_axis_of_the_batch() {
        let mut config = config(8, 6, 1);
        config.mesh.shape = Some("data=4,tensor=2".parse().unwrap());
        assert_eq!(shrunk(&config, 4, 3).unwrap(), (6, 4, 2));
        assert_eq!(shrunk(&config, 4, 2).unwrap(), (4, 6, 2));
        config.mesh.shape = Some("data=2,fsdp=2,tensor=2".parse().unwrap());
        let error = shrunk(&config, 4, 3).unwrap_err().to_string();
        assert!(error.contains("no axis can be 3/4"), "{error}");
        assert_eq!(shrunk(&config, 4, 2).unwrap(), (4, 6, 2));
        config.mesh.shape = Some("fsdp=-1,tensor=2".parse().unwrap());
        assert_eq!(shrunk(&config, 4, 2).unwrap(), (4, 6, 2));
    }
}
