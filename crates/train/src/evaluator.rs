//! Evaluation steps on devices.

use crate::agreement::Agreement;
use crate::compiler::{Compiled, Compiler};
use crate::error::{Error, mismatch};
use crate::state::{Argument, numbers, upload_batches};
use fullshard_pjrt::{Array, HostTensor};
use fullshard_step::{EvalArguments, Ordered, StepSpec};
use std::borrow::Borrow;

/// The compiled evaluation of a spec. It borrows the parameters that it evaluates: from a
/// [`Runner`](crate::Runner), which trains them, or from an [`EvalRunner`](crate::EvalRunner).
pub struct Evaluator<'a> {
    spec: &'a StepSpec,
    compiler: &'a Compiler<'a>,
    eval: Option<CompiledEval>,
    /// What the processes of the job agree on between two launches.
    agreement: Option<Agreement<'a>>,
}

/// The compiled evaluation of batches of `sequences`.
pub(crate) struct CompiledEval {
    sequences: usize,
    program: Compiled,
    pub(crate) arguments: EvalArguments<Argument>,
}

/// The summed loss of a launched evaluation.
pub struct PendingLoss {
    sums: Array,
}

impl CompiledEval {
    pub fn new(
        spec: &StepSpec,
        program: Compiled,
        sequences: usize,
    ) -> Result<CompiledEval, Error> {
        let layout = spec.eval_arguments(sequences)?;
        let arguments = Argument::of_program(&program.program, &layout)?;
        Ok(CompiledEval { sequences, program, arguments })
    }
}

impl<'a> Evaluator<'a> {
    /// An evaluator of a spec's parameters. Nothing is compiled yet.
    pub fn new(compiler: &'a Compiler<'a>, spec: &'a StepSpec) -> Evaluator<'a> {
        Evaluator { spec, compiler, eval: None, agreement: None }
    }

    /// An evaluator with a compiled program.
    pub(crate) fn with_program(
        compiler: &'a Compiler<'a>,
        spec: &'a StepSpec,
        eval: CompiledEval,
    ) -> Evaluator<'a> {
        Evaluator { spec, compiler, eval: Some(eval), agreement: None }
    }

    /// The agreement of the processes of the job, compiled when it is first needed.
    pub(crate) fn agreement(&mut self) -> Result<&mut Agreement<'a>, Error> {
        let agreement = match self.agreement.take() {
            Some(agreement) => agreement,
            None => Agreement::new(self.compiler, self.spec)?,
        };
        Ok(self.agreement.insert(agreement))
    }

    /// Whether to launch a batch before the previous one is done; see
    /// [`Compiler::launches_ahead`].
    pub fn launches_ahead(&self) -> bool {
        self.compiler.launches_ahead()
    }

    /// The compiled evaluation, if any yet.
    pub fn program(&self) -> Option<&Compiled> {
        self.eval.as_ref().map(|eval| &eval.program)
    }

    /// Compiles the evaluation of batches of `sequences`, unless already done.
    pub fn prepare(&mut self, sequences: usize) -> Result<(), Error> {
        self.compiled(sequences).map(|_| ())
    }

    fn compiled(&mut self, sequences: usize) -> Result<&CompiledEval, Error> {
        let eval = match self.eval.take().filter(|eval| eval.sequences == sequences) {
            Some(eval) => eval,
            None => {
                let program = self.compiler.compile(&self.spec.eval_program(sequences)?)?;
                CompiledEval::new(self.spec, program, sequences)?
            }
        };
        Ok(self.eval.insert(eval))
    }

    /// Launches an evaluation of parameters, in the spec's order, on the tensors of a batch, in the
    /// order of the task's inputs: for language models tokens and labels, `[sequences, tokens]`.
    pub fn evaluate<B: Borrow<HostTensor>>(
        &mut self,
        parameters: &[Array],
        batch: &[B],
    ) -> Result<PendingLoss, Error> {
        let client = self.compiler.client;
        let sequences = batch.first().and_then(|tensor| tensor.borrow().dims().first().copied());
        // In a job these are the sequences of one process, of the batch that was prepared.
        let prepared = self.eval.as_ref().filter(|_| !self.compiler.job.is_alone());
        let sequences = prepared.map(|eval| eval.sequences).or(sequences);
        let eval = self.compiled(sequences.unwrap_or(0))?;
        let batch = upload_batches(client, &eval.arguments.batch, &[batch])?;
        let parameters = parameters.iter().collect();
        let arguments = EvalArguments { parameters, batch: batch.each_ref() };
        let mut results = eval.program.program.execute_arrays(&arguments.flatten())?;
        let sums = results.pop().ok_or_else(|| mismatch("evaluation", "no results", "sums"))?;
        Ok(PendingLoss { sums })
    }
}

impl PendingLoss {
    /// Waits for the summed loss and the number of labels that are not ignored.
    pub fn wait(&self) -> Result<(f32, f32), Error> {
        match numbers(&self.sums)?[..] {
            [sum, count] => Ok((sum, count)),
            _ => Err(mismatch("the result of evaluation", "another shape", "two numbers")),
        }
    }
}
