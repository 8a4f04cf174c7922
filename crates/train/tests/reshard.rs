//! Resuming on another mesh, in another layout, with layers scanned or not, changes nothing.
//!
//! Each case trains three steps, saves, resumes with other settings and trains three more. Most
//! sizes of the model are not divisible by the devices, and dropout follows the seed and the step.
#![allow(clippy::unwrap_used)]

mod common;

use common::{adamw, compiler, model, numbers, tokens};
use fullshard_checkpoint::sharded::{Checkpoint, Progress};
use fullshard_graph::Mesh;
use fullshard_optim::{Adafactor, Optimizer};
use fullshard_parallel::{
    FsdpConfig, Placement, PlacementOptions, Rules, Settings, Strategy, WrapPolicy,
};
use fullshard_step::{BatchShape, StepSpec};
use fullshard_train::{Runner, SaveOptions, Saver, check_checkpoint};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 97, "n_positions": 8, "n_embd": 14,
    "n_layer": 2, "n_head": 2, "n_inner": 22, "resid_pdrop": 0.1, "embd_pdrop": 0, "attn_pdrop": 0}"#;
const BATCH: BatchShape =
    BatchShape { sequences: 24, tokens: 8, accumulation: 1, sync_each_microbatch: true };
const STEPS: u64 = 3;
const SEED: u64 = 42;

/// The options with their choices; a case has one of each.
const CHOICES: [(&str, &[&str]); 7] = [
    ("optimizer", &["adamw", "adafactor"]),
    ("devices", &["1", "2", "3", "4", "8"]),
    ("layout", LAYOUTS),
    ("layers", &["scanned", "unrolled"]),
    ("then on devices", &["1", "2", "3", "4", "8"]),
    ("then in layout", LAYOUTS),
    ("then with layers", &["scanned", "unrolled"]),
];

const LAYOUTS: &[&str] = &["flat", "dim_0", "replicated", "flattened"];

type Case = [&'static str; CHOICES.len()];

/// A test for each case.
macro_rules! cases {
    ($($(#[$tier:meta])? $name:ident: [$($choice:tt)*];)*) => {
        const CASES: &[Case] = &[$([$(stringify!($choice)),*]),*];

        $(#[test]
        $(#[$tier])?
        fn $name() {
            check([$(stringify!($choice)),*]);
        })*
    };
}

#[rustfmt::skip]
cases! {
    // optimizer, devices, layout, layers, then on devices, in layout, with layers
    adafactor_flat_on_1_to_dim_0_on_4:         [adafactor 1 flat       unrolled 4 dim_0      scanned ];
    adamw_flattened_on_3_to_flat_on_3:         [adamw     3 flattened  scanned  3 flat       unrolled];
    adamw_replicated_on_4_to_flattened_on_2:   [adamw     4 replicated unrolled 2 flattened  scanned ];
    adafactor_flat_on_8_to_flat_on_1:          [adafactor 8 flat       scanned  1 flat       scanned ];
    adamw_hybrid_on_two_axes_to_flat_on_3:     [adamw     data_2_fsdp_4   hybrid scanned  3             flat   unrolled];
    adafactor_named_on_two_axes_to_hybrid:     [adafactor data_3_fsdp_2   named  unrolled fsdp_4_data_2 hybrid scanned ];
    adamw_tensor_to_flat_on_3:                 [adamw     fsdp_3_tensor_2 flat   scanned  3             flat   unrolled];
    adafactor_dim_0_on_4_to_tensor_and_context:[adafactor 4               dim_0  unrolled context_2_fsdp_2_tensor_2 flat scanned ];
    #[ignore = "long: all axes"]
    long_adafactor_tensor_to_context:          [adafactor data_2_fsdp_2_tensor_2 flat unrolled fsdp_2_context_2 flat unrolled];
    #[ignore = "long: all axes"]
    long_adamw_context_to_tensor:              [adamw     context_4       flat   scanned  tensor_2_fsdp_2 dim_0 unrolled];
    adamw_dim_0_on_three_axes_to_named:        [adamw     a_2_b_2_fsdp_2  dim_0  scanned  data_2_fsdp_2 named  scanned ];
    #[ignore = "long: all pairs of settings"]
    long_adafactor_flattened_on_1_to_flattened_on_1: [adafactor 1 flattened  scanned  1 flattened  unrolled];
    #[ignore = "long: all pairs of settings"]
    long_adamw_flat_on_1_to_flat_on_2:               [adamw     1 flat       unrolled 2 flat       scanned ];
    #[ignore = "long: all pairs of settings"]
    long_adamw_dim_0_on_1_to_replicated_on_3:        [adamw     1 dim_0      unrolled 3 replicated unrolled];
    #[ignore = "long: all pairs of settings"]
    long_adamw_replicated_on_1_to_flat_on_8:         [adamw     1 replicated unrolled 8 flat       scanned ];
    #[ignore = "long: all pairs of settings"]
    long_adamw_flattened_on_2_to_replicated_on_1:    [adamw     2 flattened  unrolled 1 replicated scanned ];
    #[ignore = "long: all pairs of settings"]
    long_adafactor_flat_on_2_to_replicated_on_2:     [adafactor 2 flat       scanned  2 replicated unrolled];
    #[ignore = "long: all pairs of settings"]
    long_adafactor_replicated_on_2_to_flat_on_4:     [adafactor 2 replicated scanned  4 flat       scanned ];
    #[ignore = "long: all pairs of settings"]
    long_adafactor_dim_0_on_3_to_replicated_on_1:    [adafactor 3 dim_0      unrolled 1 replicated unrolled];
    #[ignore = "long: all pairs of settings"]
    long_adafactor_flattened_on_3_to_dim_0_on_2:     [adafactor 3 flattened  unrolled 2 dim_0      scanned ];
    #[ignore = "long: all pairs of settings"]
    long_adamw_replicated_on_3_to_replicated_on_4:   [adamw     3 replicated unrolled 4 replicated scanned ];
    #[ignore = "long: all pairs of settings"]
    long_adamw_flat_on_3_to_flattened_on_8:          [adamw     3 flat       scanned  8 flattened  scanned ];
    #[ignore = "long: all pairs of settings"]
    long_adafactor_replicated_on_4_to_dim_0_on_1:    [adafactor 4 replicated unrolled 1 dim_0      unrolled];
    #[ignore = "long: all pairs of settings"]
    long_adafactor_flat_on_4_to_flattened_on_3:      [adafactor 4 flat       unrolled 3 flattened  unrolled];
    #[ignore = "long: all pairs of settings"]
    long_adamw_flattened_on_4_to_flat_on_4:          [adamw     4 flattened  scanned  4 flat       unrolled];
    #[ignore = "long: all pairs of settings"]
    long_adafactor_dim_0_on_4_to_replicated_on_8:    [adafactor 4 dim_0      unrolled 8 replicated scanned ];
    #[ignore = "long: all pairs of settings"]
    long_adamw_dim_0_on_8_to_flat_on_2:              [adamw     8 dim_0      unrolled 2 flat       scanned ];
    #[ignore = "long: all pairs of settings"]
    long_adamw_replicated_on_8_to_replicated_on_3:   [adamw     8 replicated scanned  3 replicated unrolled];
    #[ignore = "long: all pairs of settings"]
    long_adamw_dim_0_on_8_to_flattened_on_4:         [adamw     8 dim_0      unrolled 4 flattened  scanned ];
    #[ignore = "long: all pairs of settings"]
    long_adafactor_flattened_on_8_to_dim_0_on_8:     [adafactor 8 flattened  unrolled 8 dim_0      unrolled];
    #[ignore = "long: all pairs of settings"]
    long_adafactor_dim_0_on_2_to_flattened_on_8:     [adafactor 2 dim_0      unrolled 8 flattened  unrolled];
    #[ignore = "long: all pairs of settings"]
    long_adamw_dim_0_on_2_to_dim_0_on_3:             [adamw     2 dim_0      scanned  3 dim_0      scanned ];
}

/// Every two choices of different options appear together in some case.
#[test]
fn every_pair_of_choices_has_a_case() {
    for (a, b) in (0..CHOICES.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
        for (x, y) in CHOICES[a].1.iter().flat_map(|x| CHOICES[b].1.iter().map(move |y| (x, y))) {
            let covered = CASES.iter().any(|case| case[a] == *x && case[b] == *y);
            assert!(covered, "{} {x} with {} {y}", CHOICES[a].0, CHOICES[b].0);
        }
    }
}

fn optimizer(name: &str) -> Box<dyn Optimizer> {
    match name {
        "adamw" => adamw(),
        _ => Box::new(Adafactor { beta1: Some(0.9), ..Adafactor::trainer() }),
    }
}

fn spec_of(optimizer_name: &str, [devices, layout, layers]: [&str; 3]) -> StepSpec {
    let settings = Settings {
        shard_param_on_dim_0: layout == "dim_0",
        flatten_parameters: layout == "flattened",
        ..Settings::default()
    };
    let wrap = WrapPolicy::Classes(vec!["GPT2Block".to_owned()]);
    let options = PlacementOptions {
        strategy: match layout {
            "replicated" => Strategy::NoShard,
            "hybrid" => Strategy::HybridShard,
            _ => Strategy::FullShard,
        },
        rules: (layout == "named").then(named_rules),
        config: FsdpConfig { wrap, settings, ..FsdpConfig::default() },
        sequence_parallel: true,
        scan_layers: layers == "scanned",
        ..PlacementOptions::default()
    };
    let (model, mesh) = (model(MODEL), mesh(devices));
    let placement = Placement::on_mesh(&model.tree(), &mesh, &options).unwrap();
    StepSpec::new(model, placement, optimizer(optimizer_name), BATCH, Some(1.0)).unwrap()
}

/// A number of devices, or axes with their sizes: `data_2_fsdp_4`.
fn mesh(words: &str) -> Mesh {
    let words: Vec<&str> = words.split('_').collect();
    match &words[..] {
        [devices] => Mesh::new(&[("fsdp", devices.parse().unwrap())]).unwrap(),
        axes => {
            let axes = axes.chunks(2).map(|axis| (axis[0], axis[1].parse().unwrap()));
            Mesh::new(&axes.collect::<Vec<_>>()).unwrap()
        }
    }
}

/// Weights sharded on the dim `embed`, the first or the last, over `fsdp`; others flat over all.
fn named_rules() -> Rules {
    let rules = serde_json::json!({
        "activations": [["batch", "*"]],
        "parameters": [["embed", "fsdp"], ["norm", []], ["flat", "*"]],
    });
    serde_json::from_value(rules).unwrap()
}

/// Cases run one at a time: two programs with collectives may deadlock, each holding threads that
/// the other waits for, and compiling beside a run takes longer than after it.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Losses of the next steps.
fn train(runner: &mut Runner<'_>) -> Vec<f32> {
    let steps = runner.steps()..runner.steps() + STEPS;
    let step = |step: u64| {
        let tokens = tokens(BATCH, 97, step as usize);
        runner.step(&[&tokens, &tokens], 1e-3).unwrap().wait().unwrap().loss
    };
    steps.map(step).collect()
}

/// Saves a checkpoint: from copies, or straight from the devices without memory for copies.
fn save(runner: &Runner<'_>, folder: &Path, memory: Option<u64>) -> PathBuf {
    let options = SaveOptions {
        folder: folder.to_owned(),
        limit: None,
        only_model: false,
        memory,
        config: serde_json::json!({}),
        on_save: Arc::new(|_| {}),
        in_memory: None,
    };
    let progress = Progress { step: runner.steps(), ..Progress::default() };
    let mut saver = Saver::new(runner, options).unwrap();
    saver.start(runner, progress, None, &mut |_| Ok(())).unwrap();
    saver.wait().unwrap().unwrap().path
}

/// All tensors of a checkpoint: parameters and the optimizer's state.
type Tensors = BTreeMap<String, Vec<f32>>;

fn tensors(checkpoint: &Checkpoint) -> Tensors {
    let read = |(name, record): (&String, &fullshard_checkpoint::sharded::TensorRecord)| {
        let mut bytes = vec![0; record.bytes()];
        checkpoint.read_elements(name, 0..record.elements(), &mut bytes).unwrap();
        let values =
            bytes.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap()));
        (name.clone(), values.collect())
    };
    checkpoint.manifest().tensors.iter().map(read).collect()
}

/// A run on one device that was neither interrupted nor resharded.
struct Reference {
    losses: Vec<f32>,
    end: Tensors,
}

fn reference(optimizer: &str) -> &'static Reference {
    static RUNS: [OnceLock<Reference>; 2] = [const { OnceLock::new() }; 2];
    RUNS[usize::from(optimizer == "adamw")].get_or_init(|| {
        let spec = spec_of(optimizer, ["1", "flat", "unrolled"]);
        let (compiler, folder) = (compiler(1), tempfile::tempdir().unwrap());
        let mut runner =
            Runner::with_parameters(&compiler, &spec, SEED, |param| Ok(numbers(param))).unwrap();
        let losses = [train(&mut runner), train(&mut runner)].concat();
        let end = Checkpoint::open(save(&runner, folder.path(), None)).unwrap();
        Reference { losses, end: tensors(&end) }
    })
}

fn check(case: Case) {
    let [optimizer, from @ .., to_devices, to_layout, to_layers] = case;
    let to = [to_devices, to_layout, to_layers];
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let expected = reference(optimizer);
    let folder = tempfile::tempdir().unwrap();
    let mut losses = Vec::new();

    let (on, spec) = (compiler(mesh(from[0]).devices()), spec_of(optimizer, from));
    let mut runner = Runner::with_parameters(&on, &spec, SEED, |param| Ok(numbers(param))).unwrap();
    losses.extend(train(&mut runner));
    let saved = Checkpoint::open(save(&runner, folder.path(), None)).unwrap();
    let state = tensors(&saved);
    assert_eq!(state.keys().collect::<Vec<_>>(), expected.end.keys().collect::<Vec<_>>());
    drop(runner);

    let (on, spec) = (compiler(mesh(to[0]).devices()), spec_of(optimizer, to));
    check_checkpoint(&spec, &saved).unwrap();
    let checkpoints = [saved];
    let (mut runner, index) =
        Runner::resume(&on, &spec, SEED, &checkpoints, &mut |error| panic!("{error}")).unwrap();
    assert_eq!((index, runner.steps()), (0, STEPS));
    let again = tempfile::tempdir().unwrap();
    let again = Checkpoint::open(save(&runner, again.path(), Some(0))).unwrap();
    assert!(tensors(&again) == state, "the state is the same, bit for bit");

    losses.extend(train(&mut runner));
    let off = |found: &f32, expected: &f32| f64::from((found / expected - 1.0).abs());
    for (step, (found, expected)) in losses.iter().zip(&expected.losses).enumerate() {
        assert!(off(found, expected) < 1e-6, "step {step}: {losses:?}, expected {expected}");
    }
    let end = Checkpoint::open(save(&runner, folder.path(), None)).unwrap();
    // A factored second moment scales the rounding of small gradients up: a run on another mesh is
    // off by as much without being resumed, up to 2e-4.
    let allowed = if optimizer == "adamw" { 1e-5 } else { 1e-3 };
    for (name, found) in tensors(&end) {
        // A softmax does not depend on the bias of keys: its gradient is rounding, which optimizers
        // scale up to a step.
        if name.contains("c_attn.bias") {
            continue;
        }
        let difference = distance(&found, &expected.end[&name]);
        assert!(difference < allowed, "{name} is off by {difference:e}");
    }
}

/// The norm of a difference relative to that of the expected values.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f32>| -> f64 {
        values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
    };
    let difference = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    difference / norm(&mut expected.iter().copied()).max(f64::MIN_POSITIVE)
}
