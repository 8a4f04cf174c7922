//! How a logical tensor is cut into tiles and which device holds which.
//!
//! This is the geometry alone. Meshes with named axes and the rules that choose a sharding live
//! in the rooms above.

use crate::error::{Error, Result};
use crate::hlo;
use std::ops::Range;

/// A cut of a tensor into equal tiles, and the tile each device holds. Several devices may hold
/// the same tile: that is replication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharding {
    grid: Vec<usize>,
    tiles: Vec<usize>,
}

/// One tile of a tensor: what a device holds of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tile {
    /// Its number, row-major over the grid of tiles.
    pub index: usize,
    /// The part of each dimension of the tensor that it covers.
    pub ranges: Vec<Range<usize>>,
}

impl Sharding {
    /// Every one of `devices` holds the whole of a tensor of `rank` dimensions.
    pub fn replicated(rank: usize, devices: usize) -> Sharding {
        Sharding { grid: vec![1; rank], tiles: vec![0; devices] }
    }

    /// A tensor over a mesh: `split[dim]` lists the axes (as positions in `mesh`, the major
    /// first) that cut dimension `dim`. Devices are numbered row-major over the mesh.
    pub fn over_mesh(mesh: &[usize], split: &[&[usize]]) -> Result<Sharding> {
        let devices = check_mesh(mesh)?;
        check_axes(mesh, split)?;
        let part = |axes: &[usize], coordinate: &[usize]| {
            axes.iter().fold(0, |part, &axis| part * mesh[axis] + coordinate[axis])
        };
        let grid: Vec<usize> =
            split.iter().map(|axes| axes.iter().map(|&axis| mesh[axis]).product()).collect();
        let tiles = (0..devices).map(|device| {
            let coordinate = unravel(device, mesh);
            let parts = split.iter().map(|axes| part(axes, &coordinate));
            parts.zip(&grid).fold(0, |index, (part, size)| index * size + part)
        });
        Ok(Sharding { tiles: tiles.collect(), grid })
    }

    /// The sharding that an optimized program states for a tensor of `rank` dimensions over
    /// `devices` devices.
    pub fn from_hlo(sharding: &hlo::OpSharding, rank: usize, devices: usize) -> Result<Sharding> {
        let cannot = || Error::Sharding(format!("{sharding:?} does not cut a tensor into tiles"));
        let tiled = match sharding {
            hlo::OpSharding::Replicated => return Ok(Sharding::replicated(rank, devices)),
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
        Ok(Sharding { grid: tiled.grid.clone(), tiles: tiles.ok_or_else(cannot)? })
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.tiles.len()
    }

    /// The number of tiles along each dimension.
    pub fn grid(&self) -> &[usize] {
        &self.grid
    }

    /// The dimensions of each tile of a tensor with dimensions `dims`.
    pub fn tile_dims(&self, dims: &[usize]) -> Result<Vec<usize>> {
        if dims.len() != self.grid.len() {
            return Err(Error::Sharding(format!(
                "a sharding of {} dimensions for a tensor {dims:?}",
                self.grid.len()
            )));
        }
        let cut = |(dim, (&size, &parts)): (usize, (&usize, &usize))| {
            if size % parts == 0 {
                return Ok(size / parts);
            }
            Err(Error::Sharding(format!(
                "dimension {dim} of {dims:?} does not divide into {parts} parts; pad it first"
            )))
        };
        dims.iter().zip(&self.grid).enumerate().map(cut).collect()
    }

    /// The tile that a device holds of a tensor with dimensions `dims`.
    pub fn tile(&self, device: usize, dims: &[usize]) -> Result<Tile> {
        let tile_dims = self.tile_dims(dims)?;
        let no_device = || Error::Sharding(format!("it has no device {device}"));
        let index = *self.tiles.get(device).ok_or_else(no_device)?;
        let parts = unravel(index, &self.grid);
        let ranges =
            parts.iter().zip(&tile_dims).map(|(&part, &size)| part * size..(part + 1) * size);
        Ok(Tile { index, ranges: ranges.collect() })
    }
}

/// The number of devices of a mesh.
fn check_mesh(mesh: &[usize]) -> Result<usize> {
    const MOST: usize = 1 << 20;
    let devices = mesh.iter().try_fold(1_usize, |devices, &size| devices.checked_mul(size));
    devices
        .filter(|devices| (1..=MOST).contains(devices))
        .ok_or_else(|| Error::Sharding(format!("a mesh of {mesh:?} devices")))
}

fn check_axes(mesh: &[usize], split: &[&[usize]]) -> Result<()> {
    let mut used = vec![false; mesh.len()];
    for &axis in split.iter().copied().flatten() {
        match used.get_mut(axis) {
            None => {
                return Err(Error::Sharding(format!(
                    "axis {axis} of a mesh of {} axes",
                    mesh.len()
                )));
            }
            Some(true) => return Err(Error::Sharding(format!("axis {axis} is used twice"))),
            Some(used) => *used = true,
        }
    }
    Ok(())
}

/// The coordinates of a row-major position in a box.
fn unravel(mut index: usize, sizes: &[usize]) -> Vec<usize> {
    let mut coordinate = vec![0; sizes.len()];
    for (place, &size) in coordinate.iter_mut().zip(sizes).rev() {
        *place = index % size;
        index /= size;
    }
    coordinate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_cuts_dimensions_major_axis_first() {
        let sharding = Sharding::over_mesh(&[2, 3], &[&[1], &[]]).unwrap();
        let rows: Vec<_> =
            (0..6).map(|d| sharding.tile(d, &[6, 4]).unwrap().ranges[0].clone()).collect();
        assert_eq!(rows, [0..2, 2..4, 4..6, 0..2, 2..4, 4..6]);

        let both = Sharding::over_mesh(&[2, 3], &[&[1, 0]]).unwrap();
        let starts: Vec<_> = (0..6).map(|d| both.tile(d, &[6]).unwrap().ranges[0].start).collect();
        assert_eq!(starts, [0, 2, 4, 1, 3, 5]);
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        assert!(Sharding::over_mesh(&[2], &[&[0], &[0]]).is_err());
        assert!(Sharding::over_mesh(&[2], &[&[1]]).is_err());
        assert!(Sharding::over_mesh(&[2, 0], &[&[0]]).is_err());
        assert!(Sharding::over_mesh(&[usize::MAX, 2], &[&[0]]).is_err());
        assert!(Sharding::replicated(1, 2).tile(2, &[1]).is_err());
        let sharding = Sharding::over_mesh(&[4], &[&[0]]).unwrap();
        let error = sharding.tile_dims(&[6]).unwrap_err().to_string();
        assert!(error.contains("does not divide into 4 parts"), "{error}");
        assert!(sharding.tile_dims(&[4, 4]).is_err());
    }
}
