//! What is in a checkpoint or in weights of any format.

use crate::import::is_buffer;
use crate::opened::Opened;
use crate::sharded::{Checkpoint, DataPosition, MeshAxes};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A description of tensors on disk.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Description {
    /// The file or folder.
    pub path: PathBuf,
    /// The name of the format.
    pub format: &'static str,
    /// The number of tensors, without those of an optimizer.
    pub tensors: usize,
    /// The number of their elements, without buffers.
    pub parameters: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The number of tensors of each dtype.
    pub dtypes: BTreeMap<String, usize>,
    /// More of it, if it is a checkpoint of a run.
    pub checkpoint: Option<CheckpointDescription>,
}

/// A description of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckpointDescription {
    /// Steps done.
    pub step: u64,
    /// Epochs done.
    pub epoch: f64,
    /// The position in the training data.
    pub data: DataPosition,
    /// When it was saved, in seconds since 1970.
    pub saved_at: f64,
    /// The version of fullshard that wrote it.
    pub fullshard: String,
    /// The axes of the mesh that saved it.
    pub mesh: MeshAxes,
    /// The optimizer, if its state was saved.
    pub optimizer: Option<String>,
    /// The number of the optimizer's tensors.
    pub optimizer_tensors: usize,
    /// Their bytes.
    pub optimizer_bytes: u64,
    /// The number of tensors that are in one piece, the optimizer's too.
    pub full_tensors: usize,
    /// The number of tensors in several shards.
    pub sharded_tensors: usize,
    /// The most shards of a tensor.
    pub most_shards: usize,
    /// The length of every file.
    pub files: BTreeMap<String, u64>,
    /// The bytes of all files.
    pub file_bytes: u64,
    /// The config of the run.
    pub config: Value,
}

/// One tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorDescription {
    /// Its name.
    pub name: String,
    /// Its dimensions.
    pub dims: Vec<usize>,
    /// Its dtype.
    pub dtype: String,
    /// The number of its shards, in a checkpoint.
    pub shards: Option<usize>,
}

impl Opened {
    /// Describes all but the single tensors.
    pub fn describe(&self) -> Description {
        let tensors = self.format().tensors();
        let mut dtypes = BTreeMap::new();
        for tensor in tensors.values() {
            *dtypes.entry(tensor.dtype.to_string()).or_default() += 1;
        }
        let parameters = tensors.iter().filter(|(name, _)| !is_buffer(name));
        Description {
            path: self.format().path().to_owned(),
            format: self.format().name(),
            tensors: tensors.len(),
            parameters: parameters.map(|(_, tensor)| tensor.elements()).sum(),
            bytes: tensors.values().map(|tensor| tensor.bytes()).sum(),
            dtypes,
            checkpoint: self.checkpoint().map(describe),
        }
    }

    /// Describes every tensor, the optimizer's too.
    pub fn describe_tensors(&self) -> Vec<TensorDescription> {
        let tensors = self.tensors().into_iter();
        let described = tensors.map(|(name, tensor)| TensorDescription {
            dtype: tensor.dtype.to_string(),
            dims: tensor.dims,
            shards: self.checkpoint().map(|checkpoint| checkpoint.shard_count(&name)),
            name,
        });
        described.collect()
    }
}

fn describe(checkpoint: &Checkpoint) -> CheckpointDescription {
    let manifest = checkpoint.manifest();
    let data = manifest.progress.data.clone();
    let slots = || manifest.tensors.values().filter(|tensor| tensor.slot.is_some());
    let shards = || manifest.tensors.keys().map(|name| checkpoint.shard_count(name));
    CheckpointDescription {
        step: manifest.progress.step,
        epoch: data.epoch as f64 + data.example as f64 / data.examples.max(1) as f64,
        data,
        saved_at: manifest.saved_at,
        fullshard: manifest.fullshard.clone(),
        mesh: manifest.mesh.clone(),
        optimizer: manifest.optimizer.clone(),
        optimizer_tensors: slots().count(),
        optimizer_bytes: slots().map(|tensor| tensor.bytes() as u64).sum(),
        full_tensors: shards().filter(|&shards| shards <= 1).count(),
        sharded_tensors: shards().filter(|&shards| shards > 1).count(),
        most_shards: shards().max().unwrap_or(0),
        files: manifest.files.iter().map(|(name, file)| (name.clone(), file.bytes)).collect(),
        file_bytes: manifest.file_bytes(),
        config: manifest.config.clone(),
    }
}
