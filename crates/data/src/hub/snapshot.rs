//! A commit of a repository: downloads its files into the cache.
//!
//! Contents are in `blobs`, under their ETag, and `snapshots/COMMIT` links to them, so that commits
//! share what did not change.

use super::Download;
use super::repository::{Repository, is_hash};
use hf_hub::api::sync::{Api, ApiError, ApiRepo};
use hf_hub::api::{Progress, RepoInfo};
use hf_hub::{Cache, Repo};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

/// A commit of a repository on the hub.
pub(super) struct Snapshot {
    pub api: Api,
    repo: ApiRepo,
    blobs: PathBuf,
    /// The folder of the commit in the cache.
    pub folder: PathBuf,
    /// The names of its files, sorted.
    pub files: Vec<String>,
    commit: String,
}

impl Snapshot {
    pub fn new(of: &Repository<'_>, api: Api, info: RepoInfo) -> Result<Self, String> {
        let commit = info.sha;
        if !is_hash(&commit) {
            return Err(format!("the hub answered with the invalid commit `{commit}`"));
        }
        let is_inside = |file: &String| {
            Path::new(file).components().all(|part| matches!(part, Component::Normal(_)))
        };
        let files = info.siblings.into_iter().map(|file| file.rfilename);
        let mut files: Vec<String> = files.filter(is_inside).collect();
        files.sort();
        let repo = Repo::with_revision(of.name.into(), of.kind, commit.clone());
        let (blobs, folder) = (of.root().join("blobs"), of.snapshot(&commit));
        Ok(Self { repo: api.repo(repo), api, blobs, folder, files, commit })
    }

    /// Whether the commit has a file.
    pub fn has(&self, file: &str) -> bool {
        self.files.iter().any(|known| known == file)
    }

    /// The path of a file, which is downloaded unless it is cached.
    pub fn get(
        &self,
        file: &str,
        progress: &mut dyn FnMut(Download<'_>),
    ) -> Result<PathBuf, ApiError> {
        let path = self.folder.join(file);
        if path.is_file() {
            return Ok(path);
        }
        let metadata = self.api.metadata(&self.repo.url(file))?;
        let (blob, size) = (self.blobs.join(metadata.etag()), metadata.size() as u64);
        if path.is_symlink() {
            fs::remove_file(&path)?; // its blob was deleted
        }
        if length(&blob) == Some(size) {
            link(&blob, &path, file)?;
            return Ok(path);
        }
        let part = blob.with_extension("part");
        if length(&part) >= Some(size) {
            fs::remove_file(&part)?; // it cannot be continued
        }
        self.repo.download_with_progress(file, Report { file, bytes: 0, size, progress })?;
        if length(&blob) != Some(size) {
            fs::remove_file(&path).and(fs::remove_file(&blob))?;
            return Err(ApiError::InvalidResume);
        }
        Ok(path)
    }

    /// Notes that the revision is this commit, for later starts without the hub.
    pub fn record(&self, of: &Repository<'_>) -> io::Result<()> {
        let is_recorded =
            || fs::read_to_string(of.reference()).is_ok_and(|commit| commit.trim() == self.commit);
        if of.revision == self.commit || is_recorded() {
            return Ok(());
        }
        Cache::new(of.hub.cache.clone()).repo(of.repo()).create_ref(&self.commit)
    }
}

fn length(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.len())
}

/// Links a file of a snapshot to a blob, relative to the file.
fn link(blob: &Path, path: &Path, file: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let above = "../".repeat(Path::new(file).components().count() + 1);
    let name = blob.file_name().map(Path::new).unwrap_or(blob);
    symlink(Path::new(&above).join("blobs").join(name), path)
}

/// Reports the progress of one file.
struct Report<'a> {
    file: &'a str,
    bytes: u64,
    size: u64,
    progress: &'a mut dyn FnMut(Download<'_>),
}

impl Report<'_> {
    fn report(&mut self) {
        (self.progress)(Download { file: self.file, bytes: self.bytes, size: self.size });
    }
}

impl Progress for Report<'_> {
    fn init(&mut self, _size: usize, _file: &str) {
        self.bytes = 0;
    }

    fn update(&mut self, size: usize) {
        self.bytes += size as u64;
        self.report();
    }

    fn finish(&mut self) {}
}
