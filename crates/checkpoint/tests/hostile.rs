//! Damaged and hostile files are refused, without a panic and within bounds of memory and time.
#![allow(clippy::unwrap_used)]

use fullshard_checkpoint::{Result, open};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use zip::write::{SimpleFileOptions, ZipWriter};
use zip::{CompressionMethod, ZipArchive};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Opens a path and reads every tensor.
fn read_all(path: &Path) -> Result<()> {
    let format = open(path)?;
    for (name, tensor) in format.tensors() {
        let bytes = tensor.elements() * tensor.dtype.bitsize() / 8;
        // More than a damaged file can have.
        assert!(bytes < 1 << 20, "{name} has {bytes} bytes");
        format.read(name, 0..tensor.elements(), &mut vec![0; bytes])?;
    }
    Ok(())
}

/// Writes a new file in place of the old one: truncating it would wait for the disk.
fn replace(path: &Path, bytes: &[u8]) {
    let _ = fs::remove_file(path);
    fs::write(path, bytes).unwrap();
}

/// A small generator, so that failures repeat.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Flips up to four bits in a part of a file, many times.
fn flip(path: &Path, part: std::ops::Range<usize>, rounds: usize) {
    let good = fs::read(path).unwrap();
    let mut random = Random(17);
    for _ in 0..rounds {
        let mut bytes = good.clone();
        for _ in 0..=random.below(4) {
            bytes[part.start + random.below(part.len())] ^= 1 << random.below(8);
        }
        replace(path, &bytes);
        let _ = read_all(path);
    }
    replace(path, &good);
    read_all(path).unwrap();
}

/// Where the pickle of a file is.
fn pickle_of(path: &Path) -> std::ops::Range<usize> {
    let mut zip = ZipArchive::new(fs::File::open(path).unwrap()).unwrap();
    let record = (0..zip.len())
        .find(|&i| zip.by_index_raw(i).unwrap().name().unwrap().ends_with("/data.pkl"));
    let record = zip.by_index_raw(record.unwrap()).unwrap();
    let start = record.data_start().unwrap() as usize;
    start..start + record.size() as usize
}

#[test]
fn truncated_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.pt");
    let good = fs::read(data("pickles/training.pth")).unwrap();
    for length in 0..good.len() {
        replace(&path, &good[..length]);
        assert!(read_all(&path).is_err(), "{length} of {} bytes", good.len());
    }
}

#[test]
fn truncated_pickles_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.pt");
    for file in ["protocol2.bin", "protocol5.pt"] {
        let whole = fs::read(data("pickles").join(file)).unwrap();
        let pickle = &whole[pickle_of(&data("pickles").join(file))];
        for length in 0..pickle.len() {
            archive(&path, &pickle[..length], CompressionMethod::STORE);
            let text = open(&path).unwrap_err().to_string();
            assert!(text.contains("inside a value"), "{length}: {text}");
        }
    }
}

#[test]
fn flipped_bits_do_not_panic() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["protocol2.bin", "protocol5.pt"] {
        let path = folder.path().join(file);
        fs::copy(data("pickles").join(file), &path).unwrap();
        flip(&path, 0..fs::metadata(&path).unwrap().len() as usize, 500);
        flip(&path, pickle_of(&path), 1500);
    }
}

#[test]
fn flipped_bits_of_a_rank_do_not_panic() {
    for case in ["plain", "flat"] {
        let folder = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(data("xla_fsdp").join(case)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        let ranks = if case == "flat" { 2 } else { 3 };
        let path = folder.path().join(format!("net_rank-00000000-of-{ranks:08}.pth"));
        flip(&path, pickle_of(&path), 750);
    }
}

/// Writes a file as `torch.save` does, with a pickle and no storages.
fn archive(path: &Path, pickle: &[u8], compression: CompressionMethod) {
    let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(compression);
    zip.start_file("archive/data.pkl", options).unwrap();
    zip.write_all(pickle).unwrap();
    replace(path, zip.finish().unwrap().get_ref());
}

/// The message for a pickle.
fn refusal(pickle: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.pt");
    archive(&path, pickle, CompressionMethod::STORE);
    open(&path).unwrap_err().to_string()
}

#[test]
fn hostile_pickles_are_refused() {
    // A million tuples, each in the next.
    let nested = [b"\x80\x02)".to_vec(), vec![0x85; 1 << 20], b".".to_vec()].concat();
    assert!(refusal(&nested).contains("it has a tuple and no state dict"));
    // Tuples that each have the one before three times: 3^1000 values if they were copied.
    let copies = [b"\x80\x02)".to_vec(), b"22\x87".repeat(1000), b".".to_vec()].concat();
    assert!(refusal(&copies).contains("it has a tuple"));
    // A list that has itself.
    assert!(refusal(b"\x80\x02]q\x00h\x00a.").contains("it has a list"));
    assert!(refusal(&[b'N'; 3 << 20]).contains("more than 2097152 opcodes"));
    assert!(refusal(b"\x80\x02X\xff\xff\xff\xff.").contains("ends at byte 8"));
    assert!(refusal(b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff.").contains("ends at byte"));
    assert!(refusal(b"\x80\x02\x8b\xff\xff\xff\xff.").contains("ends at byte"));
    assert!(refusal(b"\x80\x02h\x07.").contains("wrong operand"));
    assert!(refusal(b"\x80\x02(0.").contains("wrong operand"));
    assert!(refusal(b"\x80\x02I1\n.").contains("unsupported opcode 0x49 at byte 2"));
    assert!(refusal(b"\x80\x02}X\x01\x00\x00\x00au.").contains("wrong operand"));
}

#[test]
fn tensors_outside_of_their_storage_are_refused() {
    let path = data("pickles/lightning.ckpt");
    let whole = fs::read(&path).unwrap();
    let pickle = pickle_of(&path);
    // The weight of 2 by 3: dims (2, 3), then strides (3, 1).
    let shape = b"K\x02K\x03\x86";
    let at = pickle.start + whole[pickle].windows(shape.len()).position(|w| w == shape).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let changed = folder.path().join("changed.pt");
    for (dims, named) in [([3, 3], "[3, 3]"), ([2, 255], "[2, 255]"), ([7, 1], "[7, 1]")] {
        let mut bytes = whole.clone();
        (bytes[at + 1], bytes[at + 3]) = (dims[0], dims[1]);
        fs::write(&changed, bytes).unwrap();
        let text = open(&changed).unwrap_err().to_string();
        assert!(text.contains("`weight` with dimensions") && text.contains(named), "{text}");
    }
}

#[test]
fn compressed_records_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.pt");
    archive(&path, &vec![b'N'; 1 << 20], CompressionMethod::Deflated);
    let text = open(&path).unwrap_err().to_string();
    assert!(text.contains("`archive/data.pkl` is compressed"), "{text}");
    archive(&path, &[b'N'; (64 << 20) + 1], CompressionMethod::STORE);
    let text = open(&path).unwrap_err().to_string();
    assert!(text.contains("`data.pkl` has 67108865 bytes"), "{text}");
}
