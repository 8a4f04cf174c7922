//! Models, weights, losses and gradients recorded with torch by
//! `crates/models/tests/data/record.py`.

use fullshard_pjrt::HostTensor;
use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};

/// The names of all recordings.
pub const RECORDINGS: &[&str] = &[
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

/// The root of the repository: FULLSHARD_ROOT, for tests built on another machine, or where this
/// was built.
pub fn root() -> PathBuf {
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os("FULLSHARD_ROOT").map_or_else(built, PathBuf::from)
}

/// A recorded model.
pub struct Recording {
    bytes: Vec<u8>,
}

impl Recording {
    /// Loads a recording by name.
    pub fn load(name: &str) -> Recording {
        let path = root().join(format!("crates/models/tests/data/{name}.safetensors"));
        Recording { bytes: std::fs::read(path).unwrap() }
    }

    /// A string of the metadata.
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

    /// The elements of a tensor.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.elements(name, Dtype::F32, f32::from_le_bytes)
    }

    /// The `tokens` or `labels` of a step, `[sequences, tokens]`; the batches repeat.
    pub fn batch(&self, name: &str, step: usize) -> HostTensor {
        let values = self.elements(name, Dtype::I32, i32::from_le_bytes);
        let [batches, sequences, tokens] = self.dims(name)[..] else { panic!("{name}") };
        let batch = values.chunks(sequences * tokens).nth(step % batches).unwrap();
        HostTensor::from_values(&[sequences, tokens], batch).unwrap()
    }

    /// The dimensions of a tensor.
    pub fn dims(&self, name: &str) -> Vec<usize> {
        SafeTensors::deserialize(&self.bytes).unwrap().tensor(name).unwrap().shape().to_vec()
    }

    fn elements<T>(&self, name: &str, dtype: Dtype, of: fn([u8; 4]) -> T) -> Vec<T> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), dtype, "{name}");
        tensor.data().chunks_exact(4).map(|bytes| of(bytes.try_into().unwrap())).collect()
    }
}
