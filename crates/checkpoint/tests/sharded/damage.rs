//! Damaged checkpoints: every fault is found and named, and nothing wrong is ever loaded.

use super::{CONFIG, load, names, pieces, save, save_pieces, saved, tensors, values};
use fullshard_checkpoint::sharded::{COMMITTED, MANIFEST, Piece, verify};
use fullshard_checkpoint::{Checksum, Error, list, shard_file_name};
use serde_json::{Value, json};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder with the checkpoint of step 4, from two devices.
fn checkpoint() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = save(folder.path(), 4, 2);
    assert_eq!(load(&path).unwrap(), saved(4));
    assert_eq!(verify(&path, &mut |_| ()).unwrap(), []);
    (folder, path)
}

fn model_file(device: usize) -> String {
    shard_file_name("model", device, 2)
}

/// Checks that loading and verifying fail, both with these words.
pub fn found(path: &Path, words: &[&str], what: &str) {
    let error = load(path).expect_err(what).to_string();
    let problems = match verify(path, &mut |_| ()) {
        Ok(problems) => {
            let problem = |problem: &fullshard_checkpoint::sharded::Problem| {
                format!("{}: {}", problem.path.display(), problem.reason)
            };
            problems.iter().map(problem).collect::<Vec<_>>().join("\n")
        }
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(error.contains(word), "{what}: no `{word}` in: {error}");
        assert!(problems.contains(word), "{what}: no `{word}` in: {problems}");
    }
}

/// One flipped bit at every byte of every file.
#[test]
fn finds_every_flipped_bit() {
    let (_folder, path) = checkpoint();
    for name in names(&path) {
        let file = path.join(&name);
        let intact = fs::read(&file).unwrap();
        for (i, byte) in intact.iter().enumerate() {
            let mut damaged = intact.clone();
            damaged[i] = byte ^ (1 << (i % 8));
            fs::write(&file, &damaged).unwrap();
            found(&path, &[&name], &format!("bit {} of byte {i} of {name}", i % 8));
        }
        fs::write(&file, intact).unwrap();
    }
    assert_eq!(load(&path).unwrap(), saved(4));
}

#[test]
fn finds_every_other_length() {
    let (_folder, path) = checkpoint();
    for name in names(&path) {
        let file = path.join(&name);
        let intact = fs::read(&file).unwrap();
        let length = intact.len();
        for cut in [0, 1, 7, 8, 9, length / 2, length - 1] {
            fs::write(&file, &intact[..cut.min(length - 1)]).unwrap();
            found(&path, &[&name], &format!("{name} of {cut} bytes"));
        }
        fs::write(&file, [&intact[..], &[0]].concat()).unwrap();
        found(&path, &[&name], &format!("{name} with a byte more"));
        fs::write(&file, intact).unwrap();
    }
}

#[test]
fn finds_every_missing_file() {
    let (folder, path) = checkpoint();
    for name in names(&path) {
        let file = path.join(&name);
        let intact = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        found(&path, &[&name], &name);
        fs::write(&file, intact).unwrap();
    }
    fs::remove_file(path.join(COMMITTED)).unwrap();
    assert!(matches!(load(&path), Err(Error::Uncommitted { .. })));
    let listed = list(folder.path()).unwrap();
    assert!(matches!(listed[0].manifest, Err(Error::Uncommitted { .. })));
}

/// All tensors but `h.0.w`, in full.
pub fn others() -> Vec<Piece> {
    let others = tensors().into_iter().filter(|(name, _)| name != "h.0.w");
    others.map(|(tensor, record)| Piece { tensor, part: (0..record.elements()).into() }).collect()
}

fn piece(tensor: &str, elements: Range<usize>) -> Piece {
    Piece { tensor: tensor.into(), part: elements.into() }
}

#[test]
fn finds_swapped_files() {
    let folder = tempfile::tempdir().unwrap();
    let halves = |range: Range<usize>| vec![piece("h.0.w", range)];
    let files = [halves(0..10), halves(10..20), others()];
    let path = save_pieces(folder.path(), 4, 4, &files, Arc::new(|_| {})).unwrap();
    assert_eq!(load(&path).unwrap(), saved(4));
    let [a, b] = [0, 1].map(|i| path.join(shard_file_name("model", i, 3)));
    assert_eq!(fs::metadata(&a).unwrap().len(), fs::metadata(&b).unwrap().len());
    fs::rename(&a, path.join("kept")).unwrap();
    fs::rename(&b, &a).unwrap();
    fs::rename(path.join("kept"), &b).unwrap();
    found(&path, &[&shard_file_name("model", 0, 3)], "swapped files");
}

/// A file of another step, and one of the same step of another run.
#[test]
fn finds_files_of_other_checkpoints() {
    let (folder, path) = checkpoint();
    let name = model_file(1);
    let intact = fs::read(path.join(&name)).unwrap();
    let other = save(folder.path(), 6, 2);
    fs::copy(other.join(&name), path.join(&name)).unwrap();
    found(&path, &[&name], "a file of another step");
    let error = load(&path).unwrap_err().to_string();
    assert!(error.contains("it is of step 6, but the checkpoint of 4"), "{error}");

    let elsewhere = tempfile::tempdir().unwrap();
    let other = save_pieces(elsewhere.path(), 4, 9, &pieces(2), Arc::new(|_| {})).unwrap();
    assert_eq!(fs::metadata(other.join(&name)).unwrap().len(), intact.len() as u64);
    fs::copy(other.join(&name), path.join(&name)).unwrap();
    found(&path, &[&name], "a file of another run");
    fs::write(path.join(&name), intact).unwrap();
    assert_eq!(load(&path).unwrap(), saved(4));
}

/// Changes the manifest; with `sealed`, the marker too, so that only the contents contradict.
fn edit(path: &Path, sealed: bool, change: &dyn Fn(&mut Value)) {
    let file = path.join(MANIFEST);
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let before = manifest.clone();
    change(&mut manifest);
    assert_ne!(manifest, before);
    let bytes = serde_json::to_vec_pretty(&manifest).unwrap();
    if sealed {
        fs::write(path.join(COMMITTED), format!("{}\n", Checksum::of(&bytes))).unwrap();
    }
    fs::write(file, bytes).unwrap();
}

type Change = fn(&mut Value);

/// Changes of the manifest of a checkpoint from some devices, and the words of the error if the
/// marker is changed too.
const EDITS: &[(usize, Change, &[&str])] = &[
    (2, |m| m["progress"]["step"] = 5.into(), &["model-", "step 4", "5"]),
    (2, |m| m["tensors"]["h.0.w"]["dims"] = json!([4, 4]), &["`h.0.w`", "16 elements"]),
    (2, |m| m["tensors"]["h.0.w"]["dims"] = json!([4, 6]), &["`h.0.w`", "24 elements"]),
    (1, |m| m["tensors"]["h.0.w"]["dims"] = json!([5, 4]), &["`h.0.w`", "[4, 5]", "[5, 4]"]),
    (2, |m| m["tensors"]["h.0.w"]["dims"] = json!([1u64 << 62, 8]), &["`h.0.w`"]),
    (2, |m| m["tensors"]["h.0.w"]["dims"] = json!([u64::MAX]), &["`h.0.w`"]),
    (2, |m| m["tensors"]["h.0.w"]["dtype"] = "I32".into(), &["`h.0.w`", "I32"]),
    (2, |m| m["tensors"]["h.0.w"]["dtype"] = "BF16".into(), &["`h.0.w`", "BF16"]),
    (2, |m| m["tensors"]["h.0.w"]["dtype"] = "F4".into(), &["`h.0.w`", "F4"]),
    (2, |m| drop(m["tensors"].as_object_mut().unwrap().remove("h.0.w")), &["`h.0.w`"]),
    (2, |m| m["tensors"]["extra"] = m["tensors"]["h.0.w"].clone(), &["`extra`"]),
    (
        2,
        |m| drop(m["files"].as_object_mut().unwrap().remove("model-00001-of-00002.safetensors")),
        &["elements"],
    ),
    (
        2,
        |m| m["files"]["more.safetensors"] = m["files"]["config.json"].clone(),
        &["more.safetensors"],
    ),
    (2, |m| m["files"]["../config.json"] = m["files"]["config.json"].clone(), &["../config.json"]),
    (2, |m| m["files"]["config.json"]["checksum"] = "0000000000000000".into(), &["config.json"]),
    (2, |m| m["files"]["config.json"]["bytes"] = 3.into(), &["config.json"]),
    (2, |m| m["version"] = 3.into(), &["version 3"]),
    (2, |m| m["version"] = 0.into(), &["version 0"]),
    (2, |m| drop(m.as_object_mut().unwrap().remove("version")), &["version"]),
    (2, |m| drop(m.as_object_mut().unwrap().remove("progress")), &["progress"]),
];

#[test]
fn finds_every_change_of_the_manifest() {
    for (devices, change, words) in EDITS {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), 4, *devices);
        edit(&path, false, change);
        found(&path, &[MANIFEST, COMMITTED], &format!("{words:?}, not sealed"));
        edit(&save(folder.path(), 4, *devices), true, change);
        found(&path, words, &format!("{words:?}, sealed"));
    }
}

/// Checksums in the manifest that are not those of a file of shards. Only reading the values
/// shows that those of a shard differ.
#[test]
fn finds_changed_checksums_of_shards() {
    let (_folder, path) = checkpoint();
    let name = model_file(1);
    let (sums, zero) = (format!("/files/{name}/shards"), "0000000000000000");
    let change = |what: &'static str, value: Value| {
        let pointer = format!("{sums}/{what}");
        move |manifest: &mut Value| *manifest.pointer_mut(&pointer).unwrap() = value.clone()
    };
    let intact = [MANIFEST, COMMITTED].map(|name| fs::read(path.join(name)).unwrap());
    for (what, value) in [
        ("header", json!(zero)),
        ("header", json!("none")),
        ("values/0", json!(zero)),
        ("values", json!([])),
        ("values", json!([zero])),
    ] {
        edit(&path, true, &change(what, value.clone()));
        let error = load(&path).expect_err(what).to_string();
        let named = [&name, MANIFEST].iter().any(|name| error.contains(*name));
        assert!(named, "{what} {value}: {error}");
        for (name, intact) in [MANIFEST, COMMITTED].iter().zip(&intact) {
            fs::write(path.join(name), intact).unwrap();
        }
    }
    assert_eq!(load(&path).unwrap(), saved(4));
}

/// Shards that overlap or leave elements out.
#[test]
fn finds_ranges_that_do_not_cover() {
    let cases: [&[(usize, usize)]; 8] = [
        &[(0, 10)],
        &[(10, 20)],
        &[(0, 8), (10, 20)],
        &[(0, 12), (10, 20)],
        &[(0, 20), (0, 20)],
        &[(0, 20), (4, 6)],
        &[(0, 10), (0, 10)],
        &[(0, 5), (5, 10), (12, 15), (15, 20), (10, 11)],
    ];
    for ranges in cases {
        let piece = |&(start, end)| vec![piece("h.0.w", start..end)];
        let mut files: Vec<_> = ranges.iter().map(piece).collect();
        files.push(others());
        let folder = tempfile::tempdir().unwrap();
        let path = save_pieces(folder.path(), 4, 4, &files, Arc::new(|_| {})).unwrap();
        found(&path, &["`h.0.w`", "gaps or overlap"], &format!("{ranges:?}"));
    }
    // A tensor in parts, one of them empty.
    let files = [[0..10, 10..20, 10..10].map(|elements| piece("h.0.w", elements))];
    let files = [files.concat(), others()];
    let folder = tempfile::tempdir().unwrap();
    let path = save_pieces(folder.path(), 4, 4, &files, Arc::new(|_| {})).unwrap();
    assert_eq!(load(&path).unwrap()["h.0.w"], values(4, "h.0.w"));
}

#[test]
fn verify_lists_all_problems() {
    let (_folder, path) = checkpoint();
    fs::remove_file(path.join(CONFIG)).unwrap();
    let mut bytes = fs::read(path.join(model_file(0))).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path.join(model_file(0)), bytes).unwrap();
    fs::write(path.join(model_file(1)), "short").unwrap();
    let mut read = 0;
    let problems = verify(&path, &mut |bytes| read += bytes).unwrap();
    let found: Vec<_> =
        problems.iter().map(|found| (found.path.as_path(), found.reason.as_str())).collect();
    assert_eq!(found.len(), 3, "{found:?}");
    let expected = [
        (path.join(CONFIG), "missing"),
        (path.join(model_file(0)), "checksum"),
        (path.join(model_file(1)), "5 bytes long"),
    ];
    for ((file, reason), (expected, words)) in found.iter().zip(&expected) {
        assert_eq!(file, expected);
        assert!(reason.contains(words), "{reason}");
    }
    assert_eq!(read, fs::metadata(path.join(model_file(0))).unwrap().len() + 5);
}
