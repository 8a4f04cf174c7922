//! The text: where it is, which part of it is for what, and its tokens.

use super::args::TrainArgs;
use super::bar;
use super::prepare::Prepared;
use crate::error::{Error, Result};
use fullshard_data::hub::{Hub, Split};
use fullshard_data::{Corpus, Grouping, Part, Preparation, Source};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Text, and how much of it.
struct Text {
    source: Source,
    part: Part,
}

/// The text to train on and to evaluate on, what is needed of them.
struct Texts {
    train: Option<Text>,
    evaluation: Option<Text>,
}

/// Their tokens.
pub struct Corpora {
    pub train: Option<Arc<Corpus>>,
    pub evaluation: Option<Arc<Corpus>>,
}

impl Corpora {
    /// Finds and tokenises what a run needs.
    pub fn prepare(run: &Prepared) -> Result<Corpora> {
        let does = run.does;
        let texts = Texts::find(&run.args, does.train, does.evaluate || does.evaluate_during)?;
        let cache = run.cache.join("tokens");
        let tokens = |what: &str, text: &Option<Text>, most: Option<usize>| -> Result<_> {
            let Some(text) = text else { return Ok(None) };
            let corpus = text.tokens(what, run, &cache)?;
            let corpus = match most {
                Some(most) => corpus.take(most as u64),
                None => corpus,
            };
            let again = if corpus.reused() { ", tokenised before" } else { "" };
            println!(
                "{what}: {} tokens in {} blocks of {}{again}",
                corpus.tokens(),
                corpus.blocks(),
                corpus.block_size()
            );
            Ok(Some(Arc::new(corpus)))
        };
        let data = &run.args.data;
        Ok(Corpora {
            train: tokens("text to train on", &texts.train, data.max_train_samples)?,
            evaluation: tokens("text to evaluate on", &texts.evaluation, data.max_eval_samples)?,
        })
    }
}

impl Texts {
    /// Finds the text that the flags name, fetching it if it is elsewhere.
    fn find(args: &TrainArgs, trains: bool, evaluates: bool) -> Result<Texts> {
        let data = &args.data;
        let (train, validation) = match &data.dataset_name {
            Some(name) => fetched(name, args)?,
            None => (data.train_file.clone(), data.validation_file.clone()),
        };
        if trains && train.is_empty() {
            return Err(Error::Usage(
                "there is nothing to train on: name text files with --train_file".into(),
            ));
        }
        if evaluates && train.is_empty() && validation.is_empty() {
            return Err(Error::Usage(
                "there is nothing to evaluate on: name text files with --validation_file".into(),
            ));
        }
        let open = |files: &[PathBuf]| Source::open(files, data.keep_linebreaks);
        let percent = data.validation_split_percentage;
        let (rest, evaluation) = match validation.is_empty() {
            true => (Part::Rest(percent), (&train, Part::First(percent))),
            false => (Part::All, (&validation, Part::All)),
        };
        let text = |wanted: bool, files: &[PathBuf], part| -> Result<Option<Text>> {
            if !wanted {
                return Ok(None);
            }
            Ok(Some(Text { source: open(files)?, part }))
        };
        Ok(Texts {
            train: text(trains, &train, rest)?,
            evaluation: text(evaluates, evaluation.0, evaluation.1)?,
        })
    }
}

fn fetched(name: &str, args: &TrainArgs) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let config = args.data.dataset_config_name.as_deref();
    let hub = Hub::new(args.model.cache_dir.as_deref());
    println!("fetching {name} unless it is here");
    let train = hub.fetch(name, config, Split::Train)?;
    let validation = hub.fetch(name, config, Split::Validation)?;
    Ok((train.unwrap_or_default(), validation.unwrap_or_default()))
}

impl Text {
    /// Its tokens in blocks, from the cache if they are there.
    fn tokens(&self, what: &str, run: &Prepared, cache: &Path) -> Result<Corpus> {
        let (data, tokenizer, block_size) = (&run.args.data, &run.tokenizer, run.block());
        let grouping = if data.packing { Grouping::Packed } else { Grouping::Blocks };
        let Text { source, part } = self;
        let plan = Preparation { source, part: *part, tokenizer, block_size, grouping };
        let prepare = || {
            let bar = bar::bytes(what, source.bytes());
            let corpus = Corpus::prepare(&plan, cache, &mut |progress| {
                bar.set_position(progress.done);
                bar.set_message(format!("{} tokens", progress.tokens));
            });
            bar.finish_and_clear();
            corpus
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
