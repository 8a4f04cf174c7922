//! Datasets on the Hugging Face Hub: finds the files of a split and downloads them once.

mod layout;

use crate::{Error, Result};
use fullshard_core::cache::temporary_file;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use std::path::{Path, PathBuf};

/// The split of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Training data.
    Train,
    /// Validation data.
    Validation,
}

/// The hub, or another server with the same API.
#[derive(Clone, Debug)]
pub struct Hub {
    cache: PathBuf,
    endpoint: Option<String>,
}

impl Hub {
    /// The hub at `HF_ENDPOINT`, or the default one. Files are cached in `cache`, or in `HF_HOME`,
    /// in the layout of Hugging Face's own tools.
    pub fn new(cache: Option<&Path>) -> Self {
        let cache = cache.map_or_else(|| Cache::from_env().path().clone(), Into::into);
        Self { cache, endpoint: None }
    }

    /// Uses this server instead of `HF_ENDPOINT`.
    pub fn with_endpoint(self, endpoint: &str) -> Self {
        Self { endpoint: Some(endpoint.into()), ..self }
    }

    /// Downloads the files of a split unless they are cached, and returns their paths; `None` if
    /// the dataset has no such split. Complete downloads are found without a network.
    pub fn fetch(
        &self,
        name: &str,
        config: Option<&str>,
        split: Split,
    ) -> Result<Option<Vec<PathBuf>>> {
        let failed = |error: ApiError| Error::Hub {
            name: name.into(),
            reason: format!(
                "cannot be downloaded from the hub ({error}). Check its name and the network, or \
                 pass text files with --train_file"
            ),
        };
        let manifest = self.manifest(name, config, split);
        let api = self.connect().map_err(failed)?;
        let main = api.dataset(name.into());
        let files = match list(&main) {
            Ok(files) => files,
            Err(error) => return read_manifest(&manifest).map(Some).ok_or_else(|| failed(error)),
        };
        let (repo, files) = choose(&api, main, files, name, config)?;
        let files = layout::of_split(&files, split);
        if files.is_empty() {
            return Ok(None);
        }
        let fetched = files.iter().map(|file| repo.get(file).map_err(failed));
        let fetched: Vec<PathBuf> = fetched.collect::<Result<_>>()?;
        if let Err(error) = write_manifest(&manifest, &fetched) {
            let manifest = manifest.display();
            tracing::warn!("{name} is not found offline: cannot write {manifest}: {error}");
        }
        Ok(Some(fetched))
    }

    fn connect(&self) -> Result<Api, ApiError> {
        let mut builder =
            ApiBuilder::from_env().with_progress(false).with_cache_dir(self.cache.clone());
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        builder.build()
    }

    /// The path of the list of a split's files, written once all are downloaded.
    fn manifest(&self, name: &str, config: Option<&str>, split: Split) -> PathBuf {
        let folder = Repo::dataset(name.into()).folder_name();
        let config = config.unwrap_or("default").replace('/', "--");
        self.cache.join(folder).join(format!("fullshard.{config}.{split:?}.json"))
    }
}

fn list(repo: &ApiRepo) -> Result<Vec<String>, ApiError> {
    let siblings = repo.info()?.siblings;
    let mut files: Vec<String> = siblings.into_iter().map(|file| file.rfilename).collect();
    files.sort();
    Ok(files)
}

/// The repository to download from, and its files that belong to a config. The hub also converts
/// datasets to Parquet, under a separate revision, which is used if the original files have no
/// recognized layout.
fn choose(
    api: &Api,
    main: ApiRepo,
    files: Vec<String>,
    name: &str,
    config: Option<&str>,
) -> Result<(ApiRepo, Vec<String>)> {
    if let Some(chosen) = layout::of_config(&files, config) {
        return Ok((main, chosen));
    }
    let revision = "refs/convert/parquet".into();
    let converted = api.repo(Repo::with_revision(name.into(), RepoType::Dataset, revision));
    let converted_files = list(&converted).unwrap_or_default();
    if let Some(chosen) = layout::of_config(&converted_files, config) {
        return Ok((converted, chosen));
    }
    let known = if converted_files.is_empty() { files } else { converted_files };
    Err(Error::Hub { name: name.into(), reason: no_config(&layout::configs(&known), config) })
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
