//! The keys and values of the other devices, and their gradients on the way to the devices that own
//! them: by an all-gather and a reduce-scatter, or around a ring.
//!
//! The other devices are a loop, so that the program does not grow with their number.

use super::{ContextMethod, ContextParallel};
use fullshard_graph::{
    Comparison, DType, Group, Result, Tensor, constant, full, iota, scan, select, zeros,
};

/// The dimension of tokens in stacked keys and values.
const TOKENS: usize = 3;

/// The device whose keys and values are used in a step.
pub(super) struct Owner {
    /// Its index in the group: that of this device minus the step, modulo their number.
    pub index: Tensor,
    /// Whether it comes before this device.
    pub is_before: Tensor,
}

impl Owner {
    /// The owner of a step, from 1 to the number of other devices.
    fn new(group: &Group, step: &Tensor) -> Result<Owner> {
        let device = group.index()?;
        let is_before = device.compare(Comparison::GreaterEqual, step)?;
        let before = (device - step)?;
        let index = select(&is_before, &before, &(&before + group.size() as f64)?)?;
        Ok(Owner { index, is_before })
    }
}

/// Carries, and the gradients of keys and values in the backward pass.
pub(super) type Results = (Vec<Tensor>, Option<Tensor>);

/// A step: given carries, an owner and its keys and values.
pub(super) type Step<'a> = &'a dyn Fn(Vec<Tensor>, &Owner, &Tensor) -> Result<Results>;

/// Runs a step for each other device, given this device's keys and values. In the backward pass,
/// `own` are their gradients by this device, and the results have the sum of those by all devices.
pub(super) fn for_others(
    context: &ContextParallel,
    keys: &Tensor,
    own: Option<Tensor>,
    carries: Vec<Tensor>,
    step: Step<'_>,
) -> Result<Results> {
    match context.method {
        _ if context.group.size() == 1 => Ok((carries, own)),
        ContextMethod::Gather => gathered(&context.group, keys, own, carries, step),
        ContextMethod::Ring => around(&context.group, keys, own, carries, step),
    }
}

/// All keys and values are gathered first, and all gradients are scattered last.
fn gathered(
    group: &Group,
    keys: &Tensor,
    own: Option<Tensor>,
    mut carries: Vec<Tensor>,
    step: Step<'_>,
) -> Result<Results> {
    let all = group.all_gather(keys, TOKENS)?;
    let count = carries.len();
    if let Some(own) = own {
        let none = zeros(keys.dtype(), all.dims())?;
        carries.push(placed(&none, &group.index()?, &own)?);
    }
    let mut carries = run_steps(1..group.size(), carries, |mut carries, number| {
        let owner = Owner::new(group, number)?;
        let starts = slice_starts(&owner.index, keys)?;
        let keys = all.dynamic_slice(&starts.iter().collect::<Vec<_>>(), keys.dims())?;
        let sum = carries.split_off(count);
        let (mut carries, gradients) = step(carries, &owner, &keys)?;
        for (sum, gradients) in sum.iter().zip(gradients) {
            carries.push(placed(sum, &owner.index, &gradients)?);
        }
        Ok(carries)
    })?;
    let sum = carries.split_off(count).pop();
    Ok((carries, sum.map(|sum| group.reduce_scatter(&sum, TOKENS)).transpose()?))
}

/// What a device has in a step of the ring.
struct State {
    carries: Vec<Tensor>,
    /// The keys and values of the step's owner.
    keys: Tensor,
    /// The gradients of the previous owner's.
    sum: Option<Tensor>,
}

/// Keys and values are passed on while they are used, and the sum of their gradients follows.
fn around(
    group: &Group,
    keys: &Tensor,
    own: Option<Tensor>,
    carries: Vec<Tensor>,
    step: Step<'_>,
) -> Result<Results> {
    let (count, last) = (carries.len(), group.size() - 1);
    let use_keys = |state: State, number: &Tensor| {
        // Nothing here depends on this, so that it is behind the blocks of the step.
        let sum = state.sum.map(|sum| pass(group, &sum)).transpose()?;
        let owner = Owner::new(group, number)?;
        let (carries, gradients) = step(state.carries, &owner, &state.keys)?;
        let sum = match (sum, gradients) {
            (Some(sum), Some(gradients)) => Some((sum + gradients)?),
            (_, gradients) => gradients,
        };
        Ok(State { carries, sum, ..state })
    };
    let mut state = State { carries, keys: pass(group, keys)?, sum: None };
    if last > 1 {
        state.sum = own.as_ref().map(|own| zeros(own.dtype(), own.dims())).transpose()?;
        let values = run_steps(1..last, state.into_values(), |values, number| {
            let state = State::from_values(values, count)?;
            let next = pass(group, &state.keys)?;
            Ok(State { keys: next, ..use_keys(state, number)? }.into_values())
        })?;
        state = State::from_values(values, count)?;
    }
    let state = use_keys(state, &constant(&[], &[last as i32])?)?;
    let sum = own.zip(state.sum).map(|(own, sum)| own + pass(group, &sum)?);
    Ok((state.carries, sum.transpose()?))
}

impl State {
    fn into_values(self) -> Vec<Tensor> {
        self.carries.into_iter().chain([self.keys]).chain(self.sum).collect()
    }

    fn from_values(mut values: Vec<Tensor>, carries: usize) -> Result<State> {
        let mut rest = values.split_off(carries).into_iter();
        let keys = rest.next().ok_or_else(|| super::invalid("keys"))?;
        Ok(State { carries: values, keys, sum: rest.next() })
    }
}

/// Passes a tensor to the next device of the ring.
fn pass(group: &Group, x: &Tensor) -> Result<Tensor> {
    let pairs: Vec<_> = (0..group.size()).map(|i| (i, (i + 1) % group.size())).collect();
    group.permute(x, &pairs)
}

/// Runs a loop over the numbers of steps.
fn run_steps(
    numbers: std::ops::Range<usize>,
    carries: Vec<Tensor>,
    body: impl Fn(Vec<Tensor>, &Tensor) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let steps = (iota(DType::I32, &[numbers.len()], 0)? + numbers.start as f64)?;
    let results = scan(&carries.iter().collect::<Vec<_>>(), &[&steps])
        .run(|carries, slices| Ok((body(carries, &slices[0])?, vec![])))?;
    Ok(results.carries)
}

/// Where the keys and values of a device start in what is all-gathered.
fn slice_starts(device: &Tensor, shard: &Tensor) -> Result<Vec<Tensor>> {
    let mut starts = vec![full(DType::I32, &[], 0.0)?; shard.rank()];
    starts[TOKENS] = (device * shard.dims()[TOKENS] as f64)?;
    Ok(starts)
}

/// Gradients in the place of a device, in the dtype that is communicated.
fn placed(all: &Tensor, device: &Tensor, gradients: &Tensor) -> Result<Tensor> {
    let starts = slice_starts(device, gradients)?;
    let gradients = gradients.convert(all.dtype())?;
    all.dynamic_update_slice(&gradients, &starts.iter().collect::<Vec<_>>())
}
