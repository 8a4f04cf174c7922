//! Writing a checkpoint: files side by side, then the manifest, then the marker.

use super::manifest::{
    FLAT_VERSION, FileRecord, MANIFEST, MANIFEST_VERSION, Manifest, ShardChecksums, TensorRecord,
};
use super::points::{OnSave, SavePoint};
use super::shard::Piece;
use super::{COMMITTED, STEP};
use crate::checksum::{Checksum, Summing};
use crate::error::{Error, Result};
use crate::export::INDEX;
use crate::folder::{UNFINISHED, checkpoint_name, restore_replaced};
use crate::header;
use crate::place::{check_output, parent, sync_folder, write_error, write_file};
use safetensors::tensor::TensorInfo;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The files that a process has written of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WrittenFiles {
    files: BTreeMap<String, FileRecord>,
    has_boxes: bool,
}

impl WrittenFiles {
    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

/// A checkpoint that is being written. Dropping it removes it, unless another process began it.
pub struct Staging {
    path: PathBuf,
    /// Whether this process began it.
    began: bool,
    /// The checkpoint's place.
    target: PathBuf,
    /// The name of an earlier checkpoint there, until this one is complete.
    replaced: Option<PathBuf>,
    step: u64,
    files: Mutex<BTreeMap<String, FileRecord>>,
    /// Whether a shard is a box.
    has_boxes: AtomicBool,
    on_save: OnSave,
}

/// The length of single writes; shorter ones are put together.
const CHUNK: usize = 8 << 20;
const BUFFER: usize = 1 << 20;

impl Staging {
    /// Starts the checkpoint of a step in a folder, which replaces an earlier one of this step.
    pub fn begin(folder: &Path, step: u64, on_save: OnSave) -> Result<Staging> {
        let name = checkpoint_name(step);
        let path = folder.join(format!("{UNFINISHED}{name}"));
        let replaced = folder.join(format!("{UNFINISHED}replaced-{step}"));
        Staging::create(path, folder.join(name), Some(replaced), step, on_save)
    }

    /// Writes to the checkpoint of a step that another process began.
    pub fn join(folder: &Path, step: u64, on_save: OnSave) -> Result<Staging> {
        let name = checkpoint_name(step);
        let path = folder.join(format!("{UNFINISHED}{name}"));
        match path.is_dir() {
            true => Ok(Staging::new(path, folder.join(name), None, step, on_save, false)),
            false => Err(Error::NotShared { folder: folder.to_owned() }),
        }
    }

    /// Starts a checkpoint at a path that has none.
    pub fn at(target: &Path, step: u64) -> Result<Staging> {
        check_output(target)?;
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{UNFINISHED}{name}-{}", std::process::id());
        let path = parent(target).join(name);
        Staging::create(path, target.to_owned(), None, step, Arc::new(|_| {}))
    }

    fn create(
        path: PathBuf,
        target: PathBuf,
        replaced: Option<PathBuf>,
        step: u64,
        on_save: OnSave,
    ) -> Result<Staging> {
        remove_folder(&path)?;
        fs::create_dir_all(&path).map_err(|source| write_error(&path, source))?;
        Ok(Staging::new(path, target, replaced, step, on_save, true))
    }

    fn new(
        path: PathBuf,
        target: PathBuf,
        replaced: Option<PathBuf>,
        step: u64,
        on_save: OnSave,
        began: bool,
    ) -> Staging {
        let (files, has_boxes) = (Mutex::new(BTreeMap::new()), AtomicBool::new(false));
        Staging { path, began, target, replaced, step, files, has_boxes, on_save }
    }

    /// The place of the checkpoint when it is complete.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The files that were written so far.
    pub fn written(&self) -> WrittenFiles {
        let has_boxes = self.has_boxes.load(Ordering::Relaxed);
        WrittenFiles { files: self.lock().clone(), has_boxes }
    }

    /// Adds the files that another process has written.
    pub fn add_written(&self, written: WrittenFiles) {
        self.has_boxes.fetch_or(written.has_boxes, Ordering::Relaxed);
        self.lock().extend(written.files);
    }

    /// Takes copies of the files that another process has written to a folder of its own. `fetch`
    /// passes the bytes of a file on.
    pub fn receive(
        &self,
        written: &WrittenFiles,
        mut fetch: impl FnMut(&str, &mut dyn FnMut(&[u8]) -> std::io::Result<()>) -> Result<()>,
    ) -> Result<()> {
        for (name, record) in &written.files {
            let path = self.path.join(name);
            let error = |source| write_error(&path, source);
            let mut file = File::create_new(&path).map_err(error)?;
            let mut sum = Summing::new();
            fetch(name, &mut |bytes| {
                sum.add(bytes);
                file.write_all(bytes)
            })?;
            if sum.finish() != record.checksum {
                let reason = "its checksum is not that of the process that wrote it".to_owned();
                return Err(Error::Damaged { path, reason });
            }
        }
        Ok(())
    }

    /// The folder that files are written into.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file of pieces and syncs it. `values` passes the bytes of the piece of a given
    /// index on. Files may be written from several threads.
    pub fn write_pieces(
        &self,
        name: &str,
        pieces: &[Piece],
        tensors: &BTreeMap<String, TensorRecord>,
        mut values: impl FnMut(usize, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        (self.on_save)(SavePoint::Writing);
        let path = self.path.join(name);
        let (header, bytes) = self.header(pieces, tensors)?;
        self.has_boxes.fetch_or(pieces.iter().any(|piece| piece.part.is_box()), Ordering::Relaxed);
        let error = |source| write_error(&path, source);
        let file = File::create_new(&path).map_err(error)?;
        reserve(&file, bytes).map_err(error)?;
        let mut file = BufWriter::with_capacity(BUFFER, file);
        let mut sum = Summing::new();
        let mut write = |bytes: &[u8]| {
            for chunk in bytes.chunks(CHUNK) {
                sum.add(chunk);
                file.write_all(chunk).map_err(error)?;
            }
            Ok(())
        };
        write(&header)?;
        let mut sums = Vec::with_capacity(pieces.len());
        for (i, piece) in pieces.iter().enumerate() {
            if i == pieces.len() / 2 {
                (self.on_save)(SavePoint::Midway);
            }
            let expected = piece.part.elements() * tensors[&piece.tensor].width();
            let (mut piece_sum, mut found) = (Summing::new(), 0);
            values(i, &mut |bytes| {
                found += bytes.len();
                piece_sum.add(bytes);
                write(bytes)
            })?;
            if found != expected {
                return Err(Error::Count { name: piece.tensor.clone(), expected, found });
            }
            sums.push(piece_sum.finish());
        }
        let checksum = sum.finish();
        file.flush().and_then(|()| file.get_ref().sync_all()).map_err(error)?;
        let shards = Some(ShardChecksums { header: Checksum::of(&header), values: sums });
        self.record(name, FileRecord { bytes, checksum, shards });
        Ok(())
    }

    /// Writes another file, such as a config.
    pub fn write_file(&self, name: &str, content: &[u8]) -> Result<()> {
        write_synced(&self.path.join(name), content)?;
        self.record(name, FileRecord::of(content));
        Ok(())
    }

    /// Writes the index with which `transformers` loads full parameters in several files.
    pub fn write_index<T: Serialize + Ord>(
        &self,
        files: &BTreeMap<T, T>,
        bytes: u64,
    ) -> Result<()> {
        let index = json!({ "metadata": { "total_size": bytes }, "weight_map": files });
        self.write_file(INDEX, format!("{index:#}\n").as_bytes())
    }

    /// Adds the files that were written into the folder by other means.
    pub fn adopt_files(&self) -> Result<()> {
        let error = |source| write_error(&self.path, source);
        for entry in fs::read_dir(&self.path).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !self.lock().contains_key(&name) {
                let content = fs::read(entry.path()).map_err(error)?;
                File::open(entry.path()).and_then(|file| file.sync_all()).map_err(error)?;
                self.record(&name, FileRecord::of(&content));
            }
        }
        Ok(())
    }

    /// Checks that all files are there in their lengths, as far as this process sees.
    pub fn check_files(&self) -> Result<()> {
        let length = |name: &str| File::open(self.path.join(name)).and_then(|file| file.metadata());
        let is_there = |(name, record): (&String, &FileRecord)| {
            length(name).is_ok_and(|found| found.len() == record.bytes)
        };
        match self.lock().iter().all(is_there) {
            true => Ok(()),
            false => Err(Error::NotShared { folder: parent(&self.target).to_owned() }),
        }
    }

    /// The bytes of all files so far.
    pub fn bytes(&self) -> u64 {
        self.lock().values().map(|file| file.bytes).sum()
    }

    /// Writes the manifest, gives the folder its name and then the marker. The manifest's files
    /// are those written, and its version the oldest one that has their shards.
    pub fn commit(self, mut manifest: Manifest) -> Result<PathBuf> {
        manifest.files = std::mem::take(&mut *self.lock());
        let has_boxes = self.has_boxes.load(Ordering::Relaxed);
        manifest.version = if has_boxes { MANIFEST_VERSION } else { FLAT_VERSION };
        let path = self.path.join(MANIFEST);
        let json = serde_json::to_vec_pretty(&manifest)
            .map_err(|error| write_error(&path, error.into()))?;
        write_synced(&path, &json)?;
        sync_folder(&self.path)?;
        (self.on_save)(SavePoint::Synced);
        let target = self.target.clone();
        if let Some(replaced) = &self.replaced {
            remove_folder(replaced)?;
            if target.exists() {
                fs::rename(&target, replaced).map_err(|source| write_error(&target, source))?;
            }
        }
        if let Err(error) = self.place(Checksum::of(&json)) {
            if let Some(replaced) = &self.replaced {
                // The error counts; what cannot be undone now is undone by the next sweep.
                let _ = restore_replaced(replaced, &target);
            }
            return Err(error);
        }
        (self.on_save)(SavePoint::Committed);
        self.replaced.as_deref().map_or(Ok(()), remove_folder)?;
        Ok(target)
    }

    /// Gives the folder its name and then the marker.
    fn place(&self, manifest: Checksum) -> Result<()> {
        let target = &self.target;
        fs::rename(&self.path, target).map_err(|source| write_error(target, source))?;
        sync_folder(parent(target))?;
        (self.on_save)(SavePoint::Renamed);
        write_file(target.join(COMMITTED), format!("{manifest}\n"))?;
        sync_folder(target)
    }

    /// The header of a file of pieces, and the length of the file.
    fn header(
        &self,
        pieces: &[Piece],
        tensors: &BTreeMap<String, TensorRecord>,
    ) -> Result<(Vec<u8>, u64)> {
        let mut infos = Vec::with_capacity(pieces.len());
        let mut offset = 0;
        for piece in pieces {
            let tensor = &tensors[&piece.tensor];
            let end = offset + piece.part.elements() * tensor.width();
            let (key, shape) = piece.entry(tensor);
            let info = TensorInfo { dtype: tensor.dtype, shape, data_offsets: (offset, end) };
            infos.push((key, info));
            offset = end;
        }
        let metadata = HashMap::from([
            ("format".to_owned(), "pt".to_owned()),
            (STEP.to_owned(), self.step.to_string()),
        ]);
        let header = header::encode(infos, metadata)?;
        let bytes = (header.len() + offset) as u64;
        Ok((header, bytes))
    }

    fn record(&self, name: &str, file: FileRecord) {
        self.lock().insert(name.to_owned(), file);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, FileRecord>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.began {
            // After a commit there is nothing under this name.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl FileRecord {
    fn of(content: &[u8]) -> FileRecord {
        let (bytes, checksum) = (content.len() as u64, Checksum::of(content));
        FileRecord { bytes, checksum, shards: None }
    }
}

/// Reserves the space of a file, so that a full disk is known before anything is written.
fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    match fallocate(file, FallocateFlags::empty(), 0, bytes.max(1)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        reserved => Ok(reserved?),
    }
}

fn write_synced(path: &Path, content: &[u8]) -> Result<()> {
    let write = || {
        let mut file = File::create_new(path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().map_err(|source| write_error(path, source))
}

fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(write_error(path, error)),
        _ => Ok(()),
    }
}
