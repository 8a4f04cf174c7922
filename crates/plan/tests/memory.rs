//! Estimates of memory against figures worked out by hand. How near they come to what compilers
//! say is in `quick.rs`.
#![allow(clippy::unwrap_used)]

use fullshard_models::from_json;
use fullshard_optim::AdamW;
use fullshard_parallel::{FsdpConfig, Placement, PlacementOptions, Remat, Strategy, WrapPolicy};
use fullshard_pjrt::plugins::Platform;
use fullshard_plan::MemoryEstimate;
use fullshard_step::{BatchShape, StepSpec};

/// A block has 12·8² + 13·8 = 872 elements, 8·32 of them in its largest parameter, and the root
/// 64·8 + 16·8 + 2·8 = 656. Logits are so few that a layer on its way back needs more.
const ROOT: u64 = 656;
const BLOCK: u64 = 872;
const LARGEST: u64 = 256;

fn config(vocabulary: usize) -> String {
    format!(
        r#"{{"model_type": "gpt2", "vocab_size": {vocabulary}, "n_positions": 16, "n_embd": 8,
        "n_layer": 3, "n_head": 2}}"#
    )
}

/// A model of this many words on this many devices; layers are a loop, if nothing else is said.
struct Setup {
    vocabulary: usize,
    devices: usize,
    settings: &'static str,
}

const SETUP: Setup = Setup { vocabulary: 64, devices: 2, settings: "{}" };
const HALF: Setup = Setup { settings: r#"{"compute_dtype": "bfloat16"}"#, ..SETUP };

impl Setup {
    fn spec(&self, change: impl FnOnce(&mut PlacementOptions, &mut BatchShape)) -> StepSpec {
        let settings = self.settings;
        let wrapped = format!(
            r#"{{"transformer_layer_cls_to_wrap": "GPT2Block", "xla_fsdp_settings": {settings}}}"#
        );
        let wrapped = FsdpConfig::from_json(&wrapped).unwrap();
        let mut options =
            PlacementOptions { config: wrapped, scan_layers: true, ..PlacementOptions::default() };
        let mut batch =
            BatchShape { sequences: 8, tokens: 16, accumulation: 1, sync_each_microbatch: true };
        change(&mut options, &mut batch);
        let model = from_json(&config(self.vocabulary)).unwrap();
        let placement = Placement::new(&model.tree(), self.devices, &options).unwrap();
        StepSpec::new(model, placement, Box::new(AdamW::default()), batch, None).unwrap()
    }

    fn on(
        &self,
        kind: Platform,
        change: impl FnOnce(&mut PlacementOptions, &mut BatchShape),
    ) -> MemoryEstimate {
        MemoryEstimate::new(&self.spec(change), kind).unwrap()
    }

    /// What is temporary where a layer on its way back counts: gathered units.
    fn gathered(&self, change: impl FnOnce(&mut PlacementOptions, &mut BatchShape)) -> u64 {
        let estimate = self.on(Platform::Tpu, change);
        assert!(estimate.gradients > 0, "logits count: {estimate:?}");
        estimate.temporaries
    }
}

#[test]
fn the_state_is_that_of_the_recipe_and_parts_add_up() {
    for kind in [Platform::Cpu, Platform::Cuda, Platform::Tpu] {
        let state = SETUP.spec(|_, _| {}).state_bytes().unwrap();
        let estimate = SETUP.on(kind, |_, _| {});
        assert_eq!((estimate.parameters, estimate.optimizer), (state.parameters, state.optimizer));
        let parts: u64 = estimate.parts().iter().map(|part| part.bytes).sum();
        assert_eq!(parts, estimate.total);
    }
}

#[test]
fn units_are_whole_as_long_as_they_are_kept() {
    // The root and one parameter after another, and their gradients.
    assert_eq!(SETUP.gathered(|_, _| {}), 2 * 4 * (ROOT + LARGEST));
    assert_eq!(HALF.gathered(|_, _| {}), 2 * 2 * (ROOT + LARGEST));
    let packed = Setup { settings: r#"{"flatten_parameters": true}"#, ..SETUP };
    assert_eq!(packed.gathered(|_, _| {}), 2 * 4 * (ROOT + BLOCK));
    let ahead = SETUP.gathered(|options, _| options.gather_ahead = true);
    assert_eq!(ahead, 2 * 4 * (ROOT + LARGEST) + 4 * BLOCK);
    let kept = Setup { settings: r#"{"reshard_after_forward": false}"#, ..SETUP };
    assert_eq!(kept.gathered(|_, _| {}), 4 * (ROOT + 3 * BLOCK) + 4 * (ROOT + BLOCK));
    let once = |_: &mut PlacementOptions, batch: &mut BatchShape| {
        batch.accumulation = 2;
        batch.sync_each_microbatch = false;
    };
    assert_eq!(SETUP.gathered(once), 2 * 4 * (ROOT + 3 * BLOCK));
    // Gradients are added up in f32.
    assert_eq!(HALF.gathered(once), (2 + 4) * (ROOT + 3 * BLOCK));
}

#[test]
fn what_is_whole_anyway_is_not_gathered() {
    let no_shard =
        |options: &mut PlacementOptions, _: &mut BatchShape| options.strategy = Strategy::NoShard;
    assert_eq!(SETUP.gathered(no_shard), 0);
    // What is stored is not what is computed with, and of that nothing is let go.
    let all_and_gradients = 2 * (ROOT + 3 * BLOCK) + 2 * (ROOT + BLOCK);
    assert_eq!(HALF.gathered(no_shard), all_and_gradients);
    let alone = Setup { devices: 1, ..HALF };
    assert_eq!(alone.gathered(|_, _| {}), all_and_gradients);
    let unwrapped = alone.gathered(|options, _| options.config.wrap = WrapPolicy::None);
    assert_eq!(unwrapped, all_and_gradients, "one device cuts no units");
    let again = alone.gathered(|options, _| options.remat = Some(Remat::Full));
    assert_eq!(again, 2 * 2 * (ROOT + LARGEST));
}

/// The root then owns the layers of the loop, and has them all at once.
#[test]
fn a_unit_around_the_loop_has_all_layers() {
    let gathered = SETUP.gathered(|options, _| options.config.wrap = WrapPolicy::None);
    assert_eq!(gathered, 2 * 4 * (ROOT + 3 * BLOCK));
}

/// Tokens on a device at once: 8·16/2.
const TOKENS: u64 = 64;

/// Scores of attention: 2 heads with 16 for each token.
const SCORES: u64 = TOKENS * 2 * 16;

/// On its way back: products take 8 + 8 + 8 + 32 a token and give 24 + 8 + 32 + 8, which is there
/// with its gradient; attention gives 8, from scores in `f32` and as they are computed with.
const AT_WORK: u64 = 4 * TOKENS * (56 + 2 * 72 + 8) + (4 + 4) * SCORES;

#[test]
fn activations_follow_what_is_remembered() {
    let of = |remat| SETUP.on(Platform::Tpu, |options, _| options.remat = Some(remat)).activations;
    let input = 4 * TOKENS * 8;
    // All that products give but the last, and what attention does.
    let dots = 4 * TOKENS * (72 - 8 + 8);
    // Nine of the width, five of the inner width, queries, keys and values; scores four times.
    let all = 4 * (TOKENS * (9 * 8 + 5 * 32 + 24) + 4 * SCORES);
    assert_eq!(of(Remat::Full), 3 * input + AT_WORK);
    assert_eq!(of(Remat::Dots), 3 * (input + dots) + AT_WORK);
    assert_eq!(of(Remat::None), 3 * all + AT_WORK);
}

/// With many words the loss needs more than a layer on its way back, and no gradient of a layer is
/// there yet.
#[test]
fn logits_count_where_they_are_many() {
    let on = |setup: &Setup, kind| {
        let many = Setup { vocabulary: 1024, ..*setup };
        let estimate = many.on(kind, |options, _| options.remat = Some(Remat::Full));
        assert_eq!(estimate.gradients, 0);
        let (bytes, root) = (setup.spec(|_, _| {}).placement.wire.compute.size() as u64, 8336);
        assert_eq!(estimate.activations, 3 * bytes * TOKENS * 8);
        estimate.temporaries - 2 * bytes * (root + LARGEST)
    };
    // All logits and their gradient, and the gradient of a head of 1024·8.
    assert_eq!(on(&SETUP, Platform::Tpu), 4 * 1024 * (2 * TOKENS + 8));
    assert_eq!(on(&HALF, Platform::Tpu), 1024 * ((4 + 2) * TOKENS + 2 * 8));
    // GPUs have them in the type computed in, one in the place of the other.
    assert_eq!(on(&HALF, Platform::Cuda), 2 * 1024 * (TOKENS + 8));
}

/// What only the last layer keeps is there at the loss, and is no more when its way back begins.
#[test]
fn on_gpus_the_last_layer_keeps_all() {
    let of = |vocabulary, kept| {
        let estimate = Setup { vocabulary, ..HALF }.on(Platform::Cuda, |options, _| {
            options.remat = Some(Remat::Full);
            options.scan_layers = false;
            options.lowering.last_layer_kept = kept;
        });
        estimate.activations
    };
    let input = 2 * TOKENS * 8;
    let all = 2 * TOKENS * (4 * 8 + 4 * 32 + 24 + 8) + (4 + 2) * SCORES;
    let at_work = (2 * TOKENS * (56 + 2 * 72 + 8) + (4 + 2) * SCORES) * 8 / 10;
    assert_eq!((of(1024, false), of(1024, true)), (3 * input, 2 * input + all));
    assert_eq!((of(16, false), of(16, true)), (at_work, 2 * input + all));
}

/// Layers that are written out let go of what they keep as their gradients come, so that most is
/// alive when the way back begins, or when it ends.
#[test]
fn on_gpus_gradients_take_the_place_of_what_is_kept() {
    let written_out = |options: &mut PlacementOptions| options.scan_layers = false;
    let at_work = |bytes: u64| bytes * 8 / 10;
    let begins = SETUP.on(Platform::Cuda, |options, _| written_out(options));
    // Four of the width and of the inner width, queries, keys, values and what they mix.
    let all = 4 * TOKENS * (4 * 8 + 4 * 32 + 24 + 8) + (4 + 4) * SCORES;
    assert_eq!((begins.gradients, begins.activations), (0, 3 * all + at_work(AT_WORK)));
    // One sequence of two tokens on each device.
    let ends = SETUP.on(Platform::Cuda, |options, batch| {
        written_out(options);
        (batch.sequences, batch.tokens) = (2, 2);
    });
    assert_eq!(ends.gradients, ends.parameters);
    assert_eq!(ends.activations, at_work(4 * 2 * (56 + 2 * 72 + 8) + 8 * 2 * 2 * 2));
}

/// On CPU the loss is a call with one chunk of exponentials, and nothing takes the place of another.
#[test]
fn on_cpus_nothing_is_shared() {
    let many = Setup { vocabulary: 1024, ..SETUP };
    let estimate = many.on(Platform::Cpu, |options, _| {
        options.lowering = fullshard_step::lowering(Platform::Cpu);
        options.remat = Some(Remat::Full);
    });
    assert_eq!(estimate.gradients, estimate.parameters);
    assert_eq!(estimate.activations, 3 * 4 * TOKENS * 8 + AT_WORK);
    let (gathered, loss) = (2 * 4 * (8336 + LARGEST), 4 * 1024 * (TOKENS + 8));
    assert_eq!(estimate.temporaries, gathered + loss);
}
