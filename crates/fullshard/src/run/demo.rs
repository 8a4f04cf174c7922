//! A run that needs no files and no network, on synthetic text with known entropy.

use crate::config::{ConfigSource, Given, RunConfig, When};
use crate::error::{Error, Result};
use fullshard_data::Tokenizer;
use fullshard_data::demo::{Demo, DemoFiles};
use serde_json::{Map, Value, json};
use std::path::Path;
use tempfile::TempDir;

const SEED: u64 = 7;
const TOKENS: u64 = 1_000_000;

/// Number of evaluation blocks, enough for a loss within half a percent.
const EVAL_BLOCKS: usize = 512;

impl RunConfig {
    /// The demo: a small GPT-2 learns a synthetic language on four devices in a minute.
    pub fn demo() -> RunConfig {
        let mut config = RunConfig::default();
        config.data.demo = true;
        config.data.block_size = Some(64);
        config.data.max_eval_samples = Some(EVAL_BLOCKS);
        config.mesh.devices = Some(4);
        config.optimizer.learning_rate = Some(3e-3);
        config.schedule.max_steps = 400;
        config.schedule.lr_scheduler = "cosine".to_owned();
        config.schedule.warmup_steps = 20.0;
        config.evaluation.do_eval = Some(true);
        config.evaluation.strategy = When::Steps;
        config.evaluation.steps = Some(100.0);
        config.evaluation.per_device_batch = 16;
        config.logging.steps = 25.0;
        config.output.dir = "fullshard-demo".into();
        config.output.overwrite = true;
        config
    }

    /// The base config for the flags of `train`: the demo if they name no data, without the
    /// settings that they replace.
    pub fn base(given: &Given) -> Result<RunConfig> {
        let named = |flags: &[&str]| flags.iter().any(|flag| given.has(flag));
        if named(&["dataset_name", "train_file", "validation_file"]) {
            return Ok(RunConfig::default());
        }
        if named(&["tokenizer_name", "model_name_or_path"]) {
            return Err(Error::Usage(
                "no data to train on: pass text files with --train_file, or leave out \
                 --tokenizer_name and --model_name_or_path for the demo, which has its own \
                 tokenizer"
                    .into(),
            ));
        }
        let (mut config, plain) = (RunConfig::demo(), RunConfig::default());
        if given.has("num_train_epochs") {
            config.schedule.max_steps = plain.schedule.max_steps;
        }
        if given.has("output_dir") {
            config.output.overwrite = plain.output.overwrite;
        }
        Ok(config)
    }
}

/// The text of the demo, with a known lower bound of the loss.
pub struct DemoText(Demo);

impl DemoText {
    pub(super) fn new() -> DemoText {
        DemoText(Demo::new(SEED))
    }

    /// The source of its sentences, which computes its entropies.
    pub fn source(&self) -> &Demo {
        &self.0
    }

    /// Its tokenizer: one token per word.
    pub(super) fn tokenizer(&self) -> Result<Tokenizer> {
        Ok(self.0.tokenizer()?)
    }

    /// Writes the text into a cache folder, unless it exists; into a temporary folder if that
    /// fails.
    pub(super) fn write(&self, cache: &Path) -> Result<(DemoFiles, Option<TempDir>)> {
        let folder = cache.join(format!("demo-{}-{TOKENS}", self.0.digest()?));
        let [train, validation, tokenizer] =
            ["train.txt", "validation.txt", "tokenizer.json"].map(|name| folder.join(name));
        if [&train, &validation, &tokenizer].iter().all(|path| path.is_file()) {
            return Ok((DemoFiles { train, validation, tokenizer }, None));
        }
        let uncached = match Demo::write(&folder, TOKENS, SEED) {
            Ok(files) => return Ok((files, None)),
            Err(error) => error,
        };
        tracing::debug!("the text of the demo is not cached: {uncached}");
        let Ok(folder) = tempfile::tempdir() else { return Err(uncached.into()) };
        let files = Demo::write(folder.path(), TOKENS, SEED)?;
        Ok((files, Some(folder)))
    }

    /// The model of the demo: a GPT-2 that trains in a minute.
    pub(super) fn model(tokenizer: &Tokenizer) -> ConfigSource {
        let period = tokenizer.token(".");
        let config = json!({
            "model_type": "gpt2", "vocab_size": tokenizer.vocabulary(), "n_positions": 128,
            "n_embd": 128, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
            "attn_pdrop": 0.0, "bos_token_id": period, "eos_token_id": period,
        });
        match config {
            Value::Object(config) => ConfigSource::inline(config),
            _ => ConfigSource::inline(Map::new()),
        }
    }
}
