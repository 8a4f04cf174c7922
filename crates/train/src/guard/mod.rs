//! What watches over a run: the deadline of its steps, checks of its devices, and spikes of its loss.

mod deadline;
mod replicas;
mod spikes;

pub use deadline::{Deadline, Stuck};
pub(crate) use deadline::{Watch, Watchdog};
pub(crate) use replicas::Checker;
pub use replicas::{CheckedBy, Corrupt, DevicePlace};
pub(crate) use spikes::Spikes;
pub use spikes::{LossSpikes, Spike, SpikeAction, SpikeOutcome};

use crate::error::{Error, mismatch};
use fullshard_step::StepSpec;

/// What watches over a run. By default nothing does.
#[derive(Default)]
pub struct Guards {
    /// What happens when a step takes too long.
    pub deadline: Option<Deadline>,
    /// Every how many steps devices are checked for silent corruption; 0 does not. The replicas of
    /// the state are compared, or if most of it has none, a step is run twice.
    pub check_replicas: u64,
    /// What is done about loss spikes. Without it a run goes on, and ends with a loss that is not
    /// finite.
    pub loss_spikes: Option<LossSpikes>,
}

impl Guards {
    /// Rejects what the program of a step cannot do.
    pub(crate) fn check(&self, spec: &StepSpec) -> Result<(), Error> {
        let skips = |spikes: LossSpikes| spikes.action == SpikeAction::Skip;
        match (self.loss_spikes.is_some_and(skips), spec.has_loss_limit) {
            (true, false) => Err(mismatch("steps that skip spikes", "no loss limit", "one")),
            (false, true) => Err(mismatch("steps that skip no spikes", "a loss limit", "none")),
            _ => Ok(()),
        }
    }
}
