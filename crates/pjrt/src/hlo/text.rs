//! HLO text of a module, with the attributes we read.

use std::fmt::{self, Display, Formatter};

use super::instruction::Instruction;
use super::loops::condition_and_body;
use super::module::{Computation, ComputationId, Module};
use super::shape::write_list;

impl Display for Module {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "HloModule {}", self.name)?;
        if self.is_scheduled {
            f.write_str(", is_scheduled=true")?;
        }
        f.write_str("\n")?;
        for computation in self.computations() {
            write_computation(f, self, computation)?;
        }
        Ok(())
    }
}

fn write_computation(
    f: &mut Formatter<'_>,
    module: &Module,
    computation: &Computation,
) -> fmt::Result {
    let entry = if computation.id == module.entry().id { "ENTRY " } else { "" };
    let root = computation.root();
    writeln!(f, "\n{entry}%{} -> {} {{", computation.name, root.shape)?;
    for instruction in computation.instructions() {
        f.write_str(if instruction.id == root.id { "  ROOT " } else { "  " })?;
        write!(f, "%{} = {} {}(", instruction.name, instruction.shape, instruction.opcode)?;
        write_arguments(f, computation, instruction)?;
        f.write_str(")")?;
        write_calls(f, module, instruction)?;
        write_attributes(f, instruction)?;
        write_predecessors(f, computation, instruction)?;
        write_metadata(f, instruction)?;
        f.write_str("\n")?;
    }
    f.write_str("}\n")
}

fn write_arguments(
    f: &mut Formatter<'_>,
    computation: &Computation,
    instruction: &Instruction,
) -> fmt::Result {
    match (instruction.parameter_number, instruction.constant) {
        (Some(number), _) => write!(f, "{number}"),
        (_, Some(value)) => write!(f, "{value}"),
        _ => write_list(f, computation.operands(instruction).map(|it| Name(&it.name)), ", "),
    }
}

fn write_calls(f: &mut Formatter<'_>, module: &Module, instruction: &Instruction) -> fmt::Result {
    let name = |id: &ComputationId| module.computation(*id).map(|called| Name(&called.name));
    if let ("while", Some((condition, body))) =
        (instruction.opcode.as_str(), condition_and_body(module, instruction))
    {
        return write!(f, ", condition=%{}, body=%{}", condition.name, body.name);
    }
    match (instruction.opcode.as_str(), instruction.called.as_slice()) {
        (_, []) => Ok(()),
        ("fusion" | "async-start" | "async-update" | "async-done", [called]) => {
            write_some(f, "calls", name(called))
        }
        (_, [called]) => write_some(f, "to_apply", name(called)),
        (_, called) => {
            f.write_str(", called_computations={")?;
            write_list(f, called.iter().filter_map(name), ", ")?;
            f.write_str("}")
        }
    }
}

fn write_attributes(f: &mut Formatter<'_>, instruction: &Instruction) -> fmt::Result {
    write_some(f, "kind", instruction.fusion_kind.as_ref())?;
    write_some(f, "index", instruction.tuple_index)?;
    write_dims(f, "dimensions", &instruction.dims)?;
    if let Some(dot) = &instruction.dot_dims {
        write_dims(f, "lhs_batch_dims", &dot.lhs_batch)?;
        write_dims(f, "lhs_contracting_dims", &dot.lhs_contracting)?;
        write_dims(f, "rhs_batch_dims", &dot.rhs_batch)?;
        write_dims(f, "rhs_contracting_dims", &dot.rhs_contracting)?;
    }
    write_some(f, "direction", instruction.comparison.as_ref())?;
    write_quoted(f, "custom_call_target", instruction.custom_call_target.as_deref())?;
    write_some(f, "channel_id", instruction.channel_id)?;
    let groups = Some(&instruction.replica_groups).filter(|groups| !groups.is_empty());
    write_some(f, "replica_groups", groups)?;
    if !instruction.source_target_pairs.is_empty() {
        let pairs = instruction.source_target_pairs.iter();
        f.write_str(", source_target_pairs={")?;
        write_list(f, pairs.map(|(source, target)| format!("{{{source},{target}}}")), ",")?;
        f.write_str("}")?;
    }
    if instruction.is_host_transfer {
        f.write_str(", is_host_transfer=true")?;
    }
    write_quoted(f, "async_execution_thread", instruction.execution_thread.as_deref())?;
    write_some(f, "sharding", instruction.sharding.as_ref())
}

fn write_predecessors(
    f: &mut Formatter<'_>,
    computation: &Computation,
    instruction: &Instruction,
) -> fmt::Result {
    if instruction.control_predecessors.is_empty() {
        return Ok(());
    }
    let before = instruction.control_predecessors.iter();
    let before = before.filter_map(|&id| computation.instruction(id)).map(|it| Name(&it.name));
    f.write_str(", control-predecessors={")?;
    write_list(f, before, ", ")?;
    f.write_str("}")
}

fn write_metadata(f: &mut Formatter<'_>, instruction: &Instruction) -> fmt::Result {
    if !instruction.frontend_attributes.is_empty() {
        let attributes = instruction.frontend_attributes.iter();
        f.write_str(", frontend_attributes={")?;
        write_list(f, attributes.map(|(name, value)| format!("{name}={value:?}")), ",")?;
        f.write_str("}")?;
    }
    let metadata = &instruction.metadata;
    let mut parts = Vec::new();
    if !metadata.op_type.is_empty() {
        parts.push(format!("op_type={:?}", metadata.op_type));
    }
    if !metadata.op_name.is_empty() {
        parts.push(format!("op_name={:?}", metadata.op_name));
    }
    if let Some(source) = &metadata.source {
        parts.push(format!("source_file={:?} source_line={}", source.file, source.line));
    }
    if !parts.is_empty() {
        write!(f, ", metadata={{{}}}", parts.join(" "))?;
    }
    match instruction.backend_config_str() {
        Some(config) if config.starts_with('{') => write!(f, ", backend_config={config}"),
        Some(config) => write!(f, ", backend_config={config:?}"),
        None if instruction.backend_config.is_empty() => Ok(()),
        None => write!(f, ", backend_config=<{} bytes>", instruction.backend_config.len()),
    }
}

/// A reference to a name.
struct Name<'a>(&'a str);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

fn write_some<T: Display>(f: &mut Formatter<'_>, name: &str, value: Option<T>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, ", {name}={value}"))
}

fn write_quoted(f: &mut Formatter<'_>, name: &str, value: Option<&str>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, ", {name}={value:?}"))
}

fn write_dims(f: &mut Formatter<'_>, name: &str, dims: &[i64]) -> fmt::Result {
    if dims.is_empty() {
        return Ok(());
    }
    write!(f, ", {name}={{")?;
    write_list(f, dims, ",")?;
    f.write_str("}")
}
