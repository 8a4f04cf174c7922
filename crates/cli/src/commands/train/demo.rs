//! Text printed before and after the demo.

use crate::output::say;
use fullshard::run::DemoText;
use fullshard_train::Evaluated;
use std::path::Path;

/// Introduces the demo.
pub fn introduce(demo: &DemoText, devices: usize, block: usize) {
    let source = demo.source();
    say!("Fullshard demo: a small GPT-2 learns a synthetic language.\n");
    say!("The text is sampled word by word from a random source with known entropy:");
    say!(
        "no model can get its loss below {:.4} nats per word on blocks of {block} words.",
        source.floor(block)
    );
    say!(
        "A unigram model has a loss of {:.4}, a bigram model {:.4}.\n",
        source.unigram_entropy(),
        source.bigram_entropy()
    );
    say!("The model is trained on {devices} devices. Each holds a shard of every parameter,");
    say!("gradient and optimizer state, and all-gathers a layer only while computing it:");
    say!("fully sharded data parallelism (FSDP), as on a TPU pod.\n");
}

/// Compares the loss with its lower bound, and suggests next commands.
pub fn conclude(demo: &DemoText, evaluated: Option<&Evaluated>, folder: &Path, block: usize) {
    if let Some(evaluated) = evaluated {
        let floor = demo.source().floor(block);
        let above = 100.0 * (evaluated.loss / floor - 1.0);
        say!(
            "The loss on unseen text is {:.4}: {above:.1} % above the minimum of {floor:.4}.",
            evaluated.loss
        );
    }
    say!("\nNext steps:");
    say!("  fullshard train --num_cores 8             the same on eight devices");
    say!(
        "  fullshard train --train_file your.txt --model_type gpt2 --config_overrides \
         n_layer=4,n_embd=256,n_head=4 --block_size 128 --num_cores 4"
    );
    say!("                                            your own text, GPT-2's tokenizer");
    say!("  tensorboard --logdir {}", folder.display());
}
