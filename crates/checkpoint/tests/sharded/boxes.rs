//! Shards that are boxes: saved in any parts, a tensor is read in any others.

use super::{CONFIG, manifest, save_pieces, tensors, values};
use crate::damage::{found, others};
use fullshard_checkpoint::sharded::{
    COMMITTED, Checkpoint, MANIFEST, Manifest, MeshAxes, Piece, Staging, TensorRecord, verify,
};
use fullshard_checkpoint::{Checksum, Opened, Weights, compare, consolidate, reshard};
use fullshard_core::Part;
use proptest::prelude::*;
use proptest::sample::Index;
use safetensors::Dtype;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn part(text: &str) -> Part {
    Part::parse(text).unwrap()
}

/// Saves `h.0.w`, of dimensions [4, 5], in these parts, one per file.
fn save_parts(folder: &Path, parts: &[&str]) -> PathBuf {
    let piece = |text: &&str| vec![Piece { tensor: "h.0.w".into(), part: part(text) }];
    let files: Vec<_> = parts.iter().map(piece).chain([others()]).collect();
    save_pieces(folder, 4, 4, &files, Arc::new(|_| {})).unwrap()
}

fn saved_manifest(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path.join(MANIFEST)).unwrap()).unwrap()
}

/// The keys of a file of shards with the dimensions of their values.
fn header(path: &Path) -> BTreeMap<String, Value> {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    tensors.map(|(name, info)| (name, info["shape"].clone())).collect()
}

#[test]
fn boxes_are_named_by_their_ranges() {
    let folder = tempfile::tempdir().unwrap();
    let path = save_parts(folder.path(), &["[0:4,0:3]", "[0:4,3:5]"]);
    let second = header(&path.join("model-00002-of-00003.safetensors"));
    assert_eq!(second, BTreeMap::from([("h.0.w[0:4,3:5]".into(), json!([4, 2]))]));
    assert_eq!(saved_manifest(&path)["version"], 2);
    let flat = save_parts(folder.path(), &["[0:10]", "[10:20]"]);
    let second = header(&flat.join("model-00002-of-00003.safetensors"));
    assert_eq!(second, BTreeMap::from([("h.0.w[10:20]".into(), json!([10]))]));
    assert_eq!(saved_manifest(&flat)["version"], 1);
}

/// A checkpoint as version 1 wrote it, byte by byte.
#[test]
fn reads_version_1() {
    let folder = tempfile::tempdir().unwrap();
    let values = [1_f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f32::to_le_bytes).concat();
    let mut files = BTreeMap::new();
    for (name, range, bytes) in [("a", "[0:4]", &values[..16]), ("b", "[4:6]", &values[16..])] {
        let (elements, end) = (bytes.len() / 4, bytes.len());
        let text = format!(
            r#"{{"__metadata__":{{"step":"4"}},"w{range}":{{"dtype":"F32","shape":[{elements}],"data_offsets":[0,{end}]}}}}"#
        );
        let header = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let file = [&header[..], bytes].concat();
        let sums = json!({ "header": Checksum::of(&header), "values": [Checksum::of(bytes)] });
        let name = format!("model-{name}.safetensors");
        fs::write(folder.path().join(&name), &file).unwrap();
        let checksum = Checksum::of(&file);
        files.insert(name, json!({ "bytes": file.len(), "checksum": checksum, "shards": sums }));
    }
    let data = json!({ "epoch": 0, "example": 0, "examples": 0, "batch": 0, "seed": 0,
        "checksum": null });
    let manifest = json!({
        "version": 1,
        "fullshard": "0.1.0",
        "saved_at": 1.7e9,
        "progress": { "run": "r", "step": 4, "seed": 0, "data": data, "samples": 0,
            "total_loss": 0.0, "unlogged_steps": 0, "unlogged_loss": 0.0 },
        "mesh": { "fsdp": 2 },
        "optimizer": null,
        "config": {},
        "tensors": { "w": { "dims": [3, 2], "dtype": "F32" } },
        "files": files,
    });
    let bytes = manifest.to_string();
    fs::write(folder.path().join(MANIFEST), &bytes).unwrap();
    fs::write(folder.path().join(COMMITTED), format!("{}\n", Checksum::of(bytes.as_bytes())))
        .unwrap();
    assert_eq!(verify(folder.path(), &mut |_| ()).unwrap(), []);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let mut column = vec![0; 12];
    checkpoint.read_part("w", &part("[0:3,1:2]"), &mut column).unwrap();
    assert_eq!(column, [2_f32, 4.0, 6.0].map(f32::to_le_bytes).concat());
}

#[test]
fn axes_of_the_mesh_keep_their_order() {
    let axes = [("replica", 2), ("fsdp", 4), ("data", 1)];
    let axes = MeshAxes(axes.map(|(axis, size)| (axis.to_owned(), size)).to_vec());
    let text = serde_json::to_string(&axes).unwrap();
    assert_eq!(text, r#"{"replica":2,"fsdp":4,"data":1}"#);
    assert_eq!(serde_json::from_str::<MeshAxes>(&text).unwrap(), axes);
    assert_eq!(axes.to_string(), "replica 2, fsdp 4, data 1");
    let folder = tempfile::tempdir().unwrap();
    let staging = Staging::at(&folder.path().join("saved"), 4).unwrap();
    let manifest = Manifest { mesh: axes.clone(), ..manifest(4, 4, BTreeMap::new()) };
    let path = staging.commit(manifest).unwrap();
    assert_eq!(Checkpoint::open(path).unwrap().manifest().mesh, axes);
}

/// One flipped bit at every value of a box is found, and the box is named.
#[test]
fn names_damaged_boxes() {
    let folder = tempfile::tempdir().unwrap();
    let path = save_parts(folder.path(), &["[0:4,0:3]", "[0:4,3:5]"]);
    let name = "model-00002-of-00003.safetensors";
    let intact = fs::read(path.join(name)).unwrap();
    for byte in intact.len() - 32..intact.len() {
        let mut damaged = intact.clone();
        damaged[byte] ^= 1;
        fs::write(path.join(name), damaged).unwrap();
        found(&path, &[name], &format!("byte {byte}"));
        // Also by a read of other values of the box, and by none of the other box.
        let checkpoint = Checkpoint::open(&path).unwrap();
        checkpoint.read_part("h.0.w", &part("[0:4,0:2]"), &mut [0; 32]).unwrap();
        for request in ["[0:4]", "[3:4]", "[1:2,3:4]", "[0:4,4:5]", "[0:20]"] {
            let request = part(request);
            let mut out = vec![0; request.elements() * 4];
            let error = checkpoint.read_part("h.0.w", &request, &mut out).unwrap_err().to_string();
            assert!(error.contains("`h.0.w` (elements [0:4,3:5])"), "{request}: {error}");
        }
    }
}

#[test]
fn names_boxes_that_do_not_cover() {
    for (parts, at) in [
        (&["[0:4,0:3]"][..], "element 3"),
        (&["[0:4,0:3]", "[0:4,2:5]"], "element 2"),
        (&["[0:4,0:3]", "[0:3,3:5]"], "element 18"),
        (&["[0:4,0:3]", "[0:4,3:5]", "[1:2,0:1]"], "element 5"),
        (&["[0:10]", "[1:4,0:5]"], "element 5"),
        (&["[0:10]", "[2:4,0:2]", "[2:4,3:5]"], "element 12"),
        (&["[0:2,0:3]", "[0:2,3:5]", "[10:19]"], "element 19"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = save_parts(folder.path(), parts);
        found(&path, &["`h.0.w`", "gaps or overlap", at], &format!("{parts:?}"));
    }
}

/// Boxes outside of their tensor, of another rank, or with values of other dimensions.
#[test]
fn names_boxes_of_other_dimensions() {
    for dims in [json!([4, 4]), json!([3, 5]), json!([20]), json!([2, 2, 5]), json!([0, 5])] {
        let folder = tempfile::tempdir().unwrap();
        let path = save_parts(folder.path(), &["[0:4,0:3]", "[0:4,3:5]"]);
        let mut manifest = saved_manifest(&path);
        manifest["tensors"]["h.0.w"]["dims"] = dims.clone();
        let bytes = manifest.to_string();
        fs::write(path.join(COMMITTED), format!("{}\n", Checksum::of(bytes.as_bytes()))).unwrap();
        fs::write(path.join(MANIFEST), bytes).unwrap();
        found(&path, &["`h.0.w[0:4,", "`h.0.w`"], &dims.to_string());
    }
}

#[test]
fn rejects_requests_that_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = save_parts(folder.path(), &["[0:4,0:3]", "[0:4,3:5]"]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    for (request, bytes) in [("[0:5,0:1]", 20), ("[0:4,5:6]", 16), ("[0:1,0:1,0:1]", 4)]
        .into_iter()
        .chain([("[0:4,0:2]", 28), ("[0:4,0:2]", 36)])
    {
        let mut out = vec![0; bytes];
        let error = checkpoint.read_part("h.0.w", &part(request), &mut out).unwrap_err();
        assert!(error.to_string().contains(&format!("{request} of `h.0.w`")), "{error}");
    }
}

/// The commands on checkpoints work on boxes as on anything else.
#[test]
fn boxes_are_resharded_consolidated_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let boxes = save_parts(folder.path(), &["[0:2,0:3]", "[0:2,3:5]", "[2:4,0:1]", "[2:4,1:5]"]);
    let open = |path: &Path| Opened::open(path).unwrap();
    let described = open(&boxes).describe().checkpoint.unwrap();
    assert_eq!((described.sharded_tensors, described.most_shards), (1, 4));
    let flat = folder.path().join("flat");
    reshard(&Checkpoint::open(&boxes).unwrap(), &flat, 3, &mut |_| ()).unwrap();
    assert_eq!(saved_manifest(&flat)["version"], 1);
    assert!(compare(&open(&boxes), &open(&flat), &mut |_| ()).unwrap().is_same(None));
    let model = folder.path().join("model");
    consolidate(open(&boxes), &model, u64::MAX, None, &mut |_| ()).unwrap();
    assert!(model.join(CONFIG).is_file());
    let compared = compare(&open(&boxes), &open(&model), &mut |_| ()).unwrap();
    assert_eq!((compared.bit_equal, compared.is_same(None)), (5, true), "{compared:?}");
}

/// Saves a tensor `w` alone in these parts, two per file.
fn save_tensor(folder: &Path, record: TensorRecord, values: &[u8], parts: &[Part]) -> PathBuf {
    let (dims, width) = (record.dims.clone(), record.width());
    let tensors = BTreeMap::from([("w".to_owned(), record)]);
    let piece = |part: &Part| Piece { tensor: "w".into(), part: part.clone() };
    let pieces: Vec<Piece> = parts.iter().map(piece).collect();
    let staging = Staging::at(&folder.join("saved"), 4).unwrap();
    for (i, pieces) in pieces.chunks(2).enumerate() {
        let write_values = |piece: usize, write: &mut dyn FnMut(&[u8]) -> _| {
            write(&expected(values, width, &pieces[piece].part, &dims))
        };
        let name = format!("{i}.safetensors");
        staging.write_pieces(&name, pieces, &tensors, write_values).unwrap();
    }
    staging.commit(manifest(4, 4, tensors)).unwrap()
}

/// A tensor of up to four dims.
fn dims() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..7, 0..5)
}

/// A division of a tensor into boxes and ranges of elements: it is cut between elements once or
/// not at all, and what is a box is cut along any dims.
fn division() -> impl Strategy<Value = (Option<Index>, Vec<(Index, Index, Index)>)> {
    (any::<Option<Index>>(), prop::collection::vec(any::<(Index, Index, Index)>(), 0..8))
}

fn divide(dims: &[usize], (cut, cuts): &(Option<Index>, Vec<(Index, Index, Index)>)) -> Vec<Part> {
    let elements: usize = dims.iter().product();
    let row = elements / dims.first().copied().unwrap_or(1);
    // What is before the first row after the cut is cut between elements, and the rest boxes.
    let cut = cut.map_or(0, |cut| cut.index(elements));
    let rows = cut.div_ceil(row);
    let flat = [0..cut, cut..rows * row].map(Part::from);
    let mut boxes: Vec<Vec<Range<usize>>> = vec![dims.iter().map(|&dim| 0..dim).collect()];
    if let Some(first) = boxes[0].first_mut() {
        first.start = rows;
    } else if rows > 0 {
        boxes.clear();
    }
    for (which, dim, at) in cuts.iter().filter(|_| !dims.is_empty()) {
        let which = which.index(boxes.len());
        let dim = dim.index(dims.len());
        let range = boxes[which][dim].clone();
        let at = range.start + at.index(range.len() + 1);
        let mut rest = boxes[which].clone();
        boxes[which][dim].end = at;
        rest[dim].start = at;
        boxes.push(rest);
    }
    let boxes = boxes.iter().map(|ranges| Part::tile(ranges, dims));
    flat.into_iter().chain(boxes).filter(|part| part.elements() > 0).collect()
}

/// The values of a part, by the coordinates of its elements.
fn expected(values: &[u8], width: usize, part: &Part, dims: &[usize]) -> Vec<u8> {
    let text = part.to_string();
    let ranges: Vec<Range<usize>> = text[1..text.len() - 1]
        .split(',')
        .map(|range| range.split_once(':').unwrap())
        .map(|(start, end)| start.parse().unwrap()..end.parse().unwrap())
        .collect();
    if let [elements] = &ranges[..] {
        return values[elements.start * width..elements.end * width].to_vec();
    }
    let inside = |element: &usize| {
        let mut rest = *element;
        dims.iter().zip(&ranges).rev().all(|(dim, range)| {
            let index = rest % dim;
            rest /= dim;
            range.contains(&index)
        })
    };
    let elements = values.chunks(width).enumerate().filter(|(element, _)| inside(element));
    elements.flat_map(|(_, value)| value).copied().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Saved in any division, read in any other: by a checkpoint that has not read the shards
    /// before, by one that has, and as weights.
    #[test]
    fn any_division_is_read_as_any_other(
        dims in dims(), saved in division(), read in division(), half: bool,
    ) {
        let dtype = if half { Dtype::BF16 } else { Dtype::F32 };
        let record = TensorRecord { dims: dims.clone(), dtype, slot: None };
        let width = record.width();
        let bytes: Vec<u8> =
            (0..record.elements()).flat_map(|i| (i as u32 + 1).to_le_bytes()[..width].to_vec()).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = save_tensor(folder.path(), record, &bytes, &divide(&dims, &saved));
        prop_assert_eq!(verify(&path, &mut |_| ()).unwrap(), vec![]);
        let warm = Checkpoint::open(&path).unwrap();
        let weights = Weights::open(&path).unwrap();
        for request in divide(&dims, &read) {
            let fresh = Checkpoint::open(&path).unwrap();
            for checkpoint in [&fresh, &warm, &warm] {
                let mut out = vec![0; request.elements() * width];
                checkpoint.read_part("w", &request, &mut out).unwrap();
                prop_assert_eq!(&out, &expected(&bytes, width, &request, &dims), "{}", request);
            }
            let mut out = vec![0.0_f32; request.elements()];
            weights.read_part_f32("w", &request, &mut out).unwrap();
            let values = expected(&bytes, width, &request, &dims);
            let floats = values.chunks(width).map(|value| {
                let mut bits = [0; 4];
                bits[4 - width..].copy_from_slice(value);
                f32::from_le_bytes(bits)
            });
            prop_assert!(floats.eq(out), "{}", request);
        }
    }
}

/// Shards larger than what is read at once, with rows that are read and gaps that are skipped.
#[test]
fn large_boxes_are_read_in_chunks() {
    for (dims, parts, request) in [
        ([600, 2000], ["[0:600,0:1900]", "[0:600,1900:2000]"], "[3:599,1700:1950]"),
        ([600, 2000], ["[0:1100001]", "[1100001:1200000]"], "[0:600,0:1]"),
        ([80, 15000], ["[0:80,0:14000]", "[0:80,14000:15000]"], "[7:73,13000:14100]"),
        ([80, 15000], ["[0:80,0:14000]", "[0:80,14000:15000]"], "[100:1199990]"),
    ] {
        let record = TensorRecord { dims: dims.to_vec(), dtype: Dtype::U64, slot: None };
        let values: Vec<u8> =
            (0..record.elements()).flat_map(|i| (i as u64).to_le_bytes()).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = save_tensor(folder.path(), record, &values, &parts.map(part));
        let checkpoint = Checkpoint::open(path).unwrap();
        let request = part(request);
        let expected = expected(&values, 8, &request, &dims);
        // Checked while it is read, and after that.
        for _ in 0..2 {
            let mut out = vec![0; expected.len()];
            checkpoint.read_part("w", &request, &mut out).unwrap();
            assert!(out == expected, "{request} of {parts:?}");
        }
    }
}

/// Boxes are read from formats that know ranges of elements only.
#[test]
fn boxes_are_read_from_other_formats() {
    let folder = tempfile::tempdir().unwrap();
    let path = save_parts(folder.path(), &["[0:20]"]);
    let model = folder.path().join("model");
    consolidate(Opened::open(&path).unwrap(), &model, u64::MAX, None, &mut |_| ()).unwrap();
    let format = fullshard_checkpoint::open(&model).unwrap();
    let values = values(4, "h.0.w");
    for request in ["[0:4,1:3]", "[1:2,0:5]", "[2:4,4:5]", "[3:17]"].map(part) {
        let mut out = vec![0; request.elements() * 4];
        format.read_shard("h.0.w", &request, &mut out).unwrap();
        assert_eq!(out, expected(&values, 4, &request, &tensors()["h.0.w"].dims), "{request}");
    }
    let error = format.read_shard("h.0.w", &part("[0:4,4:6]"), &mut [0; 32]).unwrap_err();
    assert!(error.to_string().contains("[0:4,4:6] of `h.0.w`"), "{error}");
}
