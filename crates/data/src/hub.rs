//! Datasets of the hub: finding the files of a split, and fetching them once.

use crate::{Error, Kind, Result};
use hf_hub::api::sync::{Api, ApiBuilder, ApiRepo};
use hf_hub::{Repo, RepoType};
use std::path::{Path, PathBuf};

/// The split of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// What is trained on.
    Train,
    /// What is evaluated on.
    Validation,
}

impl Split {
    /// The words by which files of the split are known.
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Train => &["train", "training"],
            Self::Validation => &["validation", "valid", "val", "dev"],
        }
    }
}

/// Fetches the files of a split into the cache, unless they are there, and says where they are.
/// `None` where the dataset has no such split.
///
/// `cache` is where they are kept; by default where `HF_HOME` says. `HF_ENDPOINT` is honoured.
pub fn fetch(
    name: &str,
    config: Option<&str>,
    split: Split,
    cache: Option<&Path>,
) -> Result<Option<Vec<PathBuf>>> {
    let api = connect(cache).map_err(|error| unreachable(name, &error))?;
    let (repo, files) = find(&api, name, config)?;
    let files = of_split(&files, split);
    if files.is_empty() {
        return Ok(None);
    }
    let fetched =
        files.iter().map(|file| repo.get(file).map_err(|error| unreachable(name, &error)));
    fetched.collect::<Result<_>>().map(Some)
}

fn connect(cache: Option<&Path>) -> Result<Api, hf_hub::api::sync::ApiError> {
    let mut builder = ApiBuilder::from_env().with_progress(false);
    if let Some(cache) = cache {
        builder = builder.with_cache_dir(cache.into());
    }
    builder.build()
}

/// The repository and those of its files that belong to a config. The hub also keeps every dataset
/// as Parquet, under a revision of its own; that is used where the files themselves do not say
/// what they are.
fn find(api: &Api, name: &str, config: Option<&str>) -> Result<(ApiRepo, Vec<String>)> {
    let main = api.dataset(name.into());
    let files = list(&main).map_err(|error| unreachable(name, &error))?;
    if let Some(chosen) = of_config(&files, config) {
        return Ok((main, chosen));
    }
    let revision = "refs/convert/parquet".into();
    let converted = api.repo(Repo::with_revision(name.into(), RepoType::Dataset, revision));
    let converted_files = list(&converted).unwrap_or_default();
    if let Some(chosen) = of_config(&converted_files, config) {
        return Ok((converted, chosen));
    }
    Err(Error::Hub { name: name.into(), reason: no_config(&files, &converted_files, config) })
}

fn list(repo: &ApiRepo) -> Result<Vec<String>, hf_hub::api::sync::ApiError> {
    let mut files: Vec<String> =
        repo.info()?.siblings.into_iter().map(|file| file.rfilename).collect();
    files.sort();
    Ok(files)
}

/// The files of a config: those in the directory of its name; without one, those at the root or in
/// `data`, or all if there is but one directory.
fn of_config(files: &[String], config: Option<&str>) -> Option<Vec<String>> {
    let readable = files.iter().filter(|file| Kind::of(Path::new(file)).is_ok());
    let config = match config {
        Some(config) => config.to_owned(),
        None => {
            let mut directories = configs(files);
            directories.dedup();
            match directories.as_slice() {
                [only] => only.clone(),
                _ => directories
                    .into_iter()
                    .find(|name| matches!(name.as_str(), "" | "data" | "default"))?,
            }
        }
    };
    let chosen: Vec<String> = readable.filter(|file| directory(file) == config).cloned().collect();
    (!chosen.is_empty()).then_some(chosen)
}

/// The directories at the root that have files to read; "" is the root itself.
fn configs(files: &[String]) -> Vec<String> {
    let readable = files.iter().filter(|file| Kind::of(Path::new(file)).is_ok());
    let readable = readable
        .filter(|file| [Split::Train, Split::Validation].iter().any(|&split| belongs(file, split)));
    let mut names: Vec<String> = readable.map(|file| directory(file).to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

fn directory(file: &str) -> &str {
    file.split_once('/').map_or("", |(directory, _)| directory)
}

/// The files of a split, of one kind.
fn of_split(files: &[String], split: Split) -> Vec<String> {
    let of_split: Vec<String> = files.iter().filter(|file| belongs(file, split)).cloned().collect();
    let kind = of_split.first().and_then(|file| Kind::of(Path::new(file)).ok());
    of_split.into_iter().filter(|file| Kind::of(Path::new(file)).ok() == kind).collect()
}

/// Whether a split's name stands as a word in the path of a file.
fn belongs(file: &str, split: Split) -> bool {
    let within = file.split(|letter: char| !letter.is_ascii_alphanumeric());
    within.into_iter().any(|word| split.words().contains(&word))
}

fn no_config(files: &[String], converted: &[String], config: Option<&str>) -> String {
    let mut known = configs(if converted.is_empty() { files } else { converted });
    known.retain(|name| !name.is_empty());
    match (config, known.is_empty()) {
        (_, true) => "has no text files that can be read. Download what you need and name it with --train_file".into(),
        (None, false) => format!("has several configs; choose one with --dataset_config_name: {}", known.join(", ")),
        (Some(config), false) => format!("has no config `{config}`; it has: {}", known.join(", ")),
    }
}

fn unreachable(name: &str, error: &hf_hub::api::sync::ApiError) -> Error {
    let reason = format!(
        "cannot be fetched from the hub ({error}). Check its name and the network, or give text files \
         of your own with --train_file"
    );
    Error::Hub { name: name.into(), reason }
}
