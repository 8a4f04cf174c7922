//! `manifest.json`: what a checkpoint holds, and how far its run was.

use crate::checksum::Checksum;
use crate::error::{Error, Result};
use safetensors::Dtype;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// The name of the file.
pub const MANIFEST: &str = "manifest.json";

/// The newest version of the format, of checkpoints with boxes.
pub const MANIFEST_VERSION: u32 = 2;

/// The version of checkpoints whose shards are all ranges of elements.
pub(super) const FLAT_VERSION: u32 = 1;

/// Describes a checkpoint. Shards are not listed by device: the headers of the files name the
/// tensor and the part of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the format.
    pub version: u32,
    /// The version of fullshard that wrote it.
    pub fullshard: String,
    /// When it was saved, in seconds since 1970.
    pub saved_at: f64,
    /// How far the run was.
    pub progress: Progress,
    /// The axes of the mesh that saved it.
    pub mesh: MeshAxes,
    /// The optimizer whose state it has; none if it has only the model.
    pub optimizer: Option<String>,
    /// The config of the run.
    pub config: Value,
    /// All tensors by name.
    pub tensors: BTreeMap<String, TensorRecord>,
    /// All other files of the checkpoint by name.
    pub files: BTreeMap<String, FileRecord>,
}

/// The names and sizes of the axes of a mesh, the slowest-varying first: in JSON a map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeshAxes(pub Vec<(String, usize)>);

impl fmt::Display for MeshAxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = self.0.iter().map(|(axis, size)| format!("{axis} {size}"));
        f.write_str(&axes.collect::<Vec<_>>().join(", "))
    }
}

impl Serialize for MeshAxes {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(axis, size)| (axis, size)))
    }
}

impl<'de> Deserialize<'de> for MeshAxes {
    fn deserialize<D: Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<MeshAxes, D::Error> {
        struct Axes;

        impl<'de> Visitor<'de> for Axes {
            type Value = MeshAxes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of mesh axes")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<MeshAxes, A::Error> {
                let mut axes = Vec::new();
                while let Some(axis) = map.next_entry()? {
                    axes.push(axis);
                }
                Ok(MeshAxes(axes))
            }
        }

        deserializer.deserialize_map(Axes)
    }
}

/// How far a run was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// A name of the run, which stays the same when it is resumed.
    pub run: String,
    /// Steps done.
    pub step: u64,
    /// The seed of initialization and dropout.
    pub seed: u64,
    /// The position in the training data.
    pub data: DataPosition,
    /// Examples trained on.
    pub samples: u64,
    /// The sum of the losses of all steps.
    pub total_loss: f64,
    /// Steps since the last log.
    pub unlogged_steps: u64,
    /// The sum of their losses.
    pub unlogged_loss: f64,
    /// Batches that were passed over after loss spikes: data is that number of steps further on.
    #[serde(default)]
    pub passed_over: u64,
    /// The losses of recent steps, by which a spike is known.
    #[serde(default)]
    pub losses: LossStatistics,
}

/// Moving averages of losses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LossStatistics {
    /// The number of losses.
    pub steps: u64,
    /// Their mean.
    pub mean: f64,
    /// Their variance.
    pub variance: f64,
}

/// A position in the training data, between two steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPosition {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// Examples of the epoch already trained on.
    pub example: u64,
    /// Examples per epoch.
    pub examples: u64,
    /// Examples per step.
    pub batch: u64,
    /// The seed of the order.
    pub seed: u64,
    /// A checksum of the examples, if they have one.
    pub checksum: Option<Checksum>,
}

/// A tensor, over all its shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorRecord {
    /// Its dimensions.
    pub dims: Vec<usize>,
    /// Its dtype.
    pub dtype: Dtype,
    /// Which of the optimizer's slots it is, unless it is a parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
}

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Its length.
    pub bytes: u64,
    /// The checksum of all of it.
    pub checksum: Checksum,
    /// Of a file of shards: the checksum of its header, and of each shard in its order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<ShardChecksums>,
}

/// The checksums of a file of shards, so that any of them can be read and checked alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardChecksums {
    /// That of the header.
    pub header: Checksum,
    /// Those of the shards, in the order of their values in the file.
    pub values: Vec<Checksum>,
}

impl Manifest {
    /// Parses a manifest.
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Manifest> {
        let damaged = |reason: String| Error::Damaged { path: path.to_owned(), reason };
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| damaged(format!("it is not JSON ({error})")))?;
        match value.get("version").and_then(Value::as_u64) {
            Some(version) if (1..=u64::from(MANIFEST_VERSION)).contains(&version) => {}
            Some(version) => {
                return Err(Error::Version {
                    path: path.to_owned(),
                    found: version,
                    known: MANIFEST_VERSION,
                });
            }
            None => return Err(damaged("it has no version".into())),
        }
        // Not from the value, which has lost the order of the axes.
        let manifest: Manifest = serde_json::from_slice(bytes)
            .map_err(|error| damaged(format!("it is not a manifest ({error})")))?;
        for (name, TensorRecord { dims, dtype, .. }) in &manifest.tensors {
            let bits = dims.iter().try_fold(dtype.bitsize(), |bits, dim| bits.checked_mul(*dim));
            if bits.is_none() || dtype.bitsize() % 8 != 0 {
                return Err(damaged(format!("`{name}` cannot be {dtype} of dimensions {dims:?}")));
            }
        }
        Ok(manifest)
    }

    /// The bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes() as u64).sum()
    }

    /// The bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// The parameters, without the optimizer's slots.
    pub fn parameters(&self) -> impl Iterator<Item = (&String, &TensorRecord)> {
        self.tensors.iter().filter(|(_, tensor)| tensor.slot.is_none())
    }
}

impl TensorRecord {
    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.elements() * self.width()
    }

    /// Bytes per element.
    pub fn width(&self) -> usize {
        self.dtype.bitsize() / 8
    }
}
