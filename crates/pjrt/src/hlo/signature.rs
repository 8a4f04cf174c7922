//! Inputs and outputs of a program per device, decoded without its instructions.

use prost::Message;

use super::error::HloError;
use super::proto;
use super::shape::Shape;
use super::sharding::OpSharding;

/// The per-device signature of an optimized program.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    /// The shape of each parameter.
    pub parameters: Vec<Shape>,
    /// The shape of each result; a tuple is flattened.
    pub results: Vec<Shape>,
    /// Indices of donated parameters, in order.
    pub donated: Vec<usize>,
    /// The sharding of each parameter, if annotated.
    pub parameter_shardings: Vec<Option<OpSharding>>,
    /// The sharding of each result, if annotated.
    pub result_shardings: Vec<Option<OpSharding>>,
}

impl Signature {
    /// Decodes the signature only; instructions are skipped.
    pub fn decode(format: &str, bytes: &[u8]) -> Result<Self, HloError> {
        let header = match format {
            "hlo" => proto::Header::decode(bytes)?,
            "hlo_with_config" => proto::HeaderWithConfig::decode(bytes)?
                .module
                .ok_or_else(|| HloError::malformed("program", "it holds no module"))?,
            other => return Err(HloError::UnknownFormat(other.to_owned())),
        };
        let place = format!("module `{}`", header.name);
        Self::from_header(&header).map_err(|reason| HloError::malformed(place, reason))
    }

    fn from_header(header: &proto::Header) -> Result<Self, String> {
        let program = header.host_program_shape.as_ref().ok_or("it has no program shape")?;
        let result = program.result.as_ref().ok_or("its program shape has no result")?;
        let parameters: Vec<Shape> =
            program.parameters.iter().map(Shape::decode).collect::<Result<_, _>>()?;
        let result = Shape::decode(result)?;
        let results: Vec<Shape> = result.leaves().into_iter().cloned().collect();
        Ok(Self {
            donated: donated(header, parameters.len())?,
            parameter_shardings: parameter_shardings(header, parameters.len()),
            result_shardings: result_shardings(header, results.len()),
            parameters,
            results,
        })
    }
}

fn donated(header: &proto::Header, parameters: usize) -> Result<Vec<usize>, String> {
    let aliased = header.input_output_alias.iter().flat_map(|alias| &alias.entries);
    let given = header.buffer_donor.iter().flat_map(|donor| &donor.entries);
    let numbers = aliased
        .map(|entry| entry.parameter_number)
        .chain(given.map(|entry| entry.parameter_number));
    let mut donated = Vec::new();
    for number in numbers {
        let index = usize::try_from(number).ok().filter(|&index| index < parameters);
        donated.push(
            index.ok_or_else(|| {
                format!("parameter {number} is donated, but there are {parameters}")
            })?,
        );
    }
    donated.sort_unstable();
    donated.dedup();
    Ok(donated)
}

fn parameter_shardings(header: &proto::Header, parameters: usize) -> Vec<Option<OpSharding>> {
    let found = header.spmd_parameters_shardings.iter().map(|it| OpSharding::decode(it).ok());
    for_each(found.collect(), parameters)
}

fn result_shardings(header: &proto::Header, results: usize) -> Vec<Option<OpSharding>> {
    let output = header.spmd_output_sharding.as_ref().and_then(|it| OpSharding::decode(it).ok());
    let shardings = match output {
        None => Vec::new(),
        Some(OpSharding::Tuple(leaves)) => leaves.into_iter().map(Some).collect(),
        // XLA writes one replicated sharding for the entire tuple.
        Some(OpSharding::Replicated) => vec![Some(OpSharding::Replicated); results],
        Some(single) => vec![Some(single)],
    };
    for_each(shardings, results)
}

/// One sharding per value. If their number does not match they are ignored; the program is still
/// valid.
fn for_each(shardings: Vec<Option<OpSharding>>, count: usize) -> Vec<Option<OpSharding>> {
    if shardings.len() == count { shardings } else { vec![None; count] }
}
