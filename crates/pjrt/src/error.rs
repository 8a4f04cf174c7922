//! Errors. Each names its cause and the fix.

use crate::hlo::HloError;
use crate::mpi::MpiError;
use crate::plugins::PluginError;
use fullshard_core::{BadProcess, TensorType, UnknownAccelerator};
use std::path::PathBuf;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be loaded as a shared library.
    #[error("{path} is not a plugin: {reason}")]
    NotALibrary {
        /// The file.
        path: PathBuf,
        /// The message of the dynamic loader.
        reason: String,
    },
    /// The library has no PJRT entry point.
    #[error(
        "{path} is a shared library but not a PJRT plugin: it has no symbol `GetPjrtApi`. \
         Pass the plugin itself, or run `fullshard plugins install cpu`"
    )]
    NoEntryPoint {
        /// The file.
        path: PathBuf,
    },
    /// The plugin's function table cannot be used.
    #[error("{path}: unusable PJRT function table: {reason}")]
    BadTable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The plugin is older than the requested function.
    #[error("the plugin {plugin} (PJRT API {version}) has no {function}; use a newer plugin")]
    MissingFunction {
        /// The plugin's file name.
        plugin: String,
        /// The plugin's API version.
        version: String,
        /// The C name of the function.
        function: &'static str,
    },
    /// The plugin lacks an optional extension.
    #[error("the plugin {plugin} has no {extension} extension")]
    MissingExtension {
        /// The plugin's file name.
        plugin: String,
        /// The extension.
        extension: &'static str,
    },
    /// Bytes that are not a profile.
    #[error("the profile cannot be read: {source}")]
    Profile {
        /// What is wrong with them.
        source: prost::DecodeError,
    },
    /// A call into the plugin failed.
    #[error("{message} ({function}: {code})")]
    Call {
        /// The C name of the function.
        function: &'static str,
        /// The kind of failure.
        code: Code,
        /// The plugin's message.
        message: String,
    },
    /// Host data of the wrong length.
    #[error("host data for {expected_type} must be {expected} bytes but is {found}")]
    HostSize {
        /// The type of the data.
        expected_type: TensorType,
        /// The size of that type in bytes.
        expected: usize,
        /// The bytes given.
        found: usize,
    },
    /// A device index past the client's devices.
    #[error("there is no device {index}: this client has {count} (0 to {})", count.saturating_sub(1))]
    NoSuchDevice {
        /// The requested index.
        index: usize,
        /// Number of devices.
        count: usize,
    },
    /// A memory kind the device does not have.
    #[error("the device has no memory of kind `{kind}`; it has {known:?}")]
    NoSuchMemory {
        /// The requested kind.
        kind: String,
        /// The available kinds.
        known: Vec<String>,
    },
    /// A buffer that was donated to an earlier launch.
    #[error(
        "{what} was donated to an earlier launch and no longer holds data; \
         pass that launch's result instead, or compile without donating it"
    )]
    Donated {
        /// The buffer.
        what: String,
    },
    /// An argument in another dimension order than the program expects.
    #[error(
        "`{program}` takes argument {argument} in dimension order {expected:?} (minor to major) \
         but the buffer has {found:?}"
    )]
    ArgumentLayout {
        /// The program.
        program: String,
        /// The argument's position.
        argument: usize,
        /// The order of the program.
        expected: Vec<i64>,
        /// The order of the buffer.
        found: Vec<i64>,
    },
    /// An argument index past the program's arguments.
    #[error("there is no argument {argument} to keep: `{program}` takes {count}")]
    NoSuchArgument {
        /// The program.
        program: String,
        /// The given index.
        argument: usize,
        /// Number of arguments.
        count: usize,
    },
    /// The same buffer passed twice where one use donates it.
    #[error("`{program}` donates argument {argument} but the same buffer is also argument {also}")]
    DonatedTwice {
        /// The program.
        program: String,
        /// The donated argument.
        argument: usize,
        /// The other argument with the same buffer.
        also: usize,
    },
    /// Arguments for the wrong number of devices.
    #[error("`{program}` runs on {expected} devices but got arguments for {found}")]
    DeviceCount {
        /// The program.
        program: String,
        /// Number of devices it was compiled for.
        expected: usize,
        /// Number of argument lists.
        found: usize,
    },
    /// The wrong number of arguments.
    #[error("`{program}` takes {expected} arguments but got {found} (device {device})")]
    ArgumentCount {
        /// The program.
        program: String,
        /// The position of the device in the program.
        device: usize,
        /// Number of parameters.
        expected: usize,
        /// Number of arguments.
        found: usize,
    },
    /// An argument of the wrong shape or dtype.
    #[error(
        "`{program}` takes {expected} as argument {argument} but got {found} (device {device})"
    )]
    ArgumentShape {
        /// The program.
        program: String,
        /// The argument's position.
        argument: usize,
        /// The position of the device in the program.
        device: usize,
        /// The type of the parameter.
        expected: String,
        /// The type of the argument.
        found: String,
    },
    /// An argument on the wrong device.
    #[error(
        "argument {argument} of `{program}` is on device {found} but the program reads it on \
         device {expected}"
    )]
    ArgumentDevice {
        /// The program.
        program: String,
        /// The argument's position.
        argument: usize,
        /// The device that reads it.
        expected: usize,
        /// The device it is on.
        found: usize,
    },
    /// A buffer of one client passed to a program of another.
    #[error("argument {argument} of `{program}` belongs to another client")]
    ForeignBuffer {
        /// The program.
        program: String,
        /// The argument's position.
        argument: usize,
    },
    /// More memory than the machine has.
    #[error(
        "`{program}` needs {needed} bytes for results and temporaries on this host, which has \
         {available}; use fewer virtual devices or a smaller batch"
    )]
    TooLarge {
        /// The program.
        program: String,
        /// The bytes needed per launch.
        needed: u64,
        /// The bytes available.
        available: u64,
    },
    /// An unsupported dtype.
    #[error("{what} has element type {found}, which buffers do not support")]
    UnsupportedType {
        /// What has that type.
        what: String,
        /// The type.
        found: String,
    },
    /// A tiling that does not match its tensor or devices.
    #[error("bad tiling: {0}")]
    Tiling(String),
    /// An array with the wrong tiling or shape.
    #[error("array mismatch: {0}")]
    Array(String),
    /// An array that is read as a whole where only a part of it is.
    #[error(
        "{ty} is partly on other processes: {here} of its {tiles} tiles are here; read those, or \
         all-gather it first"
    )]
    PartlyElsewhere {
        /// The type of the array.
        ty: TensorType,
        /// Number of its tiles on this process.
        here: usize,
        /// Number of its tiles.
        tiles: usize,
    },
    /// A place outside the job.
    #[error(transparent)]
    BadProcess(#[from] BadProcess),
    /// A plugin that has another place in the job than this process.
    #[error(
        "this is process {index} of {count}, but the plugin {plugin} has it as process {found}; \
         number the processes as the plugin does"
    )]
    OtherProcess {
        /// The plugin's file name.
        plugin: String,
        /// The number of this process.
        index: usize,
        /// The number of processes.
        count: usize,
        /// Its number to the plugin.
        found: i32,
    },
    /// Processes with different numbers of devices.
    #[error(
        "the {count} processes of a job need the same number of devices each, but there are \
         {devices:?} on processes 0 to {}",
        devices.len().saturating_sub(1)
    )]
    UnequalDevices {
        /// Number of processes.
        count: usize,
        /// Number of devices of each process.
        devices: Vec<usize>,
    },
    /// An unknown slice or topology name.
    #[error(transparent)]
    UnknownAccelerator(#[from] UnknownAccelerator),
    /// Bad compile options.
    #[error("bad compile option: {0}")]
    CompileOption(String),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system error.
        source: std::io::Error,
    },
    /// The optimized program could not be read.
    #[error(transparent)]
    Hlo(#[from] HloError),
    /// A serialized program that is corrupt, or not one of ours.
    #[error("the serialized program is corrupt; recompile it")]
    DamagedProgram,
    /// A program with collectives whose serialized form is unknown, so that it would lose their
    /// order.
    #[error(
        "the plugin {plugin} serializes programs with collectives in an unknown form; they are \
         compiled at each start, unless you use the plugin of `fullshard plugins install`"
    )]
    UnknownForm {
        /// The plugin's file name.
        plugin: String,
    },
    /// A plugin that violated the PJRT API.
    #[error("the plugin {plugin} misbehaved: {what}")]
    BadPlugin {
        /// The plugin's file name.
        plugin: String,
        /// What it did.
        what: String,
    },
    /// A plugin could not be found or installed.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// MPI could not be started or used.
    #[error(transparent)]
    Mpi(#[from] MpiError),
}

impl Error {
    /// The plugin's error code, if the error came from a call into it.
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Call { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Declares [`Code`]: the codes in numeric order, with their messages.
macro_rules! codes {
    ($($name:ident => $message:literal,)*) => {
        /// The error codes a plugin reports.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Code {
            $($name,)*
        }

        impl Code {
            const ALL: &[Code] = &[$(Code::$name),*];
        }

        impl std::fmt::Display for Code {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Code::$name => $message,)* })
            }
        }
    };
}

codes! {
    Cancelled => "cancelled",
    Unknown => "unknown error",
    InvalidArgument => "invalid argument",
    DeadlineExceeded => "deadline exceeded",
    NotFound => "not found",
    AlreadyExists => "already exists",
    PermissionDenied => "permission denied",
    ResourceExhausted => "out of memory or another resource",
    FailedPrecondition => "failed precondition",
    Aborted => "aborted",
    OutOfRange => "out of range",
    Unimplemented => "not implemented by this plugin",
    Internal => "internal plugin error",
    Unavailable => "unavailable",
    DataLoss => "data loss",
    Unauthenticated => "unauthenticated",
}

impl Code {
    /// The plugin's code, counted from 1.
    pub(crate) fn raw(self) -> i32 {
        self as i32 + 1
    }

    /// Converts a plugin's code, counted from 1; unknown codes are `Unknown`.
    pub(crate) fn from_raw(raw: i32) -> Code {
        let index = usize::try_from(raw).ok().and_then(|raw| raw.checked_sub(1));
        index.and_then(|index| Code::ALL.get(index)).copied().unwrap_or(Code::Unknown)
    }
}
