//! A safe wrapper over the PJRT C API. Runs StableHLO programs on CPU, GPU and TPU.
//!
//! Usage:
//!
//! ```no_run
//! use fullshard_pjrt::{Client, ClientOptions, CompileOptions, HostTensor, Plugin};
//!
//! # fn main() -> fullshard_pjrt::Result<()> {
//! let plugin = Plugin::load("xla_cpu_pjrt.so".as_ref())?;
//! let client = Client::new(plugin, &ClientOptions::new().cpu_device_count(2))?;
//! let text = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
//!     %y = stablehlo.add %x, %x : tensor<2xf32>
//!     return %y : tensor<2xf32> }";
//! let double = client.compile(text, &CompileOptions::new(1))?;
//! let x = client.upload(&HostTensor::from_values(&[2], &[1.0_f32, 2.0])?, 0)?;
//! let results = double.execute(&[[&x]])?;
//! assert_eq!(results[0][0].to_host()?.values::<f32>()?, [2.0, 4.0]);
//! # Ok(()) }
//! ```
//!
//! This is the only crate with `unsafe` code: the C declarations are in `sys`, and everything
//! above them checks its inputs, so that no use of the public API is undefined behavior.
// These panic when the output cannot be written, which would end a run.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod array;
mod buffer;
mod cache;
mod calls;
mod client;
mod compile;
mod device;
mod dtype;
mod environment;
mod error;
mod event;
mod executable;
mod gpu_target;
pub mod hlo;
mod host;
mod in_flight;
mod job;
mod key_value;
mod launch;
mod loaded;
pub mod mpi;
mod order;
mod pinned;
mod plugin;
pub mod plugins;
mod profiler;
pub mod seal;
mod signature;
pub mod stacks;
mod sys;
mod tiling;
mod topology;
mod value;

pub use array::{Array, ArrayType};
pub use buffer::{Buffer, Download, Place};
pub use cache::{CacheOutcome, CompileCache, compile_key};
pub use calls::{
    ATTENTION, ATTENTION_GRADIENTS, LOSS, MATMUL, MPI_ALL_GATHER, MPI_ALL_REDUCE, MPI_ALL_TO_ALL,
    MPI_PERMUTE, MPI_PREFIX, MPI_REDUCE_SCATTER, PAD, PROCESS_INDEX,
};
pub use client::{Client, ClientOptions};
pub use compile::{CompileOptions, Effort, Flag};
pub use device::{Device, DeviceDescription, MemoryStats};
pub use dtype::Element;
pub use environment::{keep_freed_memory, set_verbose};
pub use error::{Code, Error, Result};
pub use event::Event;
pub use executable::{CompiledMemory, Executable, OptimizedProgram};
pub use fullshard_core::{DType, GpuTarget, Process, TensorType, TpuGeneration, TpuSlice};
pub use host::{AlignedBytes, HostTensor};
pub use key_value::{KeyValueError, KeyValueStore};
pub use loaded::LoadedExecutable;
pub use pinned::PinnedMemory;
pub use plugin::Plugin;
pub use profiler::{DeviceProfile, Kernel, Profile, read_profile, write_profile};
pub use signature::Signature;
pub use tiling::{Tile, Tiling};
pub use topology::Topology;
pub use value::{NamedValues, Value};
