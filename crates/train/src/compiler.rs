//! Compiling programs for devices.

use crate::error::Error;
use fullshard_graph::Program;
use fullshard_pjrt::{CacheOutcome, Client, CompileCache, CompileOptions, LoadedExecutable};
use fullshard_step::program_hash;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

/// Compiles programs for the devices of a client.
pub struct Compiler<'a> {
    /// The devices.
    pub client: &'a Client,
    /// Where compiled programs are kept, if anywhere.
    pub cache: Option<CompileCache>,
    /// Options, for as many devices as the programs run on.
    pub options: CompileOptions,
}

/// A compiled program.
pub struct Compiled {
    /// The program.
    pub program: LoadedExecutable,
    /// How long it took.
    pub time: Duration,
    /// Whether the cache had it.
    pub cached: bool,
    /// The SHA-256 of its text.
    pub hash: String,
}

impl Compiler<'_> {
    /// Whether a program is to be launched before the one before it is done. On CPU it is not: the
    /// host has nothing to hide there, the memory of a second step is memory that the caches do
    /// not hold, and two programs with collectives that do not depend on each other may wait for
    /// ever, since they share too few threads.
    pub fn launches_ahead(&self) -> bool {
        self.client.platform_name() != "cpu"
    }

    /// Compiles a program, or takes it from the cache.
    pub fn compile(&self, program: &Program) -> Result<Compiled, Error> {
        self.compile_text(&program.to_text())
    }

    /// Compiles programs, all at the same time.
    pub fn compile_all(&self, programs: &[&Program]) -> Result<Vec<Compiled>, Error> {
        let texts: Vec<String> = programs.iter().map(|program| program.to_text()).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                texts.iter().map(|text| scope.spawn(|| self.compile_text(text))).collect();
            let compiled = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            compiled.collect()
        })
    }

    fn compile_text(&self, text: &str) -> Result<Compiled, Error> {
        let start = Instant::now();
        let (program, cached) = match &self.cache {
            Some(cache) => {
                let (program, outcome) = cache.compile(self.client, text, &self.options)?;
                (program, matches!(outcome, CacheOutcome::Hit))
            }
            None => (self.client.compile(text, &self.options)?, false),
        };
        Ok(Compiled { program, time: start.elapsed(), cached, hash: program_hash(text) })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn custom_calls_are_registered_by_the_names_that_programs_call() {
        assert_eq!(fullshard_graph::PRODUCT, fullshard_pjrt::PRODUCT);
        assert_eq!(fullshard_models::layers::loss::LOSS, fullshard_pjrt::LOSS);
    }
}
