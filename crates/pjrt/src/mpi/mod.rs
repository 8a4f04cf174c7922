//! Collectives between processes on CPU, over MPI.
//!
//! The CPU plugin knows one process, so programs of several processes call MPI by custom calls
//! (their handlers are in `calls`). The library is opened at run time: nothing of MPI is needed to
//! build, and nothing is loaded unless [`World::start`] is called. A process then has one thread
//! that calls MPI ([`World`] and handlers send it their requests), and a communicator for every
//! call of a program on every device ([`Collectives::prepare`]).

mod collectives;
mod error;
mod library;
mod operations;
mod speaker;
mod workers;
mod world;

pub use collectives::{Collectives, MpiCall};
pub use error::MpiError;
pub use world::World;

pub(crate) use collectives::{Key, Reserved};
pub(crate) use library::{Functions, Handle, Library, MoveFunction, PROC_NULL, ReduceFunction};

pub(crate) use operations::Operation;

use crate::plugins::{Kind, PluginError, Store, find};
use std::path::PathBuf;

/// An MPI library with its launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The library.
    pub library: PathBuf,
    /// The launcher.
    pub mpiexec: PathBuf,
}

/// The MPI library that [`World::start`] opens, if its launcher is beside it: the one named by
/// `FULLSHARD_MPI_LIBRARY`, else the one that `fullshard plugins install mpi` installed.
pub fn installed(store: &Store) -> Result<Option<Installation>, PluginError> {
    let library = find(Kind::Mpi, None, store)?.map(|located| located.path);
    Ok(library.and_then(|library| {
        Some(Installation { mpiexec: library::mpiexec_of(&library)?, library })
    }))
}
