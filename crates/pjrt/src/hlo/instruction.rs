//! One instruction, with the attributes we have a use for.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::collectives::CollectiveKind;
use super::devices::{ReplicaGroups, to_usizes};
use super::element::ElementType;
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
    /// What it does, as HLO text spells it: `dot`, `all-gather-start`.
    pub opcode: String,
    /// The computation it belongs to.
    pub computation: ComputationId,
    /// The shape of its result.
    pub shape: Shape,
    /// The instructions whose results it takes.
    pub operands: Vec<InstructionId>,
    /// Instructions that must run before it without giving it data.
    pub control_predecessors: Vec<InstructionId>,
    /// The computations it calls.
    pub called: Vec<ComputationId>,
    /// Where in the source program it comes from.
    pub metadata: Metadata,
    /// What the backend wants to know about it.
    pub backend_config: Arc<[u8]>,
    /// The value, if it is an integer or boolean scalar constant.
    pub constant: Option<i128>,
    /// Which parameter it is, if it is one.
    pub parameter_number: Option<usize>,
    /// How a fusion is to be emitted: `kLoop`, `kOutput`, `kCustom`.
    pub fusion_kind: Option<String>,
    /// Which element a `get-tuple-element` takes.
    pub tuple_index: Option<usize>,
    /// The dims it works along; what that means depends on the opcode.
    pub dims: Vec<i64>,
    /// The dims of a matrix product.
    pub dot_dims: Option<DotDims>,
    /// How a `compare` compares: `LT`, `NE`.
    pub comparison: Option<String>,
    /// The function a custom call calls.
    pub custom_call_target: Option<String>,
    /// The channel of a collective or transfer.
    pub channel_id: Option<i64>,
    /// Which devices of a collective talk to each other.
    pub replica_groups: ReplicaGroups,
    /// Who sends to whom in a permutation.
    pub source_target_pairs: Vec<(usize, usize)>,
    /// How its result is spread over devices, if that is still noted.
    pub sharding: Option<OpSharding>,
    /// Whether a send or receive is between device and host.
    pub is_host_transfer: bool,
    /// The thread an asynchronous instruction runs on.
    pub execution_thread: Option<String>,
    /// Notes the frontend or the compiler attached.
    pub frontend_attributes: BTreeMap<String, String>,
}

/// Where an instruction comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The kind of operation in the frontend; often empty.
    pub op_type: String,
    /// The path of the operation in the frontend; often the only readable name.
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

/// The dims of a matrix product.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DotDims {
    /// Summed dims of the left operand.
    pub lhs_contracting: Vec<i64>,
    /// Summed dims of the right operand.
    pub rhs_contracting: Vec<i64>,
    /// Dims of the left operand that index separate products.
    pub lhs_batch: Vec<i64>,
    /// Dims of the right operand that index separate products.
    pub rhs_batch: Vec<i64>,
}

/// What instructions share through the module: long strings are stored once.
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

    /// Whether it begins an exchange between devices; the `-done` half of a pair does not.
    pub fn is_collective(&self) -> bool {
        self.collective_kind().is_some()
    }

    /// Which exchange between devices it begins, if any.
    pub fn collective_kind(&self) -> Option<CollectiveKind> {
        let opcode = &self.opcode;
        CollectiveKind::from_opcode(opcode.strip_suffix("-start").unwrap_or(opcode))
    }

    /// The backend's configuration, if it is JSON, as CPU, GPU and TPU write it.
    pub fn backend_config_json(&self) -> Option<Value> {
        serde_json::from_slice(&self.backend_config).ok()
    }

    /// The backend's configuration as text, if it is any.
    pub fn backend_config_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.backend_config).ok().filter(|config| !config.is_empty())
    }

    /// The cycles the TPU compiler expects it to take. Collectives, gathers and copies that run
    /// beside other work carry no estimate, nor does anything on other backends.
    pub fn estimated_cycles(&self) -> Option<u64> {
        let config = self.backend_config_json()?;
        json_integer(config.get("window_config")?.get("estimated_cycles")?)
    }
}

/// How the TPU compiler exchanges something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// Its name for it, such as `3DAllGatherOnMajorDim`.
    pub name: String,
    /// How many streams it sends at once, each along another way, where it says so.
    pub streams: Option<usize>,
}

impl Instruction {
    /// How an exchange is done, where the TPU compiler says so.
    pub fn algorithm(&self) -> Option<Algorithm> {
        let config = self.backend_config_json()?;
        let config = config.get("collective_algorithm_config")?;
        let name = config.get("emitter")?.as_str()?.to_owned();
        let words = config.get("debug").and_then(Value::as_str).unwrap_or_default();
        let colors = words.split_once("colors:").map(|(_, rest)| rest);
        let digits = |text: &str| text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
        Some(Algorithm { name, streams: colors.and_then(digits) })
    }

    /// Which operand each result of it lies in, where the TPU compiler says so: pairs of the
    /// number of an operand and the number of a result.
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
