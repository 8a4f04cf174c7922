//! Weights written and read back, and everything that must be rejected.
#![allow(clippy::unwrap_used)]

use fullshard_checkpoint::{Error, ExportOptions, TensorEntry, Weights, export, write_file};
use serde_json::{Value, json};
use std::cell::Cell;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Small tensors, one with no dimension and one with no element.
fn tensors() -> Vec<TensorEntry> {
    vec![
        TensorEntry::new("transformer.wte.weight", [5, 3]),
        TensorEntry::new("transformer.h.0.attn.c_attn.weight", [3, 9]),
        TensorEntry::new("scalar", []),
        TensorEntry::new("nothing", [0, 4]),
        TensorEntry::new("transformer.ln_f.bias", [3]),
    ]
}

fn elements(tensor: &TensorEntry) -> usize {
    tensor.dims.iter().product()
}

/// Distinct values per tensor and element.
fn values(name: &str) -> Vec<f32> {
    let tensor = tensors().into_iter().find(|tensor| tensor.name == name).unwrap();
    (0..elements(&tensor)).map(|i| name.len() as f32 + i as f32 / 64.0).collect()
}

fn options(max_shard_bytes: u64) -> ExportOptions {
    ExportOptions { max_shard_bytes, ..ExportOptions::default() }
}

fn write(dir: &Path, max_shard_bytes: u64) -> Vec<PathBuf> {
    let values = |name: &str| Ok::<_, Error>(values(name));
    let exported = export(dir, &tensors(), values, &options(max_shard_bytes)).unwrap();
    assert_eq!(exported.bytes, 4 * (15 + 27 + 1 + 3));
    exported.files
}

fn listing(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn assert_complete(path: &Path) {
    let weights = Weights::open(path).unwrap();
    weights.check(&tensors()).unwrap();
    assert_eq!(weights.names().count(), tensors().len());
    for tensor in tensors() {
        assert_eq!(weights.dims(&tensor.name).unwrap(), tensor.dims);
        assert_eq!(weights.read_f32(&tensor.name).unwrap(), values(&tensor.name));
    }
}

#[test]
fn written_weights_are_read_back() {
    let dir = folder();
    let files = write(dir.path(), u64::MAX);
    assert_eq!(files, [dir.path().join("model.safetensors")]);
    assert_complete(dir.path());
    assert_complete(&files[0]);
    let mode = fs::metadata(&files[0]).unwrap().permissions().mode();
    assert_eq!(mode & 0o600, 0o600);
    let plain = dir.path().join("plain");
    fs::write(&plain, "").unwrap();
    assert_eq!(mode, fs::metadata(plain).unwrap().permissions().mode());
}

#[test]
fn large_exports_have_shards_and_an_index() {
    let dir = folder();
    // The second tensor is larger than a shard and has its own.
    let files = write(dir.path(), 64);
    let names = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"];
    assert_eq!(files[..2], names.map(|name| dir.path().join(name)));
    assert_eq!(files.len(), 3);
    let index = fs::read(dir.path().join("model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(index["metadata"], json!({"total_parameters": 46, "total_size": 184}));
    assert_eq!(index["weight_map"]["transformer.h.0.attn.c_attn.weight"], names[1]);
    assert_eq!(index["weight_map"]["scalar"], "model-00003-of-00003.safetensors");
    assert_complete(dir.path());
    assert_complete(&dir.path().join("model.safetensors.index.json"));
}

#[test]
fn an_export_replaces_an_earlier_one_and_nothing_else() {
    let dir = folder();
    write_file(dir.path().join("model-card.md"), "kept").unwrap();
    write_file(dir.path().join("model-1-of-2.safetensors"), "not ours").unwrap();
    for max_shard_bytes in [64, 1 << 20, 32, 100] {
        let files = write(dir.path(), max_shard_bytes);
        assert_complete(dir.path());
        let others = if files.len() > 1 { 3 } else { 2 };
        assert_eq!(listing(dir.path()).len(), files.len() + others, "{:?}", listing(dir.path()));
    }
}

#[test]
fn each_tensor_is_requested_once_in_order() {
    let dir = folder();
    let requested = Cell::new(0);
    let count = |name: &str| {
        assert_eq!(name, tensors()[requested.get()].name);
        requested.set(requested.get() + 1);
        Ok::<_, Error>(values(name))
    };
    export(dir.path(), &tensors(), count, &ExportOptions::default()).unwrap();
    assert_eq!(requested.get(), tensors().len());
}

#[test]
fn failed_exports_leave_the_previous_files() {
    let dir = folder();
    write(dir.path(), u64::MAX);
    let before = listing(dir.path());
    let attempt = |tensors: &[TensorEntry], values: &dyn Fn(&str) -> Result<Vec<f32>, String>| {
        let error = export(dir.path(), tensors, values, &options(64)).unwrap_err();
        assert_eq!(listing(dir.path()), before);
        assert_complete(dir.path());
        error
    };
    let lost = |name: &str| match name {
        "scalar" => Err("the device is lost".to_owned()),
        _ => Ok(values(name)),
    };
    let error = attempt(&tensors(), &lost);
    assert_eq!(error.to_string(), "cannot get the values of `scalar`: the device is lost");

    let error = attempt(&tensors(), &|name| Ok(values(name)[..0].to_vec()));
    assert!(
        matches!(&error, Error::Count { name, expected: 15, found: 0 } if name == "transformer.wte.weight")
    );

    let twice = [tensors(), tensors()].concat();
    let error = attempt(&twice, &|name| Ok(values(name)));
    assert!(matches!(&error, Error::Duplicate { name } if name == "transformer.wte.weight"));

    let huge = [TensorEntry::new("huge", [usize::MAX, 2])];
    let error = attempt(&huge, &|_| Ok(Vec::new()));
    assert!(matches!(&error, Error::TooLarge { reason } if reason.contains("huge")), "{error}");
}

#[test]
fn full_disk_leaves_no_files() {
    let dir = folder();
    let Some(_disk) = SmallDisk::mount(dir.path().join("small")) else {
        println!("skipped: mounting a small file system is not permitted here");
        return;
    };
    let dir = dir.path().join("small");
    let tensors = [TensorEntry::new("first", [1000]), TensorEntry::new("second", [100_000])];
    let values = |name: &str| {
        let tensor = tensors.iter().find(|tensor| tensor.name == name).unwrap();
        Ok::<_, Error>(vec![1.0; elements(tensor)])
    };
    for (max_shard_bytes, failed) in
        [(u64::MAX, "model.safetensors"), (4000, "model-00002-of-00002.safetensors")]
    {
        let error = export(&dir, &tensors, values, &options(max_shard_bytes)).unwrap_err();
        assert!(
            matches!(&error, Error::Write { path, source }
                if *path == dir.join(failed) && source.kind() == io::ErrorKind::StorageFull),
            "{error}"
        );
        assert!(error.to_string().contains("The disk is full"), "{error}");
        assert!(listing(&dir).is_empty(), "{:?}", listing(&dir));
    }
    export(&dir, &tensors[..1], values, &ExportOptions::default()).unwrap();
    assert_eq!(listing(&dir), ["model.safetensors"]);
}

/// A file system of 256 KiB, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Option<Self> {
        fs::create_dir_all(&at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
            .arg(&at)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn errors_name_the_path() {
    let dir = folder();
    let file = dir.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    let values = |name: &str| Ok::<_, Error>(values(name));
    let error = export(file.join("out"), &tensors(), values, &ExportOptions::default());
    assert!(error.unwrap_err().to_string().contains("file/out/model.safetensors"));
}

/// A rename would succeed and replace the pipe by a file.
#[test]
fn only_regular_files_are_replaced() {
    let dir = folder();
    let pipe = dir.path().join("model.safetensors");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let values = |_: &str| -> Result<Vec<f32>, Error> { panic!("rejected before values are read") };
    let error = export(dir.path(), &tensors(), values, &ExportOptions::default()).unwrap_err();
    assert!(matches!(&error, Error::NotAFile { path, what: "a pipe" } if *path == pipe), "{error}");
    let link = dir.path().join("link");
    symlink(&pipe, &link).unwrap();
    for (path, what) in [(&pipe, "a pipe"), (&link, "a pipe"), (&dir.path().into(), "a folder")] {
        let error = write_file(path, "text").unwrap_err().to_string();
        let expected = format!("cannot write {}: it is {what}, which", path.display());
        assert!(error.starts_with(&expected) && error.contains("Pass a file"), "{error}");
    }
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    assert_eq!(listing(dir.path()), ["link", "model.safetensors"]);
}

/// A file with tensors of one element, under these names.
fn saved(dir: &Path, names: &[&str]) -> Weights {
    let tensors: Vec<TensorEntry> = names.iter().map(|&n| TensorEntry::new(n, [1])).collect();
    let value = |name: &str| Ok::<_, Error>(vec![name.len() as f32]);
    export(dir, &tensors, value, &ExportOptions::default()).unwrap();
    Weights::open(dir).unwrap()
}

#[test]
fn weights_are_found_under_any_name() {
    let dir = folder();
    let model = |names: &[&str]| -> Vec<TensorEntry> {
        names.iter().map(|&name| TensorEntry::new(name, [1])).collect()
    };
    let gpt2 = model(&["transformer.wte.weight", "transformer.h.0.ln_1.weight"]);
    let bare = ["wte.weight", "h.0.ln_1.weight", "h.0.attn.bias", "h.0.attn.masked_bias"];
    let weights = saved(dir.path(), &bare);
    weights.check(&gpt2).unwrap();
    assert_eq!(weights.read_f32("transformer.wte.weight").unwrap(), ["wte.weight".len() as f32]);
    assert_eq!(weights.names().collect::<Vec<_>>(), ["h.0.ln_1.weight", "wte.weight"]);

    // A tied head may be saved in addition to the embedding, or instead of it.
    let full = ["transformer.wte.weight", "transformer.h.0.ln_1.weight", "lm_head.weight"];
    saved(dir.path(), &full).check(&gpt2).unwrap();
    let weights = saved(dir.path(), &full[1..]);
    weights.check(&gpt2).unwrap();
    assert_eq!(weights.read_f32("transformer.wte.weight").unwrap(), [14.0]);
    // A head that is not tied must be there.
    let untied = model(&full);
    saved(dir.path(), &full).check(&untied).unwrap();
    let error = saved(dir.path(), &full[..2]).check(&untied).unwrap_err();
    assert!(matches!(&error, Error::Missing { names, .. } if *names == ["lm_head.weight"]));

    let llama = model(&["model.layers.0.mlp.up_proj.weight"]);
    let old = ["layers.0.mlp.up_proj.weight", "layers.0.self_attn.rotary_emb.inv_freq"];
    saved(dir.path(), &old).check(&llama).unwrap();
}

#[test]
fn rejects_weights_of_another_model() {
    let dir = folder();
    let weights = saved(dir.path(), &["a", "b", "c"]);
    let model = |entries: &[(&str, usize)]| -> Vec<TensorEntry> {
        entries.iter().map(|&(name, dim)| TensorEntry::new(name, [dim])).collect()
    };
    let error = weights.check(&model(&[("a", 1), ("x", 1), ("y", 1)])).unwrap_err();
    assert!(matches!(&error, Error::Missing { names, .. } if *names == ["x", "y"]), "{error}");
    let error = weights.check(&model(&[("a", 1)])).unwrap_err();
    assert!(matches!(&error, Error::Extra { names, .. } if *names == ["b", "c"]), "{error}");
    let error = weights.check(&model(&[("a", 1), ("b", 7), ("c", 1)])).unwrap_err();
    let file = dir.path().join("model.safetensors");
    let expected = format!(
        "`b` in {} has dimensions [1], but [7] in the model; the config may be of another model",
        file.display()
    );
    assert_eq!(error.to_string(), expected);
    let error = weights.read_f32("x").unwrap_err();
    assert!(matches!(&error, Error::Missing { names, .. } if *names == ["x"]), "{error}");
}

#[test]
fn rejects_folders_without_weights() {
    let dir = folder();
    let error = Weights::open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::NoWeights { .. }), "{error}");
    let error = Weights::open(dir.path().join("nowhere")).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
    let pickled = dir.path().join("pytorch_model.bin");
    fs::write(&pickled, "PK").unwrap();
    for path in [dir.path(), &pickled] {
        let error = Weights::open(path).unwrap_err();
        assert!(matches!(&error, Error::Damaged { path, .. } if *path == pickled), "{error}");
    }
    saved(dir.path(), &["a"]);
    Weights::open(dir.path()).unwrap();
}

#[test]
fn rejects_damaged_files() {
    let dir = folder();
    let path = write(dir.path(), u64::MAX).remove(0);
    let good = fs::read(&path).unwrap();
    let reject = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = Weights::open(dir.path()).unwrap_err();
        assert!(matches!(&error, Error::Damaged { path: at, .. } if *at == path), "{error}");
    };
    for length in 0..good.len() {
        reject(&good[..length]);
    }
    reject(&[&good[..], b"\0"].concat());
    reject(&[&u64::MAX.to_le_bytes()[..], &good[8..]].concat());
    let text = String::from_utf8_lossy(&good[8..]).into_owned();
    let offsets = "\"data_offsets\":[0,60]";
    assert!(text.contains(offsets));
    for wrong in ["\"data_offsets\":[4,64]", "\"data_offsets\":[60,0]", "\"data_offsets\":[0,64]"] {
        let at = 8 + text.find(offsets).unwrap();
        let mut bytes = good.clone();
        bytes.splice(at..at + offsets.len(), wrong.bytes());
        let added = (wrong.len() as i64 - offsets.len() as i64) as u64;
        let header = u64::from_le_bytes(good[..8].try_into().unwrap()).wrapping_add(added);
        bytes[..8].copy_from_slice(&header.to_le_bytes());
        reject(&bytes);
    }
}

#[test]
fn rejects_a_damaged_index() {
    let dir = folder();
    write(dir.path(), 64);
    let path = dir.path().join("model.safetensors.index.json");
    let good = fs::read_to_string(&path).unwrap();
    let reject = |text: &str, reason: &str| {
        fs::write(&path, text).unwrap();
        let error = Weights::open(dir.path()).unwrap_err();
        assert!(matches!(&error, Error::Damaged { path: at, .. } if *at == path), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    };
    reject(&good[..good.len() / 2], "not an index of weights");
    reject("[]", "not an index of weights");
    reject(&good.replace("model-00001", "model-00007"), "is missing");
    reject(&good.replace("\"scalar\"", "\"unknown\""), "`unknown` is not in");
    reject(&good.replace("model-00001", "../model-00001"), "not a file name");
    reject(&good.replace("model-00001", "/model-00001"), "not a file name");
    let itself = good.replace("model-00001-of-00003.safetensors", "model.safetensors.index.json");
    reject(&itself, "not a file name");
    fs::write(&path, good).unwrap();
    assert_complete(dir.path());
    fs::remove_file(dir.path().join("model-00002-of-00003.safetensors")).unwrap();
    let error = Weights::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("model-00002-of-00003.safetensors"), "{error}");
}
