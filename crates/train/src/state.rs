//! Uploads tensors to devices: parameters, optimizer state and batches.

use crate::budget::Budget;
use crate::compiler::{Compiled, Compiler};
use crate::error::{Error, mismatch};
use fullshard_core::Part;
use fullshard_graph::{Program, TensorType};
use fullshard_parallel::ShardedParam;
use fullshard_pjrt::{Array, ArrayType, Client, HostTensor, LoadedExecutable};
use fullshard_step::{
    InitInputs, InitProgram, Ordered, SavedPart, SavedTensors, StateTensor, StepSpec, TensorSpec,
};
use std::borrow::Borrow;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// An argument of a compiled program.
#[derive(Debug, Clone)]
pub(crate) struct Argument {
    pub name: String,
    pub array: ArrayType,
    pub devices: Arc<[usize]>,
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

    /// Uploads a tensor to the program's devices: all of it, or the part that the devices of this
    /// process hold.
    pub fn upload(&self, client: &Client, tensor: &HostTensor) -> Result<Array, Error> {
        let expected = &self.array.ty;
        if *expected == *tensor.ty() {
            let tiling = Arc::clone(&self.array.tiling);
            return Ok(Array::from_host(client, tensor, tiling, &self.devices)?);
        }
        let part = self.part(client)?;
        let dims: Vec<usize> = part.iter().map(ExactSizeIterator::len).collect();
        if *tensor.ty() != TensorType::new(expected.dtype, &dims) {
            return Err(mismatch(&self.name, &tensor.ty().to_string(), &expected.to_string()));
        }
        let width = expected.dtype.size();
        Array::fill(client, &self.array, &self.devices, |tile| -> Result<Vec<u8>, Error> {
            let ranges = tile.ranges.iter().zip(&part);
            let ranges: Vec<_> =
                ranges.map(|(tile, part)| tile.start - part.start..tile.end - part.start).collect();
            let runs = Part::tile(&ranges, &dims).runs(&dims);
            let bytes = runs.map(|run| &tensor.bytes()[run.from * width..][..run.count * width]);
            Ok(bytes.flatten().copied().collect())
        })
    }

    /// The smallest box of the tensor with all that the devices of this process hold.
    fn part(&self, client: &Client) -> Result<Vec<Range<usize>>, Error> {
        let (ty, tiling) = (&self.array.ty, &self.array.tiling);
        let positions = client.process().positions(self.devices.len());
        let tiles = positions.map(|position| Ok(tiling.tile(position, &ty.dims)?.ranges));
        let tiles = tiles.collect::<Result<Vec<_>, Error>>()?;
        let join = |a: Range<usize>, b: &Range<usize>| a.start.min(b.start)..a.end.max(b.end);
        let span = |dim: usize| {
            let all = tiles.iter().map(|tile| &tile[dim]);
            all.clone().next().map(|first| all.fold(first.clone(), join)).unwrap_or_default()
        };
        Ok((0..ty.rank()).map(span).collect())
    }

    /// Uploads the tensors of the steps of a launch: that of a single step as it is, those of
    /// several stacked.
    pub fn upload_stacked<B: Borrow<HostTensor>>(
        &self,
        client: &Client,
        tensors: &[B],
    ) -> Result<Array, Error> {
        if let [tensor] = tensors {
            return self.upload(client, tensor.borrow());
        }
        let mut types = tensors.iter().map(|tensor| tensor.borrow().ty());
        if let Some(first) = types.next()
            && let Some(other) = types.find(|other| *other != first)
        {
            return Err(mismatch(&self.name, &other.to_string(), &first.to_string()));
        }
        self.upload(client, &HostTensor::stack(tensors)?)
    }

    /// Uploads a tensor of the initial state: a parameter from its full values, with stacked layers
    /// concatenated, or a slot of zeros.
    pub fn upload_initial(
        &self,
        client: &Client,
        spec: &StepSpec,
        state: &StateTensor,
        parameter: &impl Fn(&ShardedParam) -> Result<Vec<f32>, Error>,
    ) -> Result<Array, Error> {
        let saved = spec.saved(state);
        if state.slot.is_some() {
            return self.upload_saved(client, &saved, &|_, _, _| Ok(()));
        }
        let param = &spec.placement.parameters[state.parameter];
        let values = parameter(param)?;
        let (found, expected) = (values.len(), param.elements());
        if found != expected {
            return Err(mismatch(&param.name, &format!("{found} values"), &expected.to_string()));
        }
        self.upload_saved(client, &saved, &|saved, part, out| {
            let layer: &[u8] = bytemuck::cast_slice(&values[part.tensor * saved.elements()..]);
            let width = size_of::<f32>();
            for run in part.part.runs(&saved.dims) {
                let values = &layer[run.from * width..][..run.count * width];
                out[run.to * width..][..values.len()].copy_from_slice(values);
            }
            Ok(())
        })
    }

    /// Uploads a tensor of the state, one device's shard at a time, from the saved tensors that
    /// `read` reads.
    pub fn upload_saved(
        &self,
        client: &Client,
        saved: &SavedTensors,
        read: &ReadSaved<'_>,
    ) -> Result<Array, Error> {
        let width = self.array.ty.dtype.size();
        Array::fill_owned(client, &self.array, &self.devices, |tile, bytes| {
            let dims: Vec<usize> = tile.ranges.iter().map(ExactSizeIterator::len).collect();
            for part in saved.parts(&tile.ranges) {
                // Parts of a dim that is split are interleaved.
                if saved.split.is_some() {
                    let mut values = vec![0; part.part.elements() * width];
                    read(saved, &part, &mut values)?;
                    for run in part.held.runs(&dims) {
                        let [from, to, count] = [run.to, run.from, run.count].map(|it| it * width);
                        bytes[to..to + count].copy_from_slice(&values[from..from + count]);
                    }
                    continue;
                }
                let held = &mut bytes[part.held.span(&dims).start * width..];
                read(saved, &part, &mut held[..part.part.elements() * width])?;
                if part.held.is_box() {
                    spread(&part.held, &dims, width, bytes);
                }
            }
            Ok(())
        })
    }
}

/// Moves the values of a box of a tile, which are side by side from its first element on, to their
/// places. Padding between them becomes zero.
fn spread(held: &Part, dims: &[usize], width: usize, bytes: &mut [u8]) {
    let first = held.span(dims).start;
    let mut end = held.span(dims).end * width;
    // From the last on, nothing is overwritten before it is moved.
    for run in held.runs(dims).collect::<Vec<_>>().into_iter().rev() {
        let (from, to, count) = ((first + run.to) * width, run.from * width, run.count * width);
        bytes.copy_within(from..from + count, to);
        bytes[to + count..end].fill(0);
        end = to;
    }
}

/// Reads the `f32` values of a part of a saved tensor into bytes, which are zero before.
pub(crate) type ReadSaved<'a> =
    dyn Fn(&SavedTensors, &SavedPart, &mut [u8]) -> Result<(), Error> + Sync + 'a;

/// The most bytes of tensors that are read beside the largest one.
const READ_AHEAD: usize = 128 << 20;

/// Uploads tensors of the state, several at a time within a bound of host memory.
pub(crate) fn upload_all(
    client: &Client,
    arguments: &[(&Argument, SavedTensors)],
    read: &ReadSaved<'_>,
) -> Result<Vec<Array>, Error> {
    let sizes = arguments.iter().map(|(argument, _)| Ok(argument.array.shard_type()?.bytes()));
    let sizes = sizes.collect::<Result<Vec<usize>, Error>>()?;
    let budget = Budget::new(sizes.iter().max().copied().unwrap_or(0) + READ_AHEAD);
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Array)>, Error> {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((argument, saved)) = arguments.get(index) else { return Ok(done) };
            let _held = budget.take(sizes[index]);
            let array = argument.upload_saved(client, saved, read)?;
            for shard in array.shards() {
                // Until then the host holds its bytes.
                shard.ready_event()?.wait()?;
            }
            done.push((index, array));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(READERS);
    let parts = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.collect::<Result<Vec<_>, Error>>()
    })?;
    let mut arrays: Vec<(usize, Array)> = parts.into_iter().flatten().collect();
    arrays.sort_by_key(|(index, _)| *index);
    Ok(arrays.into_iter().map(|(_, array)| array).collect())
}

/// The most threads that read at the same time.
const READERS: usize = 8;

/// Uploads the batches of the steps of a launch, each tensor of all steps at once.
pub(crate) fn upload_batches<B: Borrow<HostTensor>>(
    client: &Client,
    arguments: &[Argument],
    batches: &[&[B]],
) -> Result<Vec<Array>, Error> {
    for batch in batches {
        check_count(arguments, batch)?;
    }
    let upload = |(index, argument): (usize, &Argument)| {
        let tensors: Vec<&HostTensor> = batches.iter().map(|batch| batch[index].borrow()).collect();
        argument.upload_stacked(client, &tensors)
    };
    arguments.iter().enumerate().map(upload).collect()
}

/// Checks that a batch has a tensor for each argument.
fn check_count<B>(arguments: &[Argument], batch: &[B]) -> Result<(), Error> {
    if batch.len() == arguments.len() {
        return Ok(());
    }
    let names: Vec<&str> = arguments.iter().map(|argument| argument.name.as_str()).collect();
    Err(mismatch("a batch", &format!("{} tensors", batch.len()), &names.join(", ")))
}

/// Compiles a program and, in parallel, those that initialize its state; initializes the state from
/// a seed, and returns how long that took.
pub(crate) fn compile_with_state(
    compiler: &Compiler<'_>,
    program: &Program,
    init: &[InitProgram],
    seed: u64,
) -> Result<(Compiled, Vec<Array>, Duration), Error> {
    let programs: Vec<&Program> = init.iter().map(|init| &init.program).chain([program]).collect();
    let mut compiled = compiler.compile_all(&programs)?;
    let program = compiled.pop().ok_or_else(|| mismatch("a program", "nothing", "a program"))?;
    let start = Instant::now();
    let state = initial_state(compiler.client, init, &compiled, seed)?;
    Ok((program, state, start.elapsed()))
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

pub(crate) fn seed_tensor(seed: u64) -> Result<HostTensor, Error> {
    Ok(HostTensor::from_values(&[2], &[(seed >> 32) as u32, seed as u32])?)
}

/// The values of a replicated tensor.
pub(crate) fn numbers(array: &Array) -> Result<Vec<f32>, Error> {
    Ok(array.to_host()?.values()?)
}
