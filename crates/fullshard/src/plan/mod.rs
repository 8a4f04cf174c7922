//! Planning: whether a run fits a machine that is not here, and how fast it will be.

mod search;

pub use fullshard_plan::{
    Basis, Budget, Candidate, Frontier, Machine, MemoryEstimate, Point, Progress, Report, Space,
    Warning, page,
};
pub use search::{Found, search};

use crate::config::RunConfig;
use crate::device::cache_root;
use crate::error::{Error, Result};
use crate::format;
use fullshard_plan::{AheadCompiler, Rates, quick};
use fullshard_step::StepSpec;
use std::cell::OnceCell;

/// How a plan is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlanOptions {
    /// Estimate by formula, without a compiler.
    pub quick: bool,
    /// Tokens to train on and what a device costs, for days and costs.
    pub budget: Budget,
}

/// Plans a run on a machine such as `v4-8`, `h200:8` or `cpu:4`.
pub fn plan(config: &RunConfig, machine: &str, options: PlanOptions) -> Result<Report> {
    let machine = Machine::parse(machine).map_err(fullshard_plan::Error::from)?;
    let config = config.aimed_at(&machine)?;
    let spec = config.planned_spec()?;
    Planner::new(&config, &machine, options).plan(&spec)
}

impl RunConfig {
    /// The config for the devices of a machine, unless it is for others.
    pub fn aimed_at(&self, machine: &Machine) -> Result<RunConfig> {
        if let Some(given) = self.device.platform.filter(|&given| given != machine.kind) {
            return Err(Error::Usage(format!(
                "--device is {}, but {} is planned for: leave --device out",
                given.name(),
                machine.name
            )));
        }
        if let Some(given) = self.mesh.fsdp.filter(|&given| given != machine.devices) {
            return Err(Error::Usage(format!(
                "--num_cores is {given}, but {} has {}: leave --num_cores out, or choose another \
                 --topology",
                machine.name,
                format::count(machine.devices, "device")
            )));
        }
        let mut config = self.clone();
        config.device.platform = Some(machine.kind);
        config.mesh.fsdp = Some(machine.devices);
        Ok(config)
    }
}

/// Plans steps for one machine.
pub struct Planner<'a> {
    config: &'a RunConfig,
    machine: &'a Machine,
    options: PlanOptions,
    /// Loaded when it is needed first.
    compiler: OnceCell<AheadCompiler>,
}

impl<'a> Planner<'a> {
    /// A planner for a config that is aimed at a machine.
    pub fn new(config: &'a RunConfig, machine: &'a Machine, options: PlanOptions) -> Planner<'a> {
        Planner { config, machine, options, compiler: OnceCell::new() }
    }

    /// The plan of a step: by the compiler, if it is asked and there may be room.
    pub fn plan(&self, spec: &StepSpec) -> Result<Report> {
        let mut estimate = quick(spec, self.machine)?;
        estimate.rates = self.rates(spec, &estimate);
        if self.options.quick {
            return Ok(estimate);
        }
        check_room(&estimate)?;
        let text = spec.step_program()?.to_text();
        match self.compiler(spec)?.compile(&text, self.machine) {
            Ok(made) => {
                Ok(fullshard_plan::compiled(spec, self.machine, &made, self.options.budget)?)
            }
            Err(fullshard_plan::Error::NoRoom { reason, temporaries }) => {
                Ok(without_room(estimate, spec, &text, &reason, temporaries))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn rates(&self, spec: &StepSpec, report: &Report) -> Rates {
        Rates::new(spec, self.machine, report.time.step, self.options.budget)
    }

    fn compiler(&self, spec: &StepSpec) -> Result<&AheadCompiler> {
        if let Some(compiler) = self.compiler.get() {
            return Ok(compiler);
        }
        let device = &self.config.device;
        let plugin = device.load_compiler()?;
        let folder = if device.no_cache { None } else { Some(cache_root()?.join("plans")) };
        let options = self.config.compile_options(spec.model.attention_form())?;
        Ok(self.compiler.get_or_init(|| AheadCompiler { plugin, options, folder }))
    }
}

/// Refuses what cannot fit, before minutes are spent on it.
fn check_room(estimate: &Report) -> Result<(), fullshard_plan::Error> {
    const GIB: f64 = (1_u64 << 30) as f64;
    let (needed, limit) = (estimate.memory.total as f64, estimate.memory.limit as f64);
    if needed <= MemoryEstimate::SURE * limit {
        return Ok(());
    }
    Err(fullshard_plan::Error::TooLarge { needed: needed / GIB, limit: limit / GIB })
}

/// What is left to say of a step that the compiler has no room for: the formula's figures, with
/// the memory that the compiler would need.
fn without_room(
    mut estimate: Report,
    spec: &StepSpec,
    text: &str,
    reason: &str,
    temporaries: Option<u64>,
) -> Report {
    let memory = &mut estimate.memory;
    let state = spec.state_bytes().map_or(0, |state| state.parameters + state.optimizer);
    let needed = temporaries.map_or(memory.total, |temporaries| state + temporaries);
    let missing = needed.max(memory.limit + 1).saturating_sub(memory.total);
    memory.total += missing;
    if let Some(part) = memory.parts.iter_mut().find(|part| part.what == "temporaries") {
        part.bytes += missing;
    }
    estimate.program = Some(fullshard_step::program_hash(text));
    estimate.warnings.push(Warning {
        what: format!("the compiler finds no room: {reason}"),
        remedy: "lower --per_device_train_batch_size, add --remat full, or take more devices; \
                 --search finds the largest batch that fits"
            .to_owned(),
    });
    estimate.notes.push("all figures but the memory are by formula".to_owned());
    estimate
}
