//! A custom model, planned for a TPU slice and trained fully sharded on four devices.
use fullshard::prelude::*;

/// Each layer mixes a token with the previous one, then applies an MLP.
#[derive(Debug)]
struct Mixer {
    vocab: usize,
    width: usize,
    depth: usize,
}

impl Model for Mixer {
    fn class(&self) -> &'static str {
        "MixerForCausalLM"
    }

    fn task(&self) -> CausalLm {
        CausalLm { vocabulary: self.vocab }
    }

    fn dimensions(&self) -> Dimensions {
        let (layers, hidden, vocabulary) = (self.depth, self.width, self.vocab);
        Dimensions { layers, hidden, vocabulary, positions: 64, ..Dimensions::default() }
    }

    fn forward(&self, nn: &Scope<'_>, tokens: &Tensor) -> Result<Tensor> {
        let x = nn.embedding("wte", tokens, self.vocab, self.width)?;
        let x = nn.layers("h", "MixerBlock", self.depth, &x, |nn, x| {
            let before = x.pad(0.0, &[0, 1, 0], &[0, -1, 0], &[0; 3])?;
            let x = (x + nn.linear("mix", &nn.layer_norm("ln_1", &before)?, self.width)?)?;
            let inner = nn.linear("up", &nn.layer_norm("ln_2", &x)?, 4 * self.width)?.gelu()?;
            x + nn.linear("down", &inner, self.width)?
        })?;
        nn.linear("head", &nn.layer_norm("ln_f", &x)?, self.vocab)
    }
}

fn main() -> fullshard::Result<()> {
    register_model(Architecture {
        model_type: "mixer",
        class: "MixerForCausalLM",
        defaults: || serde_json::json!({"model_type": "mixer", "width": 64, "depth": 2}),
        read: |fields| {
            let (width, depth) = (fields.size(&["width"], 64)?, fields.layers(&["depth"], 2)?);
            Ok(boxed(Mixer { vocab: 96, width, depth })?)
        },
    })?;
    let mut config = RunConfig::demo(); // synthetic text, four devices
    config.model.model_type = Some("mixer".to_owned());
    config.remat.policy = Some(Remat::Full);
    config.schedule.max_steps = 100;
    config.output.dir = std::env::temp_dir().join("fullshard-own-model");
    let report = plan(&config, "v4-8", PlanOptions { quick: true, ..Default::default() })?;
    println!("on v4-8: {:.3} ms per step", 1e3 * report.time.step);
    println!("trained: {:?}", train(&config, &mut ())?.evaluated);
    Ok(())
}
