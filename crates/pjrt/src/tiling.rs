//! The division of a logical tensor into tiles, and the device of each tile.
//!
//! This is only the geometry, as compiled programs state it. A [`Sharding`] adds the mesh axes, and
//! has one tiling.

use crate::error::{Error, Result};
use crate::hlo;
use fullshard_core::Sharding;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

/// A division of a tensor into equal tiles, and the tile each device holds. Several devices may
/// hold the same tile: that is replication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tiling {
    grid: Vec<usize>,
    tiles: Vec<usize>,
}

/// One tile of a tensor: what a device holds of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tile {
    /// Its number, row-major over the grid of tiles.
    pub index: usize,
    /// The range of each dimension of the tensor that it covers.
    pub ranges: Vec<Range<usize>>,
}

impl Tiling {
    /// Each of `devices` holds the full tensor of `rank` dimensions.
    pub fn replicated(rank: usize, devices: usize) -> Tiling {
        Tiling { grid: vec![1; rank], tiles: vec![0; devices] }
    }

    /// The tiles of a sharding over the devices of its mesh.
    pub fn over_mesh(sharding: &Sharding) -> Tiling {
        let mesh = sharding.mesh().sizes();
        let part = |axes: &[usize], coordinate: &[usize]| {
            axes.iter().fold(0, |part, &axis| part * mesh[axis] + coordinate[axis])
        };
        let grid: Vec<usize> = sharding.parts().collect();
        let tiles = (0..sharding.mesh().devices()).map(|device| {
            let coordinate = unravel(device, &mesh);
            let parts = sharding.dims().iter().map(|axes| part(axes, &coordinate));
            parts.zip(&grid).fold(0, |index, (part, size)| index * size + part)
        });
        Tiling { tiles: tiles.collect(), grid }
    }

    /// The tiling that an optimized program states for a tensor of `rank` dimensions over
    /// `devices` devices.
    pub fn from_hlo(sharding: &hlo::OpSharding, rank: usize, devices: usize) -> Result<Tiling> {
        let cannot = || Error::Tiling(format!("{sharding:?} does not divide a tensor into tiles"));
        let tiled = match sharding {
            hlo::OpSharding::Replicated => return Ok(Tiling::replicated(rank, devices)),
            hlo::OpSharding::Tiled(tiled) if tiled.grid.len() == rank => tiled,
            _ => return Err(cannot()),
        };
        // Devices of other subgroups hold different data under the same tile.
        if tiled.subgroups.iter().any(|group| group.kind != hlo::SubgroupKind::Replicated) {
            return Err(cannot());
        }
        let listed = tiled.devices.to_vec();
        let mut tiles = vec![None; devices];
        for (position, &device) in listed.iter().enumerate() {
            *tiles.get_mut(device).ok_or_else(cannot)? = Some(position / tiled.replicas().max(1));
        }
        let tiles: Option<Vec<usize>> = tiles.into_iter().collect();
        Ok(Tiling { grid: tiled.grid.clone(), tiles: tiles.ok_or_else(cannot)? })
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.tiles.len()
    }

    /// The number of tiles along each dimension.
    pub fn grid(&self) -> &[usize] {
        &self.grid
    }

    /// The number of tiles.
    pub fn tiles(&self) -> usize {
        self.grid.iter().product()
    }

    /// The number of different tiles that some of the devices hold.
    pub fn tiles_at(&self, devices: Range<usize>) -> usize {
        self.tiles.get(devices).unwrap_or_default().iter().collect::<HashSet<_>>().len()
    }

    /// The tiling, over some of the devices, of the part of the tensor that these hold. None if
    /// their tiles are not all those of a grid.
    pub fn part(&self, devices: Range<usize>) -> Option<Tiling> {
        let held = self.tiles.get(devices)?.iter().map(|&tile| unravel(tile, &self.grid));
        let held: Vec<Vec<usize>> = held.collect();
        let coordinates = |dim: usize| held.iter().map(|tile| tile[dim]).collect::<BTreeSet<_>>();
        let kept: Vec<BTreeSet<usize>> = (0..self.grid.len()).map(coordinates).collect();
        let grid: Vec<usize> = kept.iter().map(BTreeSet::len).collect();
        let index = |tile: &Vec<usize>| {
            let within = tile.iter().zip(&kept).map(|(&at, kept)| kept.range(..at).count());
            within.zip(&grid).fold(0, |index, (part, size)| index * size + part)
        };
        let part = Tiling { tiles: held.iter().map(index).collect(), grid };
        (part.tiles_at(0..part.devices()) == part.tiles()).then_some(part)
    }

    /// The dimensions of each tile of a tensor with dimensions `dims`.
    pub fn tile_dims(&self, dims: &[usize]) -> Result<Vec<usize>> {
        if dims.len() != self.grid.len() {
            return Err(Error::Tiling(format!(
                "a tiling of {} dimensions for a tensor {dims:?}",
                self.grid.len()
            )));
        }
        let tile_dim = |(dim, (&size, &parts)): (usize, (&usize, &usize))| {
            if size % parts == 0 {
                return Ok(size / parts);
            }
            Err(Error::Tiling(format!(
                "dimension {dim} of {dims:?} does not divide into {parts} parts; pad it first"
            )))
        };
        dims.iter().zip(&self.grid).enumerate().map(tile_dim).collect()
    }

    /// The tile that a device holds of a tensor with dimensions `dims`.
    pub fn tile(&self, device: usize, dims: &[usize]) -> Result<Tile> {
        let tile_dims = self.tile_dims(dims)?;
        let no_device = || Error::Tiling(format!("no device {device}"));
        let index = *self.tiles.get(device).ok_or_else(no_device)?;
        let parts = unravel(index, &self.grid);
        let ranges =
            parts.iter().zip(&tile_dims).map(|(&part, &size)| part * size..(part + 1) * size);
        Ok(Tile { index, ranges: ranges.collect() })
    }
}

/// The coordinates of a row-major index.
fn unravel(mut index: usize, sizes: &[usize]) -> Vec<usize> {
    let mut coordinate = vec![0; sizes.len()];
    for (entry, &size) in coordinate.iter_mut().zip(sizes).rev() {
        *entry = index % size;
        index /= size;
    }
    coordinate
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullshard_core::Mesh;

    fn tiling(axes: &[(&str, usize)], dims: &[&[&str]]) -> Tiling {
        Tiling::over_mesh(&Mesh::new(axes).unwrap().sharding(dims).unwrap())
    }

    #[test]
    fn splits_dims_major_axis_first() {
        let mesh = [("x", 2), ("y", 3)];
        let rows = tiling(&mesh, &[&["y"], &[]]);
        let rows: Vec<_> =
            (0..6).map(|d| rows.tile(d, &[6, 4]).unwrap().ranges[0].clone()).collect();
        assert_eq!(rows, [0..2, 2..4, 4..6, 0..2, 2..4, 4..6]);

        let both = tiling(&mesh, &[&["y", "x"]]);
        let starts: Vec<_> = (0..6).map(|d| both.tile(d, &[6]).unwrap().ranges[0].start).collect();
        assert_eq!(starts, [0, 2, 4, 1, 3, 5]);
    }

    #[test]
    fn parts_are_what_some_devices_hold() {
        let mesh = [("data", 2), ("fsdp", 2), ("tensor", 2)];
        let local = [("fsdp", 2), ("tensor", 2)];
        for (dims, expected) in [
            (&[&["fsdp"][..], &["tensor"]], &[&["fsdp"][..], &["tensor"]]),
            (&[&["data", "fsdp"], &[]], &[&["fsdp"], &[]]),
            (&[&["tensor", "data"], &["fsdp"]], &[&["tensor"], &["fsdp"]]),
            (&[&[], &["data"]], &[&[], &[]]),
        ] {
            let (global, expected) = (tiling(&mesh, dims), tiling(&local, expected));
            assert_eq!(global.part(4..8).as_ref(), Some(&expected), "{dims:?}");
            assert_eq!(global.part(0..4), Some(expected), "{dims:?}");
        }
        let grid = tiling(&[("x", 2), ("y", 2)], &[&["x"], &["y"]]);
        assert_eq!(grid.part(0..3), None, "three of four tiles");
        assert_eq!((grid.tiles(), grid.tiles_at(1..3), grid.tiles_at(3..5)), (4, 2, 0));
    }

    #[test]
    fn rejects_indivisible_dims() {
        assert!(Tiling::replicated(1, 2).tile(2, &[1]).is_err());
        let four = tiling(&[("x", 4)], &[&["x"]]);
        let error = four.tile_dims(&[6]).unwrap_err().to_string();
        assert!(error.contains("does not divide into 4 parts"), "{error}");
        assert!(four.tile_dims(&[4, 4]).is_err());
    }
}
