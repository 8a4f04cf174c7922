//! The module: its computations, with checked references.

use std::collections::HashMap;

use prost::Message;

use super::error::HloError;
use super::instruction::{Instruction, Tables};
use super::proto;

/// The id of a computation, unique in its module.
pub type ComputationId = i64;

/// The id of an instruction, unique in its computation.
pub type InstructionId = i64;

/// An optimized program.
#[derive(Clone, Debug)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// Whether the instructions are scheduled.
    pub is_scheduled: bool,
    computations: Vec<Computation>,
    index: HashMap<ComputationId, usize>,
    entry: usize,
}

/// A function of a module.
#[derive(Clone, Debug)]
pub struct Computation {
    /// Its id.
    pub id: ComputationId,
    /// Its name, unique in the module.
    pub name: String,
    instructions: Vec<Instruction>,
    index: HashMap<InstructionId, usize>,
    root: usize,
}

impl Module {
    /// Reads the program a plugin returned in `format`, `hlo` or `hlo_with_config`.
    pub fn decode(format: &str, bytes: &[u8]) -> Result<Self, HloError> {
        let module = match format {
            "hlo" => proto::Module::decode(bytes)?,
            "hlo_with_config" => proto::ModuleWithConfig::decode(bytes)?
                .module
                .ok_or_else(|| HloError::malformed("program", "it holds no module"))?,
            other => return Err(HloError::UnknownFormat(other.to_owned())),
        };
        Self::from_proto(module)
    }

    fn from_proto(mut proto: proto::Module) -> Result<Self, HloError> {
        let tables = Tables::take(&mut proto);
        let name = proto.name;
        let place = format!("module `{name}`");
        let sequences = proto.schedule.as_ref().map(|schedule| &schedule.sequences);
        let mut computations = Vec::with_capacity(proto.computations.len());
        let mut index = HashMap::with_capacity(proto.computations.len());
        for computation in proto.computations {
            if index.insert(computation.id, computations.len()).is_some() {
                let reason = format!("two computations have id {}", computation.id);
                return Err(HloError::malformed(place, reason));
            }
            let sequence = sequences.and_then(|sequences| sequences.get(&computation.id));
            computations.push(Computation::decode(computation, sequence, &tables, &place)?);
        }
        let entry = *index.get(&proto.entry_computation_id).ok_or_else(|| {
            let reason = format!("there is no entry computation {}", proto.entry_computation_id);
            HloError::malformed(&place, reason)
        })?;
        let is_scheduled = sequences.is_some();
        let module = Self { name, is_scheduled, computations, index, entry };
        module.check_calls(&place)?;
        Ok(module)
    }

    /// All computations; callees come before their callers.
    pub fn computations(&self) -> &[Computation] {
        &self.computations
    }

    /// The entry computation.
    pub fn entry(&self) -> &Computation {
        &self.computations[self.entry]
    }

    /// The computation with this id.
    pub fn computation(&self, id: ComputationId) -> Option<&Computation> {
        self.index.get(&id).map(|&position| &self.computations[position])
    }

    /// Every instruction of every computation.
    pub fn instructions(&self) -> impl Iterator<Item = &Instruction> {
        self.computations.iter().flat_map(|computation| &computation.instructions)
    }

    /// Checks that every called computation exists, and that none is recursive. Callees come before
    /// their callers in every valid module, which implies both.
    fn check_calls(&self, place: &str) -> Result<(), HloError> {
        for (position, computation) in self.computations.iter().enumerate() {
            for instruction in &computation.instructions {
                for called in &instruction.called {
                    let reason = match self.index.get(called) {
                        Some(&callee) if callee < position => continue,
                        Some(_) => format!("it calls computation {called}, which comes after it"),
                        None => format!("it calls computation {called}, which does not exist"),
                    };
                    let place = computation.place(place, instruction);
                    return Err(HloError::malformed(place, reason));
                }
            }
        }
        Ok(())
    }
}

impl Computation {
    fn decode(
        proto: proto::Computation,
        sequence: Option<&proto::InstructionSequence>,
        tables: &Tables,
        module: &str,
    ) -> Result<Self, HloError> {
        let proto::Computation { name, instructions: protos, id, root_id } = proto;
        let place = format!("{module}, computation `{name}`");
        let mut instructions = Vec::with_capacity(protos.len());
        for proto in protos {
            let name = proto.name.clone();
            let instruction = Instruction::decode(proto, id, tables).map_err(|reason| {
                HloError::malformed(format!("{place}, instruction `{name}`"), reason)
            })?;
            instructions.push(instruction);
        }
        if let Some(sequence) = sequence {
            instructions = in_schedule_order(instructions, &sequence.instruction_ids, &place)?;
        }
        let index = index_by_id(&instructions, &place)?;
        let root = *index
            .get(&root_id)
            .ok_or_else(|| HloError::malformed(&place, format!("it has no root {root_id}")))?;
        let computation = Self { id, name, instructions, index, root };
        computation.check_operands(module)?;
        Ok(computation)
    }

    /// The instructions, in the order they run if the module is scheduled.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// The instruction with this id.
    pub fn instruction(&self, id: InstructionId) -> Option<&Instruction> {
        self.index.get(&id).map(|&position| &self.instructions[position])
    }

    /// The root instruction.
    pub fn root(&self) -> &Instruction {
        &self.instructions[self.root]
    }

    /// The operands of one of its instructions.
    pub fn operands<'a>(
        &'a self,
        instruction: &'a Instruction,
    ) -> impl Iterator<Item = &'a Instruction> {
        instruction.operands.iter().filter_map(|&id| self.instruction(id))
    }

    fn check_operands(&self, module: &str) -> Result<(), HloError> {
        for instruction in &self.instructions {
            let needed = instruction.operands.iter().chain(&instruction.control_predecessors);
            if let Some(missing) = needed.into_iter().find(|id| !self.index.contains_key(id)) {
                let reason = format!("it needs instruction {missing}, which does not exist");
                return Err(HloError::malformed(self.place(module, instruction), reason));
            }
        }
        Ok(())
    }

    fn place(&self, module: &str, instruction: &Instruction) -> String {
        format!("{module}, computation `{}`, instruction `{}`", self.name, instruction.name)
    }
}

fn index_by_id(
    instructions: &[Instruction],
    place: &str,
) -> Result<HashMap<InstructionId, usize>, HloError> {
    let mut index = HashMap::with_capacity(instructions.len());
    for (position, instruction) in instructions.iter().enumerate() {
        if index.insert(instruction.id, position).is_some() {
            let reason = format!("two instructions have id {}", instruction.id);
            return Err(HloError::malformed(place, reason));
        }
    }
    Ok(index)
}

fn in_schedule_order(
    instructions: Vec<Instruction>,
    sequence: &[InstructionId],
    place: &str,
) -> Result<Vec<Instruction>, HloError> {
    let count = instructions.len();
    let mut by_id: HashMap<_, _> =
        instructions.into_iter().map(|instruction| (instruction.id, instruction)).collect();
    let ordered: Vec<_> = sequence.iter().filter_map(|id| by_id.remove(id)).collect();
    if ordered.len() != count || sequence.len() != count {
        let reason = format!("its schedule has {} of its {count} instructions", ordered.len());
        return Err(HloError::malformed(place, reason));
    }
    Ok(ordered)
}
