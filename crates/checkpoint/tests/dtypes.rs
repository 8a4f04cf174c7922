//! Dtypes of weights, cast as in torch, and sizes in bytes: see `data/record_dtypes.py`.
#![allow(clippy::unwrap_used)]

use fullshard_checkpoint::{
    Error, ExportOptions, TensorEntry, WeightDtype, Weights, export, parse_size,
};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn recorded() -> Weights {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dtypes.safetensors");
    Weights::open(path).unwrap()
}

#[test]
fn dtypes_are_cast_as_in_torch() {
    let weights = recorded();
    for name in ["f16", "bf16", "f32", "f64"] {
        let bits = |name: &str| -> Vec<u32> {
            weights.read_f32(name).unwrap().into_iter().map(f32::to_bits).collect()
        };
        assert_eq!(bits(name), bits(&format!("{name}.as_f32")), "{name}");
    }
    let error = weights.read_f32("i64").unwrap_err();
    assert!(matches!(&error, Error::DType { name, dtype, .. } if name == "i64" && dtype == "I64"));
}

#[test]
fn exports_are_rounded_as_in_torch() {
    let recorded = recorded();
    let dir = tempfile::tempdir().unwrap();
    let tensors = [TensorEntry::new("rounded", recorded.dims("rounded").unwrap())];
    for (dtype, saved, name) in [
        (WeightDtype::F32, Dtype::F32, "rounded"),
        (WeightDtype::BF16, Dtype::BF16, "rounded.bf16"),
        (WeightDtype::F16, Dtype::F16, "rounded.f16"),
    ] {
        let options = ExportOptions { dtype, ..ExportOptions::default() };
        let exported = export(dir.path(), &tensors, |name| recorded.read_f32(name), &options);
        let elements = recorded.dims("rounded").unwrap()[0];
        assert_eq!(exported.unwrap().bytes, (elements * saved.bitsize() / 8) as u64);
        let written = Weights::open(dir.path()).unwrap();
        assert_eq!(written.dtype("rounded").unwrap(), saved);
        let bits = |weights: &Weights, name: &str| -> Vec<u32> {
            weights.read_f32(name).unwrap().into_iter().map(f32::to_bits).collect()
        };
        assert_eq!(bits(&written, "rounded"), bits(&recorded, name), "{name}");
    }
}

#[test]
fn shards_and_totals_follow_the_dtype() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = [("a", 15), ("b", 27), ("c", 4)].map(|(name, n)| TensorEntry::new(name, [n]));
    let values = |name: &str| {
        let tensor = tensors.iter().find(|tensor| tensor.name == name).unwrap();
        Ok::<_, Error>(vec![0.5; tensor.dims[0]])
    };
    for (dtype, files, bytes) in [(WeightDtype::F32, 3, 184), (WeightDtype::BF16, 2, 92)] {
        let options = ExportOptions { max_shard_bytes: 64, dtype };
        let exported = export(dir.path(), &tensors, values, &options).unwrap();
        assert_eq!((exported.files.len(), exported.bytes), (files, bytes));
        let index = fs::read(dir.path().join("model.safetensors.index.json")).unwrap();
        let index: Value = serde_json::from_slice(&index).unwrap();
        assert_eq!(index["metadata"], json!({"total_parameters": 46, "total_size": bytes}));
        Weights::open(dir.path()).unwrap().check(&tensors).unwrap();
    }
}

/// More elements than are converted at once.
#[test]
fn ranges_of_large_tensors_are_converted_in_chunks() {
    const ELEMENTS: usize = (2 << 20) + 12_345;
    let dir = tempfile::tempdir().unwrap();
    let tensors = [TensorEntry::new("large", [ELEMENTS])];
    // Integers that bfloat16 has.
    let value = |i: usize| (i * 7 % 256) as f32;
    let values = |_: &str| Ok::<_, Error>((0..ELEMENTS).map(value).collect());
    let options = ExportOptions { dtype: WeightDtype::BF16, ..ExportOptions::default() };
    export(dir.path(), &tensors, values, &options).unwrap();
    let weights = Weights::open(dir.path()).unwrap();
    for range in [0..ELEMENTS, 5..(1 << 20) + 5, (1 << 20) - 1..ELEMENTS, 9..9] {
        let mut found = vec![-1.0; range.len()];
        weights.read_range_f32("large", range.clone(), &mut found).unwrap();
        assert!(range.map(value).eq(found));
    }
}

#[test]
fn sizes_are_parsed_as_by_hugging_face() {
    for (text, bytes) in [
        ("1000", 1000),
        ("5GB", 5_000_000_000),
        ("500MB", 500_000_000),
        ("2GiB", 2 << 30),
        ("200 kb", 200_000),
        ("1.5GB", 1_500_000_000),
        ("1TiB", 1 << 40),
    ] {
        assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
    }
    for text in
        ["", "GB", "five", "-1GB", "0", "1XB", "nan", "inf", "1e40", "99999999999TB", "1e400GB"]
    {
        let error = parse_size(text).unwrap_err();
        assert!(matches!(&error, Error::Size { text: at } if at == text), "{error}");
        assert!(error.to_string().contains("5GB"), "{error}");
    }
}
