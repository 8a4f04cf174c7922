//! The data of a run: its files, the train and validation split, and its tokens.

use super::Run;
use crate::config::RunConfig;
use crate::error::{Error, Result};
use fullshard_data::hub::{Download, Split};
use fullshard_data::{Corpus, Grouping, Part, Preparation, Progress, Source};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// The purpose of a corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Training.
    Train,
    /// Evaluation.
    Evaluate,
}

/// Progress of downloads and data preparation.
pub trait DataProgress {
    /// A model or dataset is downloaded from the hub unless it is cached.
    fn fetching(&mut self, _name: &str) {}

    /// Part of a file is downloaded.
    fn downloading(&mut self, _download: Download<'_>) {}

    /// All downloads of a model or dataset are complete.
    fn fetched(&mut self) {}

    /// The text is read from a column that is not called `text`, since there is none.
    fn column(&mut self, _purpose: Purpose, _column: &str) {}

    /// `bytes` of `of` bytes of text are tokenized into `tokens` tokens.
    fn tokenizing(&mut self, _purpose: Purpose, _bytes: u64, _of: u64, _tokens: u64) {}

    /// Tokenization is complete.
    fn tokenized(&mut self, _purpose: Purpose, _corpus: &Corpus) {}
}

/// Ignores progress.
impl DataProgress for () {}

/// Text, and the part of it to use.
struct Text {
    source: Source,
    part: Part,
}

/// The tokens of a run.
#[derive(Debug, Clone, Default)]
pub struct Corpora {
    /// Training data.
    pub train: Option<Arc<Corpus>>,
    /// Evaluation data.
    pub evaluation: Option<Arc<Corpus>>,
}

impl Run {
    /// Finds and tokenizes the text that this run needs: on one process of each host, and the
    /// others read what it has cached. All must have the same tokens.
    pub fn corpora(&self, progress: &mut dyn DataProgress) -> Result<Corpora> {
        let start = Instant::now();
        let corpora = self.membership.once_per_host("tokens", || self.prepare_corpora(progress))?;
        self.data_time.set(self.data_time.get() + start.elapsed());
        let all = self.membership.job().gather("tokens/checksums", &corpora.checksums())?;
        match all.iter().position(|other| *other != all[0]) {
            Some(process) => Err(Error::Usage(format!(
                "the text of process {process} is not that of process 0: all hosts of a job need \
                 the same files"
            ))),
            None => Ok(corpora),
        }
    }

    fn prepare_corpora(&self, progress: &mut dyn DataProgress) -> Result<Corpora> {
        let (config, _demo) = self.resolved_data()?;
        let mode = self.mode;
        let evaluates = mode.evaluate || mode.evaluate_during;
        let [train, evaluation] = find(&config, mode.train, evaluates, progress)?;
        let data = &config.data;
        let corpora = Corpora {
            train: self.corpus(Purpose::Train, train, data.max_train_samples, progress)?,
            evaluation: self.corpus(
                Purpose::Evaluate,
                evaluation,
                data.max_eval_samples,
                progress,
            )?,
        };
        if let Some(reason) = corpora.uncached() {
            tracing::warn!(
                "tokens are not cached: {reason}. --cache_dir or FULLSHARD_CACHE name another \
                 folder"
            );
        }
        Ok(corpora)
    }

    fn corpus(
        &self,
        purpose: Purpose,
        text: Option<Text>,
        most: Option<usize>,
        progress: &mut dyn DataProgress,
    ) -> Result<Option<Arc<Corpus>>> {
        let Some(text) = text else { return Ok(None) };
        if let Some(column) = text.source.column()?.filter(|column| column != "text") {
            progress.column(purpose, &column);
        }
        let corpus = self.tokens(purpose, &text, progress)?;
        let corpus = match most {
            Some(most) => corpus.take(most as u64),
            None => corpus,
        };
        progress.tokenized(purpose, &corpus);
        Ok(Some(Arc::new(corpus)))
    }

    /// The tokens of a text in blocks, from the cache unless that is to be overwritten.
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
        let mut report = |state: Progress| {
            progress.tokenizing(purpose, state.done, state.total, state.tokens);
        };
        Ok(match data.overwrite_cache {
            true => Corpus::tokenize(&plan, &cache, &mut report)?,
            false => Corpus::prepare(&plan, &cache, &mut report)?,
        })
    }
}

impl Corpora {
    /// What tells other tokens apart.
    fn checksums(&self) -> Vec<u8> {
        let corpora = [&self.train, &self.evaluation].into_iter().flatten();
        let checksums =
            corpora.map(|corpus| format!("{} {}\n", corpus.blocks(), corpus.checksum()));
        checksums.collect::<String>().into_bytes()
    }

    /// Why tokens are not cached, if some are not.
    fn uncached(&self) -> Option<&fullshard_data::Error> {
        let corpora = self.train.iter().chain(&self.evaluation);
        corpora.filter_map(|corpus| corpus.uncached()).next()
    }
}

/// Finds the training and evaluation text of a config, downloading it if needed.
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
            let files = download(config, name, progress)?;
            progress.fetched();
            files
        }
        None => (data.train_file.clone(), data.validation_file.clone()),
    };
    let missing = |what: &str, flag: &str| {
        Error::Usage(format!("no data to {what} on: pass text files with --{flag}"))
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
    let text = |needed: bool, files: &[PathBuf], part| -> Result<Option<Text>> {
        if !needed {
            return Ok(None);
        }
        Ok(Some(Text { source: Source::open(files, data.keep_linebreaks)?, part }))
    };
    Ok([text(trains, &train, rest)?, text(evaluates, evaluation.0, evaluation.1)?])
}

type Files = Vec<PathBuf>;

fn download(
    config: &RunConfig,
    name: &str,
    progress: &mut dyn DataProgress,
) -> Result<(Files, Files)> {
    let (hub, named) = (config.hub(), config.data.dataset_config.as_deref());
    let mut fetch = |split| {
        hub.fetch_dataset(name, named, split, &mut |download| progress.downloading(download))
    };
    let (train, validation) = (fetch(Split::Train)?, fetch(Split::Validation)?);
    Ok((train.unwrap_or_default(), validation.unwrap_or_default()))
}
