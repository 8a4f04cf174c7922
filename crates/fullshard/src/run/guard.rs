//! What watches over a run, by its config: the deadline of its steps, checks of its devices, and
//! spikes of its loss.

use super::{Control, Run};
use crate::config::{OnSpike, RunConfig, SaveWhen};
use crate::error::{Error, Result};
use crate::job::Membership;
use fullshard_core::Platform;
use fullshard_pjrt::stacks;
use fullshard_step::StepSpec;
use fullshard_train::{Deadline, Guards, LossSpikes, SpikeAction, Stuck};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// The exit code of a process whose deadline has passed, as that of `timeout`.
pub const STUCK: u8 = 124;

/// How long the file of stacks may take: its file system may be what hangs.
const WRITE: Duration = Duration::from_secs(10);

/// How long a process waits before it ends the others, which are about to write their stacks too.
const OTHERS: Duration = Duration::from_secs(3);

/// How long the libraries of a process may take to end it.
const END: Duration = Duration::from_secs(10);

/// Ends this process, also if threads of it hang.
pub fn end_stuck() -> ! {
    std::thread::spawn(|| {
        std::thread::sleep(END);
        std::process::abort();
    });
    std::process::exit(STUCK.into())
}

impl Run {
    /// What watches over the run.
    pub(super) fn guards(&self, control: &Control<'_>) -> Guards {
        let guard = &self.config.guard;
        let action = match guard.on_loss_spike {
            OnSpike::Off => None,
            OnSpike::Skip => Some(SpikeAction::Skip),
            OnSpike::Rollback => Some(SpikeAction::Rollback),
        };
        Guards {
            deadline: self.deadline(control),
            check_replicas: guard.check_replicas,
            loss_spikes: action.map(|action| LossSpikes { action, factor: guard.spike_factor }),
        }
    }

    fn deadline(&self, control: &Control<'_>) -> Option<Deadline> {
        let limit = match self.config.guard.step_timeout {
            Some(0.0) => return None,
            Some(seconds) => Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
            None => None,
        };
        let (membership, folder) = (Arc::clone(&self.membership), self.output.folder().to_owned());
        let on_stuck = Arc::clone(&control.on_stuck);
        let on_expired = Arc::new(move |stuck: &Stuck| {
            let error = report(&membership, &folder, *stuck);
            membership.fail(&error);
            on_stuck(&error);
        });
        Some(Deadline { limit, on_expired })
    }
}

/// Writes the stacks of this process.
fn report(membership: &Membership, folder: &Path, reason: Stuck) -> Error {
    let path = folder.join(format!("stacks-{}.txt", membership.process().index));
    let stacks = match write_stacks(path.clone(), reason) {
        Ok(()) => format!("The stacks of all threads are in {}", path.display()),
        Err(error) => format!("The stacks of its threads cannot be written: {error}"),
    };
    if !membership.job().is_alone() {
        std::thread::sleep(OTHERS);
    }
    Error::Stuck { reason, stacks }
}

fn write_stacks(path: PathBuf, reason: Stuck) -> Result<()> {
    let mut text = format!("{reason}\n").into_bytes();
    stacks::write(&mut text).map_err(|error| Error::file(&path, error))?;
    let (done, written) = channel();
    let place = path.clone();
    std::thread::spawn(move || done.send(fullshard_checkpoint::write_file(place, text)));
    match written.recv_timeout(WRITE) {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(Error::file(path, "the file system does not answer")),
    }
}

impl RunConfig {
    /// Rejects settings of what watches over a run.
    pub(super) fn check_guards(&self, spec: &StepSpec) -> Result<()> {
        let guard = &self.guard;
        let usage = |text: String| Err(Error::Usage(text));
        if let Some(seconds) = guard.step_timeout.filter(|it| !(it.is_finite() && *it >= 0.0)) {
            return usage(format!(
                "--step_timeout_s is {seconds}, but must be a number of at least 0"
            ));
        }
        if !(guard.spike_factor.is_finite() && guard.spike_factor > 0.0) {
            return usage(format!(
                "--loss_spike_factor is {}, but must be a number above 0",
                guard.spike_factor
            ));
        }
        let saves = self.checkpoint.strategy != SaveWhen::No && !self.checkpoint.only_model;
        if guard.on_loss_spike == OnSpike::Rollback && !saves {
            return usage(
                "--on_loss_spike rollback needs checkpoints to go back to: leave out \
                 --save_strategy no and --save_only_model, or skip spikes"
                    .into(),
            );
        }
        let repeats = self.platform() != Platform::Cuda || self.schedule.full_determinism;
        let compares = spec.has_replicas()? && spec.placement.tensor_shards() == 1;
        if guard.check_replicas > 0 && !repeats && !compares {
            return usage(
                "--check_replicas compares what devices compute twice here, which repeats bit for \
                 bit on GPUs only with --full_determinism: add it, or replicate the state over a \
                 mesh axis (--fsdp hybrid_shard)"
                    .into(),
            );
        }
        Ok(())
    }

    /// Settings of what watches over a run that have no effect, by name.
    pub(crate) fn guards_without_effect(&self) -> Option<String> {
        let unused = self.guard.on_loss_spike == OnSpike::Off
            && self.guard.spike_factor != crate::config::Guard::default().spike_factor;
        unused.then(|| "--loss_spike_factor has no effect: --on_loss_spike is off".to_owned())
    }
}
