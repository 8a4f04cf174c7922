//! Datasets: finds the files of a split and downloads them.

use super::repository::Repository;
use super::snapshot::Snapshot;
use super::{Download, Hub, MAIN, layout};
use crate::Result;
use fullshard_core::cache::temporary_file;
use hf_hub::RepoType;
use std::path::{Path, PathBuf};

/// The split of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Training data.
    Train,
    /// Validation data.
    Validation,
}

impl Hub {
    /// Downloads the files of a split unless they are cached, and returns their paths; `None` if
    /// the dataset has no such split. Complete downloads are found without a network.
    pub fn fetch_dataset(
        &self,
        name: &str,
        config: Option<&str>,
        split: Split,
        progress: &mut dyn FnMut(Download<'_>),
    ) -> Result<Option<Vec<PathBuf>>> {
        let repository = self.repository(RepoType::Dataset, name, MAIN)?;
        let manifest = manifest(&repository, config, split);
        let snapshot = match repository.ask() {
            Ok(snapshot) => snapshot,
            Err(unavailable) => {
                let cached = read_manifest(&manifest).map(|files| (files, manifest.as_path()));
                let missing = || format!("the cache {} does not have it", self.cache.display());
                return repository.fall_back(unavailable, cached.ok_or_else(missing)).map(Some);
            }
        };
        let (snapshot, files) = choose(&repository, snapshot, config)?;
        let files = layout::of_split(&files, split);
        if files.is_empty() {
            return Ok(None);
        }
        let fetched = files.iter().map(|file| {
            snapshot.get(file, progress).map_err(|error| {
                repository.error(repository.download_error(&snapshot.api, file, &error))
            })
        });
        let fetched: Vec<PathBuf> = fetched.collect::<Result<_>>()?;
        if let Err(error) = write_manifest(&manifest, &fetched) {
            let manifest = manifest.display();
            tracing::warn!("{name} is not found offline: cannot write {manifest}: {error}");
        }
        Ok(Some(fetched))
    }
}

/// The snapshot to download from, and its files that belong to a config. The hub also converts
/// datasets to Parquet, under a separate revision, which is used if the original files have no
/// recognized layout.
fn choose(
    repository: &Repository<'_>,
    main: Snapshot,
    config: Option<&str>,
) -> Result<(Snapshot, Vec<String>)> {
    if let Some(chosen) = layout::of_config(&main.files, config) {
        return Ok((main, chosen));
    }
    let converted = Repository { revision: "refs/convert/parquet", ..*repository }.ask().ok();
    let converted = converted.filter(|converted| !converted.files.is_empty());
    let other = converted.unwrap_or(main);
    match layout::of_config(&other.files, config) {
        Some(chosen) => Ok((other, chosen)),
        None => Err(repository.error(no_config(&layout::configs(&other.files), config))),
    }
}

fn no_config(known: &[String], config: Option<&str>) -> String {
    let known = known.join(", ");
    match config {
        _ if known.is_empty() => "has no text files in a supported format. Download what you need \
                                  and pass it with --train_file"
            .into(),
        None => format!("has several configs; choose one with --dataset_config_name: {known}"),
        Some(config) => format!("has no config `{config}`; it has: {known}"),
    }
}

/// The path of the list of a split's files, written once all are downloaded.
fn manifest(repository: &Repository<'_>, config: Option<&str>, split: Split) -> PathBuf {
    let config = config.unwrap_or("default").replace('/', "--");
    repository.root().join(format!("fullshard.{config}.{split:?}.json"))
}

fn write_manifest(manifest: &Path, files: &[PathBuf]) -> std::io::Result<()> {
    let directory = manifest.parent().unwrap_or(Path::new("."));
    let file = temporary_file(directory)?;
    serde_json::to_writer(&file, files)?;
    file.persist(manifest).map_err(|error| error.error)?;
    Ok(())
}

fn read_manifest(manifest: &Path) -> Option<Vec<PathBuf>> {
    let files: Vec<PathBuf> = serde_json::from_slice(&std::fs::read(manifest).ok()?).ok()?;
    files.iter().all(|file| file.is_file()).then_some(files)
}
