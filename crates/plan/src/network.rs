//! Networks between devices, and how long collectives take on them.
//!
//! A machine has one or several islands: slices of TPU pods, GPU nodes. Inside an island devices
//! have a torus or a switch, between islands the data-center network. [`span`] finds what the
//! members of a group cover of each.
//!
//! The formulas are the usual ones, with latency α per hop and rate W per link and direction. For
//! an all-gather (or reduce-scatter) of V bytes over p devices:
//!
//! - bidirectional ring: ⌈p/2⌉·α + (p−1)/p · V/2W
//! - line: (p−1)·α + (p−1)/p · V/W, since its ends have only one neighbor
//! - every s-th device of a ring or line: as above with s·α and W/s, since a hop takes s links and
//!   each link serves s groups
//! - torus, one dimension after another: the first moves V, the next V over the first's length,
//!   and so on. Rings go first, so that lines have less to move.
//! - torus, rotated: k dimensions move k streams of V/k at once, each starting with another
//! - ring over a switch: (p−1)·α + (p−1)/p · V/W
//! - ring over a switch and m nodes, n devices in each: as before, at most at the n·R of the
//!   adapters of a node, and m−1 of the hops have their latency
//! - m slices, n devices in each: inside the slices, and then (m−1)/m · V/n over R, the rate per
//!   device between slices
//!
//! An all-reduce is a reduce-scatter followed by an all-gather.

mod links;
mod span;

pub use links::Phase;
pub use span::{Side, Span};

use fullshard_pjrt::hlo::CollectiveKind;

/// The network of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// The network inside an island.
    pub fabric: Fabric,
    /// Devices of one island. Device ids count through one island after another.
    pub island: usize,
    /// The network between islands, if there are several.
    pub dcn: Option<Dcn>,
}

/// The network between the devices of a slice or node.
#[derive(Debug, Clone, PartialEq)]
pub enum Fabric {
    /// A mesh of links, some of its dimensions closed to rings.
    Torus {
        /// Chips in each dimension. Device ids count along the first dimension first.
        dims: Vec<usize>,
        /// Which dimensions are rings.
        wrap: Vec<bool>,
        /// Bytes/s of one link in one direction.
        link: f64,
        /// Seconds from one chip to the next.
        latency: f64,
        /// How collectives use the dimensions.
        streams: Streams,
    },
    /// A switch that every device is connected to.
    Switch {
        /// Bytes/s out of (and into) one device.
        bandwidth: f64,
        /// Seconds from one device to another.
        latency: f64,
    },
}

/// The data-center network between slices or nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dcn {
    /// Number of islands.
    pub islands: usize,
    /// Bytes/s out of (and into) one device.
    pub rate: f64,
    /// Seconds from one island to another.
    pub latency: f64,
}

/// How a collective uses the dimensions of a torus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// One dimension after another.
    Sequential,
    /// All at once: each stream has a share of the tensor and moves on to the next dimension.
    Rotated,
}

impl Side {
    /// Seconds to all-gather or reduce-scatter bytes along this dimension.
    fn gather(self, bytes: f64, link: f64) -> f64 {
        let length = self.length as f64;
        (length - 1.0) / length * bytes / self.rate(link)
    }

    /// Seconds of an all-to-all of bytes along this dimension, limited by the busiest link.
    fn all_to_all(self, bytes: f64, link: f64) -> f64 {
        let crossing = (self.length * self.length / 4) as f64 / self.length as f64;
        crossing * bytes / self.rate(link)
    }

    fn rate(self, link: f64) -> f64 {
        let directions = if self.ring { 2.0 } else { 1.0 };
        directions * link / self.stride as f64
    }

    fn hops(self) -> usize {
        self.stride * if self.ring { self.length.div_ceil(2) } else { self.length - 1 }
    }
}

impl Network {
    /// Number of devices of all islands.
    pub fn devices(&self) -> usize {
        self.island * self.islands()
    }

    /// Number of islands.
    pub fn islands(&self) -> usize {
        self.dcn.map_or(1, |dcn| dcn.islands)
    }

    /// The same links with rotated streams.
    pub fn rotated(&self) -> Network {
        let mut network = self.clone();
        if let Fabric::Torus { streams, .. } = &mut network.fabric {
            *streams = Streams::Rotated;
        }
        network
    }

    /// Seconds of a collective over the devices of one group; all groups are alike and run at once.
    ///
    /// `bytes` is the size of the full tensor: the result of an all-gather, the operand of a
    /// reduce-scatter; for an all-to-all or a permute what one device sends.
    pub fn seconds(&self, kind: CollectiveKind, bytes: u64, members: &[usize]) -> f64 {
        self.seconds_over(kind, bytes, &self.span(members))
    }

    /// The same over what a group covers, for several collectives of one group.
    pub fn seconds_over(&self, kind: CollectiveKind, bytes: u64, span: &Span) -> f64 {
        if span.members < 2 {
            return 0.0;
        }
        let bytes = bytes as f64;
        let dcn = self.dcn.filter(|_| span.islands > 1);
        let once = match (&self.fabric, dcn) {
            (Fabric::Torus { .. }, None) => self.on_torus(kind, bytes, span),
            (Fabric::Torus { .. }, Some(dcn)) if span.per_island < 2 => {
                dcn.phase(kind, bytes, span)
            }
            (Fabric::Torus { .. }, Some(dcn)) => {
                self.on_torus(kind, bytes, span) + dcn.phase(kind, bytes, span)
            }
            (Fabric::Switch { bandwidth, latency }, None) => {
                let hops = hops_of(kind, span.members - 1);
                hops * latency + moved(kind, bytes, span.members) / bandwidth
            }
            (Fabric::Switch { bandwidth, latency }, Some(dcn)) => {
                let between = span.islands - 1;
                let inside = hops_of(kind, span.members - between) - 1.0;
                let hops = hops_of(kind, between) * dcn.latency + inside * latency;
                hops + dcn.through_nodes(kind, bytes, span, *bandwidth)
            }
        };
        rounds(kind) * once
    }

    /// Seconds inside a slice, once around.
    fn on_torus(&self, kind: CollectiveKind, bytes: f64, span: &Span) -> f64 {
        let Fabric::Torus { link, latency, streams, .. } = &self.fabric else { return 0.0 };
        let sides = &span.sides;
        let hops = sides.iter().map(|side| side.hops()).sum::<usize>().max(1);
        hops_of(kind, hops) * latency + transfer(kind, bytes, sides, *link, *streams)
    }
}

impl Dcn {
    /// Seconds between slices: every device moves its share of the tensor, to all slices at once.
    fn phase(self, kind: CollectiveKind, bytes: f64, span: &Span) -> f64 {
        let share = match kind {
            CollectiveKind::AllGather
            | CollectiveKind::ReduceScatter
            | CollectiveKind::AllReduce => bytes / span.per_island as f64,
            _ => bytes,
        };
        self.latency + moved(kind, share, span.islands) / self.rate
    }

    /// Seconds of rings through nodes, whose adapters serve all members of a node together, or of
    /// blocks that each device sends to others through its own.
    fn through_nodes(self, kind: CollectiveKind, bytes: f64, span: &Span, bandwidth: f64) -> f64 {
        match kind {
            CollectiveKind::AllGather
            | CollectiveKind::ReduceScatter
            | CollectiveKind::AllReduce => {
                moved(kind, bytes, span.members) / bandwidth.min(span.per_island as f64 * self.rate)
            }
            CollectiveKind::AllToAll | CollectiveKind::RaggedAllToAll => {
                let outside = moved(kind, bytes, span.islands) / self.rate;
                outside.max(moved(kind, bytes, span.members) / bandwidth)
            }
            CollectiveKind::CollectivePermute | CollectiveKind::Broadcast => bytes / self.rate,
        }
    }
}

/// Bytes that one device sends in a ring, or to each of the others.
fn moved(kind: CollectiveKind, bytes: f64, devices: usize) -> f64 {
    match kind {
        CollectiveKind::CollectivePermute | CollectiveKind::Broadcast => bytes,
        _ => (devices - 1) as f64 / devices as f64 * bytes,
    }
}

/// Number of times the data goes around.
fn rounds(kind: CollectiveKind) -> f64 {
    if kind == CollectiveKind::AllReduce { 2.0 } else { 1.0 }
}

/// The number of sequential hops; a permute is assumed to be between neighbors.
fn hops_of(kind: CollectiveKind, hops: usize) -> f64 {
    if kind == CollectiveKind::CollectivePermute { 1.0 } else { hops as f64 }
}

/// Transfer time on a torus in seconds, without latency.
fn transfer(kind: CollectiveKind, bytes: f64, sides: &[Side], link: f64, streams: Streams) -> f64 {
    match kind {
        CollectiveKind::CollectivePermute | CollectiveKind::Broadcast => {
            let stride = sides.iter().map(|side| side.stride).max().unwrap_or(1);
            stride as f64 * bytes / link
        }
        CollectiveKind::AllToAll | CollectiveKind::RaggedAllToAll => {
            phases(sides, bytes, streams, |side, bytes| (side.all_to_all(bytes, link), bytes))
        }
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllReduce => {
            phases(sides, bytes, streams, |side, bytes| {
                (side.gather(bytes, link), bytes / side.length as f64)
            })
        }
    }
}

/// Seconds over all dimensions. `phase` returns the time of one and the bytes left for the next.
fn phases(
    sides: &[Side],
    bytes: f64,
    streams: Streams,
    phase: impl Fn(Side, f64) -> (f64, f64),
) -> f64 {
    let count = match streams {
        Streams::Sequential => 1,
        Streams::Rotated => sides.len().max(1),
    };
    let mut left = vec![bytes / count as f64; count];
    let mut seconds = 0.0;
    for offset in 0..sides.len() {
        let mut slowest: f64 = 0.0;
        for (first, left) in left.iter_mut().enumerate() {
            let (time, rest) = phase(sides[(first + offset) % sides.len()], *left);
            slowest = slowest.max(time);
            *left = rest;
        }
        seconds += slowest;
    }
    seconds
}
