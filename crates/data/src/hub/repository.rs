//! A repository at a revision: what the hub says of it, what the cache has of it, and why it is
//! not available.

use super::snapshot::Snapshot;
use super::{Hub, MAIN, name};
use crate::{Error, Result};
use hf_hub::api::sync::{Api, ApiError};
use hf_hub::{Repo, RepoType};
use std::path::{Path, PathBuf};

/// A repository at a revision.
#[derive(Clone, Copy)]
pub(super) struct Repository<'a> {
    pub hub: &'a Hub,
    pub kind: RepoType,
    pub name: &'a str,
    pub revision: &'a str,
}

/// Why the hub has no files for us.
pub(super) struct Unavailable {
    reason: String,
    /// Whether it answered.
    answered: bool,
}

impl Repository<'_> {
    /// Asks the hub for the commit of the revision and its files.
    pub fn ask(&self) -> Result<Snapshot, Unavailable> {
        if self.hub.offline {
            let reason = "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set".to_owned();
            return Err(Unavailable { reason, answered: false });
        }
        let unreachable = |at: &str, error: &ApiError| Unavailable {
            reason: format!("{at} cannot be reached ({error})"),
            answered: false,
        };
        let api = self.hub.connect().map_err(|error| unreachable("the hub", &error))?;
        let info = api.repo(self.repo()).info().map_err(|error| match status(&error) {
            Some(401 | 403 | 404) => {
                Unavailable { reason: self.refusal(&api, &error), answered: true }
            }
            _ => unreachable(&self.page(&api), &error),
        })?;
        Snapshot::new(self, api, info).map_err(|reason| Unavailable { reason, answered: true })
    }

    /// What the cache has instead, if nothing is missing there.
    pub fn fall_back<T>(
        &self,
        unavailable: Unavailable,
        cached: Result<(T, &Path), String>,
    ) -> Result<T> {
        let Unavailable { reason, answered } = unavailable;
        match cached {
            _ if answered => Err(self.error(reason)),
            Ok((cached, at)) => {
                if !self.hub.offline {
                    tracing::warn!(
                        "{} {}: {reason}, using {}",
                        self.word(),
                        self.name,
                        at.display()
                    );
                }
                Ok(cached)
            }
            Err(missing) => {
                let fix = match self.hub.offline {
                    true => "Unset it to download",
                    false => "Check the name and the network",
                };
                let otherwise = self.otherwise();
                Err(self.error(format!("{reason}, and {missing}. {fix}, or {otherwise}")))
            }
        }
    }

    /// The folder of the revision in the cache, or what is missing.
    pub fn cached(&self) -> Result<PathBuf, String> {
        let commit = match name::is_commit(self.revision) {
            true => Some(self.revision.to_owned()),
            false => std::fs::read_to_string(self.reference()).ok(),
        };
        let commit = commit.map(|commit| commit.trim().to_owned());
        let commit = commit.filter(|commit| is_hash(commit));
        let folder = commit.map(|commit| self.snapshot(&commit)).filter(|folder| folder.is_dir());
        folder.ok_or_else(|| {
            let cache = self.hub.cache.display();
            format!("the cache {cache} has no revision `{}` of it", self.revision)
        })
    }

    /// Why a download failed.
    pub fn download_error(&self, api: &Api, file: &str, error: &ApiError) -> String {
        match (error, status(error)) {
            (_, Some(401 | 403)) => self.refusal(api, error),
            (ApiError::LockAcquisition(lock), _) => format!(
                "another process is downloading {file}: start again once it is done ({})",
                lock.display()
            ),
            _ => format!(
                "the download of {file} failed ({error}): check the network and the free space of \
                 {}, and start again, which continues it",
                self.hub.cache.display()
            ),
        }
    }

    /// Why the hub refuses: an unknown name or revision, or no access.
    fn refusal(&self, api: &Api, error: &ApiError) -> String {
        let page = self.page(api);
        let otherwise = self.otherwise();
        let others = Repo::new(self.name.to_owned(), self.kind);
        match status(error) {
            Some(404) if self.revision != MAIN && api.repo(others).info().is_ok() => format!(
                "{page} has no revision `{}`: pass a branch, a tag or a full commit with \
                 --model_revision",
                self.revision
            ),
            Some(404) => format!("there is no {page}: check the name, or {otherwise}"),
            _ if self.hub.token.or_env().is_some() => format!(
                "{page} does not exist, or the token gives no access: check the name, request \
                 access on that page, and check --token or HF_TOKEN"
            ),
            _ => format!(
                "{page} does not exist, or is private or gated: check the name; for access, accept \
                 the terms on that page and set HF_TOKEN or --token"
            ),
        }
    }

    /// An error about this repository.
    pub fn error(&self, reason: String) -> Error {
        Error::Hub { kind: self.word(), name: self.name.into(), reason }
    }

    /// The repository for the API.
    pub fn repo(&self) -> Repo {
        Repo::with_revision(self.name.into(), self.kind, self.revision.into())
    }

    /// Its folder in the cache.
    pub fn root(&self) -> PathBuf {
        self.hub.cache.join(self.repo().folder_name())
    }

    /// The folder of a commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.root().join("snapshots").join(commit)
    }

    /// The file with the commit of the revision.
    pub fn reference(&self) -> PathBuf {
        self.root().join("refs").join(self.revision)
    }

    /// Its page.
    fn page(&self, api: &Api) -> String {
        let url = api.repo(self.repo()).url("");
        url.split("/resolve/").next().unwrap_or(&url).to_owned()
    }

    fn word(&self) -> &'static str {
        match self.kind {
            RepoType::Dataset => "dataset",
            _ => "model",
        }
    }

    /// The way without the hub.
    fn otherwise(&self) -> &'static str {
        match self.kind {
            RepoType::Dataset => "pass text files with --train_file",
            _ => "pass a folder that exists",
        }
    }
}

/// Whether a commit of the hub is safe in a path.
pub(super) fn is_hash(commit: &str) -> bool {
    !commit.is_empty() && commit.chars().all(|digit| digit.is_ascii_hexdigit())
}

/// The HTTP status of an error, if the hub answered.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(status) => Some(status),
            _ => None,
        },
        _ => None,
    }
}
