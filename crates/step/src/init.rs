//! The programs that initialize the state, each device its own shards.
//!
//! The value of an element depends only on the seed, the parameter's name, its layer and the
//! element's position in the full parameter: any number of devices and any layout start from the
//! same weights, and no host ever holds them all.
//!
//! Parameters that differ only in name and layer share one program, which takes both as inputs. So
//! there are no more programs than kinds of matrices, whatever the number of layers.

use crate::arguments::InitInputs;
use crate::error::Error;
use crate::layout::{StateTensor, TensorSpec};
use crate::ordered::Ordered;
use crate::spec::StepSpec;
use fullshard_graph::{
    Comparison, DType, Key, Mesh, MeshExt, Program, Result, Sharding, Tensor, constant, iota, scan,
    select, zeros,
};
use fullshard_models::Initializer;
use fullshard_parallel::{GridDim, Layout, ShardedParam};
use std::ops::Range;

/// A program that initializes some of the state, and its launches.
pub struct InitProgram {
    /// The program.
    pub program: Program,
    /// Its inputs.
    pub inputs: InitInputs<TensorSpec>,
    /// Its launches.
    pub launches: Vec<InitLaunch>,
}

/// One launch of a program that initializes some of the state.
pub struct InitLaunch {
    /// The [`Key::hash`] of the name.
    pub name: [u32; 2],
    /// The layer.
    pub layer: i32,
    /// The positions of its results in the state.
    pub places: Vec<usize>,
}

impl StepSpec {
    /// The programs from a seed to the state.
    pub fn init_programs(&self) -> std::result::Result<Vec<InitProgram>, Error> {
        self.programs_for(&self.state()?.flatten())
    }

    /// The programs from a seed to the parameters only.
    pub fn parameter_programs(&self) -> std::result::Result<Vec<InitProgram>, Error> {
        self.programs_for(&self.parameter_state()?)
    }

    fn programs_for(&self, state: &[StateTensor]) -> std::result::Result<Vec<InitProgram>, Error> {
        let mut programs = vec![self.constants(state)?];
        let mut kinds: Vec<(&ShardedParam, Vec<InitLaunch>)> = Vec::new();
        for (place, param) in self.placement.parameters.iter().enumerate() {
            if is_random(param) {
                let launch = InitLaunch {
                    name: Key::hash(&param.template),
                    layer: param.layer.unwrap_or(0) as i32,
                    places: vec![place],
                };
                match kinds.iter_mut().find(|(kind, _)| same_kind(kind, param)) {
                    Some((_, launches)) => launches.push(launch),
                    None => kinds.push((param, vec![launch])),
                }
            }
        }
        for (kind, launches) in kinds {
            let results = vec![state[launches[0].places[0]].tensor.sharding.clone()];
            let mesh = &self.placement.mesh;
            let init = |key: &Key, layer: &Tensor| Ok(vec![random_shard(key, layer, mesh, kind)?]);
            programs.push(self.init_program("init_normal", &results, launches, init)?);
        }
        Ok(programs)
    }

    /// The program of everything initialized with a constant: norms, biases and the optimizer's
    /// slots.
    fn constants(&self, state: &[StateTensor]) -> std::result::Result<InitProgram, Error> {
        let param = |entry: &StateTensor| &self.placement.parameters[entry.parameter];
        let is_constant = |entry: &StateTensor| entry.slot.is_some() || !is_random(param(entry));
        let places: Vec<usize> =
            (0..state.len()).filter(|&place| is_constant(&state[place])).collect();
        let constants: Vec<&StateTensor> = places.iter().map(|&place| &state[place]).collect();
        let shardings = constants.map(|entry| entry.tensor.sharding.clone());
        let local = |entry: &&StateTensor| entry.tensor.sharding.local_dims(&entry.tensor.ty);
        let local = constants.iter().map(local).collect::<std::result::Result<Vec<_>, _>>()?;
        let launches = vec![InitLaunch { name: Key::hash(""), layer: 0, places }];
        self.init_program("init_constant", &shardings, launches, |_, _| {
            let fill = |(entry, dims): (&&StateTensor, &Vec<usize>)| match param(entry) {
                param if entry.slot.is_none() && param.initializer == Initializer::Ones => {
                    ones(&self.placement.mesh, param)
                }
                _ => zeros(DType::F32, dims),
            };
            constants.iter().zip(&local).map(fill).collect()
        })
    }

    /// A program in which each device initializes tensors from a key and a layer.
    fn init_program(
        &self,
        name: &str,
        results: &Vec<Sharding>,
        launches: Vec<InitLaunch>,
        init: impl FnOnce(&Key, &Tensor) -> Result<Vec<Tensor>>,
    ) -> std::result::Result<InitProgram, Error> {
        let inputs = self.init_inputs();
        let arguments = inputs.map(TensorSpec::argument);
        let program =
            self.manual_program(name, &self.placement.all_axes(), &arguments, results, |inputs| {
                let key = Key::new(&inputs.seed)?.named("init")?.named_by(&inputs.name)?;
                init(&key, &inputs.layer)
            })?;
        Ok(InitProgram { program, inputs, launches })
    }
}

fn is_random(param: &ShardedParam) -> bool {
    matches!(param.initializer, Initializer::Normal { .. })
}

/// Whether two parameters differ only in name and layer.
fn same_kind(a: &ShardedParam, b: &ShardedParam) -> bool {
    let values = |x: &ShardedParam| (x.initializer, x.zero_row, x.stack, x.layer.is_some());
    let sharding = |x: &ShardedParam| (x.layout, x.axes.clone(), x.slice.clone());
    a.dims == b.dims && values(a) == values(b) && sharding(a) == sharding(b)
}

/// This device's shard of a random parameter. Stacked layers are initialized in a scan.
fn random_shard(key: &Key, layer: &Tensor, mesh: &Mesh, param: &ShardedParam) -> Result<Tensor> {
    match (param.stack, param.layer) {
        (Some(length), _) => {
            let layers = iota(DType::I32, &[length], 0)?;
            let mut layers = scan(&[], &[&layers]).run(|_, layer| {
                Ok((Vec::new(), vec![layer_shard(&key.fold(&layer[0])?, mesh, param)?]))
            })?;
            layers.stacked.pop().ok_or_else(|| init_error("a scan has one result"))
        }
        (None, Some(_)) => layer_shard(&key.fold(layer)?, mesh, param),
        (None, None) => layer_shard(key, mesh, param),
    }
}

/// This device's shard of one parameter of one layer, with zeros for padding.
fn layer_shard(key: &Key, mesh: &Mesh, param: &ShardedParam) -> Result<Tensor> {
    let Initializer::Normal { std } = param.initializer else {
        return Err(init_error("only normal initializers are random"));
    };
    let grid = param.grid();
    // The shards of a flat parameter are of the tensor with its padding.
    let size = |dim: &GridDim| match param.layout {
        Layout::Flat => dim.local * dim.shards,
        Layout::Replicated | Layout::Dim(_) => dim.size,
    };
    let all = key.behind_barrier()?.draw(&grid.iter().map(size).collect::<Vec<_>>());
    let sharded = grid.iter().enumerate().filter(|(_, dim)| dim.shards > 1);
    let draw = sharded
        .into_iter()
        .try_fold(all, |draw, (i, dim)| draw.shard_padded(i, &mesh.group(&dim.axes)))?;
    with_zeros(&(draw.normal(DType::F32)? * std)?, mesh, param)
}

/// This device's shard of a parameter of ones, of all layers if it is stacked.
fn ones(mesh: &Mesh, param: &ShardedParam) -> Result<Tensor> {
    let local: Vec<usize> = param.grid().iter().map(|dim| dim.local).collect();
    let layer = with_zeros(&fullshard_graph::ones(DType::F32, &local)?, mesh, param)?;
    let Some(length) = param.stack else { return Ok(layer) };
    let dims: Vec<usize> = [length].iter().chain(layer.dims()).copied().collect();
    layer.expand(0)?.broadcast_to(&dims)
}

fn init_error(what: &str) -> fullshard_graph::Error {
    fullshard_graph::Error::new("init", what)
}

/// The values of a shard with zeros in its padding, and in a row that is initialized with zeros.
fn with_zeros(values: &Tensor, mesh: &Mesh, param: &ShardedParam) -> Result<Tensor> {
    let zero = zeros(DType::F32, &[])?;
    let mut values = values.clone();
    for (i, dim) in param.grid().iter().enumerate() {
        if dim.local * dim.shards > dim.size {
            let inside = is_between(&values, mesh, (i, dim), 0..dim.size)?;
            values = select(&inside, &values, &zero)?;
        }
    }
    let (Some(row), Some(first)) = (param.zero_row, param.grid().into_iter().next()) else {
        return Ok(values);
    };
    let width: usize = match param.layout {
        Layout::Replicated | Layout::Dim(_) => 1,
        Layout::Flat => param.dims[1..].iter().product(),
    };
    let inside = is_between(&values, mesh, (0, &first), row * width..(row + 1) * width)?;
    select(&inside, &zero, &values)
}

/// Which elements of a shard are between two positions of a dimension of the full tensor.
fn is_between(
    shard: &Tensor,
    mesh: &Mesh,
    (i, dim): (usize, &GridDim),
    range: Range<usize>,
) -> Result<Tensor> {
    let number = |value: usize| constant(&[], &[value as i64]);
    let mut place = iota(DType::I64, shard.dims(), i)?;
    if dim.shards > 1 {
        let index = mesh.group(&dim.axes).index()?.convert(DType::I64)?;
        place = (place + (index * number(dim.local)?)?)?;
    }
    let before = place.compare(Comparison::Less, &number(range.end)?)?;
    match range.start {
        0 => Ok(before),
        start => place.compare(Comparison::GreaterEqual, &number(start)?)?.and(&before),
    }
}
