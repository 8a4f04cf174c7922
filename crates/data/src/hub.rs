//! Datasets of the hub: finding the files of a split, and fetching them once.

mod layout;

use crate::{Error, Result};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use std::path::{Path, PathBuf};

/// The split of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// What is trained on.
    Train,
    /// What is evaluated on.
    Validation,
}

/// The hub, or another server that answers like it.
#[derive(Clone, Debug)]
pub struct Hub {
    cache: PathBuf,
    endpoint: Option<String>,
}

impl Hub {
    /// The hub that `HF_ENDPOINT` names, or the usual one. Files are kept in `cache`, or where
    /// `HF_HOME` says, in the form in which Hugging Face's own tools keep them.
    pub fn new(cache: Option<&Path>) -> Self {
        let cache = cache.map_or_else(|| Cache::from_env().path().clone(), Into::into);
        Self { cache, endpoint: None }
    }

    /// Asks this server, whatever `HF_ENDPOINT` says.
    pub fn with_endpoint(self, endpoint: &str) -> Self {
        Self { endpoint: Some(endpoint.into()), ..self }
    }

    /// Fetches the files of a split, unless they are here, and says where they are; `None` where
    /// the dataset has no such split. What was fetched whole before is found without a network.
    pub fn fetch(
        &self,
        name: &str,
        config: Option<&str>,
        split: Split,
    ) -> Result<Option<Vec<PathBuf>>> {
        let failed = |error: ApiError| Error::Hub {
            name: name.into(),
            reason: format!(
                "cannot be fetched from the hub ({error}). Check its name and the network, or \
                 give text files of your own with --train_file"
            ),
        };
        let note = self.note(name, config, split);
        let api = self.connect().map_err(failed)?;
        let main = api.dataset(name.into());
        let files = match list(&main) {
            Ok(files) => files,
            Err(error) => return recall(&note).map(Some).ok_or_else(|| failed(error)),
        };
        let (repo, files) = choose(&api, main, files, name, config)?;
        let files = layout::of_split(&files, split);
        if files.is_empty() {
            return Ok(None);
        }
        let fetched = files.iter().map(|file| repo.get(file).map_err(failed));
        let fetched: Vec<PathBuf> = fetched.collect::<Result<_>>()?;
        remember(&note, &fetched).map_err(Error::io("write", note))?;
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

    /// Where it is noted which files a split has, once all are here.
    fn note(&self, name: &str, config: Option<&str>, split: Split) -> PathBuf {
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

/// The repository to fetch from, and those of its files that belong to a config. The hub also
/// keeps datasets as Parquet, under a revision of its own; that is used where the files themselves
/// do not say what they are.
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
        _ if known.is_empty() => "has no text files that can be read here. Download what you need \
                                  and name it with --train_file"
            .into(),
        None => format!("has several configs; choose one with --dataset_config_name: {known}"),
        Some(config) => format!("has no config `{config}`; it has: {known}"),
    }
}

fn remember(note: &Path, files: &[PathBuf]) -> std::io::Result<()> {
    let directory = note.parent().unwrap_or(Path::new("."));
    let file = tempfile::NamedTempFile::new_in(directory)?;
    serde_json::to_writer(&file, files)?;
    file.persist(note).map_err(|error| error.error)?;
    Ok(())
}

fn recall(note: &Path) -> Option<Vec<PathBuf>> {
    let files: Vec<PathBuf> = serde_json::from_slice(&std::fs::read(note).ok()?).ok()?;
    files.iter().all(|file| file.is_file()).then_some(files)
}
