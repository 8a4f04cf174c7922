//! Sharded checkpoints: every device's shards as they are, readable on any other mesh.
//!
//! A checkpoint is a folder `checkpoint-{step}`:
//!
//! - safetensors files of shards. A full tensor has its plain name. A part of one is called
//!   `name[start:end]`, by its range of elements in row-major order, or `name[0:128,256:512]`, by
//!   its range of each dim, if it is a box whose elements are not contiguous. Parameters have
//!   Hugging Face's names, one per layer, whether layers are scanned or not; slots of the optimizer
//!   follow after a dot. Nothing is named after a device.
//! - other files of the run: configs, the tokenizer, the trainer's state.
//! - `manifest.json`, with the dimensions of all tensors and the checksums of all files.
//! - `COMMITTED`, with the checksum of the manifest, written last.
//!
//! Files are written into a folder with another name, synced, and the folder renamed; then comes
//! the marker. So a process that is killed at any moment leaves a complete checkpoint or none.

mod manifest;
mod points;
mod read;
mod shard;
mod verify;
mod write;

pub use manifest::{
    DataPosition, FileRecord, LossStatistics, MANIFEST, MANIFEST_VERSION, Manifest, MeshAxes,
    Progress, ShardChecksums, TensorRecord,
};
pub use points::{OnSave, SavePoint};
pub use read::Checkpoint;
pub(crate) use read::{open, read_manifest};
pub use shard::Piece;
pub use verify::{Problem, verify};
pub use write::{Staging, WrittenFiles};

/// The marker of a complete checkpoint.
pub const COMMITTED: &str = "COMMITTED";

/// The key of the step in the headers of files.
const STEP: &str = "step";
