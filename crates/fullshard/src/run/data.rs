//! The text: where it is, which part of it is for what, and its tokens.

use super::Run;
use crate::config::RunConfig;
use crate::error::{Error, Result};
use fullshard_data::hub::{Hub, Split};
use fullshard_data::{Corpus, Grouping, Part, Preparation, Source};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a run reads text for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To train on.
    Train,
    /// To evaluate on.
    Evaluate,
}

/// What is known of text as it is tokenized.
pub trait DataProgress {
    /// Files are fetched from the hub unless they are here.
    fn fetching(&mut self, _dataset: &str) {}

    /// `bytes` of `of` bytes of text have become `tokens` tokens.
    fn tokenizing(&mut self, _purpose: Purpose, _bytes: u64, _of: u64, _tokens: u64) {}

    /// The tokens are there.
    fn tokenized(&mut self, _purpose: Purpose, _corpus: &Corpus) {}
}

/// Nobody watches.
impl DataProgress for () {}

/// Text, and how much of it.
struct Text {
    source: Source,
    part: Part,
}

/// The tokens of a run.
#[derive(Debug, Clone, Default)]
pub struct Corpora {
    /// To train on.
    pub train: Option<Arc<Corpus>>,
    /// To evaluate on.
    pub evaluation: Option<Arc<Corpus>>,
}

impl Run {
    /// Finds and tokenizes the text that this run needs.
    pub fn corpora(&self, progress: &mut dyn DataProgress) -> Result<Corpora> {
        let config = self.resolved_data()?;
        let mode = self.mode;
        let evaluates = mode.evaluate || mode.evaluate_during;
        let [train, evaluation] = find(&config, mode.train, evaluates, progress)?;
        let data = &config.data;
        Ok(Corpora {
            train: self.corpus(Purpose::Train, train, data.max_train_samples, progress)?,
            evaluation: self.corpus(
                Purpose::Evaluate,
                evaluation,
                data.max_eval_samples,
                progress,
            )?,
        })
    }

    fn corpus(
        &self,
        purpose: Purpose,
        text: Option<Text>,
        most: Option<usize>,
        progress: &mut dyn DataProgress,
    ) -> Result<Option<Arc<Corpus>>> {
        let Some(text) = text else { return Ok(None) };
        let corpus = self.tokens(purpose, &text, progress)?;
        let corpus = match most {
            Some(most) => corpus.take(most as u64),
            None => corpus,
        };
        progress.tokenized(purpose, &corpus);
        Ok(Some(Arc::new(corpus)))
    }

    /// The tokens of a text in blocks, from the cache if they are there.
    fn tokens(
        &self,
        purpose: Purpose,
        text: &Text,
        progress: &mut dyn DataProgress,
    ) -> Result<Corpus> {
        let (data, tokenizer, block_size) = (&self.config.data, &self.tokenizer, self.block_size());
        let grouping = if data.packing { Grouping::Packed } else { Grouping::Blocks };
        let Text { source, part } = text;
        let plan = Preparation { source, part: *part, tokenizer, block_size, grouping };
        let cache = self.cache.join("tokens");
        let mut prepare = || {
            let all = source.bytes();
            Corpus::prepare(&plan, &cache, &mut |state| {
                progress.tokenizing(purpose, state.done, all, state.tokens);
            })
        };
        let corpus = prepare()?;
        if !(data.overwrite_cache && corpus.reused()) {
            return Ok(corpus);
        }
        let path = corpus.path().to_owned();
        drop(corpus);
        std::fs::remove_file(&path).map_err(|error| Error::file(&path, error))?;
        Ok(prepare()?)
    }
}

/// Finds the text that a config names, fetching it if it is elsewhere: to train on, and to
/// evaluate on.
fn find(
    config: &RunConfig,
    trains: bool,
    evaluates: bool,
    progress: &mut dyn DataProgress,
) -> Result<[Option<Text>; 2]> {
    let data = &config.data;
    let (train, validation) = match &data.dataset {
        Some(name) => {
            progress.fetching(name);
            fetched(name, data.dataset_config.as_deref(), data.cache_dir.as_deref())?
        }
        None => (data.train_file.clone(), data.validation_file.clone()),
    };
    let missing = |what: &str, flag: &str| {
        Error::Usage(format!("there is nothing to {what} on: name text files with --{flag}"))
    };
    if trains && train.is_empty() {
        return Err(missing("train", "train_file"));
    }
    if evaluates && train.is_empty() && validation.is_empty() {
        return Err(missing("evaluate", "validation_file"));
    }
    let percent = data.validation_split_percentage;
    let (rest, evaluation) = match validation.is_empty() {
        true => (Part::Rest(percent), (&train, Part::First(percent))),
        false => (Part::All, (&validation, Part::All)),
    };
    let text = |wanted: bool, files: &[PathBuf], part| -> Result<Option<Text>> {
        if !wanted {
            return Ok(None);
        }
        Ok(Some(Text { source: Source::open(files, data.keep_linebreaks)?, part }))
    };
    Ok([text(trains, &train, rest)?, text(evaluates, evaluation.0, evaluation.1)?])
}

type Files = Vec<PathBuf>;

fn fetched(name: &str, config: Option<&str>, cache: Option<&Path>) -> Result<(Files, Files)> {
    let hub = Hub::new(cache);
    let train = hub.fetch(name, config, Split::Train)?;
    let validation = hub.fetch(name, config, Split::Validation)?;
    Ok((train.unwrap_or_default(), validation.unwrap_or_default()))
}
