//! The training step and the evaluation step, each one program.
//!
//! A step whose loss or gradient is not finite updates nothing, and neither does any step after it:
//! each takes the metrics of the previous one, so that the host can launch ahead and still find the
//! state from before the first bad step.

use crate::arguments::{StepArguments, StepInputs, StepResults, TrainState, TrainedShards};
use crate::error::Error;
use crate::layout::TensorSpec;
use crate::ordered::Ordered;
use crate::spec::StepSpec;
use fullshard_graph::{
    Argument, Comparison, DType, Key, Mesh, MeshError, MeshExt, Program, Result, Sharding, Tensor,
    barrier, concatenate, constant, module, scan, select, value_aux_and_grad, zeros,
};
use fullshard_models::{Loss, Scope};
use fullshard_optim::{Update, clip_factor, global_norm};
use fullshard_parallel::Sharded;
use sha2::{Digest, Sha256};

/// The inputs of the forward and backward passes besides the parameters.
struct PassInputs<'a> {
    /// The task's tensors of all microbatches, this device's shards.
    batch: &'a [Tensor],
    dropout: Key,
    /// The factor of the summed loss.
    scale: Tensor,
}

/// The inputs that the updates of all parameters share.
#[derive(Clone)]
struct SharedInputs {
    scalars: Tensor,
    /// Whether anything is updated.
    good: Tensor,
    /// The factor that clips gradients.
    clip: Option<Tensor>,
}

/// The elements from which the update of a parameter gets a separate kernel.
const LARGE_UPDATE: usize = 1 << 20;

/// The number of metrics of a step: mean loss, gradient norm, number of labels.
pub const METRICS: usize = 3;

/// The SHA-256 of a program's text, which identifies it.
pub fn program_hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl StepSpec {
    /// The program of a training step, from [`StepArguments`] to [`StepResults`]. Its metrics are
    /// `f32[3]`: the mean loss, the norm of the gradient before clipping and the number of labels
    /// that are not ignored.
    pub fn step_program(&self) -> std::result::Result<Program, Error> {
        let layout = self.step_arguments()?;
        let results = StepResults {
            state: layout.state.map(|tensor| tensor.sharding.clone()),
            metrics: layout.inputs.previous.sharding.clone(),
        };
        let arguments = layout.donated_to(&results.positions().state)?;
        let axes = self.placement.manual_axes();
        let program =
            self.manual_program("train_step", &axes, &arguments, &results, |it| self.step(it))?;
        Ok(program.in_dialect(self.placement.options.dialect))
    }

    /// The program of an evaluation step on `sequences` sequences, from [`EvalArguments`] to
    /// `f32[2]`: the sum of the losses and the number of labels that are not ignored.
    ///
    /// [`EvalArguments`]: crate::EvalArguments
    pub fn eval_program(&self, sequences: usize) -> std::result::Result<Program, Error> {
        let arguments = self.eval_arguments(sequences)?.map(TensorSpec::argument);
        let results = vec![self.placement.mesh.replicated(1)];
        let axes = self.placement.manual_axes();
        let program = self.manual_program("eval_step", &axes, &arguments, &results, |locals| {
            let tracer = Sharded::new(&self.placement, &locals.parameters, None);
            let loss = self.loss(&tracer, &locals.batch)?;
            let both = concatenate(&[&loss.sum.expand(0)?, &loss.count.expand(0)?], 0)?;
            Ok(vec![self.placement.token_group().sum(&both)?])
        })?;
        Ok(program.in_dialect(self.placement.options.dialect))
    }

    /// A program in a region that is manual over some axes, by their positions: there every device
    /// computes on its own shards.
    pub(crate) fn manual_program<A, R>(
        &self,
        name: &str,
        axes: &[usize],
        arguments: &A,
        results: &R,
        body: impl FnOnce(A::Of<Tensor>) -> Result<R::Of<Tensor>>,
    ) -> std::result::Result<Program, Error>
    where
        A: Ordered<(Argument, Sharding)>,
        R: Ordered<Sharding>,
    {
        let mesh = &self.placement.mesh;
        let (types, shardings): (Vec<_>, Vec<_>) = arguments.flatten().into_iter().unzip();
        let outputs = results.flatten();
        let local = |shardings: &[Sharding]| {
            let local = shardings.iter().map(|sharding| over_axes(mesh, sharding, axes));
            local.collect::<std::result::Result<Vec<_>, _>>()
        };
        let (inside, results) = (local(&shardings)?, local(&outputs)?);
        let program = Program::trace(name, &types, |tensors| {
            let body = |locals| {
                let locals =
                    arguments.unflatten(locals).map_err(|error| trace_error(name, error))?;
                Ok(body(locals)?.flatten())
            };
            if axes.is_empty() {
                return body(tensors);
            }
            let inputs: Vec<_> = tensors.iter().zip(inside).collect();
            let names: Vec<&str> = axes.iter().map(|&axis| mesh.axis_name(axis)).collect();
            mesh.manual(&names, &inputs, &results, body)
        })?;
        Ok(program.sharded_results(&outputs)?)
    }

    /// A training step on one device's shards.
    pub(crate) fn step(&self, arguments: StepArguments<Tensor>) -> Result<StepResults<Tensor>> {
        let group = self.placement.token_group();
        let StepArguments { state, inputs } = arguments;
        let dropout = Key::new(&inputs.seed)?.named("dropout")?.fold(&inputs.step)?;
        let labels = self.model.label_count(&inputs.batch)?;
        let count = self.placement.sample_group().sum(&labels)?;
        let at_least_one = count.maximum(&constant(&[], &[1.0_f32])?)?;
        // The mean over all devices' labels, times the devices, since gradients are averaged.
        let scale = (group.size() as f64 / &at_least_one)?;
        let pass = PassInputs { batch: &inputs.batch, dropout, scale };
        let (sum, gradients) = self.gradients(&state.parameters, &pass)?;
        let loss = (group.sum(&sum)? / &at_least_one)?;
        module("optimizer", || self.update_shards(state, &inputs, gradients, [loss, count]))
    }

    /// The update on each device's own shards, also over automatic axes.
    fn update_shards(
        &self,
        state: TrainState<Tensor>,
        inputs: &StepInputs<Tensor>,
        gradients: Vec<Tensor>,
        metrics: [Tensor; 2],
    ) -> Result<StepResults<Tensor>> {
        let stored = self.state().map_err(|error| trace_error("update", error))?;
        let stored = stored.map(|state| state.tensor.sharding.clone());
        let shards = TrainedShards { state, gradients };
        let trained = self.placement.trained();
        let gradients = trained.iter().map(|&i| stored.parameters[i].clone()).collect();
        let shardings = TrainedShards { state: stored.clone(), gradients };
        let results = StepResults { state: stored, metrics: self.placement.mesh.replicated(1) };
        let locals: Vec<_> =
            shards.each_ref().flatten().into_iter().zip(shardings.flatten()).collect();
        let updated = self.placement.mesh.per_shard(&locals, &results.flatten(), |locals| {
            let locals = shards.unflatten(locals).map_err(|error| trace_error("update", error))?;
            Ok(self.update(locals.state, inputs, locals.gradients, metrics)?.flatten())
        })?;
        results.unflatten(updated).map_err(|error| trace_error("update", error))
    }

    /// The next state and the metrics, from gradients, the mean loss and the number of labels.
    fn update(
        &self,
        state: TrainState<Tensor>,
        inputs: &StepInputs<Tensor>,
        gradients: Vec<Tensor>,
        [loss, count]: [Tensor; 2],
    ) -> Result<StepResults<Tensor>> {
        let trained = self.placement.trained();
        let shards: Vec<_> = trained.iter().map(|&i| self.shard(i)).collect();
        let norm = global_norm(&gradients.iter().zip(&shards).collect::<Vec<_>>())?;
        let clip = self.max_grad_norm.map(|limit| clip_factor(&norm, limit)).transpose()?;
        let metrics = [loss.expand(0)?, norm.expand(0)?, count.expand(0)?];
        let metrics = concatenate(&metrics.iter().collect::<Vec<_>>(), 0)?;
        let (good, metrics) = match &inputs.loss_limit {
            Some(limit) => {
                let fine = loss.compare(Comparison::LessEqual, limit)?;
                (fine.and(&all_finite(&metrics)?)?, metrics)
            }
            None => {
                let before = all_finite(&inputs.previous)?;
                let good = before.and(&all_finite(&metrics)?)?;
                (good, select(&before, &metrics, &inputs.previous)?)
            }
        };

        let mut slots = state.optimizer.iter().cloned();
        let shared = SharedInputs { scalars: inputs.scalars.clone(), good, clip };
        let (mut updates, mut before) = (Vec::new(), Vec::new());
        for ((&i, shard), gradient) in trained.iter().zip(shards).zip(gradients) {
            let count = self.optimizer.slots(&shard).len();
            let slots = slots.by_ref().take(count).collect();
            let decays = self.decays(&self.placement.parameters[i]);
            let (parameter, shared) = self.isolate_update(&state.parameters[i], &shared)?;
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

    /// A parameter and the shared inputs of its update. Where the platform needs it, those of a
    /// large parameter are behind a barrier: otherwise the compiler fuses several updates into one
    /// kernel, which reads and writes too much at a time and is slow to compile.
    fn isolate_update(
        &self,
        parameter: &Tensor,
        shared: &SharedInputs,
    ) -> Result<(Tensor, SharedInputs)> {
        let large = parameter.ty().elements() >= LARGE_UPDATE;
        if !(large && self.placement.options.lowering.separate_updates) {
            return Ok((parameter.clone(), shared.clone()));
        }
        let mut inputs = [parameter, &shared.scalars, &shared.good].to_vec();
        inputs.extend(&shared.clip);
        match &barrier(&inputs)?[..] {
            [parameter, scalars, good, clip @ ..] => {
                let clip = clip.first().cloned();
                let shared = SharedInputs { scalars: scalars.clone(), good: good.clone(), clip };
                Ok((parameter.clone(), shared))
            }
            _ => Err(trace_error("update", "a barrier lost a tensor")),
        }
    }

    /// The summed loss of this device and the gradients of the shards it trains.
    fn gradients(&self, shards: &[Tensor], pass: &PassInputs<'_>) -> Result<(Tensor, Vec<Tensor>)> {
        let (placement, trained) = (&self.placement, self.placement.trained());
        let accumulated = self.batch.accumulation > 1;
        let sync = !accumulated || self.batch.sync_each_microbatch;
        if sync && !placement.gathers_per_step() {
            let inputs: Vec<&Tensor> = trained.iter().map(|&i| &shards[i]).collect();
            return self.accumulate(&inputs, shards, pass, Ok, |inputs, dropout| {
                let shards = with_trained(shards, &trained, inputs);
                Sharded::new(placement, &shards, Some(dropout))
            });
        }
        // All-gather once. Reduce once too, unless each microbatch is to be reduced.
        let full_params = Sharded::gather_all(placement, shards)?;
        let inputs: Vec<&Tensor> = trained.iter().map(|&i| &full_params[i]).collect();
        let reduce = |gradients: Vec<Tensor>| Sharded::reduce_all(placement, &gradients);
        let each = |gradients| if sync { reduce(gradients) } else { Ok(gradients) };
        let (sum, gradients) =
            self.accumulate(&inputs, shards, pass, each, |inputs, dropout| {
                let full_params = with_trained(&full_params, &trained, inputs);
                Sharded::with_full_params(placement, &full_params, Some(dropout))
            })?;
        Ok((sum, if sync { gradients } else { reduce(gradients)? }))
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

    /// The summed loss and the gradients of all microbatches; `each` is applied to those of one.
    /// Accumulated gradients are `f32`.
    fn accumulate<'a>(
        &self,
        inputs: &[&Tensor],
        shards: &[Tensor],
        pass: &PassInputs<'_>,
        each: impl Fn(Vec<Tensor>) -> Result<Vec<Tensor>>,
        tracer: impl Fn(&[Tensor], Key) -> Sharded<'a>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let one = |batch: &[Tensor], dropout: Key| {
            let (sum, gradients) =
                self.micro_step(inputs, &pass.scale, batch, |inputs| tracer(inputs, dropout))?;
            Ok((sum, each(gradients)?))
        };
        if self.batch.accumulation == 1 {
            let squeeze = |tensor: &Tensor| tensor.reshape(&tensor.dims()[1..]);
            let batch = pass.batch.iter().map(squeeze).collect::<Result<Vec<_>>>()?;
            return one(&batch, pass.dropout.clone());
        }
        let mut sums = vec![zeros(DType::F32, &[])?];
        for dims in self.gradient_dims(inputs, shards) {
            sums.push(zeros(DType::F32, &dims)?);
        }
        let index = fullshard_graph::iota(DType::I32, &[self.batch.accumulation], 0)?;
        let microbatches: Vec<&Tensor> = [&index].into_iter().chain(pass.batch).collect();
        let carries: Vec<&Tensor> = sums.iter().collect();
        let results = scan(&carries, &microbatches).run(|carries, mut batch| {
            let dropout = pass.dropout.fold(&batch.remove(0))?;
            let (sum, gradients) = one(&batch, dropout)?;
            let added = [sum].into_iter().chain(gradients).zip(&carries);
            let added = added.map(|(new, sum)| sum + new.convert(DType::F32)?);
            Ok((added.collect::<Result<_>>()?, Vec::new()))
        })?;
        let mut sums = results.carries;
        Ok((sums.remove(0), sums))
    }

    /// The dimensions of accumulated gradients: those of shards if each microbatch is reduced.
    fn gradient_dims(&self, inputs: &[&Tensor], shards: &[Tensor]) -> Vec<Vec<usize>> {
        let trained = self.placement.trained();
        match self.batch.sync_each_microbatch {
            true => trained.iter().map(|&i| shards[i].dims().to_vec()).collect(),
            false => inputs.iter().map(|input| input.dims().to_vec()).collect(),
        }
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

pub(crate) fn trace_error(what: &str, reason: impl ToString) -> fullshard_graph::Error {
    fullshard_graph::Error::new(what, reason.to_string())
}

/// A sharding without the axes that are not among these.
fn over_axes(
    mesh: &Mesh,
    sharding: &Sharding,
    axes: &[usize],
) -> std::result::Result<Sharding, MeshError> {
    let kept = |dim: &Vec<usize>| dim.iter().copied().filter(|axis| axes.contains(axis)).collect();
    mesh.sharding_over(sharding.dims().iter().map(kept).collect())
}

/// Whether all elements of a vector are finite.
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
