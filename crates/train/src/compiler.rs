//! Compiling programs for devices.
//!
//! In a job of several processes the first compiles, and the others load what it compiled: from
//! their own cache, if it is there, else from the first.

use crate::error::Error;
use crate::job::Job;
use fullshard_core::{Sharding, TensorType};
use fullshard_graph::{ProcessCall, Program};
use fullshard_pjrt::mpi::{MpiCall, World};
use fullshard_pjrt::{
    ArrayType, CacheOutcome, Client, CompileCache, CompileOptions, LoadedExecutable, Tiling,
};
use fullshard_step::program_hash;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Compiles programs for the devices of a client.
pub struct Compiler<'a> {
    /// The devices.
    pub client: &'a Client,
    /// The cache of compiled programs, if any.
    pub cache: Option<CompileCache>,
    /// Compile options, for the number of devices that programs run on.
    pub options: CompileOptions,
    /// The job that the devices are of.
    pub job: Job,
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
        let (text, calls) = program.to_text_and_calls();
        self.across_processes(self.compile_text(&text)?, program, calls)
    }

    /// Compiles programs in parallel.
    pub fn compile_all(&self, programs: &[&Program]) -> Result<Vec<Compiled>, Error> {
        let texts: Vec<_> = programs.iter().map(|program| program.to_text_and_calls()).collect();
        let compiled = std::thread::scope(|scope| {
            let threads: Vec<_> =
                texts.iter().map(|(text, _)| scope.spawn(|| self.compile_text(text))).collect();
            let compiled = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            compiled.collect::<Result<Vec<_>, Error>>()
        })?;
        let programs = programs.iter().zip(texts);
        let compiled = compiled.into_iter().zip(programs);
        let across = |(compiled, (program, (_, calls))): (Compiled, (&&Program, (_, _)))| {
            self.across_processes(compiled, program, calls)
        };
        compiled.map(across).collect()
    }

    /// The program with the types that it has over all processes, where the compiler saw one, ready
    /// for its collectives between them.
    fn across_processes(
        &self,
        compiled: Compiled,
        program: &Program,
        calls: Vec<ProcessCall>,
    ) -> Result<Compiled, Error> {
        if self.job.is_alone() || self.client.platform_name() != "cpu" {
            return Ok(compiled);
        }
        let call = |ProcessCall { channel, groups }| MpiCall { channel: channel as i64, groups };
        let calls: Vec<MpiCall> = calls.into_iter().map(call).collect();
        if let Some(world) = World::current() {
            world.collectives().prepare(&calls, self.client.devices().len())?;
        }
        let devices = self.client.device_count();
        let types = |tensors: Vec<(TensorType, Option<&Sharding>)>| -> Vec<ArrayType> {
            let array = |(ty, sharding): (TensorType, Option<&Sharding>)| {
                let replicated = || Tiling::replicated(ty.rank(), devices);
                let tiling = sharding.map_or_else(replicated, Tiling::over_mesh);
                ArrayType { ty, tiling: Arc::new(tiling) }
            };
            tensors.into_iter().map(array).collect()
        };
        let (arguments, results) = (types(program.arguments()), types(program.results()));
        let program = compiled.program.across_processes(&arguments, &results)?;
        Ok(Compiled { program, ..compiled })
    }

    fn compile_text(&self, text: &str) -> Result<Compiled, Error> {
        let (start, hash) = (Instant::now(), program_hash(text));
        let (program, cached) = match self.job.is_alone() {
            true => self.compile_here(text)?,
            false => self.compile_once(text, &hash)?,
        };
        Ok(Compiled { program, time: start.elapsed(), cached, hash })
    }

    fn compile_here(&self, text: &str) -> Result<(LoadedExecutable, bool), Error> {
        Ok(match &self.cache {
            Some(cache) => {
                let (program, outcome) = cache.compile(self.client, text, &self.options)?;
                (program, matches!(outcome, CacheOutcome::Hit))
            }
            None => (self.client.compile(text, &self.options)?, false),
        })
    }

    /// Does the same, and returns the serialized program: that of the cache, if it was there, since a
    /// program that was loaded cannot always be serialized again.
    fn compile_to_share(&self, text: &str) -> Result<(LoadedExecutable, Vec<u8>, bool), Error> {
        Ok(match &self.cache {
            Some(cache) => {
                let (program, serialized, outcome) =
                    cache.compile_to_share(self.client, text, &self.options)?;
                (program, serialized, matches!(outcome, CacheOutcome::Hit))
            }
            None => {
                let program = self.client.compile(text, &self.options)?;
                let serialized = program.executable().serialize()?;
                (program, serialized, false)
            }
        })
    }

    /// Compiles on the first process. One with another kind of processor compiles for itself.
    fn compile_once(&self, text: &str, hash: &str) -> Result<(LoadedExecutable, bool), Error> {
        let (name, of) = (format!("program/{hash}"), format!("program/{hash}/key"));
        let key = self.client.compile_key(text, &self.options)?;
        if self.job.is_first() {
            let (program, serialized, cached) = self.compile_to_share(text)?;
            self.job.publish(&name, &serialized)?;
            self.job.publish(&of, key.as_bytes())?;
            return Ok((program, cached));
        }
        if self.job.published(&of)? != key.as_bytes() {
            return self.compile_here(text);
        }
        let found = self.cache.as_ref().and_then(|cache| cache.load(self.client, &key));
        match found {
            Some(program) => Ok((program, true)),
            None => Ok((self.client.load(&self.job.published(&name)?)?, true)),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn custom_call_names_match() {
        assert_eq!(fullshard_graph::MATMUL, fullshard_pjrt::MATMUL);
        assert_eq!(fullshard_graph::PAD, fullshard_pjrt::PAD);
        assert_eq!(fullshard_models::layers::loss::LOSS, fullshard_pjrt::LOSS);
        use fullshard_models::layers::attention;
        assert_eq!(attention::ATTENTION, fullshard_pjrt::ATTENTION);
        assert_eq!(attention::ATTENTION_GRADIENTS, fullshard_pjrt::ATTENTION_GRADIENTS);
        let gather = format!("{}all_gather", fullshard_graph::MPI_PREFIX);
        assert_eq!(gather, fullshard_pjrt::MPI_ALL_GATHER);
        assert_eq!(fullshard_graph::PROCESS_INDEX, fullshard_pjrt::PROCESS_INDEX);
    }
}
