//! What can go wrong with weights on disk, each naming the file or tensor at fault.

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
        /// What the system said.
        source: io::Error,
    },
    /// A file cannot be written; nothing of it is left.
    #[error("cannot write {}: {source}{}", path.display(), way_out(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Where a file is to be written, there is something else.
    #[error(
        "cannot write {}: it is {what}, which a file would replace. Name a file, or a path where \
         nothing is yet",
        path.display()
    )]
    InTheWay {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// The values of a tensor to be written could not be had.
    #[error("cannot get the values of `{name}`: {source}")]
    Values {
        /// The tensor.
        name: String,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A tensor came with more or fewer values than it has elements.
    #[error("`{name}` has {expected} elements, but came with {found} values")]
    Count {
        /// The tensor.
        name: String,
        /// Its elements.
        expected: usize,
        /// The values it came with.
        found: usize,
    },
    /// Two tensors to be written have the same name.
    #[error("`{name}` is listed twice among the tensors to be written")]
    Twice {
        /// The name.
        name: String,
    },
    /// Tensors too large to be counted, or too many for a header.
    #[error("the tensors do not fit into a safetensors file: {reason}")]
    TooLarge {
        /// What is too large.
        reason: String,
    },
    /// A config to be written is no JSON object.
    #[error("the config to be written is no JSON object but {found}")]
    Config {
        /// What it is.
        found: String,
    },
    /// There are no weights where they were looked for.
    #[error(
        "no weights in {}: it has neither model.safetensors nor model.safetensors.index.json",
        path.display()
    )]
    NoWeights {
        /// The folder.
        path: PathBuf,
    },
    /// The weights are there, but pickled by torch.
    #[error(
        "{} was pickled by torch, which only Python can read. Convert it to safetensors: load it \
         with transformers' `AutoModelForCausalLM.from_pretrained` and save it with \
         `save_pretrained`, which writes model.safetensors",
        path.display()
    )]
    Pickled {
        /// The file.
        path: PathBuf,
    },
    /// A file is not what it should be.
    #[error("{} is damaged: {reason}. Fetch or export it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Tensors that the model has are not among the weights.
    #[error("{} has no {}; are the weights of another model?", path.display(), list(names))]
    Missing {
        /// Where the weights are.
        path: PathBuf,
        /// The tensors.
        names: Vec<String>,
    },
    /// Among the weights are tensors that the model does not have.
    #[error(
        "{} has tensors that the model does not: {}; are the weights of another model?",
        path.display(),
        list(names)
    )]
    Extra {
        /// Where the weights are.
        path: PathBuf,
        /// The tensors.
        names: Vec<String>,
    },
    /// A tensor has other dimensions than in the model.
    #[error(
        "`{name}` in {} has dimensions {found:?}, but the model's has {expected:?}; the config \
         may be of another model",
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
    /// A tensor's elements are of a type that weights are not read from.
    #[error(
        "`{name}` in {} is of type {dtype}; weights can be F64, F32, F16 or BF16",
        path.display()
    )]
    DType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type.
        dtype: String,
    },
}

fn way_out(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ". The disk is full: free some space, or write to a folder on another disk"
        }
        _ => "",
    }
}

/// Names in a sentence, the first few of many.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &rest
}
