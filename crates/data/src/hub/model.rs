//! Models: which files are needed for what, and their download.

use super::{Download, Hub, name};
use crate::{Error, Result};
use hf_hub::RepoType;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// What to fetch of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelFiles {
    /// `config.json`.
    Config,
    /// `config.json`, and the tokenizer if there is one.
    ConfigAndTokenizer,
    /// The weights in safetensors, or pickled ones if there are no others, and
    /// `generation_config.json` if there is one.
    Weights,
    /// The tokenizer.
    Tokenizer,
}

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";

/// Files next to the tokenizer that a model may lack.
const BESIDE_TOKENIZER: [&str; 2] = ["tokenizer_config.json", "special_tokens_map.json"];

/// One file, or an index of shards, in order of preference.
const WEIGHTS: [(&str, &str); 2] = [
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
];

impl Hub {
    /// Downloads files of a model unless they are cached, and returns their folder. A revision is a
    /// branch, a tag or a full commit.
    ///
    /// If the hub cannot be reached, the cached snapshot of the revision is used, with a warning,
    /// unless it lacks one of the files.
    pub fn fetch_model(
        &self,
        name: &str,
        revision: &str,
        files: ModelFiles,
        progress: &mut dyn FnMut(Download<'_>),
    ) -> Result<PathBuf> {
        let repository = self.repository(RepoType::Model, name, revision)?;
        let cached = || -> Result<PathBuf, String> {
            let folder = repository.cached()?;
            files.find(&folder)?;
            Ok(folder)
        };
        // A commit does not change, but only the hub knows whether it has a tokenizer.
        let may_lack = files == ModelFiles::ConfigAndTokenizer;
        if let (true, false, Ok(folder)) = (name::is_commit(revision), may_lack, cached()) {
            return Ok(folder);
        }
        let snapshot = match repository.ask() {
            Ok(snapshot) => snapshot,
            Err(unavailable) => {
                let cached = cached();
                let cached = cached.as_ref().map(|folder| (folder.clone(), folder.as_path()));
                return repository.fall_back(unavailable, cached.map_err(String::clone));
            }
        };
        let mut get = |file: &str| {
            let failed = |error| repository.download_error(&snapshot.api, file, &error);
            snapshot.get(file, progress).map_err(failed)
        };
        let wanted = files.select(&|file| snapshot.has(file), &mut get);
        let fetched =
            wanted.and_then(|wanted| wanted.iter().try_for_each(|file| get(file).map(drop)));
        fetched.map_err(|reason| repository.error(reason))?;
        let reference = repository.reference();
        snapshot.record(&repository).map_err(Error::io("write", reference))?;
        Ok(snapshot.folder)
    }
}

impl ModelFiles {
    /// The names of the files, or what is missing. An index is opened to list its shards.
    fn select(
        self,
        has: &dyn Fn(&str) -> bool,
        open: &mut dyn FnMut(&str) -> Result<PathBuf, String>,
    ) -> Result<Vec<String>, String> {
        let required = |file: &'static str| match has(file) {
            true => Ok(file.to_owned()),
            false => Err(format!("it has no {file}")),
        };
        let optional = |file: &'static str| has(file).then(|| file.to_owned());
        let beside = || BESIDE_TOKENIZER.into_iter().filter_map(optional);
        Ok(match self {
            ModelFiles::Config => vec![required(CONFIG)?],
            ModelFiles::Tokenizer => [required(TOKENIZER)?].into_iter().chain(beside()).collect(),
            ModelFiles::ConfigAndTokenizer => {
                let tokenizer = optional(TOKENIZER).into_iter().chain(beside());
                [required(CONFIG)?].into_iter().chain(tokenizer).collect()
            }
            ModelFiles::Weights => {
                let mut files: Vec<String> = optional(GENERATION).into_iter().collect();
                files.extend(weights(has, open)?);
                files
            }
        })
    }

    /// Checks that a folder has the files.
    fn find(self, folder: &Path) -> Result<(), String> {
        let incomplete = |reason: String| format!("{}: {reason}", folder.display());
        let has = |file: &str| folder.join(file).is_file();
        let wanted = self.select(&has, &mut |file| Ok(folder.join(file))).map_err(incomplete)?;
        match wanted.iter().find(|file| !has(file)) {
            Some(missing) => Err(incomplete(format!("it has no {missing}"))),
            None => Ok(()),
        }
    }
}

/// The files of the weights.
fn weights(
    has: &dyn Fn(&str) -> bool,
    open: &mut dyn FnMut(&str) -> Result<PathBuf, String>,
) -> Result<Vec<String>, String> {
    for (single, index) in WEIGHTS {
        if has(single) {
            return Ok(vec![single.to_owned()]);
        }
        if has(index) {
            let shards = shards(&open(index)?).map_err(|reason| format!("{index} {reason}"))?;
            return Ok([index.to_owned()].into_iter().chain(shards).collect());
        }
    }
    let names: Vec<&str> = WEIGHTS.iter().flat_map(|(single, index)| [*single, *index]).collect();
    Err(format!("it has no weights, none of {}", names.join(", ")))
}

/// The shards that an index lists.
fn shards(index: &Path) -> Result<BTreeSet<String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = std::fs::read(index).map_err(|error| format!("cannot be read: {error}"))?;
    let index: Index = serde_json::from_slice(&text)
        .map_err(|error| format!("is not an index of weights: {error}"))?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    let is_name = |file: &&String| {
        let mut parts = Path::new(file).components();
        matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
    };
    match shards.iter().find(|file| !is_name(file)) {
        Some(file) => Err(format!("lists {file}, which is not a file name")),
        None => Ok(shards),
    }
}
