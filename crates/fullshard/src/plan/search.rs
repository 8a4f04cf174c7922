//! Searches the best settings for a machine.

use super::{Candidate, Effort, Frontier, Machine, PlanOptions, Planner, Progress, Report, Space};
use crate::config::{AheadChoice, RunConfig, Scan};
use crate::error::{Error, Result};
use fullshard_core::{Layout, Platform};
use fullshard_plan::Callbacks;

/// The chunks of logits that a search tries where the default is smaller.
const LARGE_CHUNK_MIB: usize = 2048;

/// The result of a search.
pub struct Found {
    /// The frontier of memory and speed.
    pub frontier: Frontier,
    /// The fastest config that fits, with its plan.
    pub best: Option<(RunConfig, Report)>,
}

/// Finds the largest batch that fits a machine, and the best of the settings that the config leaves
/// open.
///
/// Candidates are compiled as the effort allows; a quick plan uses only the formula.
pub fn search(
    config: &RunConfig,
    machine: &Machine,
    options: PlanOptions,
    effort: Effort,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Found> {
    let config = config.for_machine(machine)?;
    // The hub is asked once, not for every candidate.
    let local = config.with_local_files(&mut ())?;
    // A problem of all candidates is an error, not an empty frontier.
    let spec = local.planned_spec()?;
    let planner = Planner::new(&config, machine, options);
    let effort = if options.quick { Effort::compiles(0) } else { effort };
    if effort.compiles > 0 {
        planner.compiler(&spec)?;
    }
    let frontier = fullshard_plan::search(
        &config.space(machine, spec.batch.tokens),
        machine,
        effort,
        &mut Callbacks {
            spec: &mut |candidate| local.with(candidate, machine).planned_spec().map_err(to_plan),
            confirm: &mut |candidate| {
                let spec = local.with(candidate, machine).planned_spec().map_err(to_plan)?;
                planner.plan(&spec).map_err(to_plan)
            },
            progress,
        },
    )?;
    let best = match &frontier.best {
        Some(best) => {
            let spec = local.with(&best.candidate, machine).planned_spec()?;
            let rates = planner.rates(&spec, &best.report);
            let goodput = planner.goodput(&best.report, &rates);
            let report = Report { rates, goodput, ..best.report.clone() };
            Some((config.with(&best.candidate, machine), report))
        }
        None => None,
    };
    Ok(Found { frontier, best })
}

impl RunConfig {
    /// The search space for sequences of N tokens: everything that the config does not set.
    fn space(&self, machine: &Machine, tokens: usize) -> Space {
        let mut space = match &self.mesh.shape {
            Some(mesh) => {
                Space { meshes: vec![Some(mesh.clone())], given_mesh: true, ..Space::default() }
            }
            None => {
                Space::default().with_meshes_of(machine).with_parallel_meshes_of(machine, tokens)
            }
        };
        if let Some(policy) = &self.remat.policy {
            space.remats = vec![policy.clone()];
        }
        space.logits_chunks_mib = match self.remat.logits_chunk_mib {
            Some(mib) => vec![Some(mib)],
            // GPUs have such chunks by default; on CPU they are no faster.
            None if self.platform() == Platform::Tpu => vec![Some(LARGE_CHUNK_MIB), None],
            None => vec![None],
        };
        match self.model.scan_layers {
            Scan::Auto => {}
            Scan::True => space.scans = vec![true],
            Scan::False => space.scans = vec![false],
        }
        if let Some(ahead) = self.fsdp.gather_ahead.given() {
            space.aheads = vec![ahead];
        }
        space
    }

    /// The config with the settings of a candidate for a machine.
    pub fn with(&self, candidate: &Candidate, machine: &Machine) -> RunConfig {
        let mut config = self.clone();
        config.schedule.per_device_batch = candidate.batch;
        config.remat.policy = Some(candidate.remat.clone());
        config.remat.logits_chunk_mib = candidate.logits_chunk_mib;
        config.model.scan_layers = if candidate.scan_layers { Scan::True } else { Scan::False };
        config.fsdp.gather_ahead = match candidate.default_ahead(machine) {
            default if default == candidate.gather_ahead => AheadChoice::Auto,
            _ => candidate.gather_ahead.into(),
        };
        config.fsdp.strategy = candidate.strategy;
        config.mesh.shape = candidate.mesh.clone();
        config.fsdp.shard_param_on_dim_0 = candidate.layout == Layout::Dim(0);
        config.fsdp.flatten_parameters = false;
        config
    }
}

/// A search skips invalid candidates, whatever the reason.
fn to_plan(error: Error) -> fullshard_plan::Error {
    match error {
        Error::Plan(error) => error,
        Error::Step(error) => error.into(),
        Error::Pjrt(error) => error.into(),
        other => {
            fullshard_plan::Error::OutOfMemory { reason: other.to_string(), temporaries: None }
        }
    }
}
