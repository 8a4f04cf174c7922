//! Putting tensors on the devices: parameters, the optimizer's state and batches.

use crate::compiler::{Compiled, Compiler};
use crate::error::{Error, mismatch};
use fullshard_graph::Program;
use fullshard_parallel::Stored;
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
    /// The arguments of a program that takes what a spec says.
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

    /// Puts a tensor where the program takes it.
    pub fn upload(&self, client: &Client, tensor: &HostTensor) -> Result<Array, Error> {
        let expected = &self.array.ty;
        if *expected != *tensor.ty() {
            return Err(mismatch(&self.name, &tensor.ty().to_string(), &expected.to_string()));
        }
        Ok(Array::from_host(client, tensor, Arc::clone(&self.array.tiling), &self.devices)?)
    }

    /// Puts what a run begins with where the program takes it: a parameter that is given by its
    /// full values, of all layers one after another if they are stacked, or an empty slot.
    pub fn upload_state(
        &self,
        client: &Client,
        spec: &StepSpec,
        state: &StateTensor,
        parameter: &impl Fn(&Stored) -> Result<Vec<f32>, Error>,
    ) -> Result<Array, Error> {
        let stored = &spec.placement.parameters[state.parameter];
        let ty = &state.tensor.ty;
        let tensor = match state.slot {
            None => packed(stored, &parameter(stored)?)?,
            Some(_) => HostTensor::from_values(&ty.dims, &vec![0.0_f32; ty.elements()])?,
        };
        self.upload(client, &tensor)
    }
}

/// Puts a batch where a program takes it.
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

/// Compiles a program and, at the same time, those that make the state it works on; makes that
/// state from a seed.
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

/// The state that compiled programs make from a seed, in its order.
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
            let made = program.execute_arrays(&inputs.each_ref().flatten())?;
            state.extend(launch.places.iter().copied().zip(made));
        }
    }
    state.sort_by_key(|(place, _)| *place);
    Ok(state.into_iter().map(|(_, array)| array).collect())
}

/// The full values of a parameter as it is stored.
fn packed(stored: &Stored, values: &[f32]) -> Result<HostTensor, Error> {
    if values.len() != stored.elements() {
        let (found, expected) = (values.len(), stored.elements());
        let found = format!("{found} numbers");
        return Err(mismatch(&stored.name, &found, &format!("{expected}")));
    }
    Ok(HostTensor::from_values(&stored.stored_dims(), &stored.pack(values))?)
}

pub(crate) fn seed_tensor(seed: u64) -> Result<HostTensor, Error> {
    Ok(HostTensor::from_values(&[2], &[(seed >> 32) as u32, seed as u32])?)
}

/// The numbers of a tensor that is replicated on every device.
pub(crate) fn numbers(array: &Array) -> Result<Vec<f32>, Error> {
    Ok(array.to_host()?.values()?)
}
