//! Collectives on tori, message by message.
//!
//! A link sends one message after another, in the order in which they come to it, and each arrives
//! a latency later. Chips forward what has arrived, and start with the next dimension as soon as
//! they have what they need for it, whether or not others do. All groups of a mesh axis run at
//! once, so that those whose ways share links wait for one another.
//!
//! Along a ring shards go both ways to the chips that are nearer that way, and to the one opposite
//! half from each side; along a line both ways to its ends. A reduce-scatter is an all-gather in
//! reverse: partial sums start at the far ends, and each chip on their way adds its own. Over
//! several dimensions a collective runs along one after another, or in streams that each start with
//! another dimension ([`Streams`]). A chip goes on to the next dimension with all streams at once, as
//! the closed form assumes: otherwise small messages of one wait for large ones of another.

mod cases;
mod passes;
mod run;

pub use cases::{Case, Comparison, cases, compare};

use crate::error::Error;
use fullshard_core::CollectiveKind;
use fullshard_plan::{Fabric, Network, Streams};
use run::Run;

/// How messages are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Number of equal collectives at once over the same groups.
    pub together: usize,
    /// Number of chunks that a shard is sent in. The closed forms count with one.
    pub chunks: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { together: 1, chunks: 1 }
    }
}

/// A simulated collective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulation {
    /// Seconds until the last chip has its result.
    pub seconds: f64,
    /// Number of messages that went over a link.
    pub messages: u64,
}

/// Simulates a collective over a group and all groups like it, on a network with one torus.
///
/// `bytes` is the size of the full tensor, as in [`Network::seconds`].
pub fn simulate(
    network: &Network,
    kind: CollectiveKind,
    bytes: u64,
    members: &[usize],
    options: Options,
) -> Result<Simulation, Error> {
    let unknown = |what: String, reason| Error::Network { what, reason };
    let Fabric::Torus { dims, link, latency, streams, .. } = &network.fabric else {
        return Err(unknown("a switch".into(), "name a TPU slice, whose chips form a torus"));
    };
    if network.islands() > 1 {
        return Err(unknown("several slices".into(), "name one slice"));
    }
    if options.together == 0 || options.chunks == 0 {
        return Err(unknown("no messages".into(), "--together and --chunks must be at least 1"));
    }
    let sides = network.span(members).sides;
    if sides.iter().any(|side| side.dim.is_none()) {
        let what = format!("a group of {} chips that is no grid", members.len());
        return Err(unknown(what, "its chips must be evenly spaced in each dimension"));
    }
    let even = |side: &fullshard_plan::Side| {
        let block = side.length * side.stride;
        side.dim.is_some_and(|dim| dims[dim].is_multiple_of(block))
    };
    if !sides.iter().all(even) {
        let what = format!("groups of {} chips", members.len());
        return Err(unknown(what, "groups must cover each dimension evenly"));
    }
    // Dimensions that a group does not cover have equal groups that share no links.
    let covered: Vec<usize> = sides.iter().filter_map(|side| side.dim).map(|d| dims[d]).collect();
    let streams = match streams {
        Streams::Sequential => 1,
        Streams::Rotated => sides.len().max(1),
    };
    let each = bytes as f64 / streams as f64;
    let passes = (0..streams).map(|first| passes::passes(kind, &sides, each, first));
    let Some(passes) = passes.collect::<Option<Vec<_>>>() else {
        let known = "all-gather, reduce-scatter and all-reduce can be simulated";
        return Err(unknown(kind.name().into(), known));
    };
    Ok(Run::new(&covered, *link, *latency, passes, options).run())
}
