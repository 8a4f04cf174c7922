//! The processes of one job: finding one another, a key-value store, barriers, failures.
//!
//! A job is `count` processes, on one machine or many. [`detect`] finds out from flags and the
//! environment which of them this one is; for a job of one process it returns nothing, and nothing
//! else of this crate is needed. [`join`] waits until all are there:
//!
//! ```no_run
//! use fullshard_cluster::{Flags, Options, detect, environment, join};
//! use std::time::Duration;
//!
//! # fn main() -> fullshard_cluster::Result<()> {
//! let Some(launch) = detect(&Flags::default(), &environment())? else { return Ok(()) };
//! let member = join(&launch, Options::new("0.1.0"))?;
//! let minute = Duration::from_secs(60);
//! if member.process() == 0 {
//!     member.put("id", b"binary value".to_vec())?;
//! }
//! let id = member.get("id", minute)?;
//! member.barrier("loaded", minute)?;
//! let hashes = member.gather("program hash", vec![1, 2, 3], minute)?; // of all, by process
//! member.on_failure(|failure| eprintln!("{failure}"));
//! member.leave(minute)
//! # }
//! ```
//!
//! - Calls block, may come from any thread and, if they wait, return [`Error::Failed`] at once when
//!   a process of the job fails. The first failure is final and the same for all:
//!   [`Member::failure`], [`Member::on_failure`]. [`Member::fail`] reports an own one.
//! - [`Member::progress`] tells a launcher how far the job has come, so that it knows whether
//!   another restart may help: [`Coordinator::progress`], [`Generation`].
//! - [`Member::serve`] and [`Member::fetch`] are for large files, which members read from one another
//!   directly.
//! - A process that ends without [`Member::leave`], closes its connection or is silent for the
//!   time-out of [`Heartbeat`] has failed. So has the job when its coordinator is gone.
//! - The [`Coordinator`] runs in process 0, started by `join`, or in a launcher
//!   ([`Launch::coordinator_runs`]).
//! - Under MPI nobody knows an address yet: process 0 calls [`listen`], broadcasts the address and
//!   a [`random_secret`], and gives the listener to `join` ([`Options::listener`]).
//!
//! The crate knows nothing of devices. Its network is gRPC over TCP: authenticated by a shared
//! secret that is never sent, not encrypted.
#![forbid(unsafe_code)]

mod coordinator;
mod detect;
mod error;
mod files;
mod join;
mod member;
mod messages;
mod peer;
mod secret;
mod state;

pub use coordinator::{Coordinator, Heartbeat, listen};
pub use detect::{Flags, Generation, Launch, Launcher, detect, environment};
pub use error::{Error, Failure, Result};
pub use files::Bytes;
pub use join::{Options, Waiting, join};
pub use member::Member;
pub use messages::MAX_VALUE;
pub use secret::random_secret;
