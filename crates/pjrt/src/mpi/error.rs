//! MPI errors. Each names the library, call or channel at fault, and the fix.

use std::path::PathBuf;

/// A failure to load, start or use MPI.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MpiError {
    /// No MPI library was found.
    #[error(
        "no MPI library found ({reason}): run `fullshard plugins install mpi`, or set \
         FULLSHARD_MPI_LIBRARY to a library with the standard ABI (libmpi_abi.so.1)"
    )]
    NoLibrary {
        /// The message of the dynamic loader.
        reason: String,
    },
    /// The file could not be loaded as a shared library.
    #[error("{} is not an MPI library: {reason}", path.display())]
    NotALibrary {
        /// The file.
        path: PathBuf,
        /// The message of the dynamic loader.
        reason: String,
    },
    /// The library does not have the standard ABI.
    #[error(
        "{} does not have the standard ABI of MPI 5: {reason}. Use its libmpi_abi.so.1, \
         or that of `fullshard plugins install mpi`",
        path.display()
    )]
    NotStandard {
        /// The file.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The library cannot be called from any thread.
    #[error("{library} was built without MPI_THREAD_MULTIPLE; use another MPI library")]
    Threads {
        /// The version of the library.
        library: String,
    },
    /// MPI knows this process only, since another MPI launched the job, or none.
    #[error(
        "this process is alone in MPI, but the job has {expected} processes. The mpiexec that \
         starts a job must be that of the MPI library that it loads, which is {}. Launch with \
         `{} -n {expected} fullshard ...`, in Slurm with `srun --mpi=pmi2`, or set \
         FULLSHARD_MPI_LIBRARY to the library of your own mpiexec",
        library.display(), mpiexec.display()
    )]
    Alone {
        /// Number of processes of the job.
        expected: usize,
        /// The loaded library.
        library: PathBuf,
        /// The launcher that belongs to it.
        mpiexec: PathBuf,
    },
    /// MPI has another number of processes than the job.
    #[error(
        "MPI has {found} processes but the job has {expected}; launch with `mpiexec -n {expected}`"
    )]
    Size {
        /// Number of processes of the job.
        expected: usize,
        /// Number of processes of MPI.
        found: usize,
    },
    /// A call into the library failed.
    #[error("{call}: {message}")]
    Call {
        /// The C name of the function, and what it was called for.
        call: String,
        /// The library's message.
        message: String,
    },
    /// The library could not create one more communicator.
    #[error(
        "MPI could not create a communicator after {created} of them: {message}. Every collective \
         between processes has its own per device; `--scan_layers true` needs fewer"
    )]
    Communicators {
        /// Number of communicators before.
        created: usize,
        /// The library's message.
        message: String,
    },
    /// Processes prepared different programs.
    #[error(
        "processes prepared different collectives: all must run the same program, in the same order"
    )]
    Different,
    /// A list of groups that is not usable.
    #[error("bad groups of channel {channel}: {reason}")]
    Groups {
        /// The channel of the collective.
        channel: i64,
        /// What is wrong with them.
        reason: String,
    },
    /// MPI was ended while collectives were running.
    #[error("cannot end MPI: {count} collectives are still running")]
    InFlight {
        /// Number of collectives.
        count: usize,
    },
    /// MPI was used after its end.
    #[error("MPI has ended in this process")]
    Ended,
    /// The system has no thread for MPI.
    #[error("cannot start a thread for MPI: {0}")]
    Thread(#[source] std::io::Error),
}
