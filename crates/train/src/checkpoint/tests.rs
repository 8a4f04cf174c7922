//! Stacked layers on meshes of several axes, sharded along any dims and replicated: saved on one
//! mesh, and read on another.

use super::plan::SavePlan;
use super::read_checkpoint;
use super::write::{FileJob, buffers, write_files};
use crate::state::Argument;
use fullshard_checkpoint::sharded::{
    Checkpoint, MANIFEST_VERSION, Manifest, MeshAxes, Progress, Staging,
};
use fullshard_core::{DType, Mesh, TensorType};
use fullshard_pjrt::{Array, ArrayType, Tiling};
use fullshard_step::SavedTensors;
use fullshard_testing::CLIENT;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const LAYERS: usize = 3;
const DIMS: [usize; 2] = [5, 7];

/// The axes of a mesh, and those that shard the layers and each dim of a layer.
type Case = (&'static [(&'static str, usize)], &'static [&'static [&'static str]]);

const CASES: [Case; 9] = [
    (&[("fsdp", 1)], &[&[], &[], &[]]),
    (&[("fsdp", 2)], &[&[], &["fsdp"], &[]]),
    (&[("fsdp", 4)], &[&[], &[], &["fsdp"]]),
    (&[("fsdp", 2), ("tensor", 2)], &[&[], &["fsdp"], &["tensor"]]),
    (&[("replica", 2), ("fsdp", 2), ("tensor", 2)], &[&[], &["fsdp"], &["tensor"]]),
    (&[("fsdp", 4), ("replica", 2)], &[&[], &[], &["fsdp"]]),
    (&[("replica", 4), ("pipeline", 2)], &[&["pipeline"], &[], &[]]),
    (&[("replica", 8)], &[&[], &[], &[]]),
    // A flat layout.
    (&[("replica", 2), ("fsdp", 3)], &[&[], &["fsdp"]]),
];

fn saved() -> SavedTensors {
    let names = (0..LAYERS).map(|layer| format!("h.{layer}.w")).collect();
    SavedTensors { names, dims: DIMS.to_vec(), slot: None, stacked: true, split: None }
}

/// The value of an element of a layer.
fn value(layer: usize, element: usize) -> f32 {
    (1 + layer * saved().elements() + element) as f32
}

/// The padded state over a mesh.
fn argument((axes, dims): Case) -> Argument {
    let sharding = Mesh::new(axes).unwrap().sharding(dims).unwrap();
    let flat = [LAYERS, saved().elements()];
    let full = if dims.len() == 2 { &flat[..] } else { &[LAYERS, DIMS[0], DIMS[1]] };
    let padded: Vec<usize> =
        full.iter().zip(sharding.parts()).map(|(dim, parts)| dim.next_multiple_of(parts)).collect();
    Argument {
        name: "h.*.w".into(),
        array: ArrayType {
            ty: TensorType::new(DType::F32, &padded),
            tiling: Arc::new(Tiling::over_mesh(&sharding)),
        },
        devices: (0..sharding.mesh().devices()).collect(),
    }
}

/// Checks the values of an array: those of all elements, and zeros.
fn check(array: &Array, what: &str) {
    let found: Vec<f32> = array.to_host().unwrap().values().unwrap();
    let dims = &array.ty().dims;
    let (length, columns) =
        (found.len() / dims[0], if dims.len() == 2 { DIMS[1] } else { dims[2] });
    let expected = |place: usize| {
        let (layer, row, column) =
            (place / length, place % length / columns, place % length % columns);
        let inside = layer < LAYERS && row < DIMS[0] && column < DIMS[1];
        if inside { value(layer, row * DIMS[1] + column) } else { 0.0 }
    };
    assert_eq!(found, (0..found.len()).map(expected).collect::<Vec<_>>(), "{what}");
}

fn save(folder: &Path, array: &Array) -> PathBuf {
    let saved = saved();
    let plan = SavePlan::of([(0, (array, &saved))].into_iter()).unwrap();
    let staging = Staging::at(&folder.join("saved"), 1).unwrap();
    let files = FileJob::on_devices(&plan, &buffers(&plan, &[array]));
    write_files(&staging, &plan, files, u64::MAX).unwrap();
    let manifest = Manifest {
        version: MANIFEST_VERSION,
        fullshard: "0".into(),
        saved_at: 0.0,
        progress: Progress { step: 1, ..Progress::default() },
        mesh: MeshAxes::default(),
        optimizer: None,
        config: serde_json::Value::Null,
        tensors: plan.tensors,
        files: BTreeMap::new(),
    };
    staging.commit(manifest).unwrap()
}

/// Each tile is read once, whatever the number of devices that hold it.
#[test]
fn any_mesh_reads_what_any_other_saved() {
    for from in CASES {
        let on_devices = argument(from).upload_saved(&CLIENT, &saved(), &|saved, part, out| {
            for run in part.part.runs(&saved.dims) {
                let values: Vec<u8> = (run.from..run.from + run.count)
                    .flat_map(|element| value(part.tensor, element).to_le_bytes())
                    .collect();
                out[run.to * 4..][..values.len()].copy_from_slice(&values);
            }
            Ok(())
        });
        let on_devices = on_devices.unwrap();
        check(&on_devices, &format!("{from:?}"));
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::open(save(folder.path(), &on_devices)).unwrap();
        for to in CASES {
            let (argument, reads) = (argument(to), AtomicUsize::new(0));
            let read = read_checkpoint(&checkpoint);
            let array = argument.upload_saved(&CLIENT, &saved(), &|saved, part, out| {
                reads.fetch_add(part.part.elements(), Ordering::Relaxed);
                read(saved, part, out)
            });
            check(&array.unwrap(), &format!("{from:?} to {to:?}"));
            assert_eq!(reads.into_inner(), LAYERS * saved().elements(), "{from:?} to {to:?}");
        }
    }
}

/// No byte is written twice, and replicas share the work.
#[test]
fn replicas_write_each_shard_once() {
    let array = |_| {
        let zeros = argument(CASES[4]).upload_saved(&CLIENT, &saved(), &|_, _, _| Ok(()));
        zeros.unwrap()
    };
    let (arrays, saved): (Vec<Array>, Vec<_>) = (0..4).map(|i| (array(i), saved())).unzip();
    let plan = SavePlan::of(arrays.iter().zip(&saved).enumerate()).unwrap();
    let bytes = |device: usize| -> usize {
        let tiles = plan.tiles.iter().filter(|tile| tile.shard == device);
        tiles.map(|tile| tile.ty.bytes()).sum()
    };
    // Three layers of tiles of [3, 4], four arrays, two replicas.
    assert_eq!((0..8).map(bytes).collect::<Vec<_>>(), [3 * 3 * 4 * 4 * 2; 8]);
    assert_eq!(plan.files.len(), 8);
    for file in &plan.files {
        assert_eq!(file.pieces.len(), 2 * LAYERS, "{}", file.name);
    }
}
