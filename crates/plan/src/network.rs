//! Networks between devices, and how long collectives take on them.
//!
//! The formulas are the usual ones, with latency α per hop and rate W per link and direction. For
//! an all-gather (or reduce-scatter) of V bytes over p devices:
//!
//! - bidirectional ring: ⌈p/2⌉·α + (p−1)/p · V/2W
//! - line: (p−1)·α + (p−1)/p · V/W, since its ends have only one neighbor
//! - torus, one dimension after another: the first moves V, the next V over the first's length,
//!   and so on. Rings go first, so that lines have less to move.
//! - torus, rotated: k dimensions move k streams of V/k at once, each starting with another
//! - ring over a switch: (p−1)·α + (p−1)/p · V/W
//!
//! An all-reduce is a reduce-scatter followed by an all-gather.

use fullshard_pjrt::hlo::CollectiveKind;

/// The network between the devices of a machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Network {
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

/// How a collective uses the dimensions of a torus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// One dimension after another.
    Sequential,
    /// All at once: each stream has a share of the tensor and moves on to the next dimension.
    Rotated,
}

/// One dimension of a torus, or as much of it as a group covers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Side {
    length: usize,
    ring: bool,
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
        if self.ring { 2.0 * link } else { link }
    }

    fn hops(self) -> usize {
        if self.ring { self.length.div_ceil(2) } else { self.length - 1 }
    }
}

impl Network {
    /// The same links with rotated streams.
    pub fn rotated(&self) -> Network {
        match self.clone() {
            Network::Torus { dims, wrap, link, latency, .. } => {
                Network::Torus { dims, wrap, link, latency, streams: Streams::Rotated }
            }
            other => other,
        }
    }

    /// Seconds of a collective over `group` of `devices` devices.
    ///
    /// `bytes` is the size of the full tensor: the result of an all-gather, the operand of a
    /// reduce-scatter; for an all-to-all or a permute what one device sends.
    ///
    /// Devices of a group are neighbors, since partitions follow the order of the torus: a group
    /// smaller than the machine covers the first dimensions and perhaps a part of the next, where
    /// it is a line.
    pub fn seconds(&self, kind: CollectiveKind, bytes: u64, group: usize, devices: usize) -> f64 {
        if group < 2 {
            return 0.0;
        }
        let bytes = bytes as f64;
        match self {
            Network::Torus { dims, wrap, link, latency, streams } => {
                let cores = (devices / dims.iter().product::<usize>().max(1)).max(1);
                let sides = covered(dims, wrap, group.div_ceil(cores));
                let hops = sides.iter().map(|side| side.hops()).sum::<usize>().max(1);
                let moved = on_torus(kind, bytes, &sides, *link, *streams);
                rounds(kind) * (hops_of(kind, hops) * latency + moved)
            }
            Network::Switch { bandwidth, latency } => {
                let share = (group - 1) as f64 / group as f64;
                let moved = match kind {
                    CollectiveKind::CollectivePermute | CollectiveKind::Broadcast => bytes,
                    _ => share * bytes,
                };
                let hops = hops_of(kind, group - 1);
                rounds(kind) * (hops * latency + moved / bandwidth)
            }
        }
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

/// The dimensions that a group of neighbors covers.
fn covered(dims: &[usize], wrap: &[bool], group: usize) -> Vec<Side> {
    let mut left = group;
    let mut sides = Vec::new();
    for (i, &dim) in dims.iter().enumerate() {
        let length = left.min(dim);
        let ring = length == dim && wrap.get(i).copied().unwrap_or(false);
        if length > 1 {
            sides.push(Side { length, ring });
        }
        left = left.div_ceil(dim);
    }
    sides.sort_by_key(|side| !side.ring);
    sides
}

/// Transfer time in seconds, without latency.
fn on_torus(kind: CollectiveKind, bytes: f64, sides: &[Side], link: f64, streams: Streams) -> f64 {
    match kind {
        CollectiveKind::CollectivePermute | CollectiveKind::Broadcast => bytes / link,
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
