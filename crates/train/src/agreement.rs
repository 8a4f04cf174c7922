//! Signals of a run that all processes of a job act upon at the same step.
//!
//! Each launch is preceded by a small program in which the processes take the largest of their
//! flags. Its result is read before the next launch, when it is long there: the devices never wait,
//! and all processes learn of a signal after the same launch. One process alone needs no program.

use crate::compiler::{Compiled, Compiler};
use crate::error::{Error, mismatch};
use crate::state::Argument;
use fullshard_pjrt::{Array, HostTensor};
use fullshard_step::StepSpec;
use std::time::{Duration, Instant};

/// What signals request, as numbers of which the largest wins: stopping saves too.
const SAVE: i32 = 1;
const STOP: i32 = 2;

/// A launcher signals all processes, but not at the same moment: a request to save is the one that
/// was agreed upon this much earlier.
const ECHO: Duration = Duration::from_secs(1);

/// The agreement of the processes of a run.
pub(crate) struct Agreement<'a> {
    program: Option<Program<'a>>,
    save: bool,
}

struct Program<'a> {
    compiler: &'a Compiler<'a>,
    compiled: Compiled,
    argument: Argument,
    pending: Option<Array>,
    /// What was agreed upon last, and when to save was.
    agreed: i32,
    saved: Option<Instant>,
}

impl<'a> Agreement<'a> {
    /// The agreement of a job, which compiles its program.
    pub fn new(compiler: &'a Compiler<'a>, spec: &StepSpec) -> Result<Agreement<'a>, Error> {
        if compiler.job.is_alone() {
            return Ok(Agreement { program: None, save: false });
        }
        let (program, inputs) = spec.agree_program()?;
        let compiled = compiler.compile(&program)?;
        let mut arguments = Argument::of_program(&compiled.program, &inputs)?;
        let argument = arguments.pop().ok_or_else(|| mismatch("flags", "no input", "one"))?;
        let program =
            Program { compiler, compiled, argument, pending: None, agreed: 0, saved: None };
        Ok(Agreement { program: Some(program), save: false })
    }

    /// Whether all processes stop now: as of the call before, if there are several. This one requests
    /// it, or a checkpoint, from now on.
    pub fn stops(&mut self, stop: bool, save: bool) -> Result<bool, Error> {
        let mine = if stop { STOP } else { i32::from(save) * SAVE };
        let agreed = match &mut self.program {
            Some(program) => program.agree(mine)?,
            None => mine,
        };
        self.save |= agreed == SAVE;
        Ok(agreed == STOP)
    }

    /// Whether no other process has to agree.
    pub fn is_alone(&self) -> bool {
        self.program.is_none()
    }

    /// Whether all processes save a checkpoint now, which one requested since the last call.
    pub fn takes_save(&mut self) -> bool {
        std::mem::take(&mut self.save)
    }
}

impl Program<'_> {
    /// What the processes agree upon, as of the call before. A request that was under way when
    /// another was agreed upon is the same.
    fn agree(&mut self, mine: i32) -> Result<i32, Error> {
        let is_echo = mine == SAVE && self.saved.is_some_and(|saved| saved.elapsed() < ECHO);
        let agreed = self.launch(if is_echo { 0 } else { mine })?;
        let before = std::mem::replace(&mut self.agreed, agreed);
        if agreed != SAVE {
            return Ok(agreed);
        }
        self.saved = Some(Instant::now());
        Ok(if before == SAVE { 0 } else { SAVE })
    }

    /// Launches with what this process requests; returns the largest of the launch before.
    fn launch(&mut self, mine: i32) -> Result<i32, Error> {
        let devices = self.argument.array.ty.elements();
        let flags = HostTensor::from_values(&[devices], &vec![mine; devices])?;
        let flags = self.argument.upload(self.compiler.client, &flags)?;
        let mut results = self.compiled.program.execute_arrays(&[&flags])?;
        let result = results.pop().ok_or_else(|| mismatch("flags", "no result", "one"))?;
        match self.pending.replace(result) {
            Some(before) => Ok(before.to_host()?.values::<i32>()?.into_iter().max().unwrap_or(0)),
            None => Ok(0),
        }
    }
}
