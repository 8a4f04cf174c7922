//! Sharded checkpoints: any range is read back, damage is found by name, and a process that is
//! killed at any point of a save leaves the last complete checkpoint.
#![allow(clippy::unwrap_used)]

mod boxes;
mod damage;
mod kill;
mod lock;

use fullshard_checkpoint::sharded::{
    Checkpoint, DataPosition, MANIFEST_VERSION, Manifest, MeshAxes, OnSave, Piece, Progress,
    Staging, TensorRecord,
};
use fullshard_checkpoint::{Error, list, shard_file_name};
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CONFIG: &str = "config.json";

/// Parameters, a slot of the optimizer, a scalar and a 16-bit tensor.
fn tensors() -> BTreeMap<String, TensorRecord> {
    let record = |name: &str, dims: &[usize], dtype, slot: Option<&str>| {
        let slot = slot.map(str::to_owned);
        (name.to_owned(), TensorRecord { dims: dims.to_vec(), dtype, slot })
    };
    BTreeMap::from([
        record("wte.weight", &[7, 3], Dtype::F32, None),
        record("h.0.w", &[4, 5], Dtype::F32, None),
        record("h.1.w", &[4, 5], Dtype::F32, None),
        record("half", &[11], Dtype::BF16, None),
        record("scale", &[], Dtype::F32, None),
        record("wte.weight.exp_avg", &[7, 3], Dtype::F32, Some("exp_avg")),
    ])
}

/// The values of a tensor in a save.
fn values(save: u64, name: &str) -> Vec<u8> {
    let seed = name.bytes().fold(save, |hash, byte| hash.wrapping_mul(31) ^ u64::from(byte));
    let byte = |i: usize| ((seed ^ i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    (0..tensors()[name].bytes()).map(byte).collect()
}

/// The range of a tensor that one of several devices holds; those of the last ones may be empty.
fn shard(elements: usize, devices: usize, device: usize) -> Range<usize> {
    let each = elements.div_ceil(devices);
    (device * each).min(elements)..((device + 1) * each).min(elements)
}

/// What each file of a checkpoint holds: a file per device.
fn pieces(devices: usize) -> Vec<Vec<Piece>> {
    let of_device = |device| {
        let all = tensors().into_iter().map(|(tensor, record)| {
            let part = shard(record.elements(), devices, device).into();
            Piece { tensor, part }
        });
        all.filter(|piece| piece.part.elements() > 0).collect()
    };
    (0..devices).map(of_device).collect()
}

/// Saves the values of `save` as the checkpoint of a step, in these files.
fn save_pieces(
    folder: &Path,
    step: u64,
    save: u64,
    files: &[Vec<Piece>],
    on_save: OnSave,
) -> Result<PathBuf, Error> {
    let staging = Staging::begin(folder, step, on_save)?;
    staging.write_file(CONFIG, format!("{{\"save\": {save}}}").as_bytes())?;
    for (i, pieces) in files.iter().enumerate() {
        let name = shard_file_name("model", i, files.len());
        staging.write_pieces(&name, pieces, &tensors(), |piece, write| {
            let Piece { tensor, part } = &pieces[piece];
            let (record, values) = (&tensors()[tensor], values(save, tensor));
            part.runs(&record.dims).try_for_each(|run| {
                let bytes = &values[run.from * record.width()..];
                write(&bytes[..run.count * record.width()])
            })
        })?;
    }
    staging.commit(manifest(step, save, tensors()))
}

/// The manifest of a save, without files.
fn manifest(step: u64, save: u64, tensors: BTreeMap<String, TensorRecord>) -> Manifest {
    let data = DataPosition::default();
    Manifest {
        version: MANIFEST_VERSION,
        fullshard: "0".into(),
        saved_at: save as f64,
        progress: Progress { run: "test".into(), step, data, ..Progress::default() },
        mesh: MeshAxes::default(),
        optimizer: Some("adamw".into()),
        config: serde_json::json!({}),
        tensors,
        files: BTreeMap::new(),
    }
}

/// Saves from a number of devices. The number of the save is the step.
fn save(folder: &Path, step: u64, devices: usize) -> PathBuf {
    save_pieces(folder, step, step, &pieces(devices), Arc::new(|_| {})).unwrap()
}

/// Reads everything of a checkpoint, and fails at the first damage.
fn load(path: &Path) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let checkpoint = Checkpoint::open(path)?;
    let mut found = BTreeMap::new();
    for (name, record) in &checkpoint.manifest().tensors {
        let mut out = vec![0; record.bytes()];
        checkpoint.read_elements(name, 0..record.elements(), &mut out)?;
        found.insert(name.clone(), out);
    }
    found.insert(CONFIG.to_owned(), checkpoint.read_file(CONFIG)?);
    Ok(found)
}

/// All that [`load`] reads of an intact checkpoint.
fn saved(save: u64) -> BTreeMap<String, Vec<u8>> {
    let values = tensors().into_keys().map(|name| (name.clone(), values(save, &name)));
    let config = format!("{{\"save\": {save}}}").into_bytes();
    values.chain([(CONFIG.to_owned(), config)]).collect()
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Every range of every tensor, each from a checkpoint that has not read the shard before and from
/// one that has.
#[test]
fn reads_every_range() {
    for devices in [1, 2, 3, 8] {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), 4, devices);
        let warm = Checkpoint::open(&path).unwrap();
        for (name, record) in tensors() {
            let (all, width) = (values(4, &name), record.width());
            for start in 0..=record.elements() {
                let fresh = Checkpoint::open(&path).unwrap();
                for end in start..=record.elements() {
                    for checkpoint in [&fresh, &warm] {
                        let mut out = vec![0; (end - start) * width];
                        checkpoint.read_elements(&name, start..end, &mut out).unwrap();
                        assert_eq!(out, all[start * width..end * width], "{name} {start}..{end}");
                    }
                }
            }
        }
    }
}

/// The shards of one number of devices are read as those of any other.
#[test]
fn reads_shards_of_another_mesh() {
    for (from, to) in [(1, 8), (8, 1), (2, 3), (3, 2), (4, 8), (8, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::open(save(folder.path(), 4, from)).unwrap();
        for (name, record) in tensors() {
            let shards = (0..to).map(|device| shard(record.elements(), to, device));
            let read = shards.flat_map(|range| {
                let mut out = vec![0; range.len() * record.width()];
                checkpoint.read_elements(&name, range, &mut out).unwrap();
                out
            });
            let read: Vec<u8> = read.collect();
            assert_eq!(read, values(4, &name), "{name} from {from} to {to}");
        }
    }
}

#[test]
fn rejects_ranges_that_are_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(save(folder.path(), 4, 2)).unwrap();
    for (range, bytes) in [(0..22, 88), (21..22, 4), (0..21, 80), (0..1, 8), (30..31, 4)] {
        let read = checkpoint.read_elements("wte.weight", range.clone(), &mut vec![0; bytes]);
        let error = read.expect_err(&format!("{range:?} into {bytes} bytes"));
        assert!(error.to_string().contains("`wte.weight`"), "{error}");
    }
    let unknown = checkpoint.read_elements("missing", 0..1, &mut [0; 4]).unwrap_err();
    assert!(unknown.to_string().contains("`missing`"), "{unknown}");
}

/// The last save comes first, whatever its step; other folders are not checkpoints.
#[test]
fn lists_the_last_save_first() {
    let folder = tempfile::tempdir().unwrap();
    for (step, number) in [(2, 1), (10, 2), (4, 3)] {
        save_pieces(folder.path(), step, number, &pieces(2), Arc::new(|_| {})).unwrap();
    }
    for name in ["checkpoint-", "checkpoint-x", "checkpoint-07", "runs"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("checkpoint-6"), "a file").unwrap();
    let steps: Vec<u64> = list(folder.path()).unwrap().iter().map(|listed| listed.step).collect();
    assert_eq!(steps, [4, 10, 2]);
    assert_eq!(list(&folder.path().join("nowhere")).unwrap().len(), 0);
}
