//! What the members of a group cover of a network: dimensions of the torus, and islands.
//!
//! Groups of a mesh axis are strided sets of device ids. On a torus they are mostly a grid: some
//! coordinates of each dimension, evenly spaced, in all combinations. Any other set is taken for a
//! line through its members in the order of their ids, in which every hop is as long as the
//! longest; that is what a ring over unplaced devices would do at worst.

use super::{Fabric, Network};
use std::collections::BTreeSet;

/// What a group covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Number of members.
    pub members: usize,
    /// Number of islands with members.
    pub islands: usize,
    /// Members per island.
    pub per_island: usize,
    /// What is covered of the torus of an island, rings first; nothing of a switch.
    pub sides: Vec<Side>,
}

impl Span {
    /// The dimensions of the torus that are covered, in order; none by a set that is no grid.
    pub fn dims(&self) -> Vec<usize> {
        let mut dims: Vec<usize> = self.sides.iter().filter_map(|side| side.dim).collect();
        dims.sort_unstable();
        dims
    }
}

/// A dimension of a torus, or as much of it as a group covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// The dimension; `None` for a line through members that are no grid.
    pub dim: Option<usize>,
    /// Members along it.
    pub length: usize,
    /// Links from one member to the next.
    pub stride: usize,
    /// Whether the last is linked to the first.
    pub ring: bool,
}

impl Network {
    /// What the members of a group cover.
    pub fn span(&self, members: &[usize]) -> Span {
        let island = self.island.max(1);
        let islands: BTreeSet<usize> = members.iter().map(|id| id / island).collect();
        let count = islands.len().max(1);
        let first = islands.first().copied().unwrap_or(0);
        let sides = match &self.fabric {
            Fabric::Torus { dims, wrap, .. } => {
                let cores = (island / dims.iter().product::<usize>().max(1)).max(1);
                let inside = members.iter().filter(|&id| id / island == first);
                let chips: BTreeSet<usize> = inside.map(|id| id % island / cores).collect();
                sides(dims, wrap, &chips)
            }
            Fabric::Switch { .. } => Vec::new(),
        };
        let (members, per_island) = (members.len(), members.len().div_ceil(count));
        Span { members, islands: count, per_island, sides }
    }
}

/// The sides of a set of chips.
fn sides(dims: &[usize], wrap: &[bool], chips: &BTreeSet<usize>) -> Vec<Side> {
    let places: Vec<Vec<usize>> = chips.iter().map(|&chip| coordinates(dims, chip)).collect();
    let covered: Vec<BTreeSet<usize>> =
        (0..dims.len()).map(|dim| places.iter().map(|place| place[dim]).collect()).collect();
    let grid = covered.iter().map(BTreeSet::len).product::<usize>() == chips.len();
    let along = |(dim, at): (usize, &BTreeSet<usize>)| {
        let wrap = wrap.get(dim).copied().unwrap_or(false);
        Some(Side { dim: Some(dim), ..side(dims[dim], wrap, at)? })
    };
    let found = covered.iter().enumerate().filter(|(_, at)| at.len() > 1).map(along);
    let found: Option<Vec<Side>> = found.collect();
    let mut sides = match found.filter(|_| grid) {
        Some(sides) => sides,
        None => vec![Side {
            dim: None,
            length: chips.len(),
            stride: longest_hop(dims, wrap, &places),
            ring: false,
        }],
    };
    sides.sort_by_key(|side| !side.ring);
    sides
}

/// One dimension of a grid; `None` if its coordinates are not evenly spaced.
fn side(dim: usize, wrap: bool, at: &BTreeSet<usize>) -> Option<Side> {
    let at: Vec<usize> = at.iter().copied().collect();
    let stride = at.get(1)? - at.first()?;
    let even = at.windows(2).all(|pair| pair[1] - pair[0] == stride);
    let length = at.len();
    let ring = wrap && length * stride == dim;
    even.then_some(Side { dim: None, length, stride, ring })
}

/// The longest way between neighbors in the order of ids.
fn longest_hop(dims: &[usize], wrap: &[bool], places: &[Vec<usize>]) -> usize {
    let distance = |pair: &[Vec<usize>]| {
        let steps = (0..dims.len()).map(|dim| {
            let direct = pair[0][dim].abs_diff(pair[1][dim]);
            match wrap.get(dim) {
                Some(true) => direct.min(dims[dim] - direct),
                _ => direct,
            }
        });
        steps.sum()
    };
    places.windows(2).map(distance).max().unwrap_or(1)
}

/// The place of a chip in the torus.
fn coordinates(dims: &[usize], chip: usize) -> Vec<usize> {
    let mut left = chip;
    let place = |&dim: &usize| {
        let at = left % dim.max(1);
        left /= dim.max(1);
        at
    };
    dims.iter().map(place).collect()
}
