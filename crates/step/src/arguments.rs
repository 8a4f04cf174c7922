//! The inputs and outputs of a run's programs, in order.

use crate::ordered::Ordered;

/// The training state.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainState<T> {
    /// The parameters, in the order of the placement.
    pub parameters: Vec<T>,
    /// The optimizer's slots, in the order of the parameters that are trained.
    pub optimizer: Vec<T>,
}

/// The inputs of a training step besides the state.
#[derive(Debug, Clone, PartialEq)]
pub struct StepInputs<T> {
    /// The task's tensors, such as tokens and labels; microbatches are the first dimension.
    pub batch: Vec<T>,
    /// The optimizer's scalars.
    pub scalars: T,
    /// The seed of dropout, `u32[2]`.
    pub seed: T,
    /// The step number, `i32`.
    pub step: T,
    /// The metrics of the previous step.
    pub previous: T,
    /// The loss above which a step updates nothing, if the spec has one.
    pub loss_limit: Option<T>,
}

/// The inputs of a training step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepArguments<T> {
    /// The state, which is donated.
    pub state: TrainState<T>,
    /// The rest.
    pub inputs: StepInputs<T>,
}

/// The outputs of a training step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepResults<T> {
    /// The next state.
    pub state: TrainState<T>,
    /// The metrics of the step.
    pub metrics: T,
}

/// What an update reads of a step's tensors besides its inputs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TrainedShards<T> {
    /// The state.
    pub state: TrainState<T>,
    /// The gradients of the parameters that are trained.
    pub gradients: Vec<T>,
}

/// The inputs of an evaluation step.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalArguments<T> {
    /// The parameters, in the order of the placement.
    pub parameters: Vec<T>,
    /// The task's tensors, such as tokens and labels.
    pub batch: Vec<T>,
}

/// The inputs of an initialization program.
#[derive(Debug, Clone, PartialEq)]
pub struct InitInputs<T> {
    /// The seed of the run, `u32[2]`.
    pub seed: T,
    /// The hash of the parameter's name, `u32[2]`.
    pub name: T,
    /// The parameter's layer, `i32`.
    pub layer: T,
}

impl<T> Ordered<T> for TrainState<T> {
    type Of<U> = TrainState<U>;

    fn try_map<'a, U, E>(
        &'a self,
        mut change: impl FnMut(&'a T) -> Result<U, E>,
    ) -> Result<TrainState<U>, E> {
        Ok(TrainState {
            parameters: self.parameters.try_map(&mut change)?,
            optimizer: self.optimizer.try_map(&mut change)?,
        })
    }
}

impl<T> Ordered<T> for StepInputs<T> {
    type Of<U> = StepInputs<U>;

    fn try_map<'a, U, E>(
        &'a self,
        mut change: impl FnMut(&'a T) -> Result<U, E>,
    ) -> Result<StepInputs<U>, E> {
        Ok(StepInputs {
            batch: self.batch.try_map(&mut change)?,
            scalars: change(&self.scalars)?,
            seed: change(&self.seed)?,
            step: change(&self.step)?,
            previous: change(&self.previous)?,
            loss_limit: self.loss_limit.as_ref().map(change).transpose()?,
        })
    }
}

impl<T> Ordered<T> for StepArguments<T> {
    type Of<U> = StepArguments<U>;

    fn try_map<'a, U, E>(
        &'a self,
        mut change: impl FnMut(&'a T) -> Result<U, E>,
    ) -> Result<StepArguments<U>, E> {
        Ok(StepArguments {
            state: self.state.try_map(&mut change)?,
            inputs: self.inputs.try_map(&mut change)?,
        })
    }
}

impl<T> Ordered<T> for StepResults<T> {
    type Of<U> = StepResults<U>;

    fn try_map<'a, U, E>(
        &'a self,
        mut change: impl FnMut(&'a T) -> Result<U, E>,
    ) -> Result<StepResults<U>, E> {
        Ok(StepResults { state: self.state.try_map(&mut change)?, metrics: change(&self.metrics)? })
    }
}

impl<T> Ordered<T> for TrainedShards<T> {
    type Of<U> = TrainedShards<U>;

    fn try_map<'a, U, E>(
        &'a self,
        mut change: impl FnMut(&'a T) -> Result<U, E>,
    ) -> Result<TrainedShards<U>, E> {
        Ok(TrainedShards {
            state: self.state.try_map(&mut change)?,
            gradients: self.gradients.try_map(&mut change)?,
        })
    }
}

impl<T> Ordered<T> for EvalArguments<T> {
    type Of<U> = EvalArguments<U>;

    fn try_map<'a, U, E>(
        &'a self,
        mut change: impl FnMut(&'a T) -> Result<U, E>,
    ) -> Result<EvalArguments<U>, E> {
        Ok(EvalArguments {
            parameters: self.parameters.try_map(&mut change)?,
            batch: self.batch.try_map(&mut change)?,
        })
    }
}

impl<T> Ordered<T> for InitInputs<T> {
    type Of<U> = InitInputs<U>;

    fn try_map<'a, U, E>(
        &'a self,
        mut change: impl FnMut(&'a T) -> Result<U, E>,
    ) -> Result<InitInputs<U>, E> {
        Ok(InitInputs {
            seed: change(&self.seed)?,
            name: change(&self.name)?,
            layer: change(&self.layer)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ordered::CountMismatch;

    fn arguments() -> StepArguments<&'static str> {
        let state = TrainState { parameters: vec!["a", "b"], optimizer: vec!["a.m"] };
        let inputs = StepInputs {
            batch: vec!["tokens", "labels"],
            scalars: "scalars",
            seed: "seed",
            step: "step",
            previous: "previous",
            loss_limit: None,
        };
        StepArguments { state, inputs }
    }

    #[test]
    fn flatten_follows_field_order() {
        let flat = arguments().flatten();
        let inputs = ["tokens", "labels", "scalars", "seed", "step", "previous"];
        assert_eq!(flat, [&["a", "b", "a.m"], &inputs[..]].concat());
        assert_eq!(arguments().unflatten(flat).unwrap(), arguments());
        assert_eq!(arguments().positions().flatten(), (0..9).collect::<Vec<_>>());
        assert_eq!(arguments().positions().inputs.step, 7);
    }

    #[test]
    fn a_loss_limit_is_last() {
        let mut arguments = arguments();
        arguments.inputs.loss_limit = Some("limit");
        assert_eq!(arguments.flatten().last(), Some(&"limit"));
        assert_eq!(arguments.unflatten(arguments.flatten()).unwrap(), arguments);
    }

    #[test]
    fn rejects_lists_of_another_length() {
        for found in [0, 8, 10] {
            let error = arguments().unflatten(vec![0; found]).unwrap_err();
            assert_eq!(error, CountMismatch { found, expected: 9 });
        }
    }
}
