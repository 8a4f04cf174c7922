//! What members and the coordinator send one another: one gRPC service, written by hand since
//! `protoc` would be needed to build otherwise.
//!
//! A connection belongs to one member. It starts with `Hello`, whose answer proves that the
//! coordinator knows the secret, and `Join`, which proves it of the member. The answers of `Join`
//! go on as long as the member lives: who is missing, that all are there, and a failure. The other
//! methods are for connections that have joined.

use crate::Failure;
use prost::Message;
use prost::bytes::Bytes;

/// The largest value of the store, and of a gather over all processes together: 64 MiB.
pub const MAX_VALUE: usize = 64 << 20;

/// The largest message of a member: a value with its key.
pub(crate) const MAX_MESSAGE: usize = MAX_VALUE + (1 << 20);

/// The largest message of a stranger.
pub(crate) const MAX_STRANGE_MESSAGE: usize = 4096;

/// The longest key or name.
pub(crate) const MAX_KEY: usize = 64 << 10;

/// The paths of the methods.
pub(crate) mod method {
    pub const HELLO: &str = "/fullshard.Cluster/Hello";
    pub const JOIN: &str = "/fullshard.Cluster/Join";
    pub const PUT: &str = "/fullshard.Cluster/Put";
    pub const GET: &str = "/fullshard.Cluster/Get";
    pub const GATHER: &str = "/fullshard.Cluster/Gather";
    pub const FAIL: &str = "/fullshard.Cluster/Fail";
    pub const PROGRESS: &str = "/fullshard.Cluster/Progress";
    pub const LEAVE: &str = "/fullshard.Cluster/Leave";
}

/// Who a member is. Fields are never renumbered: members of other versions are to be named.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Hello {
    #[prost(uint64, tag = "1")]
    pub process: u64,
    #[prost(uint64, tag = "2")]
    pub count: u64,
    #[prost(string, tag = "3")]
    pub version: String,
    #[prost(string, tag = "4")]
    pub host: String,
    #[prost(bytes = "vec", tag = "5")]
    pub nonce: Vec<u8>,
}

/// The coordinator's nonce for this connection, and its proof.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Challenge {
    #[prost(bytes = "vec", tag = "1")]
    pub nonce: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub proof: Vec<u8>,
}

/// The member's proof.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Join {
    #[prost(bytes = "vec", tag = "1")]
    pub proof: Vec<u8>,
}

/// News of the job: who is missing; or the hosts of all once nobody is; or its failure.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    #[prost(uint64, repeated, tag = "1")]
    pub missing: Vec<u64>,
    #[prost(string, repeated, tag = "2")]
    pub hosts: Vec<String>,
    #[prost(message, optional, tag = "3")]
    pub failure: Option<Failed>,
}

/// A [`Failure`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Failed {
    #[prost(uint64, optional, tag = "1")]
    pub process: Option<u64>,
    #[prost(string, tag = "2")]
    pub host: String,
    #[prost(string, tag = "3")]
    pub message: String,
    #[prost(bool, tag = "4")]
    pub is_final: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Put {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// Asks for a value, and waits for it if there is a time-out.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Get {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(uint64, tag = "2")]
    pub timeout_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(bytes = "bytes", tag = "1")]
    pub value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Gather {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    #[prost(uint64, tag = "3")]
    pub timeout_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Gathered {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub values: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Fail {
    #[prost(string, tag = "1")]
    pub message: String,
    #[prost(bool, tag = "2")]
    pub is_final: bool,
}

/// The step that the job would go on from.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Progress {
    #[prost(uint64, tag = "1")]
    pub step: u64,
}

/// An answer, or a request, that says nothing more.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Empty {}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        let Failure { process, host, message, is_final } = failure;
        Failed { process: process.map(|process| process as u64), host, message, is_final }
    }
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Failure {
        let Failed { process, host, message, is_final } = failed;
        Failure { process: process.map(|process| process as usize), host, message, is_final }
    }
}
