//! A model on devices that can be evaluated, with all that takes and no more.

use crate::compiler::{Compiled, Compiler};
use crate::error::{Error, mismatch};
use crate::state::{compile_with_state, given_state, numbers, upload_from};
use fullshard_parallel::Stored;
use fullshard_pjrt::{Array, Client, HostTensor};
use fullshard_step::StepSpec;

/// The parameters of a spec on devices, and the program that evaluates them. By itself it has
/// no step program and nothing of the optimizer; a [`Runner`](crate::Runner) has one to train.
pub struct Evaluator<'a> {
    spec: &'a StepSpec,
    compiler: &'a Compiler<'a>,
    /// The compiled evaluation, and for how many sequences it is.
    eval: Option<(usize, Compiled)>,
    /// The parameters, then what a runner has beside them.
    pub(crate) state: Vec<Array>,
}

/// What an evaluation will say when it is done.
pub struct PendingLoss {
    sums: Array,
}

impl<'a> Evaluator<'a> {
    /// Compiles the evaluation of so many sequences at once, and makes parameters from a seed.
    pub fn new(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        seed: u64,
        sequences: usize,
    ) -> Result<Evaluator<'a>, Error> {
        let (eval, init) = (spec.eval_program(sequences)?, spec.parameter_programs()?);
        let (eval, state) = compile_with_state(compiler, &eval, &init, seed)?;
        Ok(Evaluator { spec, compiler, eval: Some((sequences, eval)), state })
    }

    /// Compiles the evaluation of so many sequences at once, and takes its parameters from
    /// `parameter`: the whole numbers of one, of all layers one after another if they are stacked.
    pub fn with_parameters(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        sequences: usize,
        parameter: impl Fn(&Stored) -> Result<Vec<f32>, Error>,
    ) -> Result<Evaluator<'a>, Error> {
        let eval = compiler.compile(&spec.eval_program(sequences)?)?;
        let tensors = spec.parameter_state()?;
        let state = given_state(compiler, spec, &eval.program, &tensors, parameter)?;
        Ok(Evaluator { spec, compiler, eval: Some((sequences, eval)), state })
    }

    /// What evaluates a state that is there already.
    pub(crate) fn of_state(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        state: Vec<Array>,
    ) -> Evaluator<'a> {
        Evaluator { spec, compiler, eval: None, state }
    }

    /// What the programs follow from.
    pub fn spec(&self) -> &'a StepSpec {
        self.spec
    }

    /// The devices it runs on.
    pub fn client(&self) -> &'a Client {
        self.compiler.client
    }

    /// Whether a program is to be launched before the one before it is done. On CPU it is not: the
    /// host has nothing to hide there, the memory of a second step is memory that the caches do
    /// not hold, and two programs with collectives that do not depend on each other may wait for
    /// ever, since they share too few threads.
    pub fn launches_ahead(&self) -> bool {
        self.client().platform_name() != "cpu"
    }

    /// The compiled evaluation, if there is one yet.
    pub fn program(&self) -> Option<&Compiled> {
        self.eval.as_ref().map(|(_, program)| program)
    }

    /// Compiles the evaluation of so many sequences, unless that is done.
    pub fn prepare(&mut self, sequences: usize) -> Result<(), Error> {
        if self.eval.as_ref().is_none_or(|(known, _)| *known != sequences) {
            let program = self.compiler.compile(&self.spec.eval_program(sequences)?)?;
            self.eval = Some((sequences, program));
        }
        Ok(())
    }

    /// Launches an evaluation of `[sequences, tokens]` tokens and labels.
    pub fn evaluate(
        &mut self,
        tokens: &HostTensor,
        labels: &HostTensor,
    ) -> Result<PendingLoss, Error> {
        self.prepare(tokens.dims().first().copied().unwrap_or(0))?;
        let Some((_, eval)) = &self.eval else { return Err(mismatch("eval", "none", "a program")) };
        let parameters = &self.state[..self.spec.placement.parameters.len()];
        let feed = upload_from(self.client(), &eval.program, parameters.len(), &[tokens, labels])?;
        let arguments: Vec<&Array> = parameters.iter().chain(&feed).collect();
        let mut results = eval.program.execute_arrays(&arguments)?;
        let sums = results.pop().ok_or_else(|| mismatch("evaluation", "no results", "sums"))?;
        Ok(PendingLoss { sums })
    }

    /// A parameter as it is: the whole of it, of all layers one after another if they are stacked,
    /// by the name it is stored under.
    pub fn parameter(&self, name: &str) -> Result<Vec<f32>, Error> {
        let i = self.position(name)?;
        let stored = self.state[i].to_host()?;
        Ok(self.spec.placement.parameters[i].unpack(&stored.values()?))
    }

    /// What is on the devices: the parameters, then what a runner has beside them.
    pub fn state(&self) -> &[Array] {
        &self.state
    }

    fn position(&self, name: &str) -> Result<usize, Error> {
        let parameters = &self.spec.placement.parameters;
        let position = parameters.iter().position(|stored| stored.name == name);
        position.ok_or_else(|| mismatch(name, "no such parameter", "a parameter of the model"))
    }
}

impl PendingLoss {
    /// Waits for the summed loss and the number of labels that counted.
    pub fn wait(&self) -> Result<(f32, f32), Error> {
        match numbers(&self.sums)?[..] {
            [sum, count] => Ok((sum, count)),
            _ => Err(mismatch("the result of evaluation", "another shape", "two numbers")),
        }
    }
}
