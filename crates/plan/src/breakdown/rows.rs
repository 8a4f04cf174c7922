//! The times of kernels, added up by kind, by module and by kernel.

use super::PICOS;
use super::kinds::{self, Kind, Kinds};
use crate::compiled::{Owner, Paths, matmul_flops, traffic};
use fullshard_pjrt::Kernel;
use fullshard_pjrt::hlo::{ComputationId, Instruction, InstructionId, Module};
use fullshard_step::Chip;
use serde::Serialize;
use std::collections::HashMap;

/// The time of a kind of work.
#[derive(Debug, Clone, Serialize)]
pub struct KindTime {
    /// The kind.
    pub kind: Kind,
    /// Seconds per step.
    pub seconds: f64,
    /// The share of the step.
    pub share: f64,
    /// Kernels per step.
    pub launches: f64,
}

/// The time of a module in the forward or backward pass.
#[derive(Debug, Clone, Serialize)]
pub struct ModuleShare {
    /// The path of the module, with a `*` for the layer number; empty for none.
    pub module: String,
    /// Whether it is the backward pass.
    pub backward: bool,
    /// Seconds per step.
    pub seconds: f64,
    /// The share of the step.
    pub share: f64,
    /// Kernels per step.
    pub launches: f64,
}

/// The time of a kernel in a module.
#[derive(Debug, Clone, Serialize)]
pub struct KernelTime {
    /// The name of the kernel, without the number that distinguishes equal fusions.
    pub name: String,
    /// The instruction that launched it, the first of equal ones; `None` if unknown.
    pub op: Option<String>,
    /// The opcode, fusion kind or call target of the instruction.
    pub does: Option<String>,
    /// The kind of work.
    pub kind: Kind,
    /// The path of the module, with a `*` for the layer number; empty for none.
    pub module: String,
    /// Whether it is the backward pass.
    pub backward: bool,
    /// Kernels per step.
    pub launches: f64,
    /// Seconds per step.
    pub seconds: f64,
    /// The share of the step.
    pub share: f64,
    /// Bytes that one launch reads and writes, by the shapes of its instruction.
    pub bytes: Option<u64>,
    /// Bytes/s.
    pub bytes_per_second: Option<f64>,
    /// The share of the memory bandwidth, if it is known.
    pub bandwidth_share: Option<f64>,
    /// FLOPs of the matmuls of one launch.
    pub operations: Option<f64>,
    /// FLOP/s of the matmuls.
    pub flops: Option<f64>,
}

/// The sums.
pub struct Rows {
    kinds: HashMap<Kind, (f64, f64)>,
    pub modules: Vec<ModuleShare>,
    pub kernels: Vec<KernelTime>,
    pub unknown: f64,
}

/// The key of a row of kernels.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    name: String,
    kind: Kind,
    owner: Owner,
    bytes: Option<u64>,
}

/// Facts about an instruction.
#[derive(Clone)]
struct Known {
    kind: Kind,
    owner: Owner,
    bytes: u64,
    operations: Option<f64>,
}

impl Rows {
    /// Adds up kernels with the instructions that launched them.
    pub fn of<'a>(
        module: &'a Module,
        paths: &Paths,
        chip: Option<&Chip>,
        kernels: impl Iterator<Item = (&'a Kernel, &'a Option<&'a Instruction>)>,
        steps: usize,
        span: f64,
    ) -> Rows {
        let mut facts = Facts::new(module, paths);
        let mut rows: HashMap<Key, Sum> = HashMap::new();
        let mut unknown = 0;
        for (kernel, instruction) in kernels {
            let known = instruction.map(|instruction| facts.of(instruction));
            unknown += if known.is_none() { kernel.duration } else { 0 };
            let sum = rows.entry(Key::of(kernel, known.as_ref())).or_insert_with(|| Sum {
                instruction: *instruction,
                operations: known.and_then(|known| known.operations),
                launches: 0,
                picos: 0,
            });
            sum.launches += 1;
            sum.picos += kernel.duration;
        }
        let row = |(key, sum): (Key, Sum<'_>)| sum.row(key, steps as f64, span, chip);
        let mut kernels: Vec<KernelTime> = rows.into_iter().map(row).collect();
        // Ties are broken by name, so that the order is deterministic.
        kernels.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.name.cmp(&b.name)));
        let mut kinds: HashMap<Kind, (f64, f64)> = HashMap::new();
        for row in &kernels {
            let sum = kinds.entry(row.kind).or_default();
            *sum = (sum.0 + row.seconds, sum.1 + row.launches);
        }
        Rows {
            kinds,
            modules: modules(&kernels, span),
            kernels,
            unknown: unknown as f64 / PICOS / steps as f64,
        }
    }

    /// The kinds, longest first, with idle time.
    pub fn kinds(&self, idle: f64, span: f64) -> Vec<KindTime> {
        let all = self.kinds.iter().map(|(&kind, &sums)| (kind, sums));
        let all = all.chain([(Kind::Idle, (idle, 0.0))]);
        let row = |(kind, (seconds, launches))| KindTime {
            kind,
            seconds,
            share: seconds / span,
            launches,
        };
        let mut kinds: Vec<KindTime> = all.map(row).collect();
        kinds.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then(a.kind.cmp(&b.kind)));
        kinds
    }
}

fn modules(kernels: &[KernelTime], span: f64) -> Vec<ModuleShare> {
    let mut modules: Vec<ModuleShare> = Vec::new();
    for kernel in kernels {
        let is_it =
            |row: &ModuleShare| row.module == kernel.module && row.backward == kernel.backward;
        let row = modules.iter().position(is_it).unwrap_or_else(|| {
            let (module, backward) = (kernel.module.clone(), kernel.backward);
            modules.push(ModuleShare { module, backward, seconds: 0.0, share: 0.0, launches: 0.0 });
            modules.len() - 1
        });
        modules[row].seconds += kernel.seconds;
        modules[row].launches += kernel.launches;
    }
    modules.iter_mut().for_each(|row| row.share = row.seconds / span);
    modules.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    modules
}

impl Key {
    fn of(kernel: &Kernel, known: Option<&Known>) -> Key {
        let by_name = kinds::of_name(&kernel.name);
        let copies = by_name == Some(Kind::Copies);
        let kind = match known {
            Some(known) if !copies => known.kind,
            _ => by_name.unwrap_or(Kind::Elementwise),
        };
        Key {
            name: without_number(&kernel.name).to_owned(),
            kind,
            owner: known.map(|known| known.owner.clone()).unwrap_or_default(),
            // A memset for another kernel moves none of that kernel's bytes.
            bytes: known.filter(|known| !copies || known.kind == Kind::Copies).map(|it| it.bytes),
        }
    }
}

/// The name of a kernel without the number that distinguishes equal ones.
fn without_number(name: &str) -> &str {
    let digits = |c: char| c.is_ascii_digit();
    match name.trim_end_matches(digits).strip_suffix(['_', ' ']) {
        Some(base) if base.len() < name.len() => base.trim_end_matches('_'),
        _ => name,
    }
}

/// The kernels of a row.
struct Sum<'a> {
    /// The instruction that launched the first of them.
    instruction: Option<&'a Instruction>,
    operations: Option<f64>,
    launches: u64,
    picos: u64,
}

impl Sum<'_> {
    fn row(&self, key: Key, steps: f64, span: f64, chip: Option<&Chip>) -> KernelTime {
        let does = |instruction: &Instruction| match &instruction.custom_call_target {
            Some(target) => target.clone(),
            None => instruction.fusion_kind.as_ref().unwrap_or(&instruction.opcode).clone(),
        };
        let total = self.picos as f64 / PICOS;
        let rate = |each: f64| each * self.launches as f64 / total;
        let has_matmuls = [Kind::Matmuls, Kind::Attention].contains(&key.kind);
        let bytes = key.bytes.filter(|&bytes| bytes > 0);
        let bytes_per_second = bytes.map(|bytes| rate(bytes as f64));
        let operations = self.operations.filter(|_| has_matmuls);
        KernelTime {
            name: key.name,
            op: self.instruction.map(|instruction| instruction.name.clone()),
            does: self.instruction.map(does),
            kind: key.kind,
            module: key.owner.module,
            backward: key.owner.backward,
            launches: self.launches as f64 / steps,
            seconds: total / steps,
            share: total / steps / span,
            bytes,
            bytes_per_second,
            bandwidth_share: bytes_per_second.zip(chip).map(|(rate, chip)| rate / chip.bandwidth),
            operations,
            flops: operations.map(rate),
        }
    }
}

/// Facts about instructions, computed once for each.
struct Facts<'a> {
    module: &'a Module,
    paths: &'a Paths,
    kinds: Kinds<'a>,
    owners: HashMap<ComputationId, HashMap<InstructionId, Owner>>,
    known: HashMap<*const Instruction, Known>,
}

impl<'a> Facts<'a> {
    fn new(module: &'a Module, paths: &'a Paths) -> Facts<'a> {
        let (owners, known) = (HashMap::new(), HashMap::new());
        Facts { module, paths, kinds: Kinds::new(module), owners, known }
    }

    fn of(&mut self, instruction: &Instruction) -> Known {
        let key = std::ptr::from_ref(instruction);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let owner = self.owner(instruction);
        let known = Known {
            kind: self.kinds.of(instruction, &owner),
            bytes: traffic(self.module, instruction),
            operations: matmul_flops(self.module, instruction),
            owner,
        };
        self.known.insert(key, known.clone());
        known
    }

    fn owner(&mut self, instruction: &Instruction) -> Owner {
        let (module, paths) = (self.module, self.paths);
        let all = self.owners.entry(instruction.computation).or_insert_with(|| {
            let computation = module.computation(instruction.computation);
            computation.map(|computation| paths.of(computation)).unwrap_or_default()
        });
        all.get(&instruction.id).cloned().unwrap_or_default()
    }
}
