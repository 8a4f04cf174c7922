//! Arrays: one logical tensor, sharded or replicated over devices.
//!
//! An array is filled tile by tile and read tile by tile, so that no host ever needs room for
//! the whole of it.

use crate::buffer::Buffer;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::host::HostTensor;
use crate::loaded::LoadedExecutable;
use crate::sharding::{Sharding, Tile};
use crate::tensor_type::TensorType;
use std::ops::Range;
use std::sync::Arc;

/// A logical tensor whose tiles lie on devices.
#[derive(Debug)]
pub struct Array {
    ty: TensorType,
    sharding: Arc<Sharding>,
    shards: Vec<Buffer>,
}

/// What an array is to be: its logical type and how it is cut.
#[derive(Debug, Clone)]
pub struct ArrayType {
    /// The logical tensor.
    pub ty: TensorType,
    /// How it is cut.
    pub sharding: Arc<Sharding>,
}

impl ArrayType {
    /// The type of each device's shard.
    pub fn shard_type(&self) -> Result<TensorType> {
        Ok(TensorType::new(self.ty.dtype, &self.sharding.tile_dims(&self.ty.dims)?))
    }
}

impl Array {
    /// Makes an array on `devices` (indices in the client, in the order of the sharding), asking
    /// `fill` for the bytes of each tile. A tile that several devices hold is asked for once
    /// when they stand next to each other.
    pub fn fill(
        client: &Client,
        array: &ArrayType,
        devices: &[usize],
        mut fill: impl FnMut(&Tile) -> Result<Vec<u8>>,
    ) -> Result<Array> {
        let sharding = &array.sharding;
        check_devices(sharding, devices.len())?;
        let shard_type = array.shard_type()?;
        let mut shards = Vec::with_capacity(devices.len());
        let mut last: Option<(usize, HostTensor)> = None;
        for (position, &device) in devices.iter().enumerate() {
            let tile = sharding.tile(position, &array.ty.dims)?;
            let known = last.take().filter(|(index, _)| *index == tile.index);
            let tensor = match known {
                Some((_, tensor)) => tensor,
                None => HostTensor::new(shard_type.clone(), fill(&tile)?)?,
            };
            shards.push(client.upload(&tensor, device)?);
            last = Some((tile.index, tensor));
        }
        Ok(Array { ty: array.ty.clone(), sharding: sharding.clone(), shards })
    }

    /// Makes an array out of a tensor that fits on the host.
    pub fn from_host(
        client: &Client,
        tensor: &HostTensor,
        sharding: Arc<Sharding>,
        devices: &[usize],
    ) -> Result<Array> {
        let array = ArrayType { ty: tensor.ty().clone(), sharding };
        Array::fill(client, &array, devices, |tile| Ok(cut(tensor, &tile.ranges)))
    }

    /// Makes an array out of shards that lie on their devices already.
    pub fn from_shards(array: &ArrayType, shards: Vec<Buffer>) -> Result<Array> {
        check_devices(&array.sharding, shards.len())?;
        let expected = array.shard_type()?;
        if let Some(wrong) = shards.iter().find(|shard| *shard.ty() != expected) {
            let (ty, found) = (&array.ty, wrong.ty());
            return Err(Error::Array(format!(
                "shards of {ty} must be {expected} but one is {found}"
            )));
        }
        Ok(Array { ty: array.ty.clone(), sharding: array.sharding.clone(), shards })
    }

    /// The logical tensor's type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// How it is cut.
    pub fn sharding(&self) -> &Arc<Sharding> {
        &self.sharding
    }

    /// The shards, in the order of the sharding's devices.
    pub fn shards(&self) -> &[Buffer] {
        &self.shards
    }

    /// Reads the tiles one after the other, each once.
    pub fn read_tiles(&self, mut read: impl FnMut(&Tile, HostTensor) -> Result<()>) -> Result<()> {
        let mut seen = vec![false; self.sharding.grid().iter().product()];
        for (position, shard) in self.shards.iter().enumerate() {
            let tile = self.sharding.tile(position, &self.ty.dims)?;
            if !std::mem::replace(&mut seen[tile.index], true) {
                read(&tile, shard.to_host()?)?;
            }
        }
        Ok(())
    }

    /// The whole tensor on the host: for tensors that are small enough.
    pub fn to_host(&self) -> Result<HostTensor> {
        let mut bytes = vec![0_u8; self.ty.bytes()];
        self.read_tiles(|tile, tensor| {
            let width = self.ty.dtype.size();
            let mut taken = 0;
            for_each_run(&self.ty.dims, &tile.ranges, width, |run| {
                let len = run.len();
                bytes[run].copy_from_slice(&tensor.bytes()[taken..taken + len]);
                taken += len;
            });
            Ok(())
        })?;
        HostTensor::new(self.ty.clone(), bytes)
    }
}

impl LoadedExecutable {
    /// Runs the program on arrays; `results` says what the results are.
    pub fn execute_arrays(
        &self,
        arguments: &[&Array],
        results: &[ArrayType],
    ) -> Result<Vec<Array>> {
        for argument in arguments {
            check_devices(&argument.sharding, self.devices().len())?;
        }
        if results.len() != self.signature().results.len() {
            let (expected, found) = (self.signature().results.len(), results.len());
            return Err(Error::Array(format!(
                "`{}` gives {expected} results but {found} were described",
                self.name()
            )));
        }
        let list = |d| arguments.iter().map(|array| &array.shards[d]).collect::<Vec<&Buffer>>();
        let lists: Vec<_> = (0..self.devices().len()).map(list).collect();
        let mut outputs: Vec<_> = self.execute(&lists)?.into_iter().map(Vec::into_iter).collect();
        let gather = |array: &ArrayType| {
            Array::from_shards(array, outputs.iter_mut().filter_map(Iterator::next).collect())
        };
        results.iter().map(gather).collect()
    }
}

fn check_devices(sharding: &Sharding, found: usize) -> Result<()> {
    match sharding.devices() {
        expected if expected == found => Ok(()),
        expected => Err(Error::Array(format!(
            "a sharding over {expected} devices does not go with {found} devices"
        ))),
    }
}

/// The bytes of a tile of a tensor.
fn cut(tensor: &HostTensor, ranges: &[Range<usize>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for_each_run(tensor.dims(), ranges, tensor.dtype().size(), |run| {
        bytes.extend_from_slice(&tensor.bytes()[run]);
    });
    bytes
}

/// Calls `visit` with each contiguous run of bytes of a tile, in row-major order.
fn for_each_run(
    dims: &[usize],
    ranges: &[Range<usize>],
    width: usize,
    mut visit: impl FnMut(Range<usize>),
) {
    fn walk(
        dims: &[usize],
        ranges: &[Range<usize>],
        offset: usize,
        width: usize,
        visit: &mut impl FnMut(Range<usize>),
    ) {
        let whole = dims.iter().zip(ranges).skip(1).all(|(&dim, range)| range.len() == dim);
        let stride = width * dims.iter().skip(1).product::<usize>();
        match ranges.first() {
            None => visit(offset..offset + width),
            Some(range) if whole => {
                visit(offset + range.start * stride..offset + range.end * stride);
            }
            Some(range) => {
                for i in range.clone() {
                    walk(&dims[1..], &ranges[1..], offset + i * stride, width, visit);
                }
            }
        }
    }
    walk(dims, ranges, 0, width, &mut visit);
}
