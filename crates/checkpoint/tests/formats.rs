//! Files of torch, `transformers` and PyTorch/XLA, compared with what those read from them: see
//! `data/record_pickles.py`, `data/record_pretrained.py` and `data/record_xla_fsdp.py`.
#![allow(clippy::unwrap_used)]

use fullshard_checkpoint::{Error, Format, TensorEntry, Weights, open};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&fs::read(data(name)).unwrap()).unwrap()
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn dims(described: &Value) -> Vec<usize> {
    serde_json::from_value(described["dims"].clone()).unwrap()
}

/// The values of a tensor as they are saved.
fn bytes(format: &dyn Format, name: &str) -> Vec<u8> {
    let tensor = &format.tensors()[name];
    let mut bytes = vec![0; tensor.elements() * tensor.dtype.bitsize() / 8];
    format.read(name, 0..tensor.elements(), &mut bytes).unwrap();
    bytes
}

/// Every range of elements is a slice of the whole.
fn assert_ranges(format: &dyn Format, name: &str) {
    let tensor = &format.tensors()[name];
    let width = tensor.dtype.bitsize() / 8;
    let all = bytes(format, name);
    for start in 0..=tensor.elements() {
        for end in start..=tensor.elements() {
            let mut part = vec![0; (end - start) * width];
            format.read(name, start..end, &mut part).unwrap();
            assert_eq!(part, all[start * width..end * width], "{name} {start}..{end}");
        }
    }
}

fn refused(path: &Path) -> String {
    open(path).unwrap_err().to_string()
}

fn torch_dtype(saved: safetensors::Dtype) -> &'static str {
    use safetensors::Dtype::*;
    match saved {
        F32 => "float32",
        F16 => "float16",
        BF16 => "bfloat16",
        F64 => "float64",
        I64 => "int64",
        BOOL => "bool",
        other => panic!("{other} is not recorded"),
    }
}

#[test]
fn torch_files_have_the_values_that_torch_reads() {
    for (file, tensors) in json("pickles.json").as_object().unwrap() {
        let path = data("pickles").join(file);
        let format = open(&path).unwrap();
        assert_eq!((format.name(), format.path()), ("torch", &*path));
        let tensors = tensors.as_object().unwrap();
        assert!(tensors.keys().eq(format.tensors().keys()), "{file}");
        let weights = Weights::open(&path).unwrap();
        for (name, described) in tensors {
            let saved = &format.tensors()[name];
            assert_eq!(saved.dims, dims(described), "{file} {name}");
            assert_eq!(torch_dtype(saved.dtype), described["dtype"], "{file} {name}");
            assert_eq!(weights.dtype(name).unwrap(), saved.dtype);
            let found = match weights.read_f32(name) {
                Ok(values) => digest(bytemuck::cast_slice(&values)),
                Err(Error::DType { .. }) => digest(&bytes(&*format, name)),
                Err(error) => panic!("{error}"),
            };
            assert_eq!(found, described["sha256"], "{file} {name}");
            assert_ranges(&*format, name);
        }
    }
}

#[test]
fn pretrained_models_have_the_values_of_transformers() {
    let recorded = json("pretrained.json");
    let models = recorded["models"].as_object().unwrap();
    assert_eq!(models.len(), 6);
    for (case, parameters) in models {
        let weights = Weights::open(data("pretrained").join(case)).unwrap();
        let parameters = parameters.as_object().unwrap();
        let entries: Vec<TensorEntry> =
            parameters.iter().map(|(name, p)| TensorEntry::new(name, dims(p))).collect();
        weights.check(&entries).unwrap();
        for (name, described) in parameters {
            assert_eq!(torch_dtype(weights.dtype(name).unwrap()), described["dtype"], "{case}");
            let values = weights.read_f32(name).unwrap();
            assert_eq!(digest(bytemuck::cast_slice(&values)), described["sha256"], "{case} {name}");
        }
    }
}

#[test]
fn folders_files_and_indices_open_the_same() {
    let folder = data("pretrained/llama_bf16_bin_sharded");
    let index = folder.join("pytorch_model.bin.index.json");
    let sharded = open(&folder).unwrap();
    assert_eq!((sharded.name(), sharded.path()), ("torch", &*index));
    assert_eq!(sharded.tensors(), open(&index).unwrap().tensors());
    let folder = data("pretrained/gpt2_tied_bin");
    let file = folder.join("pytorch_model.bin");
    assert_eq!(open(&folder).unwrap().path(), file);
    assert!(open(&file).unwrap().tensors().contains_key("lm_head.weight"));
    // safetensors come before torch's files, as in transformers.
    let both = tempfile::tempdir().unwrap();
    fs::copy(file, both.path().join("pytorch_model.bin")).unwrap();
    let safetensors = both.path().join("model.safetensors");
    fs::copy(data("dtypes.safetensors"), &safetensors).unwrap();
    assert_eq!(open(both.path()).unwrap().path(), safetensors);
    // Contents count where the name says nothing.
    let bare = both.path().join("blob");
    fs::copy(&safetensors, &bare).unwrap();
    assert_eq!(open(&bare).unwrap().name(), "safetensors");
    fs::write(&bare, "text").unwrap();
    assert!(matches!(open(&bare).unwrap_err(), Error::NoWeights { .. }));
}

#[test]
fn requests_beyond_a_tensor_are_refused() {
    let format = open(data("pickles/protocol2.bin")).unwrap();
    let mut out = [0; 8];
    for (name, elements) in [("plain", 14..16), ("plain", 0..3), ("f16", 0..2), ("i64", 5..6)] {
        let error = format.read(name, elements, &mut out).unwrap_err();
        assert!(matches!(&error, Error::Range { name: at, .. } if at == name), "{error}");
    }
    let error = format.read("absent", 0..2, &mut out).unwrap_err();
    assert!(matches!(&error, Error::Missing { names, .. } if *names == ["absent"]), "{error}");
    let weights = Weights::new(format);
    let mut values = [0.0; 4];
    weights.read_range_f32("bf16", 3..7, &mut values).unwrap();
    assert_eq!(values, weights.read_f32("bf16").unwrap()[3..]);
    for elements in [4..8, 0..3] {
        let error = weights.read_range_f32("bf16", elements, &mut values).unwrap_err();
        assert!(matches!(error, Error::Range { .. }), "{error}");
    }
}

#[test]
fn pickles_are_not_executed() {
    let refuse = |file: &str, reason: &str| {
        let error = open(data("pickles").join(file)).unwrap_err();
        assert!(matches!(error, Error::Pickled { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(reason) && text.contains(file), "{text}");
        assert!(text.contains("python -c \"import torch"), "{text}");
    };
    refuse("command.bin", "it has a call of `posix.system` and no state dict");
    refuse("command_as_tensor.bin", "`bad` is a call of `posix.system`, not a tensor");
    refuse("module.pt", "a call of `torch.nn.modules.linear.Linear`");
    refuse("legacy.bin", "the format of torch before version 1.6");
    refuse("expanded.pt", "`wide` with dimensions [1000] and strides [0] exceeds its storage");
    refuse("no_tensors.pt", "it has a dict and no state dict of tensors");
    refuse("quantized.pt", "`q` is a call of `torch._utils._rebuild_qtensor`");
    // Beside the state dict of this file stands the same command.
    open(data("pickles/training.pth")).unwrap();
    assert!(!Path::new("executed-by-a-pickle").exists());
}

#[test]
fn xla_fsdp_checkpoints_are_consolidated_as_by_pytorch_xla() {
    for case in ["plain", "flat", "dim0"] {
        let folder = data("xla_fsdp").join(case);
        let expected = open(data(&format!("xla_fsdp/{case}.safetensors"))).unwrap();
        let mut paths = vec![folder.clone(), folder.join("net")];
        paths.extend(fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()));
        assert!(paths.len() >= 4);
        for path in paths {
            let format = open(&path).unwrap();
            assert_eq!((format.name(), format.path()), ("PyTorch/XLA FSDP", &*path));
            assert_eq!(format.tensors(), expected.tensors(), "{case}");
            for name in expected.tensors().keys() {
                assert_eq!(bytes(&*format, name), bytes(&*expected, name), "{case} {name}");
            }
        }
        let format = open(&folder).unwrap();
        for name in ["embed.weight", "blocks.0.proj.bias", "blocks.1.fc.weight"] {
            assert_ranges(&*format, name);
        }
    }
}

/// A folder with the files of three ranks, under the names of Hugging Face's Trainer if `trainer`.
fn ranks(trainer: bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..3 {
        let name = match trainer {
            true => format!("rank{rank}-of-3-pytorch_model.bin"),
            false => format!("net_rank-{rank:08}-of-00000003.pth"),
        };
        let from = data(&format!("xla_fsdp/plain/net_rank-{rank:08}-of-00000003.pth"));
        fs::copy(from, folder.path().join(name)).unwrap();
    }
    folder
}

#[test]
fn xla_fsdp_checkpoints_of_the_trainer_are_found() {
    let folder = ranks(true);
    let expected = open(data("xla_fsdp/plain.safetensors")).unwrap();
    let format = open(folder.path()).unwrap();
    assert_eq!(format.tensors(), expected.tensors());
    assert_eq!(bytes(&*format, "embed.weight"), bytes(&*expected, "embed.weight"));
}

#[test]
fn rejects_incomplete_xla_fsdp_checkpoints() {
    let folder = ranks(false);
    let file = |rank: usize, world: usize| {
        folder.path().join(format!("net_rank-{rank:08}-of-{world:08}.pth"))
    };
    let prefix = folder.path().join("net");
    let moved = folder.path().join("elsewhere");
    fs::rename(file(1, 3), &moved).unwrap();
    for path in [folder.path(), &prefix, &file(0, 3)] {
        let text = refused(path);
        assert!(text.contains("rank 1 of 3 is missing"), "{text}");
        assert!(text.contains("Copy the files of all ranks"), "{text}");
    }
    // The file of another rank under this name.
    fs::copy(file(0, 3), file(1, 3)).unwrap();
    let text = refused(&prefix);
    assert!(text.contains("00000001-of-00000003.pth") && text.contains("another rank"), "{text}");
    // A file of another checkpoint.
    let other = data("xla_fsdp/dim0/net_rank-00000001-of-00000004.pth");
    fs::copy(&other, file(1, 3)).unwrap();
    assert!(refused(&prefix).contains("another rank or world size"));
    fs::copy(&moved, file(1, 3)).unwrap();
    fs::copy(&other, file(1, 4)).unwrap();
    let text = refused(folder.path());
    assert!(text.contains("there are several; pass one file"), "{text}");
    open(file(0, 3)).unwrap();
    // Not a checkpoint of FSDP at all.
    fs::copy(data("pickles/protocol2.bin"), file(0, 3)).unwrap();
    let text = refused(&file(1, 3));
    assert!(text.contains("no `model` with `shard_metadata`"), "{text}");
    assert!(refused(&folder.path().join("absent")).contains("cannot read"));
}
