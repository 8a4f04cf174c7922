//! Putting the state on the devices: parameters, and the optimizer's slots if there are any.

use crate::compiler::{Compiled, Compiler};
use crate::error::{Error, mismatch};
use fullshard_graph::Program;
use fullshard_parallel::Stored;
use fullshard_pjrt::{Array, Client, HostTensor, LoadedExecutable};
use fullshard_step::InitProgram;
use fullshard_step::{StateTensor, StepSpec};

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

/// The state that compiled programs make from a seed.
pub fn initial_state(
    client: &Client,
    init: &[InitProgram],
    compiled: &[Compiled],
    seed: u64,
) -> Result<Vec<Array>, Error> {
    let seed = seed_tensor(seed)?;
    let mut state: Vec<(usize, Array)> = Vec::new();
    for (init, Compiled { program, .. }) in init.iter().zip(compiled) {
        for launch in &init.launches {
            let name = HostTensor::from_values(&[2], &launch.name)?;
            let layer = HostTensor::from_values(&[], &[launch.layer])?;
            let upload = |(i, tensor): (usize, &HostTensor)| upload(client, program, i, tensor);
            let arguments: Result<Vec<Array>, Error> =
                [&seed, &name, &layer].into_iter().enumerate().map(upload).collect();
            let arguments = arguments?;
            let made = program.execute_arrays(&arguments.iter().collect::<Vec<_>>())?;
            state.extend(launch.places.iter().copied().zip(made));
        }
    }
    state.sort_by_key(|(place, _)| *place);
    Ok(state.into_iter().map(|(_, array)| array).collect())
}

/// The state of a program whose parameters are given, each as the whole numbers of one, of all
/// layers one after another if they are stacked. What follows them begins with zeros.
pub(crate) fn given_state(
    compiler: &Compiler<'_>,
    spec: &StepSpec,
    program: &LoadedExecutable,
    tensors: &[StateTensor],
    parameter: impl Fn(&Stored) -> Result<Vec<f32>, Error>,
) -> Result<Vec<Array>, Error> {
    let mut state = Vec::new();
    for (i, tensor) in tensors.iter().enumerate() {
        let values = match spec.placement.parameters.get(i) {
            Some(stored) => packed(stored, &parameter(stored)?)?,
            None => HostTensor::from_values(&tensor.ty.dims, &vec![0.0_f32; tensor.ty.elements()])?,
        };
        state.push(upload(compiler.client, program, i, &values)?);
    }
    Ok(state)
}

/// The whole numbers of a parameter as it is stored.
fn packed(stored: &Stored, wholes: &[f32]) -> Result<HostTensor, Error> {
    if wholes.len() != stored.elements() {
        let (found, expected) = (wholes.len(), stored.elements());
        let found = format!("{found} numbers");
        return Err(mismatch(&stored.name, &found, &format!("{expected}")));
    }
    Ok(HostTensor::from_values(&stored.stored_dims(), &stored.pack(wholes))?)
}

pub(crate) fn seed_tensor(seed: u64) -> Result<HostTensor, Error> {
    Ok(HostTensor::from_values(&[2], &[(seed >> 32) as u32, seed as u32])?)
}

/// Puts tensors where a program expects its arguments, from the `first` on.
pub(crate) fn upload_from(
    client: &Client,
    program: &LoadedExecutable,
    first: usize,
    tensors: &[&HostTensor],
) -> Result<Vec<Array>, Error> {
    let upload = |(i, tensor): (usize, &&HostTensor)| upload(client, program, first + i, tensor);
    tensors.iter().enumerate().map(upload).collect()
}

pub(crate) fn upload(
    client: &Client,
    program: &LoadedExecutable,
    index: usize,
    tensor: &HostTensor,
) -> Result<Array, Error> {
    let expected = program.argument_type(index)?;
    if expected.ty != *tensor.ty() {
        let (found, expected) = (tensor.ty().to_string(), expected.ty.to_string());
        return Err(mismatch(&format!("argument {index}"), &found, &expected));
    }
    Ok(Array::from_host(client, tensor, expected.tiling, program.devices())?)
}

/// The numbers of a tensor that every device has whole.
pub(crate) fn numbers(array: &Array) -> Result<Vec<f32>, Error> {
    Ok(array.to_host()?.values()?)
}
