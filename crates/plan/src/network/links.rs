//! The links that a collective occupies, and for how long.
//!
//! A lane is all links of one direction of a dimension of the torus, a switch, or the network
//! between islands. Devices do the same at the same time, so that a lane is busy or free as a
//! whole. Collectives whose lanes differ run at once; those that share one run in the order in
//! which they start.

use super::{Fabric, Network, Side, Span, Streams, hops_of, rounds};
use fullshard_pjrt::hlo::CollectiveKind;

/// A part of a collective that occupies the same lanes all the time.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// The lanes.
    pub lanes: Vec<usize>,
    /// Seconds.
    pub seconds: f64,
}

impl Network {
    /// Number of lanes. The last is that between islands.
    pub fn lanes(&self) -> usize {
        match &self.fabric {
            Fabric::Torus { dims, .. } => 2 * dims.len() + 1,
            Fabric::Switch { .. } => 2,
        }
    }

    /// The phases of a collective over the members of a group, one after another. They add up to
    /// [`Network::seconds_over`], except for permutes, of which that knows no direction.
    pub fn phases(&self, kind: CollectiveKind, bytes: u64, members: &[usize]) -> Vec<Phase> {
        let span = self.span(members);
        if span.members < 2 {
            return Vec::new();
        }
        let inside: Vec<usize> = (0..self.lanes() - 1).collect();
        let all = |lanes| vec![Phase { lanes, seconds: self.seconds_over(kind, bytes, &span) }];
        let Fabric::Torus { streams, .. } = &self.fabric else { return all(inside) };
        if span.islands > 1 && span.per_island < 2 {
            return all(vec![self.lanes() - 1]);
        }
        let one_island = span.islands == 1 && span.sides.iter().all(|side| side.dim.is_some());
        match (kind, &span.sides[..]) {
            (CollectiveKind::CollectivePermute, [side]) if one_island => {
                vec![self.permute(bytes, *side, members)]
            }
            (CollectiveKind::AllGather | CollectiveKind::ReduceScatter, sides)
                if one_island && *streams == Streams::Sequential && sides.len() > 1 =>
            {
                self.one_dim_after_another(kind, bytes, &span)
            }
            _ => all(inside),
        }
    }

    /// Each dimension is busy only while its own part moves.
    fn one_dim_after_another(&self, kind: CollectiveKind, bytes: u64, span: &Span) -> Vec<Phase> {
        let Fabric::Torus { link, latency, .. } = &self.fabric else { return Vec::new() };
        let mut left = bytes as f64;
        let phases = span.sides.iter().map(|side| {
            let seconds = hops_of(kind, side.hops()) * latency + side.gather(left, *link);
            left /= side.length as f64;
            Phase { lanes: lanes_of(*side), seconds: rounds(kind) * seconds }
        });
        phases.collect()
    }

    /// A permute to the next of a ring takes one direction. Where the ends are not linked, the last
    /// sends back through all others in the other direction.
    fn permute(&self, bytes: u64, side: Side, members: &[usize]) -> Phase {
        let Fabric::Torus { link, latency, .. } = &self.fabric else {
            return Phase { lanes: Vec::new(), seconds: 0.0 };
        };
        let around = side.ring && side.length > 2;
        let hops = side.stride * if around { 1 } else { side.length - 1 };
        let seconds = hops as f64 * latency + (side.stride as u64 * bytes) as f64 / link;
        let lanes = lanes_of(side);
        let lanes = match (around, self.goes_forth(side, members)) {
            (false, _) => lanes,
            (true, forth) => vec![lanes[usize::from(!forth)]],
        };
        Phase { lanes, seconds }
    }

    /// Whether the members of a ring are listed in the direction of its dimension.
    fn goes_forth(&self, side: Side, members: &[usize]) -> bool {
        let Fabric::Torus { dims, .. } = &self.fabric else { return true };
        let Some(dim) = side.dim else { return true };
        let cores = (self.island / dims.iter().product::<usize>().max(1)).max(1);
        let before = dims[..dim].iter().product::<usize>() * cores;
        let place = |member: usize| member / before % dims[dim];
        match members {
            [first, second, ..] => (place(*first) + side.stride) % dims[dim] == place(*second),
            _ => true,
        }
    }
}

/// The two lanes of a dimension.
fn lanes_of(side: Side) -> Vec<usize> {
    side.dim.map_or_else(Vec::new, |dim| vec![2 * dim, 2 * dim + 1])
}
