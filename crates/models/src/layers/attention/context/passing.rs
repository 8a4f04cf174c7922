//! Keys and values of the other devices, and the way of their gradients to the devices that own
//! them: by an all-gather and a reduce-scatter, or around a ring.

use super::{ContextMethod, ContextParallel};
use fullshard_graph::{Comparison, DType, Group, Result, Tensor, barrier, full, select, zeros};

/// The dimension of tokens in stacked keys and values.
const TOKENS: usize = 3;

/// The device whose keys and values are used in a step.
pub(super) struct Owner {
    /// From 1 to the number of other devices.
    step: usize,
    /// Its index in the group: that of this device minus the step, modulo their number.
    pub index: Tensor,
    /// Whether it comes before this device.
    pub is_before: Tensor,
}

impl Owner {
    pub fn new(group: &Group, device: &Tensor, step: usize) -> Result<Owner> {
        let number = |value: usize| full(DType::I32, &[], value as f64);
        let is_before = device.compare(Comparison::GreaterEqual, &number(step)?)?;
        let before = (device - number(step)?)?;
        let index = select(&is_before, &before, &(&before + number(group.size())?)?)?;
        Ok(Owner { step, index, is_before })
    }
}

/// Passes a tensor to the next device of the ring.
fn pass(group: &Group, x: &Tensor) -> Result<Tensor> {
    let pairs: Vec<_> = (0..group.size()).map(|i| (i, (i + 1) % group.size())).collect();
    group.permute(x, &pairs)
}

/// The first token of a device in what is all-gathered, as the starts of a slice.
fn slice_at(device: &Tensor, shard: &Tensor) -> Result<Vec<Tensor>> {
    let mut starts = vec![full(DType::I32, &[], 0.0)?; shard.rank()];
    starts[TOKENS] = (device * shard.dims()[TOKENS] as f64)?;
    Ok(starts)
}

/// The keys and values of other devices.
pub(super) struct Arriving<'a> {
    context: &'a ContextParallel,
    /// Those of this device.
    own: Tensor,
    /// Those of all devices, or of the owner of the next step.
    arrived: Tensor,
}

impl<'a> Arriving<'a> {
    pub fn new(context: &'a ContextParallel, own: &Tensor) -> Result<Arriving<'a>> {
        let arrived = match context.method {
            _ if context.group.size() == 1 => own.clone(),
            ContextMethod::Gather => context.group.all_gather(own, TOKENS)?,
            ContextMethod::Ring => pass(&context.group, own)?,
        };
        Ok(Arriving { context, own: own.clone(), arrived })
    }

    /// Those of an owner. In a ring they are passed on at once, but not before `after`, the results
    /// of the previous step: the memory is then that of two devices, and no device runs ahead.
    pub fn next(&mut self, owner: &Owner, after: &Tensor) -> Result<Tensor> {
        if self.context.method == ContextMethod::Gather {
            let starts = slice_at(&owner.index, &self.own)?;
            let starts: Vec<&Tensor> = starts.iter().collect();
            return self.arrived.dynamic_slice(&starts, self.own.dims());
        }
        let keys = self.arrived.clone();
        if owner.step + 1 < self.context.group.size() {
            self.arrived = pass(&self.context.group, &barrier(&[&keys, after])?[0])?;
        }
        Ok(keys)
    }
}

/// The gradients of keys and values, summed over the devices that used them.
pub(super) struct Leaving<'a> {
    context: &'a ContextParallel,
    /// Those of this device's own keys and values, by its own queries.
    own: Tensor,
    /// Those by this device of all keys and values, or the sum that travels around the ring.
    sum: Option<Tensor>,
}

impl<'a> Leaving<'a> {
    /// Starts from the gradients of a device's own keys and values.
    pub fn new(
        context: &'a ContextParallel,
        device: &Tensor,
        own: Tensor,
        keys: &Tensor,
    ) -> Result<Leaving<'a>> {
        let is_gathered = context.method == ContextMethod::Gather && context.group.size() > 1;
        let mut leaving = Leaving { context, own, sum: None };
        if is_gathered {
            let mut all = keys.dims().to_vec();
            all[TOKENS] *= context.group.size();
            let none = zeros(keys.dtype(), &all)?;
            leaving.sum = Some(leaving.placed(&none, device, &leaving.own)?);
        }
        Ok(leaving)
    }

    /// Adds the gradients of an owner's keys and values.
    pub fn add(&mut self, owner: &Owner, gradients: &Tensor) -> Result<()> {
        let sum = match (self.context.method, &self.sum) {
            (ContextMethod::Gather, Some(all)) => self.placed(all, &owner.index, gradients)?,
            (ContextMethod::Ring, Some(sum)) => (pass(&self.context.group, sum)? + gradients)?,
            (_, None) => gradients.clone(),
        };
        self.sum = Some(sum);
        Ok(())
    }

    /// The gradients of this device's keys and values.
    pub fn home(self) -> Result<Tensor> {
        match (self.context.method, &self.sum) {
            (_, None) => Ok(self.own),
            (ContextMethod::Gather, Some(all)) => self.context.group.reduce_scatter(all, TOKENS),
            (ContextMethod::Ring, Some(sum)) => self.own + pass(&self.context.group, sum)?,
        }
    }

    /// Gradients in the place of a device, in the dtype that is communicated.
    fn placed(&self, all: &Tensor, device: &Tensor, gradients: &Tensor) -> Result<Tensor> {
        let starts = slice_at(device, gradients)?;
        let gradients = gradients.convert(all.dtype())?;
        all.dynamic_update_slice(&gradients, &starts.iter().collect::<Vec<_>>())
    }
}
