//! A training step and an evaluation step, each one program.
//!
//! A step whose loss or gradient is no finite number updates nothing, and neither does any step
//! after it: each is told the metrics of the one before, so that the host can launch ahead and
//! still find the state as it was before the first bad step.

use crate::error::Error;
use crate::spec::{StepSpec, shard};
use fullshard_graph::MeshExt;
use fullshard_graph::{
    Argument, DType, Group, Key, Program, Result, Sharding, Tensor, barrier, concatenate, constant,
    module, scan, select, value_aux_and_grad, zeros,
};
use fullshard_models::{Loss, Scope, label_count};
use fullshard_optim::{Update, clip_factor, global_norm};
use fullshard_parallel::{AXIS, Sharded};
use sha2::{Digest, Sha256};

/// What a step is given beside the state.
struct Feed {
    /// `[accumulation, sequences, tokens]`, this device's sequences.
    tokens: Tensor,
    labels: Tensor,
    scalars: Tensor,
    dropout: Key,
    /// The metrics of the step before.
    previous: Tensor,
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
    /// The program of a training step. From the state, tokens and labels
    /// (`i32[accumulation, sequences, tokens]`), the optimizer's scalars, a seed (`u32[2]`), the
    /// number of the step (`i32`) and the metrics of the step before, to the next state and its
    /// metrics. These are `f32[3]`: the mean loss, the norm of the gradient before clipping and
    /// the number of labels that counted.
    pub fn step_program(&self) -> std::result::Result<Program, Error> {
        let mesh = &self.placement.mesh;
        let state = self.state()?;
        let (tokens, cut) = self.tokens_type()?;
        let tokens = Argument::new(tokens).sharded(&cut);
        let (scalars, vector) = self.whole(DType::F32, &[self.optimizer.scalar_count()]);
        let (seed, _) = self.whole(DType::U32, &[2]);
        let (number, scalar) = self.whole(DType::I32, &[]);
        let (previous, _) = self.whole(DType::F32, &[METRICS]);
        let donated = state.iter().enumerate().map(|(i, tensor)| {
            Argument::new(tensor.ty.clone()).sharded(&tensor.sharding).donated_to(i)
        });
        let feed = [tokens.clone(), tokens, scalars, seed, number, previous];
        let arguments: Vec<Argument> = donated.chain(feed).collect();
        let mut shardings: Vec<Sharding> = state.iter().map(|s| s.sharding.clone()).collect();
        let feed = [cut.clone(), cut, vector.clone(), vector.clone(), scalar, vector.clone()];
        let inputs: Vec<Sharding> = shardings.iter().cloned().chain(feed).collect();
        shardings.push(vector);
        let program = Program::trace("train_step", &arguments, |arguments| {
            let inputs: Vec<_> = arguments.iter().zip(inputs).collect();
            mesh.manual(&[AXIS], &inputs, &shardings, |locals| self.step(locals, state.len()))
        })?;
        let program = program.in_dialect(self.placement.options.dialect);
        Ok(program.sharded_results(&shardings)?)
    }

    /// The program of an evaluation step on so many sequences: from the parameters, tokens and
    /// labels (`i32[sequences, tokens]`) to `f32[2]`: the sum of the losses and the number of
    /// labels that counted.
    pub fn eval_program(&self, sequences: usize) -> std::result::Result<Program, Error> {
        let mesh = &self.placement.mesh;
        let state = self.parameter_state()?;
        let (tokens, cut) = self.eval_tokens_type(sequences)?;
        let tokens = Argument::new(tokens).sharded(&cut);
        let kept = state.iter().map(|s| Argument::new(s.ty.clone()).sharded(&s.sharding));
        let arguments: Vec<Argument> = kept.chain([tokens.clone(), tokens]).collect();
        let inputs = state.iter().map(|s| s.sharding.clone()).chain([cut.clone(), cut]);
        let inputs: Vec<Sharding> = inputs.collect();
        let outputs = [mesh.replicated(1)];
        let program = Program::trace("eval_step", &arguments, |arguments| {
            let inputs: Vec<_> = arguments.iter().zip(inputs).collect();
            mesh.manual(&[AXIS], &inputs, &outputs, |mut locals| {
                let batch = locals.split_off(state.len());
                let group = mesh.over(&[AXIS])?;
                let tracer = Sharded::new(&self.placement, &group, &locals, None);
                let loss = self.loss(&tracer, &batch[0], &batch[1])?;
                let both = concatenate(&[&loss.sum.expand(0)?, &loss.count.expand(0)?], 0)?;
                Ok(vec![group.sum(&both)?])
            })
        })?;
        let program = program.in_dialect(self.placement.options.dialect);
        Ok(program.sharded_results(&outputs)?)
    }

    /// A step on one device's parts.
    fn step(&self, mut locals: Vec<Tensor>, state: usize) -> Result<Vec<Tensor>> {
        let group = self.placement.mesh.over(&[AXIS])?;
        let feed = locals.split_off(state);
        let slots = locals.split_off(self.placement.parameters.len());
        let dropout = Key::new(&feed[3])?.named("dropout")?.fold(&feed[4])?;
        let [tokens, labels, scalars, previous] =
            [&feed[0], &feed[1], &feed[2], &feed[5]].map(Tensor::clone);
        let feed = Feed { tokens, labels, scalars, dropout, previous };

        let vocabulary = self.model.dimensions().vocabulary;
        let count = group.sum(&label_count(&feed.labels, vocabulary)?)?;
        let at_least_one = count.maximum(&constant(&[], &[1.0_f32])?)?;
        // The mean over all devices' labels, times the devices, since gradients are averaged.
        let scale = (group.size() as f64 / &at_least_one)?;
        let (sum, gradients) = self.gradients(&group, &locals, &feed, &scale)?;
        let loss = (group.sum(&sum)? / &at_least_one)?;
        module("optimizer", || self.update(&group, locals, slots, &feed, gradients, [loss, count]))
    }

    /// The next state and the metrics, from gradients, the mean loss and the number of labels.
    fn update(
        &self,
        group: &Group,
        locals: Vec<Tensor>,
        slots: Vec<Tensor>,
        feed: &Feed,
        gradients: Vec<Tensor>,
        [loss, count]: [Tensor; 2],
    ) -> Result<Vec<Tensor>> {
        let trained = self.placement.trained();
        let shards: Vec<_> =
            trained.iter().map(|&i| shard(&self.placement.parameters[i], Some(group))).collect();
        let norm = global_norm(&gradients.iter().zip(&shards).collect::<Vec<_>>())?;
        let clip = self.max_grad_norm.map(|limit| clip_factor(&norm, limit)).transpose()?;
        let metrics = [loss.expand(0)?, norm.expand(0)?, count.expand(0)?];
        let metrics = concatenate(&metrics.iter().collect::<Vec<_>>(), 0)?;
        let before = all_finite(&feed.previous)?;
        let good = before.and(&all_finite(&metrics)?)?;
        let metrics = select(&before, &metrics, &feed.previous)?;

        let old_slots = slots.clone();
        let mut slots = slots.into_iter();
        let shared = Shared { scalars: feed.scalars.clone(), good, clip };
        let (mut updates, mut before) = (Vec::new(), Vec::new());
        for ((&i, shard), gradient) in trained.iter().zip(shards).zip(gradients) {
            let count = self.optimizer.slots(&shard).len();
            let slots = slots.by_ref().take(count).collect();
            let decays = self.decays(&self.placement.parameters[i]);
            let (parameter, shared) = self.apart(&locals[i], &shared)?;
            let gradient = match &shared.clip {
                Some(factor) => (gradient * factor)?,
                None => gradient,
            };
            before.push((parameter.clone(), shared.good));
            let scalars = shared.scalars;
            updates.push(Update { shard, parameter, gradient, slots, decays, scalars });
        }
        let updated = self.optimizer.update(updates)?;

        let mut results = locals;
        let mut next_slots = Vec::new();
        for ((&i, updated), (parameter, good)) in trained.iter().zip(updated).zip(&before) {
            results[i] = select(good, &updated.parameter, parameter)?;
            next_slots.extend(updated.slots.into_iter().map(|slot| (slot, good)));
        }
        for ((next, good), old) in next_slots.iter().zip(&old_slots) {
            results.push(select(good, next, old)?);
        }
        results.push(metrics);
        Ok(results)
    }

    /// A parameter and what its update shares with those of others. Where the platform wants it, a
    /// large one seems to share nothing: else the compiler makes one kernel of several updates,
    /// which reads and writes too much at a time and takes long to compile.
    fn apart(&self, parameter: &Tensor, shared: &Shared) -> Result<(Tensor, Shared)> {
        let large = parameter.ty().elements() >= LARGE_UPDATE;
        if !(large && self.placement.options.forms.separate_updates) {
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
            _ => Err(fullshard_graph::Error::new("update", "a barrier lost something")),
        }
    }

    /// The summed loss of this device and the gradients of the parts it trains.
    fn gradients(
        &self,
        group: &Group,
        parts: &[Tensor],
        feed: &Feed,
        scale: &Tensor,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let trained = self.placement.trained();
        let inputs: Vec<&Tensor> = trained.iter().map(|&i| &parts[i]).collect();
        if self.batch.accumulation == 1 {
            let [tokens, labels] =
                [&feed.tokens, &feed.labels].map(|batches| batches.reshape(&batches.dims()[1..]));
            return self.micro_step(&inputs, scale, (&tokens?, &labels?), |inputs| {
                let parts = with_trained(parts, &trained, inputs);
                Sharded::new(&self.placement, group, &parts, Some(feed.dropout.clone()))
            });
        }
        if self.batch.reduce_each {
            return self.accumulate(&inputs, feed, scale, |inputs, dropout| {
                let parts = with_trained(parts, &trained, inputs);
                Sharded::new(&self.placement, group, &parts, Some(dropout))
            });
        }
        // Everything is gathered once, and reduced once.
        let wholes = Sharded::gather_all(&self.placement, group, parts)?;
        let trained_wholes: Vec<&Tensor> = trained.iter().map(|&i| &wholes[i]).collect();
        let (sum, gradients) =
            self.accumulate(&trained_wholes, feed, scale, |inputs, dropout| {
                let wholes = with_trained(&wholes, &trained, inputs);
                Sharded::with_wholes(&self.placement, group, &wholes, Some(dropout))
            })?;
        Ok((sum, Sharded::reduce_all(&self.placement, group, &gradients)?))
    }

    /// The summed loss and the gradients of one batch.
    fn micro_step<'a>(
        &self,
        inputs: &[&Tensor],
        scale: &Tensor,
        (tokens, labels): (&Tensor, &Tensor),
        tracer: impl FnOnce(&[Tensor]) -> Sharded<'a>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let (_, mut sums, gradients) = value_aux_and_grad(inputs, |inputs| {
            let loss = self.loss(&tracer(&inputs), tokens, labels)?;
            Ok(((&loss.sum * scale)?, vec![loss.sum]))
        })?;
        Ok((sums.remove(0), gradients))
    }

    /// The summed loss and the gradients, in `f32`, of all accumulated batches.
    fn accumulate<'a>(
        &self,
        inputs: &[&Tensor],
        feed: &Feed,
        scale: &Tensor,
        tracer: impl FnOnce(&[Tensor], Key) -> Sharded<'a>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let mut sums = vec![zeros(DType::F32, &[])?];
        for input in inputs {
            sums.push(zeros(DType::F32, input.dims())?);
        }
        let index = fullshard_graph::iota(DType::I32, &[self.batch.accumulation], 0)?;
        let batches = [&index, &feed.tokens, &feed.labels];
        let carries: Vec<&Tensor> = sums.iter().collect();
        let results = scan(&carries, &batches).run(|carries, batch| {
            let dropout = feed.dropout.fold(&batch[0])?;
            let (sum, gradients) =
                self.micro_step(inputs, scale, (&batch[1], &batch[2]), |inputs| {
                    tracer(inputs, dropout)
                })?;
            let added = [sum].into_iter().chain(gradients).zip(&carries);
            let added = added.map(|(new, sum)| sum + new.convert(DType::F32)?);
            Ok((added.collect::<Result<_>>()?, Vec::new()))
        })?;
        let mut sums = results.carries;
        Ok((sums.remove(0), sums))
    }

    fn loss(&self, tracer: &Sharded<'_>, tokens: &Tensor, labels: &Tensor) -> Result<Loss> {
        let mut both = Scope::root(tracer, |scope| {
            let loss = self.model.loss(scope, tokens, labels)?;
            Ok(vec![loss.sum, loss.count])
        })?;
        let count = both.remove(1);
        Ok(Loss { sum: both.remove(0), count })
    }
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
