//! Plain data that all other crates share: dtypes, tensor types, platforms, accelerators, meshes,
//! sharding specs, parts of tensors and places in a job; the temporary files of caches, and pseudorandom numbers.
//!
//! Nothing here traces, compiles or accesses a device, or depends on another crate of the
//! workspace. Every type is `Send + Sync`.
#![forbid(unsafe_code)]

pub mod accelerator;
mod across;
pub mod cache;
mod collective;
mod dtype;
mod layout;
mod mesh;
mod mesh_spec;
mod part;
mod platform;
mod process;
pub mod random;
mod sharding;
mod tensor_type;

pub use accelerator::{Chip, Gpu, GpuTarget, TpuGeneration, TpuSlice, UnknownAccelerator};
pub use collective::CollectiveKind;
pub use dtype::{DType, NumberClass, UnknownDType};
pub use layout::Layout;
pub use mesh::{Mesh, MeshError};
pub use mesh_spec::{MeshSpec, MeshSpecError};
pub use part::{Part, Run};
pub use platform::{Platform, UnknownPlatform};
pub use process::{BadProcess, Process};
pub use sharding::Sharding;
pub use tensor_type::TensorType;
