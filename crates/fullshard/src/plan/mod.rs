//! Planning: whether a run fits a machine, and its speed, without access to the machine.

mod search;

pub use fullshard_plan::{
    Basis, Budget, Candidate, Effort, Failures, Frontier, Goodput, Machine, MemoryEstimate, Point,
    Progress, Report, Space, Warning, page,
};
pub use search::{Found, search};

use crate::config::{RunConfig, SaveWhen};
use crate::device::cache_root;
use crate::error::{Error, Result};
use crate::format;
use fullshard_checkpoint::write_file;
use fullshard_plan::{AheadCompiler, Rates, memory_fix, quick};
use fullshard_step::StepSpec;
use std::cell::OnceCell;
use std::path::PathBuf;

/// Options of a plan.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlanOptions {
    /// Estimate by formula, without compiling.
    pub quick: bool,
    /// Number of training tokens and price per device, for days and cost.
    pub budget: Budget,
    /// What is known of failures; steps between checkpoints are those of the config, if it saves
    /// by steps.
    pub failures: Failures,
}

/// Plans a run on a machine such as `v4-8`, `2xv4-128`, `h200:8`, `h100:8x16` or `cpu:4`.
pub fn plan(config: &RunConfig, machine: &str, options: PlanOptions) -> Result<Report> {
    let machine = Machine::parse(machine).map_err(fullshard_plan::Error::from)?;
    let config = config.for_machine(&machine)?;
    let spec = config.planned_spec()?;
    Planner::new(&config, &machine, options).plan(&spec)
}

impl RunConfig {
    /// The config for the devices of a machine; an error if it is for others.
    pub fn for_machine(&self, machine: &Machine) -> Result<RunConfig> {
        if let Some(given) = self.device.platform.filter(|&given| given != machine.kind) {
            return Err(Error::Usage(format!(
                "--device is {}, but the plan is for {}: leave --device out",
                given.name(),
                machine.name
            )));
        }
        if let Some(given) = self.mesh.devices.filter(|&given| given != machine.devices) {
            return Err(Error::Usage(format!(
                "--num_cores is {given}, but {} has {}: leave --num_cores out, or choose another \
                 --topology",
                machine.name,
                format::count(machine.devices, "device")
            )));
        }
        if let Some(given) = self.device.topology.as_ref().filter(|&given| *given != machine.name) {
            return Err(Error::Usage(format!(
                "--machine is {given}, but the plan is for {}: leave --machine out",
                machine.name
            )));
        }
        let mut config = self.clone();
        config.device.platform = Some(machine.kind);
        config.mesh.devices = Some(machine.devices);
        config.device.topology = Some(machine.name.clone());
        Ok(config)
    }
}

/// Plans steps for one machine.
pub struct Planner<'a> {
    config: &'a RunConfig,
    machine: &'a Machine,
    options: PlanOptions,
    /// Where the optimized HLO of a compiled step is written.
    hlo: Option<PathBuf>,
    /// Loaded on first use.
    compiler: OnceCell<AheadCompiler>,
}

impl<'a> Planner<'a> {
    /// A planner for a config of a machine.
    pub fn new(config: &'a RunConfig, machine: &'a Machine, options: PlanOptions) -> Planner<'a> {
        Planner { config, machine, options, hlo: None, compiler: OnceCell::new() }
    }

    /// Writes the optimized HLO of compiled steps to a file, as text in the order of the schedule.
    pub fn with_hlo(self, file: Option<PathBuf>) -> Planner<'a> {
        Planner { hlo: file, ..self }
    }

    /// The plan of a step: compiled, unless quick or certain to run out of memory.
    pub fn plan(&self, spec: &StepSpec) -> Result<Report> {
        let report = self.without_failures(spec)?;
        Ok(Report { goodput: self.goodput(&report, &report.rates), ..report })
    }

    fn without_failures(&self, spec: &StepSpec) -> Result<Report> {
        let mut estimate = quick(spec, self.machine)?;
        estimate.rates = self.rates(spec, &estimate);
        if self.options.quick {
            return Ok(estimate);
        }
        check_room(&estimate, spec)?;
        let text = spec.launch_program()?.to_text();
        match self.compiler(spec)?.compile(&text, self.machine) {
            Ok(compiled) => {
                if let Some(path) = &self.hlo {
                    write_file(path, compiled.module.to_string())?;
                }
                Ok(fullshard_plan::compiled(spec, self.machine, &compiled, self.options.budget)?)
            }
            Err(fullshard_plan::Error::OutOfMemory { reason, temporaries }) => {
                Ok(without_room(estimate, spec, &text, &reason, temporaries))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn rates(&self, spec: &StepSpec, report: &Report) -> Rates {
        Rates::new(spec, self.machine, report.time.step, self.options.budget)
    }

    /// The goodput of a plan with these rates.
    fn goodput(&self, report: &Report, rates: &Rates) -> Goodput {
        let checkpoint = &self.config.checkpoint;
        let by_steps = checkpoint.strategy == SaveWhen::Steps && checkpoint.steps >= 1.0;
        let save_steps = by_steps.then_some(checkpoint.steps);
        let failures = Failures { save_steps, ..self.options.failures };
        Goodput::new(self.machine, report.time.step, &report.start_up, rates, failures)
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

/// Rejects a step that cannot fit, before minutes of compilation.
fn check_room(estimate: &Report, spec: &StepSpec) -> Result<(), fullshard_plan::Error> {
    const GIB: f64 = (1_u64 << 30) as f64;
    let (needed, limit) = (estimate.memory.total as f64, estimate.memory.limit as f64);
    if needed <= MemoryEstimate::MAX_OVERESTIMATE * limit {
        return Ok(());
    }
    let (needed, limit, fix) = (needed / GIB, limit / GIB, memory_fix(spec));
    Err(fullshard_plan::Error::TooLarge { needed, limit, fix })
}

/// The report of a step that runs out of memory in the compiler: the figures of the formula, with
/// the memory that the compiler needs.
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
        what: format!("compilation runs out of memory: {reason}"),
        fix: format!("{}; --search finds the largest batch that fits", memory_fix(spec)),
    });
    estimate.notes.push("all figures except memory are by formula".to_owned());
    estimate
}
