//! An instruction, with the attributes we use.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullshard_core::CollectiveKind;
use serde_json::Value;

use super::collectives::kind_of;
use super::devices::{ReplicaGroups, to_usizes};
use super::element::ElementType;
use super::members::process_kind;
use super::module::{ComputationId, InstructionId};
use super::proto;
use super::shape::Shape;
use super::sharding::OpSharding;

/// One instruction of a computation.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// Its id, unique in its computation.
    pub id: InstructionId,
    /// Its name, unique in the module.
    pub name: String,
    /// Its opcode, as in HLO text: `dot`, `all-gather-start`.
    pub opcode: String,
    /// The computation it belongs to.
    pub computation: ComputationId,
    /// The shape of its result.
    pub shape: Shape,
    /// Its operands.
    pub operands: Vec<InstructionId>,
    /// Instructions that must run before it, without a data dependency.
    pub control_predecessors: Vec<InstructionId>,
    /// The computations it calls.
    pub called: Vec<ComputationId>,
    /// Its source location.
    pub metadata: Metadata,
    /// The backend-specific configuration.
    pub backend_config: Arc<[u8]>,
    /// The value, if it is an integer or boolean scalar constant.
    pub constant: Option<i128>,
    /// The parameter number, if it is a parameter.
    pub parameter_number: Option<usize>,
    /// The kind of a fusion: `kLoop`, `kOutput`, `kCustom`.
    pub fusion_kind: Option<String>,
    /// The index of a `get-tuple-element`.
    pub tuple_index: Option<usize>,
    /// Its dims; their meaning depends on the opcode.
    pub dims: Vec<i64>,
    /// The dims of a matmul.
    pub dot_dims: Option<DotDims>,
    /// The direction of a `compare`: `LT`, `NE`.
    pub comparison: Option<String>,
    /// The target of a custom call.
    pub custom_call_target: Option<String>,
    /// The channel of a collective or transfer.
    pub channel_id: Option<i64>,
    /// The device groups of a collective.
    pub replica_groups: ReplicaGroups,
    /// The (source, target) pairs of a permutation.
    pub source_target_pairs: Vec<(usize, usize)>,
    /// The sharding of its result, if still annotated.
    pub sharding: Option<OpSharding>,
    /// Whether a send or receive is between device and host.
    pub is_host_transfer: bool,
    /// The thread an asynchronous instruction runs on.
    pub execution_thread: Option<String>,
    /// Attributes attached by the frontend or the compiler.
    pub frontend_attributes: BTreeMap<String, String>,
}

/// The source of an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The kind of op in the frontend; often empty.
    pub op_type: String,
    /// The path of the op in the frontend; often the only readable name.
    pub op_name: String,
    /// The line of source, where known.
    pub source: Option<SourceLocation>,
}

/// A line of source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLocation {
    /// The file.
    pub file: Arc<str>,
    /// The line, from one.
    pub line: i32,
}

/// The dims of a matmul.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DotDims {
    /// Contracting dims of the left operand.
    pub lhs_contracting: Vec<i64>,
    /// Contracting dims of the right operand.
    pub rhs_contracting: Vec<i64>,
    /// Batch dims of the left operand.
    pub lhs_batch: Vec<i64>,
    /// Batch dims of the right operand.
    pub rhs_batch: Vec<i64>,
}

/// Tables of the module that instructions refer to: long strings are stored once.
pub(super) struct Tables {
    payloads: Vec<Arc<[u8]>>,
    frames: Vec<Option<SourceLocation>>,
}

impl Tables {
    pub(super) fn take(module: &mut proto::Module) -> Self {
        let index = module.stack_frame_index.take().unwrap_or_default();
        let files: Vec<Arc<str>> = index.file_names.into_iter().map(Arc::from).collect();
        let locate = |frame: &proto::StackFrame| {
            let location = from_one(&index.file_locations, frame.file_location_id)?;
            let file = from_one(&files, location.file_name_id)?.clone();
            Some(SourceLocation { file, line: location.line })
        };
        let payloads = std::mem::take(&mut module.payloads);
        Self {
            frames: index.stack_frames.iter().map(locate).collect(),
            payloads: payloads.into_iter().map(Arc::from).collect(),
        }
    }

    fn backend_config(&self, instruction: &proto::Instruction) -> Result<Arc<[u8]>, String> {
        let payload = instruction.backend_config_payload.as_ref();
        match payload.filter(|_| instruction.backend_config.is_empty()) {
            None => Ok(instruction.backend_config.as_slice().into()),
            Some(proto::Payload { id: Some(id), .. }) => {
                let index = usize::try_from(*id).ok();
                let found = index.and_then(|index| self.payloads.get(index)).cloned();
                found.ok_or_else(|| format!("the module has no payload {id}"))
            }
            Some(payload) => Ok(payload.value.as_deref().unwrap_or_default().into()),
        }
    }

    fn metadata(&self, metadata: &proto::OpMetadata) -> Metadata {
        let source = if metadata.source_file.is_empty() {
            from_one(&self.frames, metadata.stack_frame_id).cloned().flatten()
        } else {
            let file = metadata.source_file.as_str().into();
            Some(SourceLocation { file, line: metadata.source_line })
        };
        Metadata { op_type: metadata.op_type.clone(), op_name: metadata.op_name.clone(), source }
    }
}

impl Instruction {
    pub(super) fn decode(
        instruction: proto::Instruction,
        computation: ComputationId,
        tables: &Tables,
    ) -> Result<Self, String> {
        let shape = instruction.shape.as_ref().ok_or("it has no shape")?;
        let index = |opcode: &str, value: i64| {
            (instruction.opcode == opcode)
                .then(|| usize::try_from(value).map_err(|_| format!("its index is {value}")))
                .transpose()
        };
        let pair = |pair: &proto::SourceTarget| {
            to_usizes(&[pair.source, pair.target]).map(|ends| (ends[0], ends[1]))
        };
        let pairs = instruction.source_target_pairs.iter().map(pair);
        Ok(Self {
            computation,
            shape: Shape::decode(shape)?,
            metadata: instruction
                .metadata
                .as_ref()
                .map_or_else(Metadata::default, |metadata| tables.metadata(metadata)),
            backend_config: tables.backend_config(&instruction)?,
            constant: instruction.literal.as_ref().and_then(integer_scalar),
            parameter_number: index("parameter", instruction.parameter_number)?,
            tuple_index: index("get-tuple-element", instruction.tuple_index)?,
            replica_groups: ReplicaGroups::decode(&instruction)?,
            source_target_pairs: pairs.collect::<Result<_, _>>()?,
            sharding: instruction.sharding.as_ref().map(OpSharding::decode).transpose()?,
            dot_dims: instruction.dot_dimension_numbers.map(DotDims::from),
            fusion_kind: non_empty(instruction.fusion_kind),
            comparison: non_empty(instruction.comparison_direction),
            custom_call_target: non_empty(instruction.custom_call_target),
            execution_thread: non_empty(instruction.async_execution_thread),
            channel_id: Some(instruction.channel_id).filter(|&channel| channel != 0),
            frontend_attributes: instruction.frontend_attributes.unwrap_or_default().map,
            is_host_transfer: instruction.is_host_transfer,
            id: instruction.id,
            name: instruction.name,
            opcode: instruction.opcode,
            operands: instruction.operand_ids,
            control_predecessors: instruction.control_predecessor_ids,
            called: instruction.called_computation_ids,
            dims: instruction.dimensions,
        })
    }

    /// Whether it starts a collective; the `-done` half of a pair does not.
    pub fn is_collective(&self) -> bool {
        self.collective_kind().is_some()
    }

    /// The collective it starts, if any.
    pub fn collective_kind(&self) -> Option<CollectiveKind> {
        let opcode = &self.opcode;
        kind_of(opcode.strip_suffix("-start").unwrap_or(opcode)).or_else(|| process_kind(self))
    }

    /// The backend config, if it is JSON, as on CPU, GPU and TPU.
    pub fn backend_config_json(&self) -> Option<Value> {
        serde_json::from_slice(&self.backend_config).ok()
    }

    /// The backend config as text, if it is UTF-8 and not empty.
    pub fn backend_config_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.backend_config).ok().filter(|config| !config.is_empty())
    }

    /// The cycles the TPU compiler estimates. Collectives, gathers and asynchronous copies have no
    /// estimate, nor does anything on other backends.
    pub fn estimated_cycles(&self) -> Option<u64> {
        let config = self.backend_config_json()?;
        let cycles = json_integer(config.get("window_config")?.get("estimated_cycles")?)?;
        Some(cycles).filter(|&cycles| cycles != UNKNOWN_CYCLES)
    }
}

/// What the TPU compiler writes where its cost model has no answer: for custom fusions, and for
/// softmax over rows that leave little of its fast memory.
const UNKNOWN_CYCLES: u64 = i64::MAX as u64;

/// The algorithm of a collective on TPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// The compiler's name for it, such as `3DAllGatherOnMajorDim`.
    pub name: String,
    /// Number of concurrent streams, each along another path, where reported.
    pub streams: Option<usize>,
}

impl Instruction {
    /// The algorithm of a collective, where the TPU compiler reports it.
    pub fn algorithm(&self) -> Option<Algorithm> {
        let config = self.backend_config_json()?;
        let config = config.get("collective_algorithm_config")?;
        let name = config.get("emitter")?.as_str()?.to_owned();
        let debug = config.get("debug").and_then(Value::as_str).unwrap_or_default();
        let colors = debug.split_once("colors:").map(|(_, rest)| rest);
        let digits = |text: &str| text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
        Some(Algorithm { name, streams: colors.and_then(digits) })
    }

    /// Results that alias operands, where the TPU compiler reports them: pairs of operand index and
    /// result index.
    pub fn aliases(&self) -> Vec<(usize, usize)> {
        let config = self.backend_config_json();
        let lists = config
            .as_ref()
            .and_then(|config| config.get("aliasing_operands")?.get("lists")?.as_array());
        let pairs = lists.into_iter().flatten().filter_map(|list| {
            let indices = list.get("indices")?.as_array()?;
            let indices: Vec<usize> =
                indices.iter().filter_map(json_integer).map(|index| index as usize).collect();
            let operand = *indices.iter().find(|&&index| index < self.operands.len())?;
            let result = *indices.iter().find(|&&index| index >= self.operands.len())?;
            Some((operand, result - self.operands.len()))
        });
        pairs.collect()
    }
}

impl From<proto::DotDimensionNumbers> for DotDims {
    fn from(dims: proto::DotDimensionNumbers) -> Self {
        Self {
            lhs_contracting: dims.lhs_contracting,
            rhs_contracting: dims.rhs_contracting,
            lhs_batch: dims.lhs_batch,
            rhs_batch: dims.rhs_batch,
        }
    }
}

/// Protobuf's JSON writes 64-bit integers as strings.
pub(super) fn json_integer(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// The item at an index that counts from one.
fn from_one<T>(items: &[T], index: i32) -> Option<&T> {
    items.get(usize::try_from(index).ok()?.checked_sub(1)?)
}

fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn integer_scalar(literal: &proto::Literal) -> Option<i128> {
    let shape = Shape::decode(literal.shape.as_ref()?).ok()?;
    let array = shape.as_array().filter(|array| array.dims.is_empty())?;
    let half = |bytes: &[u8]| bytes.try_into().ok().map(u16::from_le_bytes);
    match array.element {
        ElementType::Pred => literal.preds.first().map(|&value| value.into()),
        ElementType::S8 => literal.s8s.first().map(|&value| value.cast_signed().into()),
        ElementType::S16 => half(&literal.s16s).map(|value| value.cast_signed().into()),
        ElementType::S32 => literal.s32s.first().map(|&value| value.into()),
        ElementType::S64 => literal.s64s.first().map(|&value| value.into()),
        ElementType::U8 => literal.u8s.first().map(|&value| value.into()),
        ElementType::U16 => half(&literal.u16s).map(i128::from),
        ElementType::U32 => literal.u32s.first().map(|&value| value.into()),
        ElementType::U64 => literal.u64s.first().map(|&value| value.into()),
        _ => None,
    }
}
