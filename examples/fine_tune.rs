//! Fine-tunes a Hugging Face checkpoint, printing the loss.
//!
//! `cargo run --release --example fine_tune -- FOLDER TEXT.txt`. Without arguments it first trains
//! a checkpoint with a few steps of the demo.

use fullshard::prelude::*;
use std::path::{Path, PathBuf};

/// Prints logs.
struct Print;

impl Callback for Print {
    fn on_log(&mut self, step: u64, values: &Values) -> Result<(), fullshard_train::Error> {
        let loss = values.get("loss").map_or(f64::NAN, |loss| loss.as_f64());
        println!("step {step}: loss {loss:.4}");
        Ok(())
    }
}

fn main() -> fullshard::Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let mut config = match &arguments[..] {
        [folder, text] => {
            let mut config = RunConfig::default();
            config.model.pretrained = Some(folder.clone());
            config.data.train_file = vec![text.clone()];
            config
        }
        _ => {
            let folder = std::env::temp_dir().join("fullshard-pretrained");
            pretrain(&folder)?;
            let mut config = RunConfig::demo();
            config.model.pretrained = Some(folder);
            config
        }
    };
    config.output.dir = std::env::temp_dir().join("fullshard-fine-tuned");
    config.output.overwrite = true;
    config.optimizer.learning_rate = Some(1e-4);
    config.schedule.max_steps = 20;
    config.logging.steps = 5.0;
    let outcome = train(&config, &mut Print)?;
    if let Some(evaluated) = outcome.evaluated {
        println!("evaluation loss {:.4}", evaluated.loss);
    }
    println!("model saved to {}", config.output.dir.display());
    Ok(())
}

/// Trains a few steps of the demo; `transformers` can load its output, too.
fn pretrain(folder: &Path) -> fullshard::Result<()> {
    let mut config = RunConfig::demo();
    config.schedule.max_steps = 40;
    config.evaluation.strategy = When::No;
    config.evaluation.do_eval = Some(false);
    config.output.dir = folder.to_owned();
    train(&config, &mut ())?;
    Ok(())
}
