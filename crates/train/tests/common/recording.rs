//! Models, weights and losses that torch recorded: `crates/models/tests/data/record.py`.

use fullshard_parallel::Stored;
use fullshard_pjrt::HostTensor;
use safetensors::{Dtype, SafeTensors};
use std::path::Path;

/// The names of all recordings.
pub const RECORDINGS: [&str; 12] = [
    "gpt2_plain",
    "gpt2_odd",
    "gpt2_untied",
    "gpt2_upcast",
    "gpt2_vocabulary",
    "gpt2_inverse",
    "llama_tied",
    "llama_grouped",
    "llama_linear",
    "llama_yarn",
    "llama_dynamic",
    "llama_padded",
];

/// A recorded model.
pub struct Recording {
    bytes: Vec<u8>,
}

impl Recording {
    pub fn load(name: &str) -> Recording {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data");
        Recording { bytes: std::fs::read(data.join(format!("{name}.safetensors"))).unwrap() }
    }

    /// A text of the metadata.
    pub fn metadata(&self, key: &str) -> String {
        let (_, metadata) = SafeTensors::read_metadata(&self.bytes).unwrap();
        metadata.metadata().as_ref().unwrap()[key].clone()
    }

    /// The names of the optimizers it was trained with.
    pub fn optimizers(&self) -> Vec<String> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let names = tensors.names().into_iter();
        names.filter_map(|name| Some(name.strip_prefix("losses.")?.to_owned())).collect()
    }

    pub fn dims(&self, name: &str) -> Vec<usize> {
        SafeTensors::deserialize(&self.bytes).unwrap().tensor(name).unwrap().shape().to_vec()
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.elements(name, Dtype::F32, f32::from_le_bytes)
    }

    /// A stored parameter, of all layers one after another if they are stacked.
    pub fn parameter(&self, stored: &Stored) -> Vec<f32> {
        match stored.stack {
            Some(layers) => (0..layers)
                .flat_map(|layer| self.floats(&stored.name.replacen('*', &layer.to_string(), 1)))
                .collect(),
            None => self.floats(&stored.name),
        }
    }

    /// The `tokens` or `labels` of a step as one batch, `[1, sequences, tokens]`.
    pub fn batch(&self, name: &str, step: usize) -> HostTensor {
        let values = self.elements(name, Dtype::I32, i32::from_le_bytes);
        let [batches, sequences, tokens] = self.dims(name)[..] else { panic!("{name}") };
        let batch = values.chunks(sequences * tokens).nth(step % batches).unwrap();
        HostTensor::from_values(&[1, sequences, tokens], batch).unwrap()
    }

    fn elements<T>(&self, name: &str, dtype: Dtype, of: fn([u8; 4]) -> T) -> Vec<T> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), dtype, "{name}");
        tensor.data().chunks_exact(4).map(|bytes| of(bytes.try_into().unwrap())).collect()
    }
}
