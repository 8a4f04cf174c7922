//! `fullshard train` without data: a run that needs no network, on text whose entropy is known.

use super::args::{TrainArgs, When};
use super::model::ChosenModel;
use crate::error::{Error, Result};
use fullshard_data::Tokenizer;
use fullshard_data::demo::{Demo, DemoFiles};
use fullshard_train::Evaluated;
use fullshard_train::report::Curve;
use serde_json::json;
use std::path::Path;

/// The demo's text, whose floor a loss can be held against.
pub struct DemoText {
    demo: Demo,
}

const SEED: u64 = 7;
const TOKENS: u64 = 1_000_000;
const DEVICES: usize = 4;
const BLOCK: usize = 64;
const STEPS: i64 = 400;
/// Enough blocks for a loss that is good to half a percent.
const EVALUATED: usize = 512;
const FSDP: &str = r#"{"transformer_layer_cls_to_wrap": "GPT2Block"}"#;

/// Where the demo's model goes, run after run.
const OUTPUT: &str = "fullshard-demo";

impl DemoText {
    /// Puts what the demo is trained with into the flags that were left out.
    pub fn fill_in(args: &mut TrainArgs) -> Result<DemoText> {
        if args.model.tokenizer_name.is_some() || args.model.model_name_or_path.is_some() {
            return Err(Error::Usage(
                "there is nothing to train on: name text files with --train_file, or leave out \
                 --tokenizer_name and --model_name_or_path for the demo's text, which has a \
                 tokenizer of its own"
                    .into(),
            ));
        }
        args.step.or_devices(DEVICES);
        args.step.learning_rate.get_or_insert(3e-3);
        args.data.block_size.get_or_insert(BLOCK);
        args.data.max_eval_samples.get_or_insert(EVALUATED);
        let run = &mut args.run;
        if run.output_dir.is_none() {
            run.output_dir = Some(OUTPUT.into());
            run.overwrite_output_dir = true;
        }
        run.do_eval.get_or_insert(true);
        run.per_device_train_batch_size.get_or_insert(8);
        run.per_device_eval_batch_size.get_or_insert(16);
        if run.num_train_epochs.is_none() {
            run.max_steps.get_or_insert(STEPS);
        }
        run.lr_scheduler_type.get_or_insert_with(|| "cosine".to_owned());
        if run.warmup_ratio.is_none() {
            run.warmup_steps.get_or_insert(20.0);
        }
        run.logging_steps.get_or_insert(25.0);
        run.eval_strategy.get_or_insert(When::Steps);
        run.eval_steps.get_or_insert(100.0);
        Ok(DemoText { demo: Demo::new(SEED) })
    }

    /// Its tokenizer: a token a word.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        Ok(self.demo.tokenizer()?)
    }

    /// Writes the text below a folder, unless it is there.
    pub fn write(&self, cache: &Path) -> Result<DemoFiles> {
        let folder = cache.join(format!("demo-{}-{TOKENS}", self.demo.digest()?));
        let [train, validation, tokenizer] =
            ["train.txt", "validation.txt", "tokenizer.json"].map(|name| folder.join(name));
        if [&train, &validation, &tokenizer].iter().all(|path| path.is_file()) {
            return Ok(DemoFiles { train, validation, tokenizer });
        }
        Ok(Demo::write(&folder, TOKENS, SEED)?)
    }

    /// The demo's model: a GPT-2 that trains in a minute, its layers units of their own.
    pub fn model(&self, args: &mut TrainArgs, tokenizer: &Tokenizer) -> Result<ChosenModel> {
        args.step.fsdp_config.get_or_insert_with(|| FSDP.to_owned());
        let stop = tokenizer.token(".");
        ChosenModel::of_config(json!({
            "model_type": "gpt2", "vocab_size": tokenizer.vocabulary(), "n_positions": 128,
            "n_embd": 128, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
            "attn_pdrop": 0.0, "bos_token_id": stop, "eos_token_id": stop,
        }))
    }

    /// What is about to happen, for a newcomer.
    pub fn introduce(&self, devices: usize, block: usize) {
        println!("Fullshard's demo: a small GPT-2 learns a language that was made up for it.\n");
        println!("The text is sentences drawn word by word from a random source.");
        println!(
            "How unpredictable that source is, is known exactly: no model can get its loss below"
        );
        println!(
            "{:.4} nats a word on blocks of {block} words. A model that only knew how often each",
            self.demo.floor(block)
        );
        println!(
            "word comes would have {:.4}, one that saw just the word before {:.4}.\n",
            self.demo.unigram_entropy(),
            self.demo.bigram_entropy()
        );
        println!(
            "It is trained on {devices} devices at once. Each holds a share of every weight, of its"
        );
        println!(
            "gradient and of the optimizer's state, and gathers a layer only while it computes it:"
        );
        println!("fully sharded data parallelism (FSDP), as on a TPU pod.\n");
    }

    /// The losses against the floor.
    pub fn with_floor(&self, curve: Curve, block: usize) -> Curve {
        curve.with_floor(self.demo.floor(block), "entropy of the source")
    }

    /// How near the floor the model came, and what to do next.
    pub fn conclude(&self, evaluated: Option<&Evaluated>, folder: &Path, block: usize) {
        if let Some(evaluated) = evaluated {
            let floor = self.demo.floor(block);
            let above = 100.0 * (evaluated.loss / floor - 1.0);
            println!(
                "On text it has never seen the model has a loss of {:.4}: {above:.1} % above the \
                 least possible, {floor:.4}.",
                evaluated.loss
            );
        }
        println!("\nWhat to try next:");
        println!("  fullshard train --num_cores 8             the same on eight devices");
        println!(
            "  fullshard train --train_file your.txt --model_type gpt2 --config_overrides \
             n_layer=4,n_embd=256,n_head=4 --block_size 128 --num_cores 4"
        );
        println!("                                            your own text, GPT-2's tokenizer");
        println!("  tensorboard --logdir {}", folder.display());
    }
}
