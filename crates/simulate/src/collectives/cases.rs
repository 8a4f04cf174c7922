//! Collectives over parts of a torus, simulated beside the closed forms.

use super::{Options, simulate};
use crate::error::Error;
use fullshard_core::CollectiveKind;
use fullshard_plan::{Network, Streams};
use serde::Serialize;

/// What a collective covers of a torus, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Its name, such as `dim 0, every 2nd chip`.
    pub name: String,
    /// The devices of a group.
    pub members: Vec<usize>,
    /// How the dimensions are used.
    pub streams: Streams,
    /// Number of equal collectives at once.
    pub together: usize,
    /// Whether messages of several groups, streams or collectives share links.
    pub contended: bool,
}

/// A simulated collective beside the closed form.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// What it covers.
    pub case: String,
    /// The collective.
    pub collective: &'static str,
    /// Devices of a group.
    pub group: usize,
    /// Whether links are shared.
    pub contended: bool,
    /// Bytes of the full tensor.
    pub bytes: u64,
    /// Simulated seconds.
    pub simulated: f64,
    /// Seconds by the closed form.
    pub closed_form: f64,
    /// How much longer the closed form is than the simulation, as a share of it.
    pub error: f64,
    /// Messages that went over a link.
    pub messages: u64,
}

/// Cases for a torus, of which some dimensions are rings: each dimension and all of them, with links
/// alone and shared.
///
/// Two collectives at once are compared on rings, which both keep busy everywhere. Along lines and
/// over several dimensions one uses what the other leaves idle, for which there is no closed form.
pub fn cases(dims: &[usize], wrap: &[bool]) -> Vec<Case> {
    let case = |name: String, members: Vec<usize>, streams, together, contended| Case {
        name,
        members,
        streams,
        together,
        contended,
    };
    let mut found = Vec::new();
    let mut add = |case: Case| {
        if case.members.len() > 1 {
            found.push(case);
        }
    };
    let sequential = Streams::Sequential;
    for dim in 0..dims.len() {
        let along = |stride| grid(dims, |other| if other == dim { Some(stride) } else { None });
        add(case(format!("dim {dim}"), along(1), sequential, 1, false));
        if wrap.get(dim) == Some(&true) {
            add(case(format!("dim {dim}, two at once"), along(1), sequential, 2, true));
        }
        if dims[dim].is_multiple_of(2) {
            add(case(format!("dim {dim}, every 2nd chip"), along(2), sequential, 1, true));
        }
    }
    if dims.iter().filter(|&&dim| dim > 1).count() > 1 {
        let all = |stride| grid(dims, |_| Some(stride));
        add(case("all dims, staged".into(), all(1), sequential, 1, false));
        add(case("all dims, rotated".into(), all(1), Streams::Rotated, 1, true));
        if dims.iter().all(|dim| dim.is_multiple_of(2)) {
            add(case("all dims, every 2nd chip".into(), all(2), sequential, 1, true));
        }
    }
    found
}

/// The devices of a group with the given stride in each dimension; at 0 in those without.
fn grid(dims: &[usize], stride: impl Fn(usize) -> Option<usize>) -> Vec<usize> {
    let mut members = vec![0];
    let mut below = 1;
    for (dim, &size) in dims.iter().enumerate() {
        if let Some(stride) = stride(dim) {
            let places = (0..size).step_by(stride).map(|at| at * below);
            members = places.flat_map(|at| members.iter().map(move |id| id + at)).collect();
        }
        below *= size;
    }
    members
}

/// Simulates a case beside the closed form.
pub fn compare(
    network: &Network,
    case: &Case,
    kind: CollectiveKind,
    bytes: u64,
    chunks: usize,
) -> Result<Comparison, Error> {
    let rotated = network.rotated();
    let network = if case.streams == Streams::Rotated { &rotated } else { network };
    let options = Options { together: case.together, chunks };
    let simulation = simulate(network, kind, bytes, &case.members, options)?;
    // What shares all links shares their rate.
    let closed_form = network.seconds(kind, bytes * case.together as u64, &case.members);
    Ok(Comparison {
        case: case.name.clone(),
        collective: kind.name(),
        group: case.members.len(),
        contended: case.contended,
        bytes,
        simulated: simulation.seconds,
        closed_form,
        error: closed_form / simulation.seconds - 1.0,
        messages: simulation.messages,
    })
}
