//! The Hugging Face Hub: files of models and datasets, downloaded once into the cache that Hugging
//! Face's own tools use.
//!
//! A [`Hub`] knows the commit of a revision, and all files come from that commit. Without a
//! connection, what an earlier run has downloaded is used.

mod dataset;
mod layout;
mod model;
mod name;
mod repository;
mod snapshot;
mod token;

pub use dataset::Split;
pub use model::ModelFiles;
pub use name::name_problem;
pub use token::Token;

use crate::Result;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, RepoType};
use repository::Repository;
use std::path::{Path, PathBuf};

/// The revision of a repository unless another is given.
pub const MAIN: &str = "main";

/// The hub, or another server with the same API.
#[derive(Clone, Debug)]
pub struct Hub {
    cache: PathBuf,
    endpoint: Option<String>,
    token: Token,
    offline: bool,
}

/// Progress of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download<'a> {
    /// The file.
    pub file: &'a str,
    /// The bytes that are here.
    pub bytes: u64,
    /// The size of the file.
    pub size: u64,
}

impl Hub {
    /// The hub at `HF_ENDPOINT`, or the default one. Files are cached in `cache`, or in
    /// `HF_HUB_CACHE` or `HF_HOME`. With `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE` only the cache
    /// is used.
    pub fn new(cache: Option<&Path>) -> Self {
        let in_env = || std::env::var_os("HF_HUB_CACHE").filter(|path| !path.is_empty());
        let cache = cache.map(Into::into).or_else(|| in_env().map(Into::into));
        Self {
            cache: cache.unwrap_or_else(|| Cache::from_env().path().clone()),
            endpoint: None,
            token: Token::default(),
            offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter().any(is_on),
        }
    }

    /// Uses this server instead of `HF_ENDPOINT`.
    pub fn with_endpoint(self, endpoint: &str) -> Self {
        Self { endpoint: Some(endpoint.into()), ..self }
    }

    /// Sends this token, if it is one, instead of `HF_TOKEN` or the saved one.
    pub fn with_token(self, token: Token) -> Self {
        Self { token, ..self }
    }

    /// Uses the cache only, as with `HF_HUB_OFFLINE`.
    pub fn offline(self) -> Self {
        Self { offline: true, ..self }
    }

    fn connect(&self) -> Result<Api, ApiError> {
        let endpoint = self.endpoint.clone().or_else(|| std::env::var("HF_ENDPOINT").ok());
        let mut builder =
            ApiBuilder::from_env().with_progress(false).with_cache_dir(self.cache.clone());
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        if let Some(token) = self.token.or_env() {
            builder = builder.with_token(Some(token));
        }
        builder.build()
    }

    /// A repository with a valid name and revision.
    fn repository<'a>(
        &'a self,
        kind: RepoType,
        name: &'a str,
        revision: &'a str,
    ) -> Result<Repository<'a>> {
        let repository = Repository { hub: self, kind, name, revision };
        let problem = name_problem(name).or_else(|| name::revision_problem(revision));
        match problem {
            Some(problem) => Err(repository.error(problem)),
            None => Ok(repository),
        }
    }
}

/// Whether a variable is set to what Hugging Face's tools take as true.
fn is_on(variable: &str) -> bool {
    let value = std::env::var(variable).unwrap_or_default().to_ascii_lowercase();
    ["1", "on", "yes", "true"].contains(&value.as_str())
}
