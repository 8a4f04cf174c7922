//! Checkpoints of PyTorch/XLA FSDP: a file per rank, opened as the full tensors of the model.
//!
//! A shard is a slice of a parameter, or of several in a flat one, with zeros at the end to divide
//! evenly. Whether it was cut flat or along dim 0, in row-major order the shards of all ranks follow
//! each other. So a tensor is a range of their elements, and only the ranks that have it are read.
//! Buffers are not sharded, and are read from rank 0. Optimizer states are not read.

use super::torch::{Archive, Pickle, Value, View, sizes, tensors};
use crate::error::{Error, Result};
use crate::format::{Format, SavedTensor, checked_elements};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What begins the last part of a shard's name.
const SHARD: &str = "_fsdp_shard";

/// Modules that FSDP puts around those of the model.
const WRAPPERS: [&str; 2] = ["_fsdp_wrapped_module.", "_fpw_module."];

/// Bytes of all names at most: metadata can mention one long name many times.
const MAX_NAMES: usize = 64 << 20;

/// Opens the checkpoint in a folder, with a file of one rank, or with a common start of the paths.
pub(super) fn open(path: &Path) -> Result<Option<Box<dyn Format>>> {
    let Some(files) = RankFile::find(path)? else { return Ok(None) };
    Ok(Some(Box::new(Checkpoint::open(path, files)?)))
}

/// A file of one rank, from its name.
struct RankFile {
    path: PathBuf,
    /// The checkpoint that it belongs to: the start of its name, and the number of ranks.
    of: (String, usize),
    rank: usize,
}

impl RankFile {
    /// `PREFIX_rank-R-of-N.pth`, or `rankR-of-N-pytorch_model.bin` as Hugging Face's Trainer writes.
    fn new(path: PathBuf) -> Option<RankFile> {
        let name = path.file_name()?.to_str()?;
        let trainer = name.strip_prefix("rank").and_then(|n| n.strip_suffix("-pytorch_model.bin"));
        let (prefix, numbers) = match trainer {
            Some(numbers) => ("", numbers),
            None => name.strip_suffix(".pth")?.rsplit_once("_rank-")?,
        };
        let (rank, world) = numbers.split_once("-of-")?;
        let (rank, world) = (rank.parse().ok()?, world.parse().ok()?);
        Some(RankFile { of: (prefix.to_owned(), world), rank, path })
    }

    /// The files of the checkpoint at a path, by rank.
    fn find(path: &Path) -> Result<Option<Vec<RankFile>>> {
        let given = RankFile::new(path.to_owned()).filter(|file| file.path.is_file());
        if given.is_none() && path.is_file() {
            return Ok(None);
        }
        let mut files = if path.is_dir() {
            RankFile::all_in(path)?
        } else {
            let mut files = RankFile::all_in(parent(path))?;
            files.retain(|file| match &given {
                Some(given) => file.of == given.of,
                None => path.file_name().is_some_and(|name| *file.of.0 == *name),
            });
            files
        };
        files.sort_by_key(|file| file.rank);
        match incomplete(&files) {
            Some(reason) => Err(Error::Ranks { path: path.to_owned(), reason }),
            None => Ok(Some(files).filter(|files| !files.is_empty())),
        }
    }

    fn all_in(folder: &Path) -> Result<Vec<RankFile>> {
        let mut files = Vec::new();
        if folder.is_dir() {
            let read = |source| Error::Read { path: folder.to_owned(), source };
            for entry in std::fs::read_dir(folder).map_err(read)? {
                files.extend(RankFile::new(entry.map_err(read)?.path()));
            }
        }
        Ok(files)
    }
}

/// What keeps sorted files from being one checkpoint with every rank once.
fn incomplete(files: &[RankFile]) -> Option<String> {
    let of = &files.first()?.of;
    let world = of.1;
    if files.iter().any(|file| file.of != *of) {
        return Some("there are several; pass one file of the one to open".to_owned());
    }
    let is_there = |rank: usize| files.get(rank).is_some_and(|file| file.rank == rank);
    if let Some(rank) = (0..world).find(|&rank| !is_there(rank)) {
        return Some(format!("rank {rank} of {world} is missing, or another is there twice"));
    }
    (files.len() != world).then(|| format!("there are {} files of {world} ranks", files.len()))
}

/// The shards of a rank.
#[derive(Debug)]
struct Rank {
    archive: Archive,
    tensors: BTreeMap<String, SavedTensor>,
    views: BTreeMap<String, View>,
}

impl Rank {
    /// Opens a file, and the layout that it describes if it is the first.
    fn open(file: &RankFile) -> Result<(Rank, Option<Layout>)> {
        let archive = Archive::open(&file.path)?;
        let pickled = archive.pickled()?;
        let pickle = archive.unpickle(&pickled)?;
        let model =
            pickle.get(pickle.root, "model").filter(|&model| pickle.entries(model).is_some());
        let metadata = pickle.get(pickle.root, "shard_metadata");
        let (Some(model), Some(metadata)) = (model, metadata) else {
            return Err(archive.damaged("it has no `model` with `shard_metadata`"));
        };
        let is = |key: &str, expected: usize| {
            pickle.get(metadata, key) == Some(Value::Int(expected as i64))
        };
        if !is("rank", file.rank) || !is("world_size", file.of.1) {
            return Err(
                archive.damaged("its metadata has another rank or world size than its name")
            );
        }
        let (tensors, views) = tensors(&archive, &pickle, model)?;
        let layout = (file.rank == 0).then(|| {
            let layout = Layout::read(&pickle, metadata, &tensors, file.of.1);
            layout.map_err(|reason| archive.damaged(reason))
        });
        let layout = layout.transpose()?;
        Ok((Rank { archive, tensors, views }, layout))
    }
}

/// Where a full tensor is.
#[derive(Debug)]
struct Place {
    /// The name of the shards that have it.
    shard: String,
    /// Its first element, counted over the shards of all ranks.
    first: usize,
    /// The elements of a shard.
    per_rank: usize,
}

/// The full tensors by their names in the model, and where they are.
#[derive(Debug, Default)]
struct Layout {
    tensors: BTreeMap<String, SavedTensor>,
    places: BTreeMap<String, Place>,
    name_bytes: usize,
}

impl Layout {
    /// The layout in the metadata of a rank, given its shards.
    fn read<'a>(
        pickle: &Pickle<'a>,
        metadata: Value<'a>,
        shards: &BTreeMap<String, SavedTensor>,
        world: usize,
    ) -> std::result::Result<Layout, String> {
        let mut layout = Layout::default();
        for (key, shard) in shards {
            let per_rank = shard.elements();
            let Some((unit, name)) = split(key) else {
                layout.add(key, shard.clone(), Place { shard: key.clone(), first: 0, per_rank })?;
                continue;
            };
            let (full_name, dims) = original(pickle, metadata, unit, name)
                .ok_or_else(|| format!("its metadata do not describe `{key}`"))?;
            let end = checked_elements(&dims)
                .filter(|&end| per_rank.checked_mul(world).is_some_and(|elements| end <= elements));
            let end = end.ok_or_else(|| format!("the shards of `{full_name}` are too small"))?;
            let parts = flat_parts(pickle, metadata, &full_name, dims)
                .ok_or_else(|| format!("its metadata do not describe `{full_name}`"))?;
            let mut first = 0;
            for (name, dims) in parts {
                let next = checked_elements(&dims).and_then(|elements| elements.checked_add(first));
                let next = next.filter(|&next| next <= end);
                let next = next.ok_or_else(|| format!("`{name}` exceeds `{full_name}`"))?;
                let tensor = SavedTensor { dims, dtype: shard.dtype };
                layout.add(&name, tensor, Place { shard: key.clone(), first, per_rank })?;
                first = next;
            }
            if first != end {
                return Err(format!("its metadata leave out a part of `{full_name}`"));
            }
        }
        Ok(layout)
    }

    /// Adds a tensor, without the wrappers in its name.
    fn add(
        &mut self,
        name: &str,
        tensor: SavedTensor,
        place: Place,
    ) -> std::result::Result<(), String> {
        self.name_bytes += name.len() + place.shard.len();
        if self.name_bytes > MAX_NAMES {
            return Err("its metadata have too many names".to_owned());
        }
        let name = WRAPPERS.iter().fold(name.to_owned(), |name, wrapper| name.replace(wrapper, ""));
        self.tensors.insert(name.clone(), tensor);
        self.places.insert(name, place);
        Ok(())
    }
}

/// The unit of a shard and its name there. `None` for what is not sharded.
fn split(key: &str) -> Option<(&str, &str)> {
    let mut places = key.match_indices(SHARD).map(|(at, _)| at);
    let at = places.find(|&at| at == 0 || key[..at].ends_with('.'))?;
    Some((key[..at].strip_suffix('.').unwrap_or_default(), &key[at..]))
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

fn joined(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}.{name}") }
}

/// An entry of a dict in the metadata.
fn entry<'a>(pickle: &Pickle<'a>, metadata: Value<'a>, dict: &str, key: &str) -> Option<Value<'a>> {
    pickle.get(pickle.get(metadata, dict)?, key)
}

/// The name and dimensions that a shard had before it was sharded.
fn original<'a>(
    pickle: &Pickle<'a>,
    metadata: Value<'a>,
    unit: &str,
    shard: &str,
) -> Option<(String, Vec<usize>)> {
    let info = pickle.get(entry(pickle, metadata, "shard_info", unit)?, shard)?;
    let Value::Str(name) = pickle.get(info, "_orig_name")? else { return None };
    Some((joined(unit, name), sizes(pickle, pickle.get(info, "_orig_size")?)?))
}

/// The names and dimensions of the parameters in a flat one, or of the parameter itself.
fn flat_parts<'a>(
    pickle: &Pickle<'a>,
    metadata: Value<'a>,
    flat: &str,
    dims: Vec<usize>,
) -> Option<Vec<(String, Vec<usize>)>> {
    let Some(parts) = entry(pickle, metadata, "flatten_info", flat) else {
        return Some(vec![(flat.to_owned(), dims)]);
    };
    // Element counts follow, which are those of the shapes.
    let &[names, shapes, ..] = pickle.sequence(parts)? else { return None };
    let (names, shapes) = (pickle.sequence(names)?, pickle.sequence(shapes)?);
    let module = flat.rsplit_once('.').map_or("", |(module, _)| module);
    let text_bytes = |name: &Value<'a>| match name {
        Value::Str(name) => name.len() + module.len(),
        _ => 0,
    };
    if names.len() != shapes.len() || names.iter().map(text_bytes).sum::<usize>() > MAX_NAMES {
        return None;
    }
    let part = |(name, shape): (&Value<'a>, &Value<'a>)| match *name {
        Value::Str(name) => Some((joined(module, name), sizes(pickle, *shape)?)),
        _ => None,
    };
    names.iter().zip(shapes).map(part).collect()
}

/// The files of all ranks.
#[derive(Debug)]
struct Checkpoint {
    path: PathBuf,
    ranks: Vec<Rank>,
    layout: Layout,
}

impl Checkpoint {
    fn open(path: &Path, files: Vec<RankFile>) -> Result<Checkpoint> {
        let mut checkpoint =
            Checkpoint { path: path.to_owned(), ranks: Vec::new(), layout: Layout::default() };
        for file in files {
            let (rank, layout) = Rank::open(&file)?;
            if let Some(layout) = layout {
                checkpoint.layout = layout;
            }
            if let Some(first) = checkpoint.ranks.first()
                && rank.tensors != first.tensors
            {
                let reason = "its shards have other names or dimensions than those of rank 0";
                return Err(rank.archive.damaged(reason));
            }
            checkpoint.ranks.push(rank);
        }
        Ok(checkpoint)
    }
}

impl Format for Checkpoint {
    fn name(&self) -> &'static str {
        "PyTorch/XLA FSDP"
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn tensors(&self) -> &BTreeMap<String, SavedTensor> {
        &self.layout.tensors
    }

    fn read(&self, name: &str, elements: Range<usize>, out: &mut [u8]) -> Result<()> {
        self.check_request(name, &elements.clone().into(), out)?;
        let place = &self.layout.places[name];
        let width = self.layout.tensors[name].dtype.bitsize() / 8;
        let (mut from, to) = (place.first + elements.start, place.first + elements.end);
        let mut out = out;
        while from < to {
            let (rank, start) = (&self.ranks[from / place.per_rank], from % place.per_rank);
            let count = (to - from).min(place.per_rank - start);
            let (part, rest) = out.split_at_mut(count * width);
            let read =
                rank.views[&place.shard].read(&rank.archive.file, start..start + count, part);
            read.map_err(|source| Error::Read { path: rank.archive.path.clone(), source })?;
            (from, out) = (from + count, rest);
        }
        Ok(())
    }
}
