//! Arrays: logical tensors, sharded or replicated over devices.
//!
//! An array is written and read tile by tile, so that no host needs memory for the full tensor. In
//! a job of several processes each has the shards of its own devices, and reads and writes those.

use crate::buffer::Buffer;
use crate::client::{Client, ClientHandle};
use crate::error::{Error, Result};
use crate::host::{AlignedBytes, HostTensor};
use crate::loaded::LoadedExecutable;
use crate::tiling::{Tile, Tiling};
use fullshard_core::{Part, Process, TensorType};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A logical tensor with its shards on devices of this process.
#[derive(Debug)]
pub struct Array {
    ty: TensorType,
    tiling: Arc<Tiling>,
    /// The position of the first shard in the tiling.
    first: usize,
    shards: Vec<Buffer>,
}

/// The logical type and tiling of an array.
#[derive(Debug, Clone)]
pub struct ArrayType {
    /// The logical tensor.
    pub ty: TensorType,
    /// Its tiling.
    pub tiling: Arc<Tiling>,
}

impl ArrayType {
    /// The type of each shard.
    pub fn shard_type(&self) -> Result<TensorType> {
        Ok(TensorType::new(self.ty.dtype, &self.tiling.tile_dims(&self.ty.dims)?))
    }
}

impl Array {
    /// Creates an array on `devices` (indices in the client, in tiling order), with `fill`
    /// returning the bytes of each tile. A tile that consecutive devices share is filled once.
    ///
    /// In a job `devices` are all devices of this process, and every process creates its part.
    pub fn fill<E: From<Error>>(
        client: &Client,
        array: &ArrayType,
        devices: &[usize],
        mut fill: impl FnMut(&Tile) -> Result<Vec<u8>, E>,
    ) -> Result<Array, E> {
        let tiling = &array.tiling;
        let first = first_position(&client.handle, tiling, devices.len())?;
        let shard_type = array.shard_type()?;
        let mut shards = Vec::with_capacity(devices.len());
        let mut last: Option<(usize, HostTensor)> = None;
        for (position, &device) in (first..).zip(devices) {
            let tile = tiling.tile(position, &array.ty.dims)?;
            let known = last.take().filter(|(index, _)| *index == tile.index);
            let tensor = match known {
                Some((_, tensor)) => tensor,
                None => HostTensor::new(shard_type.clone(), fill(&tile)?)?,
            };
            shards.push(client.upload(&tensor, device)?);
            last = Some((tile.index, tensor));
        }
        Ok(Array { ty: array.ty.clone(), tiling: tiling.clone(), first, shards })
    }

    /// Creates an array on `devices`, with `fill` writing each tile into zeroed bytes that become
    /// the shard. A tile that several devices share is filled once.
    pub fn fill_owned<E: From<Error>>(
        client: &Client,
        array: &ArrayType,
        devices: &[usize],
        mut fill: impl FnMut(&Tile, &mut [u8]) -> Result<(), E>,
    ) -> Result<Array, E> {
        let tiling = &array.tiling;
        let first = first_position(&client.handle, tiling, devices.len())?;
        let shard_type = array.shard_type()?;
        let mut shards: Vec<Buffer> = Vec::with_capacity(devices.len());
        let mut filled = HashMap::new();
        for (position, &device) in (first..).zip(devices) {
            let tile = tiling.tile(position, &array.ty.dims)?;
            let shard = match filled.insert(tile.index, shards.len()) {
                Some(same) => shards[same].copy_to(device)?,
                None => {
                    let mut bytes = AlignedBytes::zeroed(shard_type.bytes());
                    fill(&tile, &mut bytes)?;
                    client.upload_owned(&shard_type, bytes, device)?
                }
            };
            shards.push(shard);
        }
        Ok(Array { ty: array.ty.clone(), tiling: tiling.clone(), first, shards })
    }

    /// Creates an array from a host tensor.
    pub fn from_host(
        client: &Client,
        tensor: &HostTensor,
        tiling: Arc<Tiling>,
        devices: &[usize],
    ) -> Result<Array> {
        let array = ArrayType { ty: tensor.ty().clone(), tiling };
        Array::fill(client, &array, devices, |tile| Ok(tile_bytes(tensor, &tile.ranges)))
    }

    /// Creates an array from shards already on their devices, those of this process.
    pub fn from_shards(array: &ArrayType, shards: Vec<Buffer>) -> Result<Array> {
        let first = match shards.first() {
            Some(shard) => first_position(shard.client(), &array.tiling, shards.len())?,
            None => return Err(other_devices(&array.tiling, 0, Process::alone())),
        };
        let expected = array.shard_type()?;
        if let Some(wrong) = shards.iter().find(|shard| *shard.ty() != expected) {
            let (ty, found) = (&array.ty, wrong.ty());
            return Err(Error::Array(format!(
                "shards of {ty} must be {expected} but one is {found}"
            )));
        }
        Ok(Array { ty: array.ty.clone(), tiling: array.tiling.clone(), first, shards })
    }

    /// Assembles results from `shards[device][index]`, where result `index` has type
    /// `types[index]`.
    pub fn gather(types: &[ArrayType], shards: Vec<Vec<Buffer>>) -> Result<Vec<Array>> {
        let mut devices: Vec<_> = shards.into_iter().map(Vec::into_iter).collect();
        let next = |array| {
            Array::from_shards(array, devices.iter_mut().filter_map(Iterator::next).collect())
        };
        types.iter().map(next).collect()
    }

    /// The logical tensor's type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Its tiling.
    pub fn tiling(&self) -> &Arc<Tiling> {
        &self.tiling
    }

    /// The shards on devices of this process, in tiling order.
    pub fn shards(&self) -> &[Buffer] {
        &self.shards
    }

    /// The positions of the shards in the tiling: all, unless other processes have some.
    pub fn positions(&self) -> Range<usize> {
        self.first..self.first + self.shards.len()
    }

    /// Reads each tile that is on this process once.
    pub fn read_tiles(&self, mut read: impl FnMut(&Tile, HostTensor) -> Result<()>) -> Result<()> {
        let mut seen = vec![false; self.tiling.tiles()];
        for (position, shard) in self.positions().zip(&self.shards) {
            let tile = self.tiling.tile(position, &self.ty.dims)?;
            if !std::mem::replace(&mut seen[tile.index], true) {
                read(&tile, shard.to_host()?)?;
            }
        }
        Ok(())
    }

    /// Copies the full tensor to the host; an error if this process does not have all of it.
    pub fn to_host(&self) -> Result<HostTensor> {
        let (here, tiles) = (self.tiling.tiles_at(self.positions()), self.tiling.tiles());
        if here < tiles {
            return Err(Error::PartlyElsewhere { ty: self.ty.clone(), here, tiles });
        }
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(self.ty.bytes()).is_err() {
            return Err(Error::Array(format!("{} does not fit on this host", self.ty)));
        }
        bytes.resize(self.ty.bytes(), 0_u8);
        self.read_tiles(|tile, tensor| {
            let width = self.ty.dtype.size();
            for run in Part::tile(&tile.ranges, &self.ty.dims).runs(&self.ty.dims) {
                let values = &tensor.bytes()[run.to * width..][..run.count * width];
                bytes[run.from * width..][..values.len()].copy_from_slice(values);
            }
            Ok(())
        })?;
        HostTensor::new(self.ty.clone(), bytes)
    }
}

impl LoadedExecutable {
    /// The logical type of argument `index`.
    pub fn argument_type(&self, index: usize) -> Result<ArrayType> {
        match &self.across {
            Some([arguments, _]) => self.nth(Side::Argument, index, arguments).cloned(),
            None => self.compiled_type(Side::Argument, index),
        }
    }

    /// The logical type of result `index`.
    pub fn result_type(&self, index: usize) -> Result<ArrayType> {
        match &self.across {
            Some([_, results]) => self.nth(Side::Result, index, results).cloned(),
            None => self.compiled_type(Side::Result, index),
        }
    }

    /// The logical type that the program itself states.
    fn compiled_type(&self, side: Side, index: usize) -> Result<ArrayType> {
        let signature = self.signature();
        let (types, tilings) = match side {
            Side::Argument => (&signature.parameters, &signature.parameter_tilings),
            Side::Result => (&signature.results, &signature.result_tilings),
        };
        let name = self.name();
        let local = self.nth(side, index, types)?;
        let tiling = match (&tilings[index], self.partitions) {
            (Some(tiling), _) => tiling.clone(),
            (None, 1) => Tiling::replicated(local.dims.len(), 1),
            (None, _) => {
                let reason = format!("`{name}` does not state how {side} {index} is sharded");
                return Err(Error::Array(reason));
            }
        };
        let parts = local.dims.iter().zip(tiling.grid());
        let dims: Vec<usize> = parts.map(|(size, parts)| size.saturating_mul(*parts)).collect();
        Ok(ArrayType { ty: TensorType::new(local.dtype, &dims), tiling: Arc::new(tiling) })
    }

    fn nth<'a, T>(&self, side: Side, index: usize, types: &'a [T]) -> Result<&'a T> {
        let missing = || Error::Array(format!("`{}` has no {side} {index}", self.name()));
        types.get(index).ok_or_else(missing)
    }

    /// Gives a CPU program of one process of a job the types that its arguments and results have
    /// over all processes. To the compiler each process has a program of its own, whose arguments
    /// are the parts of this process.
    pub fn across_processes(
        mut self,
        arguments: &[ArrayType],
        results: &[ArrayType],
    ) -> Result<LoadedExecutable> {
        let client = &self.handle.client;
        if !client.is_cpu() || client.process.is_alone() {
            return Err(Error::Array(format!(
                "`{}` has the types of its whole job already: only CPU programs of several \
                 processes are compiled process by process",
                self.name()
            )));
        }
        self.check_parts(Side::Argument, arguments, self.signature().parameters.len())?;
        self.check_parts(Side::Result, results, self.signature().results.len())?;
        self.across = Some([arguments.to_vec(), results.to_vec()]);
        Ok(self)
    }

    /// Checks that this process's parts of arrays over the job are what the program was compiled
    /// for.
    fn check_parts(&self, side: Side, arrays: &[ArrayType], count: usize) -> Result<()> {
        let (name, client) = (self.name(), &self.handle.client);
        if arrays.len() != count {
            let found = arrays.len();
            return Err(Error::Array(format!(
                "`{name}` has {count} {side}s but {found} types across processes are given"
            )));
        }
        let positions = client.process.positions(client.devices.len());
        for (index, array) in arrays.iter().enumerate() {
            let compiled = self.compiled_type(side, index)?;
            let covers_job = array.tiling.devices() == client.global_devices.len();
            let part = covers_job.then(|| array.tiling.part(positions.clone())).flatten();
            let same_tiling = part.as_ref() == Some(&*compiled.tiling);
            let shard_type = array.shard_type()?;
            if !same_tiling || shard_type != compiled.shard_type()? {
                let (ty, local, tiling) = (&array.ty, &compiled.ty, &array.tiling);
                return Err(Error::Array(format!(
                    "{side} {index} of `{name}` is {local} tiled {:?} in each process, which is no \
                     part of {ty} tiled {tiling:?}",
                    compiled.tiling
                )));
            }
        }
        Ok(())
    }

    /// Runs the program on arrays, which must be sharded as the program expects.
    pub fn execute_arrays(&self, arguments: &[&Array]) -> Result<Vec<Array>> {
        self.check_shardings(arguments)?;
        let count = self.signature().results.len();
        let results =
            (0..count).map(|index| self.result_type(index)).collect::<Result<Vec<_>>>()?;
        let list = |d| arguments.iter().map(|array| &array.shards[d]).collect::<Vec<&Buffer>>();
        let lists: Vec<_> = (0..self.devices().len()).map(list).collect();
        Array::gather(&results, self.execute(&lists)?)
    }

    /// Checks that arguments are sharded as the program expects: tiles of the right shape on the
    /// wrong devices would otherwise be accepted.
    fn check_shardings(&self, arguments: &[&Array]) -> Result<()> {
        for (index, argument) in arguments.iter().enumerate() {
            let expected = self.argument_type(index)?;
            if argument.tiling != expected.tiling || argument.ty != expected.ty {
                let (name, ty, takes) = (self.name(), &argument.ty, &expected.ty);
                return Err(Error::Array(format!(
                    "`{name}` takes {takes} tiled {:?} as argument {index} but got {ty} tiled {:?}",
                    expected.tiling, argument.tiling
                )));
            }
        }
        Ok(())
    }
}

/// Whether a type is that of an argument or a result.
#[derive(Debug, Clone, Copy)]
enum Side {
    Argument,
    Result,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Argument => "argument",
            Side::Result => "result",
        })
    }
}

/// The position in the tiling of the first of `shards` shards on this process.
fn first_position(client: &ClientHandle, tiling: &Tiling, shards: usize) -> Result<usize> {
    let first = client.first_position(tiling.devices(), shards);
    first.ok_or_else(|| other_devices(tiling, shards, client.process))
}

fn other_devices(tiling: &Tiling, found: usize, process: Process) -> Error {
    let expected = tiling.devices();
    let place = match process.count {
        1 => String::new(),
        count => format!(" on one of {count} processes"),
    };
    Error::Array(format!("a tiling over {expected} devices does not match {found} devices{place}"))
}

/// The bytes of a tile of a tensor.
fn tile_bytes(tensor: &HostTensor, ranges: &[Range<usize>]) -> Vec<u8> {
    let width = tensor.dtype().size();
    let mut bytes = Vec::new();
    for run in Part::tile(ranges, tensor.dims()).runs(tensor.dims()) {
        bytes.extend_from_slice(&tensor.bytes()[run.from * width..][..run.count * width]);
    }
    bytes
}
