//! Memory estimates against figures worked out by hand. `quick.rs` compares them with compiled
//! steps.
#![allow(clippy::unwrap_used)]

use fullshard_models::from_json;
use fullshard_optim::AdamW;
use fullshard_parallel::{
    FsdpConfig, GatherAhead, Placement, PlacementOptions, Remat, Strategy, WrapPolicy,
};
use fullshard_pjrt::plugins::Platform;
use fullshard_plan::MemoryEstimate;
use fullshard_step::{BatchShape, StepSpec};

/// A block has 12·8² + 13·8 = 872 elements, 8·32 of them in its largest parameter, and the root
/// 64·8 + 16·8 + 2·8 = 656. Logits are so few that a layer's backward pass needs more.
const ROOT: u64 = 656;
const BLOCK: u64 = 872;
const LARGEST: u64 = 256;

fn config(vocabulary: usize) -> String {
    format!(
        r#"{{"model_type": "gpt2", "vocab_size": {vocabulary}, "n_positions": 16, "n_embd": 8,
        "n_layer": 3, "n_head": 2}}"#
    )
}

/// A model with a vocabulary size and devices; layers are scanned by default.
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

    /// Temporaries where the peak is in a layer's backward pass: gathered units.
    fn gathered(&self, change: impl FnOnce(&mut PlacementOptions, &mut BatchShape)) -> u64 {
        let estimate = self.on(Platform::Tpu, change);
        assert!(estimate.gradients > 0, "the peak is at the logits: {estimate:?}");
        estimate.temporaries
    }
}

#[test]
fn state_matches_the_spec_and_parts_add_up() {
    for kind in [Platform::Cpu, Platform::Cuda, Platform::Tpu] {
        let state = SETUP.spec(|_, _| {}).state_bytes().unwrap();
        let estimate = SETUP.on(kind, |_, _| {});
        assert_eq!((estimate.parameters, estimate.optimizer), (state.parameters, state.optimizer));
        let parts: u64 = estimate.parts().iter().map(|part| part.bytes).sum();
        assert_eq!(parts, estimate.total);
    }
}

#[test]
fn gathered_units() {
    // The root and one parameter at a time, and their gradients.
    assert_eq!(SETUP.gathered(|_, _| {}), 2 * 4 * (ROOT + LARGEST));
    assert_eq!(HALF.gathered(|_, _| {}), 2 * 2 * (ROOT + LARGEST));
    let packed = Setup { settings: r#"{"flatten_parameters": true}"#, ..SETUP };
    assert_eq!(packed.gathered(|_, _| {}), 2 * 4 * (ROOT + BLOCK));
    let ahead = SETUP.gathered(|options, _| options.gather_ahead = GatherAhead::Layer);
    assert_eq!(ahead, 2 * 4 * (ROOT + LARGEST) + 4 * BLOCK);
    let unsharded = Setup { settings: r#"{"reshard_after_forward": false}"#, ..SETUP };
    assert_eq!(unsharded.gathered(|_, _| {}), 4 * (ROOT + 3 * BLOCK) + 4 * (ROOT + BLOCK));
    let once = |_: &mut PlacementOptions, batch: &mut BatchShape| {
        batch.accumulation = 2;
        batch.sync_each_microbatch = false;
    };
    assert_eq!(SETUP.gathered(once), 2 * 4 * (ROOT + 3 * BLOCK));
    // Gradients are accumulated in f32.
    assert_eq!(HALF.gathered(once), (2 + 4) * (ROOT + 3 * BLOCK));
}

#[test]
fn replicated_parameters_are_not_gathered() {
    let no_shard =
        |options: &mut PlacementOptions, _: &mut BatchShape| options.strategy = Strategy::NoShard;
    assert_eq!(SETUP.gathered(no_shard), 0);
    // Parameters are converted to the compute dtype, and scans convert them again.
    let one_at_a_time = 2 * 2 * (ROOT + LARGEST);
    assert_eq!(HALF.gathered(no_shard), one_at_a_time);
    let single = Setup { devices: 1, ..HALF };
    assert_eq!(single.gathered(|_, _| {}), one_at_a_time);
    // Unrolled or outside of the scan, the converted ones are not freed.
    let all_and_gradients = 2 * (ROOT + 3 * BLOCK) + 2 * (ROOT + BLOCK);
    assert_eq!(single.gathered(|options, _| options.scan_layers = false), all_and_gradients);
    let unwrapped = single.gathered(|options, _| options.config.wrap = WrapPolicy::Root);
    assert_eq!(unwrapped, all_and_gradients, "one device has no units");
    let recomputed = single.gathered(|options, _| options.remat = Some(Remat::Full));
    assert_eq!(recomputed, one_at_a_time);
}

/// The root then owns the scanned layers, and gathers them all at once.
#[test]
fn unit_around_the_scan_gathers_all_layers() {
    let gathered = SETUP.gathered(|options, _| options.config.wrap = WrapPolicy::Root);
    assert_eq!(gathered, 2 * 4 * (ROOT + 3 * BLOCK));
}

/// Tokens per device: 8·16/2.
const TOKENS: u64 = 64;

/// Attention scores: 2 heads with 16 per token.
const SCORES: u64 = TOKENS * 2 * 16;

/// A layer's backward pass. Per token the inputs of matmuls are 8 + 8 + 8 + 32 and the outputs
/// 24 + 8 + 32 + 8, which are live with their gradients; attention's output is 8, with scores in
/// `f32` and in the compute dtype.
const WORKING_SET: u64 = 4 * TOKENS * (56 + 2 * 72 + 8) + (4 + 4) * SCORES;

#[test]
fn activations_follow_remat() {
    let of = |remat| SETUP.on(Platform::Tpu, |options, _| options.remat = Some(remat)).activations;
    let input = 4 * TOKENS * 8;
    // Outputs of all matmuls except the last, and of attention.
    let dots = 4 * TOKENS * (72 - 8 + 8);
    assert_eq!(of(Remat::Full), 3 * input + WORKING_SET);
    assert_eq!(of(Remat::Dots), 3 * (input + dots) + WORKING_SET);
    // The same, and the scores.
    assert_eq!(of(Remat::None), 3 * (input + dots + 4 * SCORES) + WORKING_SET);
    // Queries, keys and values; the two outputs of attention; all but the first of those.
    for (remat, width) in [("save_qkv", 24), ("save_out", 8 + 8), ("minimal", 24 + 8 + 32)] {
        let saved = 3 * (input + 4 * TOKENS * width);
        assert_eq!(of(remat.parse().unwrap()), saved + WORKING_SET, "{remat}");
    }
}

#[test]
fn offloaded_activations_are_in_host_memory() {
    let of = |remat: &str| {
        SETUP.on(Platform::Tpu, |options, _| options.remat = Some(remat.parse().unwrap()))
    };
    let (full, minimal, offloaded) = (of("full"), of("minimal"), of("minimal_offload"));
    assert_eq!((full.host, minimal.host), (0, 0));
    assert_eq!(offloaded.total, full.total);
    assert_eq!(offloaded.host, minimal.total - full.total);
    let mixed = of("qkv,offload:mlp_in");
    assert_eq!((mixed.total, mixed.host), (of("qkv").total, 3 * 4 * TOKENS * 32));
}

/// With a large vocabulary the loss needs more than a layer's backward pass, and no gradient of a
/// layer is live yet.
#[test]
fn large_vocabulary_peaks_at_the_logits() {
    let on = |setup: &Setup, kind| {
        let many = Setup { vocabulary: 1024, ..*setup };
        let estimate = many.on(kind, |options, _| options.remat = Some(Remat::Full));
        assert_eq!(estimate.gradients, 0);
        let (bytes, root) = (setup.spec(|_, _| {}).placement.comm.compute.size() as u64, 8336);
        assert_eq!(estimate.activations, 3 * bytes * TOKENS * 8);
        estimate.temporaries - 2 * bytes * (root + LARGEST)
    };
    // All logits and their gradient, and the gradient of a head of 1024·8.
    assert_eq!(on(&SETUP, Platform::Tpu), 4 * 1024 * (2 * TOKENS + 8));
    assert_eq!(on(&HALF, Platform::Tpu), 1024 * ((4 + 2) * TOKENS + 2 * 8));
    // On GPUs they are in the compute dtype and share a buffer.
    assert_eq!(on(&HALF, Platform::Cuda), 2 * 1024 * (TOKENS + 8));
}

/// What only the last layer saves is live at the loss, and adds nothing to its backward pass.
#[test]
fn on_gpus_the_last_layer_saves_all() {
    let of = |vocabulary, kept| {
        let estimate = Setup { vocabulary, ..HALF }.on(Platform::Cuda, |options, _| {
            options.remat = Some(Remat::Full);
            options.scan_layers = false;
            options.lowering.save_last_layer = kept;
        });
        estimate.activations
    };
    let input = 2 * TOKENS * 8;
    let all = 2 * TOKENS * (4 * 8 + 4 * 32 + 24 + 8) + (4 + 2) * SCORES;
    let working_set = (2 * TOKENS * (56 + 2 * 72 + 8) + (4 + 2) * SCORES) * 8 / 10;
    assert_eq!((of(1024, false), of(1024, true)), (3 * input, 2 * input + all));
    assert_eq!((of(16, false), of(16, true)), (working_set, 2 * input + all));
}

/// Unrolled layers free saved activations as their gradients are computed, so that the peak is at
/// the start or the end of the backward pass.
#[test]
fn on_gpus_gradients_replace_saved_activations() {
    let unroll = |options: &mut PlacementOptions| options.scan_layers = false;
    let in_order = |bytes: u64| bytes * 8 / 10;
    let start = SETUP.on(Platform::Cuda, |options, _| unroll(options));
    // Four of the width and of the inner width, queries, keys, values and attention's output.
    let all = 4 * TOKENS * (4 * 8 + 4 * 32 + 24 + 8) + (4 + 4) * SCORES;
    assert_eq!((start.gradients, start.activations), (0, 3 * all + in_order(WORKING_SET)));
    // One sequence of two tokens per device.
    let end = SETUP.on(Platform::Cuda, |options, batch| {
        unroll(options);
        (batch.sequences, batch.tokens) = (2, 2);
    });
    assert_eq!(end.gradients, end.parameters);
    assert_eq!(end.activations, in_order(4 * 2 * (56 + 2 * 72 + 8) + 8 * 2 * 2 * 2));
}

/// On CPU the loss is a custom call with one chunk of exponentials, and no buffers are shared.
#[test]
fn on_cpus_no_buffers_are_shared() {
    let many = Setup { vocabulary: 1024, ..SETUP };
    let estimate = many.on(Platform::Cpu, |options, _| {
        options.lowering = fullshard_step::lowering(Platform::Cpu);
        options.remat = Some(Remat::Full);
    });
    assert_eq!(estimate.gradients, estimate.parameters);
    assert_eq!(estimate.activations, 3 * 4 * TOKENS * 8 + WORKING_SET);
    let (gathered, loss) = (2 * 4 * (8336 + LARGEST), 4 * 1024 * (TOKENS + 8));
    assert_eq!(estimate.temporaries, gathered + loss);
}
