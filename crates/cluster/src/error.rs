//! Errors, and the failure that ends a job.

use std::fmt;
use std::io;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between the processes of a job.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag or variable that is missing, wrong or contradicts another.
    #[error("{name}: {problem}")]
    Variable {
        /// The flag or the variable.
        name: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A coordinator that others reach needs a secret.
    #[error(
        "the coordinator at {coordinator} can be reached from other machines, and there is no \
         secret: set FULLSHARD_SECRET to the same random text in all processes \
         (`openssl rand -hex 32`), or --secret_file to a file with it"
    )]
    NoSecret {
        /// The address.
        coordinator: String,
    },
    /// A secret that could be guessed.
    #[error(
        "the secret has {length} characters: at least {least} are needed (`openssl rand -hex 32`)"
    )]
    ShortSecret {
        /// Its length.
        length: usize,
        /// The shortest that is accepted.
        least: usize,
    },
    /// Nobody can listen there.
    #[error(
        "the coordinator cannot listen on {address}: {source}; choose another port with --coordinator host:port"
    )]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Nobody answers there.
    #[error(
        "no coordinator answered at {address} within {seconds:.1} s ({reason}): is process 0 running, \
         and may processes reach that port?"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// The time-out.
        seconds: f64,
        /// What the last attempt said.
        reason: String,
    },
    /// This process is not let in.
    #[error("{0}")]
    Refused(String),
    /// Not all processes came.
    #[error("{what}: {missing} did not come within {seconds} s")]
    Missing {
        /// What they were to come to.
        what: String,
        /// Who is missing.
        missing: String,
        /// The time-out.
        seconds: f64,
    },
    /// A key that nobody has put.
    #[error("nobody put the key {key:?} within {seconds} s")]
    NoValue {
        /// The key.
        key: String,
        /// The time-out.
        seconds: f64,
    },
    /// A key that is there already.
    #[error("the key {key:?} was put already")]
    Exists {
        /// The key.
        key: String,
    },
    /// A value that is too large.
    #[error("{what} has {bytes} bytes: at most {most} are possible")]
    TooLarge {
        /// The key, barrier or message.
        what: String,
        /// Its size.
        bytes: usize,
        /// The largest size.
        most: usize,
    },
    /// A file that another process does not send.
    #[error("cannot read {name} from {address}: {source}")]
    Fetch {
        /// The file.
        name: String,
        /// The other process.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The job has failed.
    #[error("{0}")]
    Failed(Failure),
    /// A request that the coordinator did not answer as it should.
    #[error("the coordinator answered: {0}")]
    Answer(String),
    /// Threads, random numbers or sockets that the system refuses.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Why a job has failed: the first process that did, and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The process, if it is the failure of one.
    pub process: Option<usize>,
    /// Its host, if known.
    pub host: String,
    /// What happened.
    pub message: String,
    /// Whether the same command would fail again, so that no restart helps.
    pub is_final: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(f, "process {process} (host {}): {}", self.host, self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Names processes: `process 3`, `processes 1, 2 and 5`, at most eight of them.
pub(crate) fn name_processes(processes: &[usize]) -> String {
    const NAMED: usize = 8;
    match processes {
        [] => "nobody".to_owned(),
        [one] => format!("process {one}"),
        [first @ .., last] if processes.len() <= NAMED => {
            format!("processes {} and {last}", join_numbers(first))
        }
        _ => {
            let rest = processes.len() - NAMED;
            format!("processes {} and {rest} more", join_numbers(&processes[..NAMED]))
        }
    }
}

fn join_numbers(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_few_processes_and_counts_many() {
        assert_eq!(name_processes(&[3]), "process 3");
        assert_eq!(name_processes(&[1, 2, 5]), "processes 1, 2 and 5");
        let many: Vec<_> = (0..20).collect();
        assert_eq!(name_processes(&many), "processes 0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
    }
}
