//! Shardings, in one form for the three encodings of XLA.

use std::fmt;

use super::devices::{Devices, product, to_usizes};
use super::named_sharding;
use super::proto;
use super::shape::write_list;

/// The sharding of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpSharding {
    /// Every device holds all of it.
    Replicated,
    /// One device holds all of it.
    Maximal(usize),
    /// Split into tiles.
    Tiled(TileSharding),
    /// Already per-device: the partitioner leaves it alone.
    Manual,
    /// Partial values that have not been summed.
    Unreduced,
    /// Not specified, or of an unknown kind.
    Unknown,
    /// One sharding per leaf of a tuple.
    Tuple(Vec<OpSharding>),
}

/// A tensor split into a grid of tiles.
///
/// The device list is in grid order, outermost dim first; each tile has the devices of its
/// subgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileSharding {
    /// Number of tiles along each tensor dim.
    pub grid: Vec<usize>,
    /// Dims of the device list after the grid.
    pub subgroups: Vec<Subgroup>,
    /// All devices: tile by tile, subgroups innermost.
    pub devices: Devices,
}

/// Devices that share a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subgroup {
    /// Their kind.
    pub kind: SubgroupKind,
    /// Number of devices.
    pub size: usize,
}

/// The kind of a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubgroupKind {
    /// Each holds a copy.
    Replicated,
    /// Manually sharded by the program.
    Manual,
    /// Each holds a partial value.
    Unreduced,
    /// An unknown kind, by its XLA number.
    Unknown(i32),
}

impl OpSharding {
    pub(super) fn decode(sharding: &proto::OpSharding) -> Result<Self, String> {
        if let Some(named) = &sharding.named_sharding {
            return named_sharding::decode(named);
        }
        Ok(match sharding.kind {
            0 => Self::Replicated,
            1 => match to_usizes(&sharding.tile_assignment_devices)?.as_slice() {
                [device] => Self::Maximal(*device),
                devices => return Err(format!("a maximal sharding names {devices:?}")),
            },
            2 => {
                let leaves = sharding.tuple_shardings.iter().map(Self::decode);
                Self::Tuple(leaves.collect::<Result<_, _>>()?)
            }
            3 => Self::Tiled(TileSharding::decode(sharding)?),
            4 => Self::Manual,
            6 => Self::Unreduced,
            _ => Self::Unknown,
        })
    }
}

impl TileSharding {
    fn decode(sharding: &proto::OpSharding) -> Result<Self, String> {
        let extents = to_usizes(&sharding.tile_assignment_dimensions)?;
        let kinds = subgroup_kinds(sharding);
        let rank = extents.len().checked_sub(kinds.len());
        let rank = rank.ok_or("a sharding has more subgroups than dims")?;
        let devices = if sharding.iota_reshape_dims.is_empty() {
            Devices::list(&sharding.tile_assignment_devices)?
        } else {
            let transpose: Vec<i64> =
                sharding.iota_transpose_perm.iter().map(|&dim| dim.into()).collect();
            Devices::from_iota(&sharding.iota_reshape_dims, &transpose)?
        };
        if product(&extents) != Some(devices.len()) {
            return Err(format!("{} devices do not fill tiles {extents:?}", devices.len()));
        }
        let sizes = kinds.iter().zip(&extents[rank..]);
        let subgroups = sizes.map(|(&kind, &size)| Subgroup { kind, size }).collect();
        Ok(Self { grid: extents[..rank].to_vec(), subgroups, devices })
    }

    /// Number of replicas of each tile.
    pub fn replicas(&self) -> usize {
        let replicated =
            self.subgroups.iter().filter(|group| group.kind == SubgroupKind::Replicated);
        replicated.map(|group| group.size).product()
    }

    /// The grid coordinates of the tile of a device; `None` if the device is not listed.
    pub fn tile_of(&self, device: usize) -> Option<Vec<usize>> {
        let position = self.devices.to_vec().iter().position(|&listed| listed == device)?;
        let below: usize = self.subgroups.iter().map(|group| group.size).product();
        let mut tile = position / below.max(1);
        let mut coordinates = vec![0; self.grid.len()];
        for (index, &parts) in coordinates.iter_mut().zip(&self.grid).rev() {
            *index = tile % parts.max(1);
            tile /= parts.max(1);
        }
        Some(coordinates)
    }
}

impl SubgroupKind {
    fn from_number(number: i32) -> Self {
        match number {
            0 => Self::Replicated,
            4 => Self::Manual,
            6 => Self::Unreduced,
            other => Self::Unknown(other),
        }
    }
}

fn subgroup_kinds(sharding: &proto::OpSharding) -> Vec<SubgroupKind> {
    if sharding.replicate_on_last_tile_dim {
        return vec![SubgroupKind::Replicated];
    }
    sharding.last_tile_dims.iter().map(|&kind| SubgroupKind::from_number(kind)).collect()
}

impl fmt::Display for OpSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicated => f.write_str("{replicated}"),
            Self::Maximal(device) => write!(f, "{{maximal device={device}}}"),
            Self::Manual => f.write_str("{manual}"),
            Self::Unreduced => f.write_str("{unreduced}"),
            Self::Unknown => f.write_str("{unknown}"),
            Self::Tiled(tiles) => tiles.fmt(f),
            Self::Tuple(leaves) => {
                f.write_str("{")?;
                write_list(f, leaves, ", ")?;
                f.write_str("}")
            }
        }
    }
}

impl fmt::Display for TileSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{devices=[")?;
        write_list(f, self.grid.iter().chain(self.subgroups.iter().map(|group| &group.size)), ",")?;
        write!(f, "]{}", self.devices)?;
        if !self.subgroups.is_empty() {
            f.write_str(" last_tile_dims={")?;
            write_list(f, self.subgroups.iter().map(|group| group.kind), ", ")?;
            f.write_str("}")?;
        }
        f.write_str("}")
    }
}

impl fmt::Display for SubgroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicated => f.write_str("replicated"),
            Self::Manual => f.write_str("manual"),
            Self::Unreduced => f.write_str("unreduced"),
            Self::Unknown(number) => write!(f, "kind{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiled(sharding: &proto::OpSharding) -> TileSharding {
        match OpSharding::decode(sharding).unwrap() {
            OpSharding::Tiled(tiles) => tiles,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn listed_devices_with_replicas() {
        let tiles = tiled(&proto::OpSharding {
            kind: 3,
            tile_assignment_dimensions: vec![2, 1, 2],
            tile_assignment_devices: vec![0, 2, 1, 3],
            replicate_on_last_tile_dim: true,
            ..Default::default()
        });
        assert_eq!((tiles.grid.as_slice(), tiles.replicas()), (&[2, 1][..], 2));
        assert_eq!(tiles.tile_of(2), Some(vec![0, 0]));
        assert_eq!(tiles.tile_of(1), Some(vec![1, 0]));
        assert_eq!(tiles.tile_of(9), None);
        assert_eq!(tiles.to_string(), "{devices=[2,1,2]0,2,1,3 last_tile_dims={replicated}}");
    }

    #[test]
    fn iota_devices_with_two_subgroups() {
        let tiles = tiled(&proto::OpSharding {
            kind: 3,
            tile_assignment_dimensions: vec![2, 2, 2],
            last_tile_dims: vec![0, 4],
            iota_reshape_dims: vec![4, 2],
            iota_transpose_perm: vec![1, 0],
            ..Default::default()
        });
        assert_eq!(tiles.devices.to_vec(), [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!((tiles.grid.as_slice(), tiles.replicas()), (&[2][..], 2));
        assert_eq!(tiles.subgroups[1], Subgroup { kind: SubgroupKind::Manual, size: 2 });
        assert_eq!(tiles.tile_of(6), Some(vec![0]));
        assert_eq!(tiles.tile_of(1), Some(vec![1]));
    }

    #[test]
    fn rejects_inconsistent_shardings() {
        let none = proto::OpSharding { kind: 3, last_tile_dims: vec![0], ..Default::default() };
        assert!(OpSharding::decode(&none).is_err());
        let short = proto::OpSharding {
            kind: 3,
            tile_assignment_dimensions: vec![4],
            tile_assignment_devices: vec![0, 1],
            ..Default::default()
        };
        assert!(OpSharding::decode(&short).is_err());
        let unknown = proto::OpSharding { kind: 41, ..Default::default() };
        assert_eq!(OpSharding::decode(&unknown).unwrap(), OpSharding::Unknown);
    }
}
