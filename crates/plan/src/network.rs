//! Networks between devices, and how long collectives take on them.
//!
//! The forms are the usual ones of a latency α for each hop and a rate W of a link one way. For V
//! bytes over p devices in a row, of which each has a part and wants the whole (or, the other way
//! around, a part of the sum):
//!
//! - ring, both ways at once: ⌈p/2⌉·α + (p−1)/p · V/2W
//! - line: (p−1)·α + (p−1)/p · V/W, since its ends have one neighbour only
//! - torus, one dimension after another: the first moves V, the next V over the first's length,
//!   and so on. Rings go first, so that lines have less to move.
//! - torus, rotated: k dimensions move k streams of V/k at once, each starting with another
//! - switch, a ring over it: (p−1)·α + (p−1)/p · V/W
//!
//! A sum that every device wants whole is both ways after each other.

use fullshard_pjrt::hlo::CollectiveKind;

/// What is between the devices of a machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Network {
    /// A mesh of links, some of its dimensions closed to rings.
    Torus {
        /// Chips in each dimension. Ids of devices count along the first dimension first.
        dims: Vec<usize>,
        /// Which dimensions are rings.
        wrap: Vec<bool>,
        /// Bytes a second over one link one way.
        link: f64,
        /// Seconds from one chip to the next.
        latency: f64,
        /// How dimensions take part.
        streams: Streams,
    },
    /// A switch that every device is connected to.
    Switch {
        /// Bytes a second out of (and into) one device.
        bandwidth: f64,
        /// Seconds from one device to another.
        latency: f64,
    },
}

/// How the dimensions of a torus take part in a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// One dimension after another.
    InTurn,
    /// All at once, each with a share of the tensor, and then the next dimension.
    Rotated,
}

/// One dimension of a torus, or as much of it as a group covers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Side {
    length: usize,
    ring: bool,
}

impl Side {
    /// Seconds to bring so many bytes together, or to sum them apart, along this dimension.
    fn gather(self, bytes: f64, link: f64) -> f64 {
        let length = self.length as f64;
        (length - 1.0) / length * bytes / self.rate(link)
    }

    /// Seconds in which every device gives each other its part of so many bytes, which is what
    /// the busiest link takes.
    fn exchange(self, bytes: f64, link: f64) -> f64 {
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
    /// The same links, used by streams that each begin with another dimension.
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
    /// `bytes` are of the whole tensor as one device has it before or after: the result of an
    /// all-gather, the operand of a reduce-scatter; of an all-to-all or a permutation what one
    /// device gives.
    ///
    /// Devices of a group are next to one another, as partitions are in the order of the torus: a
    /// group that is smaller than the machine covers the first dimensions and perhaps a part of
    /// the next, where it is a line.
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

/// How often everything is sent around.
fn rounds(kind: CollectiveKind) -> f64 {
    if kind == CollectiveKind::AllReduce { 2.0 } else { 1.0 }
}

/// The hops that one after another wait for; a permutation is taken to be between neighbours.
fn hops_of(kind: CollectiveKind, hops: usize) -> f64 {
    if kind == CollectiveKind::CollectivePermute { 1.0 } else { hops as f64 }
}

/// The dimensions that a group of neighbours covers.
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

/// Seconds that the links need, without latency.
fn on_torus(kind: CollectiveKind, bytes: f64, sides: &[Side], link: f64, streams: Streams) -> f64 {
    match kind {
        CollectiveKind::CollectivePermute | CollectiveKind::Broadcast => bytes / link,
        CollectiveKind::AllToAll | CollectiveKind::RaggedAllToAll => {
            phases(sides, bytes, streams, |side, bytes| (side.exchange(bytes, link), bytes))
        }
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllReduce => {
            phases(sides, bytes, streams, |side, bytes| {
                (side.gather(bytes, link), bytes / side.length as f64)
            })
        }
    }
}

/// Seconds of all dimensions, of which each takes a time and leaves bytes to the next.
fn phases(
    sides: &[Side],
    bytes: f64,
    streams: Streams,
    phase: impl Fn(Side, f64) -> (f64, f64),
) -> f64 {
    let count = match streams {
        Streams::InTurn => 1,
        Streams::Rotated => sides.len().max(1),
    };
    let mut left = vec![bytes / count as f64; count];
    let mut seconds = 0.0;
    for turn in 0..sides.len() {
        let mut slowest: f64 = 0.0;
        for (first, left) in left.iter_mut().enumerate() {
            let (taken, rest) = phase(sides[(first + turn) % sides.len()], *left);
            slowest = slowest.max(taken);
            *left = rest;
        }
        seconds += slowest;
    }
    seconds
}
