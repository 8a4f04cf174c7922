//! A model on devices for evaluation only.

use crate::checkpoint::{read_weights, saved_tensors};
use crate::compiler::{Compiled, Compiler};
use crate::error::Error;
use crate::evaluation::{Evaluated, Evaluation};
use crate::evaluator::{CompiledEval, Evaluator};
use crate::parameters::Parameters;
use crate::state::{compile_with_state, upload_all};
use crate::weights::model_tensors;
use fullshard_checkpoint::Weights;
use fullshard_parallel::ShardedParam;
use fullshard_pjrt::Array;
use fullshard_step::{Ordered, StepSpec};

/// The parameters of a spec on devices and their evaluator, without a step program and optimizer
/// state.
pub struct EvalRunner<'a> {
    spec: &'a StepSpec,
    parameters: Vec<Array>,
    evaluator: Evaluator<'a>,
}

impl<'a> EvalRunner<'a> {
    /// Compiles the evaluation of batches of `sequences`, and initializes parameters from a seed.
    pub fn new(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
        sequences: usize,
    ) -> Result<EvalRunner<'a>, Error> {
        let (eval, init) = (spec.eval_program(sequences)?, spec.parameter_programs()?);
        let (eval, parameters, _) = compile_with_state(compiler, &eval, &init, seed)?;
        let eval = CompiledEval::new(spec, eval, sequences)?;
        let parameters = spec.parameter_state()?.unflatten(parameters)?;
        let evaluator = Evaluator::with_program(compiler, spec, eval);
        Ok(EvalRunner { spec, parameters, evaluator })
    }

    /// Compiles the evaluation of batches of `sequences`, with parameters from `parameter`, which
    /// returns the full values of one, with stacked layers concatenated.
    pub fn with_parameters(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        sequences: usize,
        parameter: impl Fn(&ShardedParam) -> Result<Vec<f32>, Error>,
    ) -> Result<EvalRunner<'a>, Error> {
        let eval = compiler.compile(&spec.eval_program(sequences)?)?;
        let eval = CompiledEval::new(spec, eval, sequences)?;
        let tensors = spec.parameter_state()?;
        let parameters = eval.arguments.parameters.zip(&tensors)?;
        let parameters = parameters.try_map(|(argument, tensor)| {
            argument.upload_initial(compiler.client, spec, tensor, &parameter)
        })?;
        let evaluator = Evaluator::with_program(compiler, spec, eval);
        Ok(EvalRunner { spec, parameters, evaluator })
    }

    /// Compiles the evaluation of batches of `sequences`, and reads its parameters from files,
    /// straight into shards.
    pub fn with_weights(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        sequences: usize,
        weights: &Weights,
    ) -> Result<EvalRunner<'a>, Error> {
        weights.check(&model_tensors(spec))?;
        let eval = compiler.compile(&spec.eval_program(sequences)?)?;
        let eval = CompiledEval::new(spec, eval, sequences)?;
        let saved = saved_tensors(spec, &spec.parameter_state()?);
        let arguments: Vec<_> = eval.arguments.parameters.iter().zip(saved).collect();
        let parameters = upload_all(compiler.client, &arguments, &read_weights(weights))?;
        let evaluator = Evaluator::with_program(compiler, spec, eval);
        Ok(EvalRunner { spec, parameters, evaluator })
    }

    /// The compiled evaluation, if any.
    pub fn program(&self) -> Option<&Compiled> {
        self.evaluator.program()
    }

    /// The parameters on the devices.
    pub fn parameters(&self) -> Parameters<'_> {
        Parameters::new(self.spec, &self.parameters)
    }

    /// Evaluates the parameters; see [`Evaluation::run`].
    pub fn evaluate(
        &mut self,
        evaluation: &Evaluation,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Evaluated>, Error> {
        evaluation.run(&mut self.evaluator, &self.parameters, stop)
    }
}
