//! The programs that make the state, each device its own part.
//!
//! The number at an element follows from the seed, the parameter's name, its layer and the
//! element's place in the whole parameter, and from nothing else: any number of devices and any
//! layout begin with the same weights, and no host ever has them all.
//!
//! Parameters that differ in name and layer alone are made by one program, which is told both. So
//! there are no more programs than kinds of matrices, however many layers there are.

use crate::arguments::InitInputs;
use crate::error::Error;
use crate::layout::{StateTensor, TensorSpec};
use crate::ordered::Ordered;
use crate::spec::StepSpec;
use fullshard_graph::{
    Comparison, DType, Group, Key, Program, Result, Sharding, Tensor, constant, iota, scan, select,
    zeros,
};
use fullshard_models::Initializer;
use fullshard_parallel::{Layout, Stored};

/// A program that makes some of the state, and what to launch it with.
pub struct InitProgram {
    /// The program.
    pub program: Program,
    /// What it takes.
    pub inputs: InitInputs<TensorSpec>,
    /// Its launches.
    pub launches: Vec<InitLaunch>,
}

/// One launch of a program that makes some of the state.
pub struct InitLaunch {
    /// The hash of the name, as [`Key::hash`] has it.
    pub name: [u32; 2],
    /// The layer.
    pub layer: i32,
    /// The positions of its results in the state.
    pub places: Vec<usize>,
}

impl StepSpec {
    /// The programs from a seed to the state.
    pub fn init_programs(&self) -> std::result::Result<Vec<InitProgram>, Error> {
        self.programs_making(&self.state()?.flatten())
    }

    /// The programs from a seed to the parameters alone.
    pub fn parameter_programs(&self) -> std::result::Result<Vec<InitProgram>, Error> {
        self.programs_making(&self.parameter_state()?)
    }

    fn programs_making(
        &self,
        state: &[StateTensor],
    ) -> std::result::Result<Vec<InitProgram>, Error> {
        let mut programs = vec![self.blanks(state)?];
        let mut kinds: Vec<(&Stored, Vec<InitLaunch>)> = Vec::new();
        for (place, stored) in self.placement.parameters.iter().enumerate() {
            if is_drawn(stored) {
                let launch = InitLaunch {
                    name: Key::hash(&stored.template),
                    layer: stored.layer.unwrap_or(0) as i32,
                    places: vec![place],
                };
                match kinds.iter_mut().find(|(kind, _)| same_kind(kind, stored)) {
                    Some((_, launches)) => launches.push(launch),
                    None => kinds.push((stored, vec![launch])),
                }
            }
        }
        for (kind, launches) in kinds {
            let results = vec![state[launches[0].places[0]].tensor.sharding.clone()];
            programs.push(self.init_program("draw", &results, launches, |group, key, layer| {
                Ok(vec![drawn_part(key, layer, group, kind)?])
            })?);
        }
        Ok(programs)
    }

    /// The program of everything that begins with one number: norms, biases and the optimizer's
    /// slots.
    fn blanks(&self, state: &[StateTensor]) -> std::result::Result<InitProgram, Error> {
        let stored = |made: &StateTensor| &self.placement.parameters[made.parameter];
        let is_blank = |made: &StateTensor| made.slot.is_some() || !is_drawn(stored(made));
        let places: Vec<usize> =
            (0..state.len()).filter(|&place| is_blank(&state[place])).collect();
        let blanks: Vec<&StateTensor> = places.iter().map(|&place| &state[place]).collect();
        let shardings = blanks.map(|made| made.tensor.sharding.clone());
        let local = |made: &&StateTensor| made.tensor.sharding.local_dims(&made.tensor.ty);
        let local = blanks.iter().map(local).collect::<std::result::Result<Vec<_>, _>>()?;
        let launches = vec![InitLaunch { name: Key::hash(""), layer: 0, places }];
        self.init_program("blanks", &shardings, launches, |group, _, _| {
            let blank = |(made, dims): (&&StateTensor, &Vec<usize>)| match stored(made) {
                stored if made.slot.is_none() && stored.initializer == Initializer::Ones => {
                    ones(group, stored)
                }
                _ => zeros(DType::F32, dims),
            };
            blanks.iter().zip(&local).map(blank).collect()
        })
    }

    /// A program of what each device makes with a key and a layer.
    fn init_program(
        &self,
        name: &str,
        results: &Vec<Sharding>,
        launches: Vec<InitLaunch>,
        made: impl FnOnce(&Group, &Key, &Tensor) -> Result<Vec<Tensor>>,
    ) -> std::result::Result<InitProgram, Error> {
        let inputs = self.init_inputs();
        let arguments = inputs.map(TensorSpec::argument);
        let program = self.sharded_program(name, &arguments, results, |group, inputs| {
            let key = Key::new(&inputs.seed)?.named("init")?.named_by(&inputs.name)?;
            made(group, &key, &inputs.layer)
        })?;
        Ok(InitProgram { program, inputs, launches })
    }
}

fn is_drawn(stored: &Stored) -> bool {
    matches!(stored.initializer, Initializer::Normal { .. })
}

/// Whether two parameters differ in name and layer alone.
fn same_kind(a: &Stored, b: &Stored) -> bool {
    let numbers = |x: &Stored| (x.initializer, x.zero_row, x.stack, x.layer.is_some());
    let cut = |x: &Stored| (x.layout, x.parts);
    a.dims == b.dims && numbers(a) == numbers(b) && cut(a) == cut(b)
}

/// This device's part of a parameter that is drawn. Stacked layers are made in a loop.
fn drawn_part(key: &Key, layer: &Tensor, group: &Group, stored: &Stored) -> Result<Tensor> {
    match (stored.stack, stored.layer) {
        (Some(length), _) => {
            let layers = iota(DType::I32, &[length], 0)?;
            let mut made = scan(&[], &[&layers]).run(|_, layer| {
                Ok((Vec::new(), vec![part(&key.fold(&layer[0])?, group, stored)?]))
            })?;
            made.stacked.pop().ok_or_else(|| wrong("a loop has one result"))
        }
        (None, Some(_)) => part(&key.fold(layer)?, group, stored),
        (None, None) => part(key, group, stored),
    }
}

/// This device's part of one parameter of one layer, with zeros for padding.
fn part(key: &Key, group: &Group, stored: &Stored) -> Result<Tensor> {
    let Initializer::Normal { deviation } = stored.initializer else {
        return Err(wrong("only normal numbers are drawn"));
    };
    let mut all = stored.part_dims();
    let draw = match stored.layout {
        Layout::Replicated => key.made_first()?.draw(&all),
        Layout::Dim0 | Layout::Flat => {
            all[0] *= stored.parts;
            key.made_first()?.draw(&all).cut(0, group)?
        }
    };
    with_zeros(&(draw.normal(DType::F32)? * deviation)?, group, stored)
}

/// This device's part of a parameter of ones, of all layers if it is stacked.
fn ones(group: &Group, stored: &Stored) -> Result<Tensor> {
    let layer = fullshard_graph::ones(DType::F32, &stored.part_dims())?;
    let layer = with_zeros(&layer, group, stored)?;
    let Some(length) = stored.stack else { return Ok(layer) };
    let dims: Vec<usize> = [length].iter().chain(layer.dims()).copied().collect();
    layer.expand(0)?.broadcast_to(&dims)
}

fn wrong(what: &str) -> fullshard_graph::Error {
    fullshard_graph::Error::new("init", what)
}

/// The values of a part with zeros where it has none: beyond the parameter, and in a row that
/// begins so.
fn with_zeros(values: &Tensor, group: &Group, stored: &Stored) -> Result<Tensor> {
    let values = without_padding(values, group, stored)?;
    match stored.zero_row {
        Some(row) => without_row(&values, group, stored, row),
        None => Ok(values),
    }
}

/// Zeros in one row of the whole parameter, on the device that has it.
fn without_row(values: &Tensor, group: &Group, stored: &Stored, row: usize) -> Result<Tensor> {
    let width: usize = stored.dims[1..].iter().product();
    let (start, limit) = match stored.layout {
        Layout::Replicated | Layout::Dim0 => (row, row + 1),
        Layout::Flat => (row * width, (row + 1) * width),
    };
    let number = |value: usize| constant(&[], &[value as i64]);
    let length = values.dims()[0];
    let first = match stored.layout {
        Layout::Replicated => number(0)?,
        Layout::Dim0 | Layout::Flat => (group.index()?.convert(DType::I64)? * number(length)?)?,
    };
    let place = (iota(DType::I64, values.dims(), 0)? + first)?;
    let after = place.compare(Comparison::GreaterEqual, &number(start)?)?;
    let before = place.compare(Comparison::Less, &number(limit)?)?;
    select(&after.and(&before)?, &zeros(DType::F32, &[])?, values)
}

/// Zeros where a part goes beyond its parameter.
fn without_padding(values: &Tensor, group: &Group, stored: &Stored) -> Result<Tensor> {
    let used = match stored.layout {
        Layout::Replicated => return Ok(values.clone()),
        Layout::Dim0 => stored.dims[0],
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
