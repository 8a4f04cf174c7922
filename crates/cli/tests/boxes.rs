//! `fullshard checkpoint` on shards that are boxes, and a run that resumes from them.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_checkpoint::sharded::{Checkpoint, Manifest, MeshAxes, Piece, Staging, TensorRecord};
use fullshard_core::Part;
use std::fs;
use std::path::Path;

/// A run of four steps on two devices that saves every second one.
fn train(folder: &Folder, flags: &[&'static str]) {
    let run = ["--max_steps", "4", "--save_steps", "2", "--report_to", "none"];
    folder.stdout(&[&short(&run)[..], flags].concat());
}

/// One of two devices' shard of a tensor: half of the columns of a matrix, or half of the elements.
fn half(tensor: &TensorRecord, second: bool) -> Part {
    let cut = |length: usize| if second { length / 2..length } else { 0..length / 2 };
    match tensor.dims[..] {
        [rows, columns] => Part::tile(&[0..rows, cut(columns)], &tensor.dims),
        _ => cut(tensor.elements()).into(),
    }
}

/// Saves a checkpoint again, as a mesh that shards columns would.
fn save_boxes(from: &Path, to: &Path) {
    let checkpoint = Checkpoint::open(from).unwrap();
    let manifest = checkpoint.manifest();
    let staging = Staging::at(to, manifest.progress.step).unwrap();
    for (name, _) in manifest.files.iter().filter(|(_, file)| file.shards.is_none()) {
        staging.write_file(name, &checkpoint.read_file(name).unwrap()).unwrap();
    }
    for (name, second) in [("first.safetensors", false), ("second.safetensors", true)] {
        let piece = |(tensor, record): (&String, &TensorRecord)| Piece {
            tensor: tensor.clone(),
            part: half(record, second),
        };
        let pieces: Vec<Piece> = manifest.tensors.iter().map(piece).collect();
        let write = staging.write_pieces(name, &pieces, &manifest.tensors, |piece, write| {
            let Piece { tensor, part } = &pieces[piece];
            let mut bytes = vec![0; part.elements() * manifest.tensors[tensor].width()];
            checkpoint.read_part(tensor, part, &mut bytes)?;
            write(&bytes)
        });
        write.unwrap();
    }
    let axes = [("tensor", 2), ("fsdp", 1)].map(|(axis, size)| (axis.to_owned(), size));
    staging.commit(Manifest { mesh: MeshAxes(axes.to_vec()), ..manifest.clone() }).unwrap();
}

#[test]
fn commands_and_runs_read_boxes() {
    let folder = Folder::new();
    train(&folder, &[]);
    save_boxes(&folder.path("out/checkpoint-2"), &folder.path("boxes"));
    assert_eq!(folder.json("boxes/manifest.json")["version"], 2);
    assert_eq!(folder.json("out/checkpoint-2/manifest.json")["version"], 1);
    let checkpoint = |command: &str| {
        folder.stdout(&["checkpoint"].into_iter().chain(command.split(' ')).collect::<Vec<_>>())
    };

    let info = checkpoint("info boxes --tensors");
    let tensor = "transformer.wte.weight.exp_avg  [96, 16]  F32  2 shards";
    for part in ["tensor 2, fsdp 1", "in up to 2 shards", tensor] {
        assert!(info.contains(part), "{part} in {info}");
    }
    // All of these fail if there is damage or a difference.
    for command in [
        "verify boxes",
        "diff boxes out/checkpoint-2",
        "reshard boxes --output resharded --num_shards 3",
        "diff resharded out/checkpoint-2",
        "consolidate boxes --output model",
        "diff model out/checkpoint-2",
    ] {
        checkpoint(command);
    }

    train(&folder, &["--resume_from_checkpoint", "boxes", "--output_dir", "resumed"]);
    checkpoint("diff resumed/checkpoint-4 out/checkpoint-4");

    let shard = folder.path("boxes/second.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let output = folder.run(&["checkpoint", "verify", "boxes"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("second.safetensors"), "{}", text(&output.stdout));
    let output = folder.run(&["checkpoint", "diff", "boxes", "out/checkpoint-2"]);
    let error = text(&output.stderr);
    assert!(!output.status.success(), "{error}");
    assert!(error.contains("second.safetensors") && error.contains("(elements ["), "{error}");
}
