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
    /// The cache of compiled programs, if any.
    pub cache: Option<CompileCache>,
    /// Compile options, for the number of devices that programs run on.
    pub options: CompileOptions,
}

/// A compiled program.
pub struct Compiled {
    /// The program.
    pub program: LoadedExecutable,
    /// The compile time.
    pub time: Duration,
    /// Whether it was in the cache.
    pub cached: bool,
    /// The SHA-256 of its text.
    pub hash: String,
}

impl Compiler<'_> {
    /// Whether to launch a program before the previous one is done. Not on CPU: there is no host
    /// latency to hide, the memory of a second step does not fit into the caches, and two
    /// independent programs with collectives may deadlock, since they share too few threads.
    pub fn launches_ahead(&self) -> bool {
        self.client.platform_name() != "cpu"
    }

    /// Compiles a program, or loads it from the cache.
    pub fn compile(&self, program: &Program) -> Result<Compiled, Error> {
        self.compile_text(&program.to_text())
    }

    /// Compiles programs in parallel.
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
    fn custom_call_names_match() {
        assert_eq!(fullshard_graph::MATMUL, fullshard_pjrt::MATMUL);
        assert_eq!(fullshard_models::layers::loss::LOSS, fullshard_pjrt::LOSS);
    }
}
