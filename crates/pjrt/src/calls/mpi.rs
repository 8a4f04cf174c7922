//! Collectives between processes, over MPI.
//!
//! A handler checks its call, queues a request and returns a future; nothing waits. Data moves as
//! bytes, in any element type. Sums of 16-bit floats are made in `f32` and rounded once.
//!
//! All but a permute have the attributes `channel` (unique in a program), `group` (the processes of
//! all groups, one group after another) and `group_size`. A permute has `channel`, `pairs` (from and
//! to, by global device number) and `devices` (per process).

use super::frame::{Frame, Tensor};
use super::reduction::{Reduction, Widened};
use crate::dtype;
use crate::hlo::ElementType;
use crate::mpi::{
    Functions, Handle, Key, Library, MoveFunction, MpiError, PROC_NULL, ReduceFunction, Reserved,
    World,
};
use fullshard_core::DType;
use std::ffi::c_int;

/// The prefix of the custom call targets of collectives between processes.
pub const MPI_PREFIX: &str = "fullshard.mpi_";
/// The custom call target of all-reduces between processes.
pub const MPI_ALL_REDUCE: &str = "fullshard.mpi_all_reduce";
/// The custom call target of all-gathers between processes.
pub const MPI_ALL_GATHER: &str = "fullshard.mpi_all_gather";
/// The custom call target of reduce-scatters between processes.
pub const MPI_REDUCE_SCATTER: &str = "fullshard.mpi_reduce_scatter";
/// The custom call target of all-to-alls between processes.
pub const MPI_ALL_TO_ALL: &str = "fullshard.mpi_all_to_all";
/// The custom call target of collective permutes between processes.
pub const MPI_PERMUTE: &str = "fullshard.mpi_permute";
/// The custom call target with the number of this process.
pub const PROCESS_INDEX: &str = "fullshard.process_index";

/// A call on a channel.
struct Call {
    world: &'static World,
    channel: i64,
    communicator: Reserved,
    operand: Tensor,
    result: Tensor,
    dtype: DType,
}

impl Call {
    /// Reads and checks a call. Given the size of a group, `shape` states how many operands have
    /// as many elements as how many results.
    fn read(frame: &Frame<'_>, shape: fn(i64) -> (i64, i64)) -> Result<Call, String> {
        let world = world()?;
        let channel = frame.integer("channel")?;
        let group_size = frame.integer("group_size")?;
        let groups = frame.integer_list("group").filter(|groups| !groups.is_empty());
        let groups = groups.ok_or("there is no attribute `group` of integers")?;
        if group_size < 1 || groups.len() as i64 % group_size != 0 {
            let count = groups.len();
            return Err(format!("{count} processes do not make groups of {group_size}"));
        }
        let (operand, result) = (frame.any_operand(0)?, frame.any_result(0)?);
        let dtype = same_dtype(operand, result)?;
        let (up, down) = shape(group_size);
        if operand.elements as i64 * up != result.elements as i64 * down {
            let (operand, result) = (operand.elements, result.elements);
            return Err(format!(
                "an operand of {operand} elements does not give a result of {result} in a group \
                 of {group_size}"
            ));
        }
        let key = Key { channel, device: frame.device()?, groups, group_size };
        let communicator = world.collectives().reserve(&key)?;
        Ok(Call { world, channel, communicator, operand, result, dtype })
    }

    /// Queues the request that `post` makes. When it is done, `finish` runs and the call ends.
    fn run(
        self,
        frame: &Frame<'_>,
        function: &'static str,
        post: impl FnOnce(&Library, Handle, &mut Handle) -> c_int + Send + 'static,
        finish: impl FnOnce() + Send + 'static,
    ) -> Result<(), String> {
        let promise = frame.promise()?;
        let Call { world, channel, communicator, .. } = self;
        let call = format!("{function} on channel {channel}");
        let (name, handle) = (call.clone(), communicator.handle());
        let post = move |library: &Library| {
            let mut request = Handle::REQUEST_NULL;
            let code = post(library, handle, &mut request);
            library.check_code(code, || name)?;
            Ok(request)
        };
        let done = move |outcome: Result<(), MpiError>| {
            if outcome.is_ok() {
                finish();
            }
            // The next launch may use the communicator as soon as the promise is kept.
            drop(communicator);
            promise.keep(outcome.map_err(|error| error.to_string()));
        };
        // A request that is not accepted is dropped, and its promise reports that.
        if let Err(error) = world.collectives().post(call, post, done) {
            tracing::debug!("{error}");
        }
        Ok(())
    }
}

fn world() -> Result<&'static World, String> {
    World::current().ok_or_else(|| {
        "the program communicates between processes, but MPI was not started in this one".into()
    })
}

fn same_dtype(operand: Tensor, result: Tensor) -> Result<DType, String> {
    if operand.dtype != result.dtype {
        return Err("operand and result differ in element type".into());
    }
    let element = ElementType::from_number(operand.dtype);
    dtype::from_element(element).ok_or_else(|| format!("{element} is not supported"))
}

pub(super) fn all_reduce(frame: &Frame<'_>) -> Result<(), String> {
    let call = Call::read(frame, |_| (1, 1))?;
    let reduction = Reduction::new(call.dtype, frame.integer("reduction")?)?;
    reduce(frame, call, reduction, "MPI_Iallreduce", |functions| functions.iallreduce)
}

pub(super) fn reduce_scatter(frame: &Frame<'_>) -> Result<(), String> {
    const NAME: &str = "MPI_Ireduce_scatter_block";
    let call = Call::read(frame, |group_size| (1, group_size))?;
    let reduction = Reduction::sum(call.dtype)?;
    reduce(frame, call, reduction, NAME, |functions| functions.ireduce_scatter)
}

/// Runs a reduction, of 16-bit floats in `f32`.
fn reduce(
    frame: &Frame<'_>,
    call: Call,
    reduction: Reduction,
    name: &'static str,
    function: fn(&Functions) -> ReduceFunction,
) -> Result<(), String> {
    let Reduction { ty, operation } = reduction;
    let (dtype, result, count) = (call.dtype, call.result, call.result.elements as i64);
    // SAFETY: the call is running.
    let mut parts = unsafe { Widened::read(call.operand, dtype) };
    let mut sums = parts.as_ref().map(|_| Widened::zeros(result.elements, dtype));
    let from = parts.as_mut().map_or(call.operand.address(), Widened::address);
    let to = sums.as_mut().map_or(result.address(), Widened::address);
    let post = move |library: &Library, group, request: &mut Handle| {
        let (function, op) = (function(&library.functions), library.operation(operation, ty));
        // SAFETY: MPI is started; tensors are live until the promise is kept, and widened numbers
        // until the request is done.
        unsafe { function(from.get(), to.get(), count, ty, op, group, request) }
    };
    call.run(frame, name, post, move || {
        drop(parts);
        if let Some(sums) = sums {
            // SAFETY: the call is running until the promise is kept.
            unsafe { sums.write(result) };
        }
    })
}

pub(super) fn all_gather(frame: &Frame<'_>) -> Result<(), String> {
    let call = Call::read(frame, |group_size| (group_size, 1))?;
    let elements = call.operand.elements;
    move_blocks(frame, call, elements, "MPI_Iallgather", |functions| functions.iallgather)
}

pub(super) fn all_to_all(frame: &Frame<'_>) -> Result<(), String> {
    let call = Call::read(frame, |_| (1, 1))?;
    let group_size = frame.integer("group_size")?.max(1) as usize;
    let elements = call.operand.elements;
    if !elements.is_multiple_of(group_size) {
        return Err(format!("{elements} elements do not make {group_size} blocks"));
    }
    let block = elements / group_size;
    move_blocks(frame, call, block, "MPI_Ialltoall", |functions| functions.ialltoall)
}

/// Moves blocks of a number of elements, as bytes.
fn move_blocks(
    frame: &Frame<'_>,
    call: Call,
    elements: usize,
    name: &'static str,
    function: fn(&Functions) -> MoveFunction,
) -> Result<(), String> {
    let bytes = (elements * call.dtype.size()) as i64;
    let (from, to) = (call.operand.address(), call.result.address());
    let post = move |library: &Library, group, request: &mut Handle| {
        let (function, ty) = (function(&library.functions), Handle::BYTE);
        // SAFETY: MPI is started, and tensors are live until the promise is kept.
        unsafe { function(from.get(), bytes, ty, to.get(), bytes, ty, group, request) }
    };
    call.run(frame, name, post, || {})
}

pub(super) fn permute(frame: &Frame<'_>) -> Result<(), String> {
    let world = world()?;
    let channel = frame.integer("channel")?;
    let (operand, result) = (frame.any_operand(0)?, frame.any_result(0)?);
    let dtype = same_dtype(operand, result)?;
    if operand.elements != result.elements {
        return Err("operand and result of a permute differ in size".into());
    }
    let device = frame.device()?;
    let Route { send, receive, me } = Route::read(frame, world, device)?;
    let bytes = operand.elements * dtype.size();
    if receive.is_none() {
        // SAFETY: the result has these bytes, and nothing else writes them.
        unsafe { result.data.cast::<u8>().write_bytes(0, bytes) };
    }
    if send.is_none() && receive.is_none() {
        return Ok(());
    }
    let key = Key { channel, device, groups: Vec::new(), group_size: 0 };
    let communicator = world.collectives().reserve(&key)?;
    let call = Call { world, channel, communicator, operand, result, dtype };
    let (to, to_tag) = send.unwrap_or((PROC_NULL, 0));
    let (from, from_tag) = (receive.unwrap_or(PROC_NULL), me);
    let (data, into, bytes) = (operand.address(), result.address(), bytes as i64);
    let post = move |library: &Library, all, request: &mut Handle| {
        let (function, ty) = (library.functions.isendrecv, Handle::BYTE);
        let (data, into) = (data.get(), into.get());
        // SAFETY: MPI is started, and tensors are live until the promise is kept.
        unsafe {
            function(data, bytes, ty, to, to_tag, into, bytes, ty, from, from_tag, all, request)
        }
    };
    call.run(frame, "MPI_Isendrecv", post, || {})
}

/// Where a device sends to and receives from.
struct Route {
    /// The process to send to, and the tag: the number of the device there.
    send: Option<(c_int, c_int)>,
    /// The process to receive from.
    receive: Option<c_int>,
    /// The global number of this device.
    me: c_int,
}

impl Route {
    fn read(frame: &Frame<'_>, world: &World, device: usize) -> Result<Route, String> {
        let pairs = frame.integer_list("pairs");
        let pairs = pairs.ok_or("there is no attribute `pairs` of integers")?;
        let devices = frame.integer("devices")?;
        let (size, me) = (world.size() as i64, world.rank() as i64 * devices + device as i64);
        let all = 0..devices.saturating_mul(size);
        if device as i64 >= devices || !pairs.len().is_multiple_of(2) {
            return Err(format!("device {device} is not one of {devices}, or a pair is cut"));
        }
        if let Some(bad) = pairs.iter().find(|device| !all.contains(device)) {
            return Err(format!("there is no device {bad} among {}", all.end));
        }
        let of = |mine: usize| {
            let mut others = pairs.chunks(2).filter(|pair| pair[mine] == me);
            match (others.next(), others.next()) {
                (_, Some(_)) => Err(format!("device {me} is in two pairs of a permute")),
                (other, None) => Ok(other.map(|pair| pair[1 - mine])),
            }
        };
        let process = |device: i64| (device / devices) as c_int;
        let send = of(0)?.map(|to| (process(to), to as c_int));
        Ok(Route { send, receive: of(1)?.map(process), me: me as c_int })
    }
}

pub(super) fn process_index(frame: &Frame<'_>) -> Result<(), String> {
    let result = frame.any_result(0)?;
    let is_i32 = ElementType::from_number(result.dtype) == ElementType::S32;
    if !is_i32 || result.elements != 1 {
        return Err("the process index is an i32 scalar".into());
    }
    let rank = world()?.rank() as i32;
    // SAFETY: the result has one such number, and nothing else writes it.
    unsafe { result.data.cast::<i32>().write(rank) };
    Ok(())
}
