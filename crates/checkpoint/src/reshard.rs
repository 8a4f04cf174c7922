//! Writes a checkpoint with its tensors in another number of shards, a few MB at a time.

use crate::error::{Error, Result};
use crate::export::{INDEX, shard_file_name};
use crate::place::check_output;
use crate::sharded::{Checkpoint, Piece, Staging, TensorRecord};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The largest file, unless one piece is larger.
const FILE_BYTES: usize = 5_000_000_000;

/// The bytes that are read at once.
const CHUNK: usize = 16 << 20;

/// Writes a checkpoint to a path with every tensor, the optimizer's too, in this number of even
/// shards. All else stays as it is. `progress` is called with the bytes written since the last
/// call.
pub fn reshard(
    checkpoint: &Checkpoint,
    output: &Path,
    shards: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<PathBuf> {
    check_output(output)?;
    if shards == 0 {
        return Err(Error::NoShards);
    }
    let mut manifest = checkpoint.manifest().clone();
    let staging = Staging::at(output, manifest.progress.step)?;
    // The index would list files that are no more.
    let others =
        manifest.files.iter().filter(|(name, file)| file.shards.is_none() && *name != INDEX);
    for (name, _) in others {
        staging.write_file(name, &checkpoint.read_file(name)?)?;
    }
    let tensors = &manifest.tensors;
    let model = files("model", &pieces(tensors, shards, false), tensors);
    let optimizer = files("optimizer", &pieces(tensors, shards, true), tensors);
    if let Some(index) = index(&model, tensors) {
        let bytes = manifest.parameters().map(|(_, tensor)| tensor.bytes() as u64).sum();
        staging.write_index(&index, bytes)?;
    }
    for (name, pieces) in model.iter().chain(&optimizer) {
        staging.write_pieces(name, pieces, tensors, |piece, write| {
            copy(checkpoint, &pieces[piece], &tensors[&pieces[piece].tensor], &mut |bytes| {
                progress(bytes.len() as u64);
                write(bytes)
            })
        })?;
    }
    manifest.fullshard = env!("CARGO_PKG_VERSION").to_owned();
    staging.commit(manifest)
}

/// The pieces of each shard: of the parameters, or of the optimizer's tensors. A tensor whose rows
/// divide evenly is cut between rows by this too.
fn pieces(tensors: &BTreeMap<String, TensorRecord>, shards: usize, slots: bool) -> Vec<Vec<Piece>> {
    let mut pieces: Vec<Vec<Piece>> = Vec::new();
    for (name, tensor) in tensors.iter().filter(|(_, tensor)| tensor.slot.is_some() == slots) {
        let elements = tensor.elements();
        let length = elements.div_ceil(shards).max(1);
        // A tensor without elements has one piece too, or it would be missing.
        for (shard, start) in (0..elements.max(1)).step_by(length).enumerate() {
            let elements = start..(start + length).min(elements);
            if pieces.len() <= shard {
                pieces.push(Vec::new());
            }
            pieces[shard].push(Piece { tensor: name.clone(), part: elements.into() });
        }
    }
    pieces
}

/// The files of these pieces by name: one per shard, or several if they would be too large.
fn files(
    kind: &str,
    shards: &[Vec<Piece>],
    tensors: &BTreeMap<String, TensorRecord>,
) -> Vec<(String, Vec<Piece>)> {
    let mut files: Vec<Vec<Piece>> = Vec::new();
    for shard in shards {
        let (mut file, mut bytes) = (Vec::new(), 0);
        for piece in shard {
            let more = piece.part.elements() * tensors[&piece.tensor].width();
            if bytes > 0 && bytes + more > FILE_BYTES {
                files.push(std::mem::take(&mut file));
                bytes = 0;
            }
            bytes += more;
            file.push(piece.clone());
        }
        files.push(file);
    }
    let count = files.len();
    let named = files.into_iter().enumerate();
    named.map(|(i, pieces)| (shard_file_name(kind, i, count), pieces)).collect()
}

/// The file of each parameter, if all are in full and in several files.
fn index<'a>(
    files: &'a [(String, Vec<Piece>)],
    tensors: &BTreeMap<String, TensorRecord>,
) -> Option<BTreeMap<&'a str, &'a str>> {
    let pieces = || files.iter().flat_map(|(_, pieces)| pieces);
    let full = |piece: &Piece| piece.is_full(&tensors[&piece.tensor]);
    if files.len() < 2 || !pieces().all(full) {
        return None;
    }
    let named = files.iter().flat_map(|(name, pieces)| {
        pieces.iter().map(move |piece| (piece.tensor.as_str(), name.as_str()))
    });
    Some(named.collect())
}

/// Passes the bytes of a piece on.
fn copy(
    checkpoint: &Checkpoint,
    piece: &Piece,
    tensor: &TensorRecord,
    write: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let most = CHUNK / tensor.width().max(1);
    let mut buffer = vec![0; piece.part.elements().min(most) * tensor.width()];
    for chunk in piece.part.chunks(most) {
        let bytes = &mut buffer[..chunk.elements() * tensor.width()];
        checkpoint.read_part(&piece.tensor, &chunk, bytes)?;
        write(bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::Dtype;

    fn cuts(dims: &[usize], shards: usize) -> Vec<String> {
        let record = TensorRecord { dims: dims.to_vec(), dtype: Dtype::F32, slot: None };
        let tensors = BTreeMap::from([("x".to_owned(), record)]);
        pieces(&tensors, shards, false)
            .into_iter()
            .flatten()
            .map(|piece| piece.part.to_string())
            .collect()
    }

    #[test]
    fn cuts_between_rows_if_they_divide_and_else_between_elements() {
        assert_eq!(cuts(&[6, 4], 3), ["[0:8]", "[8:16]", "[16:24]"]);
        assert_eq!(cuts(&[5, 1], 3), ["[0:2]", "[2:4]", "[4:5]"]);
        assert_eq!(cuts(&[2, 2], 1), ["[0:4]"]);
    }

    #[test]
    fn small_and_empty_tensors_have_fewer_shards() {
        assert_eq!(cuts(&[], 4), ["[0:1]"]);
        assert_eq!(cuts(&[0, 3], 4), ["[0:0]"]);
        assert_eq!(cuts(&[2], 4), ["[0:1]", "[1:2]"]);
    }
}
