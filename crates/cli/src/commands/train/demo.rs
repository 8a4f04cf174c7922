//! What a newcomer reads before and after the demo.

use crate::output::say;
use fullshard::run::DemoText;
use fullshard_train::Evaluated;
use std::path::Path;

/// What is about to happen.
pub fn introduce(demo: &DemoText, devices: usize, block: usize) {
    let source = demo.source();
    say!("Fullshard's demo: a small GPT-2 learns a language that was made up for it.\n");
    say!("The text is sentences drawn word by word from a random source.");
    say!("How unpredictable that source is, is known exactly: no model can get its loss below");
    say!(
        "{:.4} nats a word on blocks of {block} words. A model that only knew how often each",
        source.floor(block)
    );
    say!(
        "word comes would have {:.4}, one that saw just the word before {:.4}.\n",
        source.unigram_entropy(),
        source.bigram_entropy()
    );
    say!("It is trained on {devices} devices at once. Each holds a share of every weight, of its");
    say!("gradient and of the optimizer's state, and gathers a layer only while it computes it:");
    say!("fully sharded data parallelism (FSDP), as on a TPU pod.\n");
}

/// How near the floor the model came, and what to do next.
pub fn conclude(demo: &DemoText, evaluated: Option<&Evaluated>, folder: &Path, block: usize) {
    if let Some(evaluated) = evaluated {
        let floor = demo.source().floor(block);
        let above = 100.0 * (evaluated.loss / floor - 1.0);
        say!(
            "On text it has never seen the model has a loss of {:.4}: {above:.1} % above the least \
             possible, {floor:.4}.",
            evaluated.loss
        );
    }
    say!("\nWhat to try next:");
    say!("  fullshard train --num_cores 8             the same on eight devices");
    say!(
        "  fullshard train --train_file your.txt --model_type gpt2 --config_overrides \
         n_layer=4,n_embd=256,n_head=4 --block_size 128 --num_cores 4"
    );
    say!("                                            your own text, GPT-2's tokenizer");
    say!("  tensorboard --logdir {}", folder.display());
}
