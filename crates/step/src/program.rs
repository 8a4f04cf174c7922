//! A training step and an evaluation step, each one program.
//!
//! A step whose loss or gradient is no finite number updates nothing, and neither does any step
//! after it: each takes the metrics of the one before, so that the host can launch ahead and
//! still find the state as it was before the first bad step.

use crate::arguments::{StepArguments, StepInputs, StepResults, TrainState};
use crate::error::Error;
use crate::layout::TensorSpec;
use crate::ordered::Ordered;
use crate::spec::{StepSpec, shard};
use fullshard_graph::MeshExt;
use fullshard_graph::{
    Argument, DType, Group, Key, Program, Result, Sharding, Tensor, barrier, concatenate, constant,
    module, scan, select, value_aux_and_grad, zeros,
};
use fullshard_models::{Loss, Scope};
use fullshard_optim::{Update, clip_factor, global_norm};
use fullshard_parallel::{AXIS, Sharded};
use sha2::{Digest, Sha256};

/// What the forward and backward passes of a step take beside the parameters.
struct Feed<'a> {
    /// The task's tensors of all microbatches, this device's shards.
    batch: &'a [Tensor],
    dropout: Key,
    /// What the summed loss is multiplied by.
    scale: Tensor,
}

/// What the updates of all parameters share.
#[derive(Clone)]
struct Shared {
    scalars: Tensor,
    /// Whether anything is to be updated.
    good: Tensor,
    /// What gradients are clipped by.
    clip: Option<Tensor>,
}

/// The elements of a parameter whose update is worth a kernel of its own.
const LARGE_UPDATE: usize = 1 << 20;

/// What a step says of itself: the mean loss, the norm of the gradient, the number of labels.
pub const METRICS: usize = 3;

/// The SHA-256 of a program's text: what tells whether two are the same.
pub fn program_hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl StepSpec {
    /// The program of a training step, from [`StepArguments`] to [`StepResults`]. Its metrics are
    /// `f32[3]`: the mean loss, the norm of the gradient before clipping and the number of labels
    /// that counted.
    pub fn step_program(&self) -> std::result::Result<Program, Error> {
        let layout = self.step_arguments()?;
        let results = StepResults {
            state: layout.state.map(|tensor| tensor.sharding.clone()),
            metrics: layout.inputs.previous.sharding.clone(),
        };
        let next = results.positions().state;
        let state = layout.state.zip(&next)?.map(|(tensor, next)| {
            let (argument, sharding) = tensor.argument();
            (argument.donated_to(**next), sharding)
        });
        let arguments = StepArguments { state, inputs: layout.inputs.map(TensorSpec::argument) };
        let program =
            self.sharded_program("train_step", &arguments, &results, |group, locals| {
                self.step(group, locals)
            })?;
        Ok(program.in_dialect(self.placement.options.dialect))
    }

    /// The program of an evaluation step on so many sequences, from [`EvalArguments`] to `f32[2]`:
    /// the sum of the losses and the number of labels that counted.
    ///
    /// [`EvalArguments`]: crate::EvalArguments
    pub fn eval_program(&self, sequences: usize) -> std::result::Result<Program, Error> {
        let arguments = self.eval_arguments(sequences)?.map(TensorSpec::argument);
        let results = vec![self.placement.mesh.replicated(1)];
        let program =
            self.sharded_program("eval_step", &arguments, &results, |group, locals| {
                let tracer = Sharded::new(&self.placement, group, &locals.parameters, None);
                let loss = self.loss(&tracer, &locals.batch)?;
                let both = concatenate(&[&loss.sum.expand(0)?, &loss.count.expand(0)?], 0)?;
                Ok(vec![group.sum(&both)?])
            })?;
        Ok(program.in_dialect(self.placement.options.dialect))
    }

    /// A program in which every device computes with its own shards.
    pub(crate) fn sharded_program<A, R>(
        &self,
        name: &str,
        arguments: &A,
        results: &R,
        body: impl FnOnce(&Group, A::Of<Tensor>) -> Result<R::Of<Tensor>>,
    ) -> std::result::Result<Program, Error>
    where
        A: Ordered<(Argument, Sharding)>,
        R: Ordered<Sharding>,
    {
        let mesh = &self.placement.mesh;
        let (types, shardings): (Vec<_>, Vec<_>) = arguments.flatten().into_iter().unzip();
        let outputs = results.flatten();
        let program = Program::trace(name, &types, |tensors| {
            let inputs: Vec<_> = tensors.iter().zip(shardings).collect();
            mesh.manual(&[AXIS], &inputs, &outputs, |locals| {
                let locals = arguments.unflatten(locals).map_err(|error| wrong(name, error))?;
                Ok(body(&mesh.over(&[AXIS])?, locals)?.flatten())
            })
        })?;
        Ok(program.sharded_results(&outputs)?)
    }

    /// A step on one device's shards.
    fn step(&self, group: &Group, arguments: StepArguments<Tensor>) -> Result<StepResults<Tensor>> {
        let StepArguments { state, inputs } = arguments;
        let dropout = Key::new(&inputs.seed)?.named("dropout")?.fold(&inputs.step)?;
        let count = group.sum(&self.model.label_count(&inputs.batch)?)?;
        let at_least_one = count.maximum(&constant(&[], &[1.0_f32])?)?;
        // The mean over all devices' labels, times the devices, since gradients are averaged.
        let scale = (group.size() as f64 / &at_least_one)?;
        let feed = Feed { batch: &inputs.batch, dropout, scale };
        let (sum, gradients) = self.gradients(group, &state.parameters, &feed)?;
        let loss = (group.sum(&sum)? / &at_least_one)?;
        module("optimizer", || self.update(group, state, &inputs, gradients, [loss, count]))
    }

    /// The next state and the metrics, from gradients, the mean loss and the number of labels.
    fn update(
        &self,
        group: &Group,
        state: TrainState<Tensor>,
        inputs: &StepInputs<Tensor>,
        gradients: Vec<Tensor>,
        [loss, count]: [Tensor; 2],
    ) -> Result<StepResults<Tensor>> {
        let trained = self.placement.trained();
        let shards: Vec<_> =
            trained.iter().map(|&i| shard(&self.placement.parameters[i], Some(group))).collect();
        let norm = global_norm(&gradients.iter().zip(&shards).collect::<Vec<_>>())?;
        let clip = self.max_grad_norm.map(|limit| clip_factor(&norm, limit)).transpose()?;
        let metrics = [loss.expand(0)?, norm.expand(0)?, count.expand(0)?];
        let metrics = concatenate(&metrics.iter().collect::<Vec<_>>(), 0)?;
        let before = all_finite(&inputs.previous)?;
        let good = before.and(&all_finite(&metrics)?)?;
        let metrics = select(&before, &metrics, &inputs.previous)?;

        let mut slots = state.optimizer.iter().cloned();
        let shared = Shared { scalars: inputs.scalars.clone(), good, clip };
        let (mut updates, mut before) = (Vec::new(), Vec::new());
        for ((&i, shard), gradient) in trained.iter().zip(shards).zip(gradients) {
            let count = self.optimizer.slots(&shard).len();
            let slots = slots.by_ref().take(count).collect();
            let decays = self.decays(&self.placement.parameters[i]);
            let (parameter, shared) = self.apart(&state.parameters[i], &shared)?;
            let gradient = match &shared.clip {
                Some(factor) => (gradient * factor)?,
                None => gradient,
            };
            before.push((parameter.clone(), shared.good));
            let scalars = shared.scalars;
            updates.push(Update { shard, parameter, gradient, slots, decays, scalars });
        }
        let updated = self.optimizer.update(updates)?;

        let mut parameters = state.parameters;
        let mut next_slots = Vec::new();
        for ((&i, updated), (parameter, good)) in trained.iter().zip(updated).zip(&before) {
            parameters[i] = select(good, &updated.parameter, parameter)?;
            next_slots.extend(updated.slots.into_iter().map(|slot| (slot, good)));
        }
        let slots = next_slots.iter().zip(&state.optimizer);
        let optimizer = slots.map(|((next, good), old)| select(good, next, old));
        let optimizer = optimizer.collect::<Result<_>>()?;
        Ok(StepResults { state: TrainState { parameters, optimizer }, metrics })
    }

    /// A parameter and what its update shares with those of others. Where the platform wants it, a
    /// large one seems to share nothing: else the compiler makes one kernel of several updates,
    /// which reads and writes too much at a time and takes long to compile.
    fn apart(&self, parameter: &Tensor, shared: &Shared) -> Result<(Tensor, Shared)> {
        let large = parameter.ty().elements() >= LARGE_UPDATE;
        if !(large && self.placement.options.lowering.separate_updates) {
            return Ok((parameter.clone(), shared.clone()));
        }
        let mut apart = [parameter, &shared.scalars, &shared.good].to_vec();
        apart.extend(&shared.clip);
        match &barrier(&apart)?[..] {
            [parameter, scalars, good, clip @ ..] => {
                let clip = clip.first().cloned();
                let shared = Shared { scalars: scalars.clone(), good: good.clone(), clip };
                Ok((parameter.clone(), shared))
            }
            _ => Err(wrong("update", "a barrier lost something")),
        }
    }

    /// The summed loss of this device and the gradients of the shards it trains.
    fn gradients(
        &self,
        group: &Group,
        parts: &[Tensor],
        feed: &Feed<'_>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let trained = self.placement.trained();
        let inputs: Vec<&Tensor> = trained.iter().map(|&i| &parts[i]).collect();
        if self.batch.accumulation == 1 {
            let alone = |tensor: &Tensor| tensor.reshape(&tensor.dims()[1..]);
            let batch = feed.batch.iter().map(alone).collect::<Result<Vec<_>>>()?;
            return self.micro_step(&inputs, &feed.scale, &batch, |inputs| {
                let parts = with_trained(parts, &trained, inputs);
                Sharded::new(&self.placement, group, &parts, Some(feed.dropout.clone()))
            });
        }
        if self.batch.sync_each_microbatch {
            return self.accumulate(&inputs, feed, |inputs, dropout| {
                let parts = with_trained(parts, &trained, inputs);
                Sharded::new(&self.placement, group, &parts, Some(dropout))
            });
        }
        // Everything is gathered once, and reduced once.
        let wholes = Sharded::gather_all(&self.placement, group, parts)?;
        let trained_wholes: Vec<&Tensor> = trained.iter().map(|&i| &wholes[i]).collect();
        let (sum, gradients) = self.accumulate(&trained_wholes, feed, |inputs, dropout| {
            let wholes = with_trained(&wholes, &trained, inputs);
            Sharded::with_wholes(&self.placement, group, &wholes, Some(dropout))
        })?;
        Ok((sum, Sharded::reduce_all(&self.placement, group, &gradients)?))
    }

    /// The summed loss and the gradients of one microbatch.
    fn micro_step<'a>(
        &self,
        inputs: &[&Tensor],
        scale: &Tensor,
        batch: &[Tensor],
        tracer: impl FnOnce(&[Tensor]) -> Sharded<'a>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let (_, mut sums, gradients) = value_aux_and_grad(inputs, |inputs| {
            let loss = self.loss(&tracer(&inputs), batch)?;
            Ok(((&loss.sum * scale)?, vec![loss.sum]))
        })?;
        Ok((sums.remove(0), gradients))
    }

    /// The summed loss and the gradients, in `f32`, of all accumulated microbatches.
    fn accumulate<'a>(
        &self,
        inputs: &[&Tensor],
        feed: &Feed<'_>,
        tracer: impl FnOnce(&[Tensor], Key) -> Sharded<'a>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let mut sums = vec![zeros(DType::F32, &[])?];
        for input in inputs {
            sums.push(zeros(DType::F32, input.dims())?);
        }
        let index = fullshard_graph::iota(DType::I32, &[self.batch.accumulation], 0)?;
        let microbatches: Vec<&Tensor> = [&index].into_iter().chain(feed.batch).collect();
        let carries: Vec<&Tensor> = sums.iter().collect();
        let results = scan(&carries, &microbatches).run(|carries, mut batch| {
            let dropout = feed.dropout.fold(&batch.remove(0))?;
            let (sum, gradients) =
                self.micro_step(inputs, &feed.scale, &batch, |inputs| tracer(inputs, dropout))?;
            let added = [sum].into_iter().chain(gradients).zip(&carries);
            let added = added.map(|(new, sum)| sum + new.convert(DType::F32)?);
            Ok((added.collect::<Result<_>>()?, Vec::new()))
        })?;
        let mut sums = results.carries;
        Ok((sums.remove(0), sums))
    }

    fn loss(&self, tracer: &Sharded<'_>, batch: &[Tensor]) -> Result<Loss> {
        let mut both = Scope::root(tracer, |scope| {
            let loss = self.model.loss(scope, batch)?;
            Ok(vec![loss.sum, loss.count])
        })?;
        let count = both.remove(1);
        Ok(Loss { sum: both.remove(0), count })
    }
}

fn wrong(what: &str, reason: impl ToString) -> fullshard_graph::Error {
    fullshard_graph::Error::new(what, reason.to_string())
}

/// Whether all numbers of a vector are finite.
fn all_finite(vector: &Tensor) -> Result<Tensor> {
    vector.is_finite()?.min(&[0])
}

/// All tensors, with those that are trained replaced.
fn with_trained(all: &[Tensor], trained: &[usize], replaced: &[Tensor]) -> Vec<Tensor> {
    let mut all = all.to_vec();
    for (&i, tensor) in trained.iter().zip(replaced) {
        all[i] = tensor.clone();
    }
    all
}
