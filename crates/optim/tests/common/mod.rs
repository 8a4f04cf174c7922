//! Trains parameters on virtual CPU devices, with any sharding.
#![allow(dead_code, clippy::unwrap_used)]

use fullshard_graph::{
    Argument, DType, Mesh, MeshExt, Program, Result, Sharding, Tensor, TensorType,
};
use fullshard_optim::{Layout, Optimizer, Shard, SlotKind, Update};
use fullshard_pjrt::{CompileOptions, Flag, HostTensor, LoadedExecutable};
pub use fullshard_testing::call;

/// Compiles a program.
pub fn compile(program: &Program) -> LoadedExecutable {
    // These programs are long and run a few times on a few numbers. Level 0 would be quicker,
    // but it miscompiles some bf16 kernels.
    let options = CompileOptions::new(program.devices())
        .flag("xla_backend_optimization_level", Flag::Int(1))
        .flag("xla_llvm_disable_expensive_passes", Flag::Bool(true));
    fullshard_testing::compile(program, &options)
}

/// The values of each layer of a parameter, without padding.
pub type Layers = Vec<Vec<f32>>;

/// A parameter and its sharding on a mesh.
#[derive(Debug, Clone)]
pub struct Placed {
    pub dims: Vec<usize>,
    pub stack: Option<usize>,
    pub layout: Layout,
    pub slice: usize,
    pub axes: Vec<&'static str>,
}

impl Placed {
    pub fn replicated(dims: &[usize]) -> Placed {
        Placed {
            dims: dims.to_vec(),
            stack: None,
            layout: Layout::Replicated,
            slice: 0,
            axes: vec![],
        }
    }

    pub fn shard(&self, mesh: &Mesh) -> Shard {
        let group = (!self.axes.is_empty()).then(|| mesh.over(&self.axes).unwrap());
        let (layout, slice) = (self.layout, self.slice);
        Shard { dims: self.dims.clone(), stack: self.stack, layout, slice, group, tensor: None }
    }

    /// The dimension of the logical tensor that is sharded.
    fn sharded_dim(&self) -> usize {
        usize::from(self.stack.is_some()) + self.layout.sharded_dim().unwrap_or(0)
    }

    pub fn logical_dims(&self, mesh: &Mesh) -> Vec<usize> {
        let shard = self.shard(mesh);
        let mut dims = shard.local_dims();
        if self.layout != Layout::Replicated {
            dims[self.sharded_dim()] *= shard.parts();
        }
        dims
    }

    pub fn sharding(&self, mesh: &Mesh) -> Sharding {
        let rank = self.logical_dims(mesh).len();
        let is_sharded = |dim| self.layout != Layout::Replicated && dim == self.sharded_dim();
        let dims: Vec<&[&str]> =
            (0..rank).map(|dim| if is_sharded(dim) { self.axes.as_slice() } else { &[] }).collect();
        mesh.sharding(&dims).unwrap()
    }

    /// As a logical tensor, each layer padded with zeros at its end.
    pub fn to_logical(&self, mesh: &Mesh, layers: &[Vec<f32>]) -> HostTensor {
        let dims = self.logical_dims(mesh);
        let layers = &layers[..self.stack.unwrap_or(1)];
        let padded = dims.iter().product::<usize>() / layers.len();
        let mut values = Vec::new();
        for layer in layers {
            values.extend_from_slice(layer);
            values.resize(values.len() + padded - layer.len(), 0.0);
        }
        HostTensor::from_values(&dims, &values).unwrap()
    }

    /// The layers of a logical tensor and, separately, their padding.
    pub fn layers(&self, tensor: &HostTensor) -> (Layers, Vec<f32>) {
        let values: Vec<f32> = tensor.values().unwrap();
        let count = self.dims.iter().product::<usize>();
        let layers = values.chunks(values.len() / self.stack.unwrap_or(1));
        let (layers, padding): (Layers, Layers) =
            layers.map(|layer| (layer[..count].to_vec(), layer[count..].to_vec())).unzip();
        (layers, padding.concat())
    }
}

/// The program of a step. Inputs: scalars, then parameter, gradient and state of each parameter.
/// Outputs: parameter and state of each.
pub fn step_program(
    optimizer: &dyn Optimizer,
    mesh: &Mesh,
    parameters: &[Placed],
) -> Result<Program> {
    let mut inputs = vec![(vec![optimizer.scalar_count()], mesh.replicated(1))];
    let mut outputs = Vec::new();
    for parameter in parameters {
        let like = (parameter.logical_dims(mesh), parameter.sharding(mesh));
        let slots =
            optimizer.slots(&parameter.shard(mesh)).into_iter().map(|slot| match slot.kind {
                SlotKind::Like => like.clone(),
                SlotKind::Replicated(dims) => (dims.clone(), mesh.replicated(dims.len())),
            });
        let slots: Vec<_> = slots.collect();
        outputs.extend([&like].into_iter().chain(&slots).map(|(_, sharding)| sharding.clone()));
        inputs.extend([like.clone(), like].into_iter().chain(slots));
    }
    let arguments: Vec<Argument> = inputs
        .iter()
        .map(|(dims, sharding)| Argument::new(TensorType::new(DType::F32, dims)).sharded(sharding))
        .collect();
    let axes: Vec<&str> = mesh.axes().map(|(name, _)| name).collect();
    let step = |locals| update_all(optimizer, mesh, parameters, locals);
    if mesh.devices() == 1 {
        // The compiler does not partition for one device, so it does not support manual regions
        // there.
        return Program::trace("step", &arguments, step);
    }
    let program = Program::trace("step", &arguments, |tensors| {
        let inputs: Vec<(&Tensor, Sharding)> = tensors
            .iter()
            .zip(&inputs)
            .map(|(tensor, (_, sharding))| (tensor, sharding.clone()))
            .collect();
        mesh.manual(&axes, &inputs, &outputs, step)
    })?;
    program.sharded_results(&outputs)?.on_mesh(mesh)
}

fn update_all(
    optimizer: &dyn Optimizer,
    mesh: &Mesh,
    parameters: &[Placed],
    locals: Vec<Tensor>,
) -> Result<Vec<Tensor>> {
    let mut locals = locals.into_iter();
    let mut next = || locals.next().unwrap();
    let scalars = next();
    let updates = parameters.iter().map(|parameter| {
        let shard = parameter.shard(mesh);
        let (tensor, gradient) = (next(), next());
        let slots = optimizer.slots(&shard).iter().map(|_| next()).collect();
        let decays = shard.dims.len() > 1;
        let scalars = scalars.clone();
        Update { shard, parameter: tensor, gradient, slots, decays, scalars }
    });
    let updated = optimizer.update(updates.collect())?.into_iter();
    Ok(updated.flat_map(|one| [one.parameter].into_iter().chain(one.slots)).collect())
}

/// A parameter and its state after a run.
pub struct Trained {
    pub parameter: HostTensor,
    pub slots: Vec<(&'static str, SlotKind, HostTensor)>,
}

/// A run: initial parameters, the gradients of each step, and learning rates.
pub struct TrainingRun {
    pub initial: Vec<Layers>,
    pub gradients: Vec<Vec<Layers>>,
    pub learning_rates: Vec<f64>,
}

pub fn train(
    optimizer: &dyn Optimizer,
    mesh: &Mesh,
    parameters: &[Placed],
    training_run: &TrainingRun,
) -> Vec<Trained> {
    let loaded = compile(&step_program(optimizer, mesh, parameters).unwrap());
    let initialize = |(parameter, initial): (&Placed, &Layers)| Trained {
        parameter: parameter.to_logical(mesh, initial),
        slots: optimizer
            .slots(&parameter.shard(mesh))
            .into_iter()
            .map(|slot| {
                let dims = match &slot.kind {
                    SlotKind::Like => parameter.logical_dims(mesh),
                    SlotKind::Replicated(dims) => dims.clone(),
                };
                let zeros = vec![0_f32; dims.iter().product()];
                (slot.name, slot.kind, HostTensor::from_values(&dims, &zeros).unwrap())
            })
            .collect(),
    };
    let mut trained: Vec<Trained> =
        parameters.iter().zip(&training_run.initial).map(initialize).collect();
    for (i, gradients) in training_run.gradients.iter().enumerate() {
        let scalars = optimizer.scalars(i as u64 + 1, training_run.learning_rates[i]);
        let mut inputs = vec![HostTensor::from_values(&[scalars.len()], &scalars).unwrap()];
        for ((parameter, trained), gradient) in parameters.iter().zip(&trained).zip(gradients) {
            inputs.push(trained.parameter.clone());
            inputs.push(parameter.to_logical(mesh, gradient));
            inputs.extend(trained.slots.iter().map(|(_, _, slot)| slot.clone()));
        }
        let mut results = call(&loaded, &inputs).into_iter();
        for trained in &mut trained {
            trained.parameter = results.next().unwrap();
            for slot in &mut trained.slots {
                slot.2 = results.next().unwrap();
            }
        }
    }
    trained
}

/// The largest difference, relative to the expected number or, if that is larger, to `scale`.
pub fn difference(found: &[f32], expected: &[f32], scale: f32) -> f64 {
    assert_eq!(found.len(), expected.len());
    let differ = |(found, expected): (&f32, &f32)| {
        if found == expected {
            return 0.0;
        }
        let unit = f64::from(expected.abs().max(scale));
        let difference = f64::from(found - expected).abs() / unit;
        if difference.is_nan() { f64::INFINITY } else { difference }
    };
    found.iter().zip(expected).map(differ).fold(0.0, f64::max)
}

/// The root mean square.
pub fn rms(values: &[f32]) -> f32 {
    (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt()
}
