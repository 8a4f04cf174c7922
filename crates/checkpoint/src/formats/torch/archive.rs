//! The zip files of `torch.save`: a pickle, and the storages that its tensors refer to.
//!
//! torch stores records without compression, so a range of a tensor is a range of the file. Checksums
//! are not compared: torch can be told not to write them, and values are read in part.

use super::pickle::{Pickle, Value};
use super::view::View;
use crate::error::{Error, Result};
use crate::format::SavedTensor;
use safetensors::Dtype;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use zip::{CompressionMethod, ZipArchive};

/// The first bytes of a zip file.
pub(crate) const ZIP_MAGIC: &[u8] = b"PK\x03\x04";

/// A larger pickle has values inside, which torch never writes there.
const MAX_PICKLE: usize = 64 << 20;

const MAX_DIMS: usize = 64;

/// Functions that return their first argument, a tensor, in another wrapping.
const WRAPPERS: [&str; 3] = [
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_device_tensor_from_cpu_tensor",
];

const STORAGES: [(&str, Dtype); 10] = [
    ("FloatStorage", Dtype::F32),
    ("HalfStorage", Dtype::F16),
    ("BFloat16Storage", Dtype::BF16),
    ("DoubleStorage", Dtype::F64),
    ("LongStorage", Dtype::I64),
    ("IntStorage", Dtype::I32),
    ("ShortStorage", Dtype::I16),
    ("CharStorage", Dtype::I8),
    ("ByteStorage", Dtype::U8),
    ("BoolStorage", Dtype::BOOL),
];

/// A file written by `torch.save`.
#[derive(Debug)]
pub(crate) struct Archive {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// Start and length of the records, by their names without the folder that all are in.
    records: HashMap<String, (u64, usize)>,
}

impl Archive {
    pub(crate) fn open(path: &Path) -> Result<Archive> {
        let read = |source| Error::Read { path: path.to_owned(), source };
        let damaged = |reason: String| Error::Damaged { path: path.to_owned(), reason };
        let file = File::open(path).map_err(read)?;
        let length = file.metadata().map_err(read)?.len();
        let mut zip = ZipArchive::new(BufReader::new(&file))
            .map_err(|error| damaged(format!("it is not a complete zip file ({error})")))?;
        let mut records = HashMap::new();
        for i in 0..zip.len() {
            let wrong = |error: zip::result::ZipError| damaged(format!("record {i}: {error}"));
            let record = zip.by_index_raw(i).map_err(wrong)?;
            let name = record.name().map_err(wrong)?.into_owned();
            let stored = record.compression() == CompressionMethod::STORE && !record.encrypted();
            let start = record.data_start().filter(|_| stored);
            let Some(start) = start else {
                return Err(damaged(format!("`{name}` is compressed, which torch never does")));
            };
            if start.checked_add(record.size()).is_none_or(|end| end > length) {
                return Err(damaged(format!("`{name}` exceeds the file")));
            }
            let within = name.split_once('/').map_or(name.as_str(), |(_, within)| within);
            records.insert(within.to_owned(), (start, record.size() as usize));
        }
        let archive = Archive { path: path.to_owned(), file, records };
        match archive.record("byteorder", 16)?.as_deref() {
            None | Some(b"little") => Ok(archive),
            Some(_) => Err(archive.unreadable("its values are big-endian")),
        }
    }

    /// The bytes of a record, if there is one.
    fn record(&self, name: &str, max_bytes: usize) -> Result<Option<Vec<u8>>> {
        let Some(&(start, length)) = self.records.get(name) else { return Ok(None) };
        if length > max_bytes {
            return Err(self.damaged(format!("`{name}` has {length} bytes")));
        }
        let mut bytes = vec![0; length];
        let read = self.file.read_exact_at(&mut bytes, start);
        read.map_err(|source| Error::Read { path: self.path.clone(), source })?;
        Ok(Some(bytes))
    }

    /// The bytes of the pickle.
    pub(crate) fn pickled(&self) -> Result<Vec<u8>> {
        let pickled = self.record("data.pkl", MAX_PICKLE)?;
        pickled.ok_or_else(|| self.damaged("it has no data.pkl, which torch.save writes"))
    }

    /// Reads the pickle.
    pub(crate) fn unpickle<'a>(&self, pickled: &'a [u8]) -> Result<Pickle<'a>> {
        Pickle::read(pickled).map_err(|error| self.damaged(error.to_string()))
    }

    pub(crate) fn damaged(&self, reason: impl Into<String>) -> Error {
        Error::Damaged { path: self.path.clone(), reason: reason.into() }
    }

    pub(crate) fn unreadable(&self, reason: impl Into<String>) -> Error {
        Error::Pickled { path: self.path.clone(), reason: reason.into() }
    }

    /// A tensor in the pickle. `None` if the value is none.
    pub(crate) fn tensor<'a>(
        &self,
        pickle: &Pickle<'a>,
        name: &str,
        value: Value<'a>,
    ) -> Result<Option<(SavedTensor, View)>> {
        let mut value = value;
        while let Some(("torch._utils", function, args)) = pickle.call(value) {
            match args {
                [inner, ..] if WRAPPERS.contains(&function) => value = *inner,
                args if function == "_rebuild_tensor_v2" => {
                    let tensor = self.rebuild(pickle, args).map(Some);
                    return tensor.map_err(|reason| self.unreadable(format!("`{name}` {reason}")));
                }
                _ => break,
            }
        }
        Ok(None)
    }

    /// What `_rebuild_tensor_v2(storage, offset, size, stride, ..)` would return.
    fn rebuild<'a>(
        &self,
        pickle: &Pickle<'a>,
        args: &[Value<'a>],
    ) -> std::result::Result<(SavedTensor, View), String> {
        let &[storage, Value::Int(offset), size, stride, ..] = args else {
            return Err("is not described as torch does".to_owned());
        };
        let (Some(dims), Some(strides)) = (sizes(pickle, size), sizes(pickle, stride)) else {
            return Err("has dimensions or strides that are not integers".to_owned());
        };
        let (dtype, start, bytes) = self.storage(pickle, storage)?;
        let width = dtype.bitsize() / 8;
        let outside = || {
            format!(
                "with dimensions {dims:?} and strides {strides:?} exceeds its storage of {bytes} \
                 bytes, or repeats it"
            )
        };
        let offset = usize::try_from(offset).map_err(|_| outside())?;
        let available = (bytes / width).checked_sub(offset).ok_or_else(outside)?;
        let first = start + (offset * width) as u64;
        let view = View::new(first, width, available, &dims, &strides).ok_or_else(outside)?;
        Ok((SavedTensor { dims, dtype }, view))
    }

    /// The dtype, start and length of a storage: `('storage', class, key, location, elements)`.
    fn storage<'a>(
        &self,
        pickle: &Pickle<'a>,
        value: Value<'a>,
    ) -> std::result::Result<(Dtype, u64, usize), String> {
        let Some(&[Value::Str("storage"), class, Value::Str(key), ..]) = pickle.persistent(value)
        else {
            return Err(format!("has {} where its storage should be", pickle.describe(value)));
        };
        let dtype = match class {
            Value::Global { module: "torch", name } => {
                STORAGES.iter().find(|(storage, _)| *storage == name).map(|&(_, dtype)| dtype)
            }
            _ => None,
        };
        let dtype = dtype.ok_or_else(|| format!("has a storage of {}", pickle.describe(class)))?;
        let record = self.records.get(&format!("data/{key}"));
        let &(start, bytes) = record.ok_or_else(|| format!("has no storage data/{key}"))?;
        Ok((dtype, start, bytes))
    }
}

/// The sizes in a tuple, list or `torch.Size`, for a tensor of as many dims as torch allows.
pub(crate) fn sizes<'a>(pickle: &Pickle<'a>, value: Value<'a>) -> Option<Vec<usize>> {
    let value = match pickle.call(value) {
        Some(("torch", "Size", [inner])) => *inner,
        _ => value,
    };
    let size = |value: &Value<'a>| match *value {
        Value::Int(size) => usize::try_from(size).ok(),
        _ => None,
    };
    let values = pickle.sequence(value).filter(|values| values.len() <= MAX_DIMS)?;
    values.iter().map(size).collect()
}
