//! The processes of a job: flags that state which one this is, and its end when another fails.

use crate::output::{complain, silence};
use clap::Args;
use fullshard::{Error, Membership, Result};
use fullshard_cluster::{Flags, Generation, Launch, detect, environment};
use fullshard_core::Platform;
use fullshard_pjrt::plugins::clean_end;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::{ExitCode, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the first process may take to report a failure.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Which process of a job this is. Launchers state it by their environment.
#[derive(Args, Default)]
#[command(next_help_heading = "Processes")]
pub struct ProcessArgs {
    /// Address of the first process, such as host:1234; defaults to what the launcher states
    /// (fullshard launch, Slurm, MPI, Kubernetes, torchrun, Cloud TPU).
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// Number of processes of the job; defaults to what the launcher states.
    #[arg(long = "num_processes", value_name = "N")]
    num_processes: Option<usize>,
    /// Number of this process, from 0; defaults to what the launcher states.
    #[arg(long = "process_id", value_name = "N")]
    process_id: Option<usize>,
    /// File with the secret that the processes share; defaults to FULLSHARD_SECRET.
    #[arg(long = "secret_file", value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

impl ProcessArgs {
    /// The place of this process in its job; none if it is the only one.
    pub fn launch(&self) -> Result<Option<Launch>> {
        let read = |path: &PathBuf| {
            let text = std::fs::read_to_string(path);
            text.map(|text| text.trim().to_owned()).map_err(|error| {
                Error::Usage(format!("--secret_file: cannot read {}: {error}", path.display()))
            })
        };
        let flags = Flags {
            coordinator: self.coordinator.clone(),
            num_processes: self.num_processes,
            process_id: self.process_id,
            secret: self.secret_file.as_ref().map(read).transpose()?,
        };
        Ok(detect(&flags, &environment())?)
    }

    /// Runs something in the job of this process, if there are others, and tells them of its end.
    /// The first process prints. The first of each host reports failures, once.
    pub fn run(
        &self,
        platform: Platform,
        run: impl FnOnce(Arc<Membership>) -> Result<ExitCode>,
    ) -> Result<ExitCode> {
        let generation = Generation::detect(&environment())?;
        let membership = Arc::new(Membership::join(self.launch()?, generation, platform)?);
        let first = membership.job().is_first();
        if !first {
            silence();
        }
        membership.on_failure(move |failure| {
            // Collectives with the process that failed have no end.
            if let Some(failure) = failure {
                report(failure);
            }
            give_way(first);
            clean_end();
            exit(1);
        });
        match run(Arc::clone(&membership)) {
            Ok(code) => {
                membership.leave()?;
                Ok(code)
            }
            Err(error) => {
                if membership.reports() {
                    report(&error);
                }
                membership.fail(&error);
                give_way(first);
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

/// Ends a process whose step takes longer than its deadline, when it has told the others.
pub fn end_stuck(membership: &Membership, error: &Error) {
    if membership.reports() {
        report(error);
    }
    give_way(membership.job().is_first());
    clean_end();
    fullshard::run::end_stuck()
}

/// Reports a failure, if it is the first.
fn report(failure: impl Display) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        complain!("error: {failure}");
    }
}

/// Lets the first process report a failure before this one ends: at the first bad end, a launcher
/// kills all processes.
fn give_way(first: bool) {
    if !first {
        std::thread::sleep(LAST_WORDS);
    }
}
