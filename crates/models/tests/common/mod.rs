//! Running models on one CPU device, and the recordings to compare them with.
#![allow(dead_code, clippy::unwrap_used)]

use fullshard_graph::{Argument, DType, Program, Result, Tensor, TensorType};
use fullshard_models::{CausalLm, from_json};
use fullshard_pjrt::plugins::{PluginKind, Store, find_or_install};
use fullshard_pjrt::{
    Array, Client, ClientOptions, CompileOptions, HostTensor, LoadedExecutable, Plugin,
};
use safetensors::SafeTensors;
use std::path::Path;
use std::sync::LazyLock;

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

/// The CPU, or what FULLSHARD_TEST_DEVICE names.
static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let kind = std::env::var("FULLSHARD_TEST_DEVICE").unwrap_or("cpu".into());
    let kind: PluginKind = kind.parse().unwrap();
    let store = Store::default_location().unwrap();
    let located = find_or_install(kind, None, &store).unwrap();
    let options = match kind {
        PluginKind::Cpu => ClientOptions::new().cpu_device_count(1),
        _ => ClientOptions::new(),
    };
    Client::new(Plugin::load(&located.path).unwrap(), &options).unwrap()
});

/// A recorded model: see `data/record.py`.
pub struct Recording {
    bytes: Vec<u8>,
}

impl Recording {
    pub fn load(name: &str) -> Recording {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        Recording { bytes: std::fs::read(data.join(format!("{name}.safetensors"))).unwrap() }
    }

    pub fn metadata(&self, key: &str) -> String {
        let (_, metadata) = SafeTensors::read_metadata(&self.bytes).unwrap();
        metadata.metadata().as_ref().unwrap()[key].clone()
    }

    pub fn model(&self) -> Box<dyn CausalLm> {
        from_json(&self.metadata("config")).unwrap()
    }

    pub fn dims(&self, name: &str) -> Vec<usize> {
        SafeTensors::deserialize(&self.bytes).unwrap().tensor(name).unwrap().shape().to_vec()
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.elements(name, safetensors::Dtype::F32, f32::from_le_bytes)
    }

    pub fn integers(&self, name: &str) -> Vec<i32> {
        self.elements(name, safetensors::Dtype::I32, i32::from_le_bytes)
    }

    fn elements<T>(&self, name: &str, dtype: safetensors::Dtype, of: fn([u8; 4]) -> T) -> Vec<T> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), dtype, "{name}");
        tensor.data().chunks_exact(4).map(|bytes| of(bytes.try_into().unwrap())).collect()
    }

    /// The weights in the order of the model's tree, without the tied ones: names and values.
    pub fn weights(&self) -> Vec<(String, HostTensor)> {
        let tree = self.model().tree();
        let own = tree.named_parameters().into_iter().filter(|(_, p)| p.tied_to.is_none());
        own.map(|(name, p)| {
            let values = HostTensor::from_values(&p.dims, &self.floats(&name)).unwrap();
            (name, values)
        })
        .collect()
    }

    /// One of the recorded batches of `tokens` or `labels`.
    pub fn batch(&self, name: &str, index: usize) -> HostTensor {
        let dims = self.dims(name)[1..].to_vec();
        let values = self.integers(name);
        let size: usize = dims.iter().product();
        HostTensor::from_values(&dims, &values[index * size..(index + 1) * size]).unwrap()
    }
}

/// Traces a function of `inputs` and runs it on them.
pub fn eval(
    inputs: &[HostTensor],
    function: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Vec<HostTensor> {
    call(&compile(inputs, function), inputs)
}

/// Traces and compiles a function of tensors like `inputs`.
pub fn compile(
    inputs: &[HostTensor],
    function: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> LoadedExecutable {
    compile_with(&[], inputs, function)
}

/// The same with flags of the compiler.
pub fn compile_with(
    flags: &[&str],
    inputs: &[HostTensor],
    function: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> LoadedExecutable {
    let arguments: Vec<Argument> = inputs.iter().map(argument).collect();
    let program = Program::trace("test", &arguments, |tensors| function(&tensors)).unwrap();
    let text = program.to_text();
    let options = CompileOptions::new(program.devices());
    let options = flags.iter().try_fold(options, |options, flag| options.flag_text(flag)).unwrap();
    CLIENT.compile(&text, &options).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Runs a compiled function.
pub fn call(loaded: &LoadedExecutable, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let arrays: Vec<Array> = inputs
        .iter()
        .enumerate()
        .map(|(i, tensor)| {
            let sharding = loaded.argument_type(i).unwrap().sharding;
            Array::from_host(&CLIENT, tensor, sharding, loaded.devices()).unwrap()
        })
        .collect();
    let results = loaded.execute_arrays(&arrays.iter().collect::<Vec<_>>()).unwrap();
    results.iter().map(|array| array.to_host().unwrap()).collect()
}

fn argument(tensor: &HostTensor) -> Argument {
    use fullshard_pjrt::DType as Of;
    let dtype = match tensor.dtype() {
        Of::F32 => DType::F32,
        Of::F64 => DType::F64,
        Of::I32 => DType::I32,
        other => panic!("no test has {other:?}"),
    };
    Argument::new(TensorType::new(dtype, tensor.dims()))
}

/// The largest difference relative to the largest magnitude expected.
pub fn difference(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(
            0.0,
            |largest: f64, value| {
                if value.is_nan() { f64::INFINITY } else { largest.max(value.abs()) }
            },
        )
    };
    let scale = largest(&mut expected.iter().copied());
    let apart = largest(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    if scale == 0.0 { apart } else { apart / scale }
}

/// Numbers in [-1, 1) that differ from each other, the same every time.
pub fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A tensor of such numbers, of type `f64`.
pub fn random(dims: &[usize], seed: u64) -> HostTensor {
    HostTensor::from_values(dims, &numbers(dims.iter().product(), seed)).unwrap()
}
