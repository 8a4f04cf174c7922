//! Errors of weights on disk, each naming the file or tensor.

use fullshard_core::Part;
use std::io;
use std::path::PathBuf;

/// The result of reading or writing weights.
pub type Result<T> = std::result::Result<T, Error>;

/// Why weights cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// A file cannot be written; no partial file is left.
    #[error("cannot write {}: {source}{}", path.display(), hint(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The path of a file to be written is not a regular file.
    #[error(
        "cannot write {}: it is {what}, which a file would replace. Pass a file, or a path that \
         does not exist",
        path.display()
    )]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// The values of a tensor to be written are not available.
    #[error("cannot get the values of `{name}`: {source}")]
    Values {
        /// The tensor.
        name: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A tensor has the wrong number of values.
    #[error("`{name}` has {expected} elements, but {found} values")]
    Count {
        /// The tensor.
        name: String,
        /// Its number of elements.
        expected: usize,
        /// Its number of values.
        found: usize,
    },
    /// Two tensors to be written have the same name.
    #[error("`{name}` is listed twice among the tensors to be written")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// Tensors whose size overflows, or too many for a header.
    #[error("the tensors do not fit into a safetensors file: {reason}")]
    TooLarge {
        /// What is too large.
        reason: String,
    },
    /// A config to be written is not a JSON object.
    #[error("the config to be written is not a JSON object but {found}")]
    Config {
        /// What it is.
        found: String,
    },
    /// The folder to be written has something in it.
    #[error(
        "cannot write to {}: it is not empty. Pass an empty folder, or one that does not exist",
        path.display()
    )]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// The folder of a run where a checkpoint is needed.
    #[error(
        "{} is the folder of a run with checkpoints: pass one of {}",
        path.display(),
        names.join(", ")
    )]
    RunFolder {
        /// The folder.
        path: PathBuf,
        /// The names of its checkpoints.
        names: Vec<String>,
    },
    /// Neither a checkpoint of a run nor its folder.
    #[error(
        "{} is not a checkpoint of a run: it has no file {}. Pass a folder checkpoint-STEP; \
         `fullshard checkpoint info` reads other formats too",
        path.display(),
        crate::sharded::MANIFEST
    )]
    NotACheckpoint {
        /// The path.
        path: PathBuf,
    },
    /// A folder without checkpoints.
    #[error(
        "{} has no checkpoints: pass the --output_dir of a run that saved some, or a checkpoint",
        path.display()
    )]
    NoCheckpoints {
        /// The folder.
        path: PathBuf,
    },
    /// A number of shards that is not positive.
    #[error("a checkpoint needs at least one shard of every tensor")]
    NoShards,
    /// A checkpoint without its marker.
    #[error(
        "{} is not a complete checkpoint: it has no file {}, which is written last. The run was \
         stopped while it saved; use an older checkpoint",
        path.display(),
        crate::sharded::COMMITTED
    )]
    Uncommitted {
        /// The folder.
        path: PathBuf,
    },
    /// A checkpoint of another version of the format.
    #[error(
        "{} has version {found} of the format, but this fullshard reads up to {known}: use the one that \
         wrote it",
        path.display()
    )]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The newest version that is read.
        known: u32,
    },
    /// Another job runs in the folder.
    #[error(
        "{} is in use by another job, {holder}: wait for it, stop it, or name another \
         --output_dir",
        folder.display()
    )]
    Locked {
        /// The folder.
        folder: PathBuf,
        /// The process that has it.
        holder: String,
    },
    /// A folder that the processes of a job do not share.
    #[error(
        "{} is not one folder for all processes: what one has written is not there for another. \
         Name one on a file system that their hosts share",
        folder.display()
    )]
    NotShared {
        /// The folder.
        folder: PathBuf,
    },
    /// No weights were found.
    #[error(
        "no weights in {}: it has neither model.safetensors, nor pytorch_model.bin, nor an index of \
         either, nor PyTorch/XLA FSDP files (*_rank-*-of-*.pth)",
        path.display()
    )]
    NoWeights {
        /// The folder or file.
        path: PathBuf,
    },
    /// A file of torch has something that cannot be read without running Python.
    #[error(
        "{} cannot be read without Python: {reason}. If you trust it, convert its state dict: \
         python -c \"import torch, safetensors.torch as s; d = torch.load('{}', map_location='cpu', \
         weights_only=True); s.save_file({{k: v.contiguous().clone() for k, v in d.items()}}, \
         'model.safetensors')\"",
        path.display(),
        path.display()
    )]
    Pickled {
        /// The file.
        path: PathBuf,
        /// What cannot be read.
        reason: String,
    },
    /// The files of a PyTorch/XLA FSDP checkpoint do not belong together.
    #[error(
        "the PyTorch/XLA FSDP files of {} do not form one checkpoint: {reason}. Copy the files of \
         all ranks of one save into one folder",
        path.display()
    )]
    Ranks {
        /// The folder, or the common start of the files' paths.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A part was requested that a tensor does not have, or into a buffer of another size.
    #[error(
        "elements {part} of `{name}` in {} were requested, which has dimensions {dims:?}, or the \
         buffer has another size",
        path.display()
    )]
    Range {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The part.
        part: Part,
        /// The tensor's dimensions.
        dims: Vec<usize>,
    },
    /// A size in bytes cannot be parsed.
    #[error("`{text}` is not a size: write a number of bytes, or 500MB, 5GB or 2GiB")]
    Size {
        /// The text.
        text: String,
    },
    /// A file is damaged.
    #[error("{} is damaged: {reason}. Use another copy of it, or an older checkpoint", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The weights lack tensors of the model.
    #[error("{} has no {}; are these weights of another model?", path.display(), list(names))]
    Missing {
        /// The path of the weights.
        path: PathBuf,
        /// The tensors.
        names: Vec<String>,
    },
    /// The weights have tensors that the model does not have.
    #[error(
        "{} has tensors that the model does not have: {}; are these weights of another model?",
        path.display(),
        list(names)
    )]
    Extra {
        /// The path of the weights.
        path: PathBuf,
        /// The tensors.
        names: Vec<String>,
    },
    /// A tensor has different dimensions than in the model.
    #[error(
        "`{name}` in {} has dimensions {found:?}, but {expected:?} in the model; the config may be \
         of another model",
        path.display()
    )]
    Dims {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its dimensions in the file.
        found: Vec<usize>,
        /// Its dimensions in the model.
        expected: Vec<usize>,
    },
    /// A tensor has an unsupported dtype.
    #[error(
        "`{name}` in {} has dtype {dtype}; weights can be F64, F32, F16 or BF16",
        path.display()
    )]
    DType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: String,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ". The disk is full: free some space, or write to a folder on another disk"
        }
        _ => "",
    }
}

/// The first few names, for a sentence.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &rest
}
