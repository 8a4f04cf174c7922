//! The program that makes the state, each device its own part.
//!
//! The number at an element follows from the seed, the parameter's name, its layer and the
//! element's place in the whole parameter, and from nothing else: any number of devices and any
//! layout begin with the same weights, and no host ever has them all.

use crate::error::Error;
use crate::recipe::Recipe;
use fullshard_graph::{
    Argument, Comparison, DType, Group, Key, Program, Result, Tensor, constant, iota, scan, select,
    zeros,
};
use fullshard_models::Initializer;
use fullshard_parallel::{AXIS, Layout, Stored};

impl Recipe {
    /// The program from a seed (`u32[2]`) to the state.
    pub fn init_program(&self) -> std::result::Result<Program, Error> {
        let mesh = &self.placement.mesh;
        let state = self.state()?;
        let shardings: Vec<_> = state.iter().map(|tensor| tensor.sharding.clone()).collect();
        let (seed, whole) = self.whole(DType::U32, &[2]);
        let parameters = &self.placement.parameters;
        let arguments: [Argument; 1] = [seed];
        let program = Program::trace("init", &arguments, |arguments| {
            mesh.manual(&[AXIS], &[(&arguments[0], whole)], &shardings, |locals| {
                let group = mesh.over(&[AXIS])?;
                let key = Key::new(&locals[0])?.named("init")?;
                let mut results = made(&key, &group, parameters)?;
                for slot in &state[parameters.len()..] {
                    results.push(zeros(DType::F32, &slot.sharding.local_dims(&slot.ty)?)?);
                }
                Ok(results)
            })
        })?;
        Ok(program.sharded_results(&shardings)?)
    }
}

/// This device's parts of all parameters. Those of stacked layers are made in a loop.
fn made(key: &Key, group: &Group, parameters: &[Stored]) -> Result<Vec<Tensor>> {
    let mut parts: Vec<Option<Tensor>> = Vec::new();
    for stored in parameters {
        let layer = stored.layer.map(|layer| constant(&[], &[layer as i32])).transpose()?;
        parts.push(match stored.stack {
            Some(_) => None,
            None => Some(part(key, group, stored, layer.as_ref())?),
        });
    }
    let mut lengths: Vec<usize> = parameters.iter().filter_map(|stored| stored.stack).collect();
    lengths.sort_unstable();
    lengths.dedup();
    for length in lengths {
        let places: Vec<usize> =
            (0..parameters.len()).filter(|&i| parameters[i].stack == Some(length)).collect();
        let layers = iota(DType::I32, &[length], 0)?;
        let made = scan(&[], &[&layers]).run(|_, layer| {
            let made = places.iter().map(|&i| part(key, group, &parameters[i], Some(&layer[0])));
            Ok((Vec::new(), made.collect::<Result<_>>()?))
        })?;
        for (i, stacked) in places.into_iter().zip(made.stacked) {
            parts[i] = Some(stacked);
        }
    }
    Ok(parts.into_iter().flatten().collect())
}

/// This device's part of one parameter of one layer, with zeros for padding.
fn part(key: &Key, group: &Group, stored: &Stored, layer: Option<&Tensor>) -> Result<Tensor> {
    let dims = stored.part_dims();
    let values = match stored.initializer {
        Initializer::Zeros => return zeros(DType::F32, &dims),
        Initializer::Ones => fullshard_graph::ones(DType::F32, &dims)?,
        Initializer::Normal { deviation } => {
            let key = key.named(&stored.template)?;
            let key = layer.map_or(Ok(key.clone()), |layer| key.fold(layer))?.made_first()?;
            let mut all = dims.clone();
            if stored.layout != Layout::Whole {
                all[0] *= stored.parts;
            }
            let draw = match stored.layout {
                Layout::Whole => key.draw(&all),
                _ => key.draw(&all).cut(0, group)?,
            };
            (draw.normal(DType::F32)? * deviation)?
        }
    };
    let values = without_padding(&values, group, stored)?;
    match stored.zero_row {
        Some(row) => without_row(&values, group, stored, row),
        None => Ok(values),
    }
}

/// Zeros in one row of the whole parameter, on the device that has it.
fn without_row(values: &Tensor, group: &Group, stored: &Stored, row: usize) -> Result<Tensor> {
    let width: usize = stored.dims[1..].iter().product();
    let (start, limit) = match stored.layout {
        Layout::Whole | Layout::Rows => (row, row + 1),
        Layout::Flat => (row * width, (row + 1) * width),
    };
    let number = |value: usize| constant(&[], &[value as i64]);
    let length = values.dims()[0];
    let first = match stored.layout {
        Layout::Whole => number(0)?,
        Layout::Rows | Layout::Flat => (group.index()?.convert(DType::I64)? * number(length)?)?,
    };
    let place = (iota(DType::I64, values.dims(), 0)? + first)?;
    let after = place.compare(Comparison::GreaterEqual, &number(start)?)?;
    let before = place.compare(Comparison::Less, &number(limit)?)?;
    select(&after.and(&before)?, &zeros(DType::F32, &[])?, values)
}

/// Zeros where a part goes beyond its parameter.
fn without_padding(values: &Tensor, group: &Group, stored: &Stored) -> Result<Tensor> {
    let used = match stored.layout {
        Layout::Whole => return Ok(values.clone()),
        Layout::Rows => stored.dims[0],
        Layout::Flat => stored.dims.iter().product(),
    };
    let length = values.dims()[0];
    if length * stored.parts == used {
        return Ok(values.clone());
    }
    // The first devices are full, one may be partly, the rest are empty.
    let (full, rest) = ((used / length) as i32, (used % length) as i64);
    let device = group.index()?;
    let is_full = device.compare(Comparison::Less, &constant(&[], &[full])?)?;
    let is_partly = device.compare(Comparison::Equal, &constant(&[], &[full])?)?;
    let partly = select(&is_partly, &constant(&[], &[rest])?, &constant(&[], &[0_i64])?)?;
    let filled = select(&is_full, &constant(&[], &[length as i64])?, &partly)?;
    let place = iota(DType::I64, values.dims(), 0)?;
    let inside = place.compare(Comparison::Less, &filled)?;
    select(&inside, values, &zeros(DType::F32, &[])?)
}
