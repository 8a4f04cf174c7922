//! Uploads tensors to devices: parameters, optimizer state and batches.

use crate::compiler::{Compiled, Compiler};
use crate::error::{Error, mismatch};
use fullshard_graph::Program;
use fullshard_parallel::ShardedParam;
use fullshard_pjrt::{Array, ArrayType, Client, HostTensor, LoadedExecutable};
use fullshard_step::{InitInputs, InitProgram, Ordered, StateTensor, StepSpec, TensorSpec};
use std::borrow::Borrow;
use std::sync::Arc;

/// An argument of a compiled program.
#[derive(Debug, Clone)]
pub(crate) struct Argument {
    name: String,
    array: ArrayType,
    devices: Arc<[usize]>,
}

impl Argument {
    /// The arguments of a program with this layout.
    pub fn of_program<A: Ordered<TensorSpec>>(
        program: &LoadedExecutable,
        layout: &A,
    ) -> Result<A::Of<Argument>, Error> {
        let devices: Arc<[usize]> = program.devices().into();
        let argument = |(index, tensor): (usize, &TensorSpec)| -> Result<Argument, Error> {
            let (name, devices) = (tensor.name.clone(), Arc::clone(&devices));
            Ok(Argument { name, array: program.argument_type(index)?, devices })
        };
        let tensors = layout.each_ref().flatten();
        let arguments = tensors.into_iter().enumerate().map(argument);
        Ok(layout.unflatten(arguments.collect::<Result<_, _>>()?)?)
    }

    /// Uploads a tensor to the program's devices.
    pub fn upload(&self, client: &Client, tensor: &HostTensor) -> Result<Array, Error> {
        let expected = &self.array.ty;
        if *expected != *tensor.ty() {
            return Err(mismatch(&self.name, &tensor.ty().to_string(), &expected.to_string()));
        }
        Ok(Array::from_host(client, tensor, Arc::clone(&self.array.tiling), &self.devices)?)
    }

    /// Uploads a tensor of the initial state: a parameter from its full values, with stacked layers
    /// concatenated, or an optimizer slot of zeros.
    pub fn upload_state(
        &self,
        client: &Client,
        spec: &StepSpec,
        state: &StateTensor,
        parameter: &impl Fn(&ShardedParam) -> Result<Vec<f32>, Error>,
    ) -> Result<Array, Error> {
        let param = &spec.placement.parameters[state.parameter];
        let ty = &state.tensor.ty;
        let tensor = match state.slot {
            None => packed(param, &parameter(param)?)?,
            Some(_) => HostTensor::from_values(&ty.dims, &vec![0.0_f32; ty.elements()])?,
        };
        self.upload(client, &tensor)
    }
}

/// Uploads a batch to a program's devices.
pub(crate) fn upload_batch<B: Borrow<HostTensor>>(
    client: &Client,
    arguments: &[Argument],
    batch: &[B],
) -> Result<Vec<Array>, Error> {
    if batch.len() != arguments.len() {
        let names: Vec<&str> = arguments.iter().map(|argument| argument.name.as_str()).collect();
        let found = format!("{} tensors", batch.len());
        return Err(mismatch("a batch", &found, &names.join(", ")));
    }
    let upload = |(argument, tensor): (&Argument, &B)| argument.upload(client, tensor.borrow());
    arguments.iter().zip(batch).map(upload).collect()
}

/// Compiles a program and, in parallel, those that initialize its state; initializes the state from
/// a seed.
pub(crate) fn compile_with_state(
    compiler: &Compiler<'_>,
    program: &Program,
    init: &[InitProgram],
    seed: u64,
) -> Result<(Compiled, Vec<Array>), Error> {
    let programs: Vec<&Program> = init.iter().map(|init| &init.program).chain([program]).collect();
    let mut compiled = compiler.compile_all(&programs)?;
    let program = compiled.pop().ok_or_else(|| mismatch("a program", "nothing", "a program"))?;
    let state = initial_state(compiler.client, init, &compiled, seed)?;
    Ok((program, state))
}

/// The state that compiled programs initialize from a seed, in order.
pub fn initial_state(
    client: &Client,
    init: &[InitProgram],
    compiled: &[Compiled],
    seed: u64,
) -> Result<Vec<Array>, Error> {
    let mut state: Vec<(usize, Array)> = Vec::new();
    for (init, Compiled { program, .. }) in init.iter().zip(compiled) {
        let arguments = Argument::of_program(program, &init.inputs)?;
        for launch in &init.launches {
            let tensors = InitInputs {
                seed: seed_tensor(seed)?,
                name: HostTensor::from_values(&[2], &launch.name)?,
                layer: HostTensor::from_values(&[], &[launch.layer])?,
            };
            let inputs = arguments.zip(&tensors)?;
            let inputs = inputs.try_map(|(argument, tensor)| argument.upload(client, tensor))?;
            let arrays = program.execute_arrays(&inputs.each_ref().flatten())?;
            state.extend(launch.places.iter().copied().zip(arrays));
        }
    }
    state.sort_by_key(|(place, _)| *place);
    Ok(state.into_iter().map(|(_, array)| array).collect())
}

/// The full values of a parameter in its sharded layout.
fn packed(param: &ShardedParam, values: &[f32]) -> Result<HostTensor, Error> {
    if values.len() != param.elements() {
        let (found, expected) = (values.len(), param.elements());
        let found = format!("{found} values");
        return Err(mismatch(&param.name, &found, &format!("{expected}")));
    }
    Ok(HostTensor::from_values(&param.padded_dims(), &param.pack(values))?)
}

pub(crate) fn seed_tensor(seed: u64) -> Result<HostTensor, Error> {
    Ok(HostTensor::from_values(&[2], &[(seed >> 32) as u32, seed as u32])?)
}

/// The values of a replicated tensor.
pub(crate) fn numbers(array: &Array) -> Result<Vec<f32>, Error> {
    Ok(array.to_host()?.values()?)
}
