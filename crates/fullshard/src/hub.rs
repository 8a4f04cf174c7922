//! Names on the Hugging Face Hub in a config.
//!
//! A path that exists is used, as in `transformers`. Anything else that can be a name is fetched,
//! and the folder in the cache takes its place, so that the rest of the library knows only paths.

use crate::config::{ConfigSource, Model, RunConfig};
use crate::error::{Error, Result};
use crate::run::DataProgress;
use fullshard_data::hub::{Download, Hub, ModelFiles, name_problem};
use std::path::{Path, PathBuf};

/// The tokenizer that is built in.
const BUILT_IN: &str = "gpt2";

impl RunConfig {
    /// This config with folders in place of names on the hub, whose configs and tokenizers are
    /// downloaded unless cached. Weights are not.
    pub(crate) fn with_local_files(&self, progress: &mut dyn DataProgress) -> Result<RunConfig> {
        let mut local = self.clone();
        local.model = self.local_model(ModelFiles::ConfigAndTokenizer, progress)?;
        if let Some(name) = self.hub_tokenizer() {
            let folder = self.fetch(name, ModelFiles::Tokenizer, progress)?;
            local.data.tokenizer = Some(folder.display().to_string());
        }
        Ok(local)
    }

    /// The model with folders in place of names on the hub. Of a checkpoint, these files are
    /// downloaded unless cached.
    pub(crate) fn local_model(
        &self,
        files: ModelFiles,
        progress: &mut dyn DataProgress,
    ) -> Result<Model> {
        let mut local = self.model.clone();
        if let Some(name) = self.hub_model()? {
            local.pretrained = Some(self.fetch(name, files, progress)?);
        }
        if let Some(name) = self.hub_config() {
            let folder = self.fetch(name, ModelFiles::Config, progress)?;
            local.config = Some(ConfigSource::Path(folder));
        }
        Ok(local)
    }

    /// The folder of the weights, which are downloaded unless cached, from the commit that the
    /// local config has.
    pub(crate) fn weights_folder(
        &self,
        local: &RunConfig,
        progress: &mut dyn DataProgress,
    ) -> Result<Option<PathBuf>> {
        let (Some(name), Some(folder)) = (self.hub_model()?, &local.model.pretrained) else {
            return Ok(self.model.pretrained.clone());
        };
        let commit = commit_of(folder).unwrap_or(&self.model.revision);
        self.fetch_revision(name, commit, ModelFiles::Weights, progress).map(Some)
    }

    /// Replaces the revision by the commit that it is now, so that the config reproduces the run.
    /// Only for names of one repository, since no other has that commit.
    pub(crate) fn pin_revision(&mut self, local: &RunConfig) {
        let model = self.hub_model().ok().flatten();
        let names = [model, self.hub_config(), self.hub_tokenizer()];
        let mut named = names.iter().flatten();
        let Some(first) = named.next() else { return };
        if named.any(|name| name != first) {
            return;
        }
        let tokenizer = local.data.tokenizer.as_deref().map(Path::new);
        let folder = match (names, &local.model.config) {
            ([Some(_), ..], _) => local.model.pretrained.as_deref(),
            ([_, Some(_), _], Some(ConfigSource::Path(folder))) => Some(folder.as_path()),
            _ => tokenizer,
        };
        if let Some(commit) = folder.and_then(commit_of) {
            self.model.revision = commit.to_owned();
        }
    }

    /// The hub with the cache and the token of this config.
    pub(crate) fn hub(&self) -> Hub {
        Hub::new(self.data.cache_dir.as_deref()).with_token(self.model.token.clone())
    }

    /// Whether a model, config or tokenizer comes from the hub.
    pub(crate) fn uses_hub_models(&self) -> bool {
        let model = matches!(self.hub_model(), Ok(Some(_)));
        model || self.hub_config().is_some() || self.hub_tokenizer().is_some()
    }

    fn fetch(
        &self,
        name: &str,
        files: ModelFiles,
        progress: &mut dyn DataProgress,
    ) -> Result<PathBuf> {
        progress.fetching(name);
        self.fetch_revision(name, &self.model.revision, files, progress)
    }

    fn fetch_revision(
        &self,
        name: &str,
        revision: &str,
        files: ModelFiles,
        progress: &mut dyn DataProgress,
    ) -> Result<PathBuf> {
        let mut report = |download: Download<'_>| progress.downloading(download);
        let fetched = self.hub().fetch_model(name, revision, files, &mut report)?;
        progress.fetched();
        Ok(fetched)
    }

    /// The name of the model on the hub, if it is not a folder.
    fn hub_model(&self) -> Result<Option<&str>> {
        let Some(path) = self.model.pretrained.as_deref().filter(|path| !path.is_dir()) else {
            return Ok(None);
        };
        let given = path.display();
        let problem = match hub_name(path) {
            Some(name) => return Ok(Some(name)),
            None if path.is_file() => "which is a file".to_owned(),
            None if is_path(path) => "which is not a folder".to_owned(),
            None => {
                let problem = name_problem(&given.to_string()).unwrap_or_default();
                format!("which is not a folder, and {problem}")
            }
        };
        Err(Error::Usage(format!(
            "--model_name_or_path is {given}, {problem}. Pass the folder of a checkpoint, or a name \
             on the hub such as gpt2 or owner/name"
        )))
    }

    fn hub_config(&self) -> Option<&str> {
        match &self.model.config {
            Some(ConfigSource::Path(path)) => hub_name(path),
            _ => None,
        }
    }

    fn hub_tokenizer(&self) -> Option<&str> {
        let name = self.data.tokenizer.as_deref().filter(|name| *name != BUILT_IN)?;
        hub_name(Path::new(name))
    }
}

/// The commit of a folder in the cache.
fn commit_of(folder: &Path) -> Option<&str> {
    folder.file_name()?.to_str()
}

/// The name on the hub that a path stands for: it is one, and nothing is at that path.
fn hub_name(path: &Path) -> Option<&str> {
    let name = path.to_str()?;
    (!path.exists() && !is_path(path) && name_problem(name).is_none()).then_some(name)
}

/// Whether only a path is written like this.
fn is_path(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.starts_with(['.', '/', '~']) || text.ends_with(['/', '\\']) || text.ends_with(".json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(model: &str) -> RunConfig {
        let mut config = RunConfig::default();
        config.model.pretrained = Some(model.into());
        config
    }

    #[test]
    fn paths_are_not_sent_to_the_hub() {
        for path in ["./model", "/no/such/folder", "../model", "~/model", "model/", "a.json"] {
            let error = config(path).hub_model().unwrap_err().to_string();
            assert!(error.contains(path) && error.contains("not a folder"), "{error}");
        }
        for name in ["a/b/c", "a b", "a--b", ""] {
            let error = config(name).hub_model().unwrap_err().to_string();
            assert!(error.contains("not a name on the hub"), "{error}");
        }
        for name in ["gpt2", "owner/name"] {
            assert_eq!(config(name).hub_model().unwrap(), Some(name));
        }
    }

    #[test]
    fn what_exists_wins_over_the_hub() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let mut config = config(&path);
        assert_eq!(config.hub_model().unwrap(), None);
        config.model.pretrained = Some("src".into());
        assert_eq!(config.hub_model().unwrap(), None);
        config.data.tokenizer = Some(BUILT_IN.to_owned());
        config.model.config = Some("src".into());
        assert!(!config.uses_hub_models());
        config.data.tokenizer = Some("gpt2-large".to_owned());
        assert_eq!(config.hub_tokenizer(), Some("gpt2-large"));
        config.model.config = Some("gpt2".into());
        assert_eq!(config.hub_config(), Some("gpt2"));
        config.model.config = Some("missing.json".into());
        assert_eq!(config.hub_config(), None);
    }
}
