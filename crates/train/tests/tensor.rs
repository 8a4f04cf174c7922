//! Tensor, sequence and context parallelism give the losses and gradient norms of one device.
//!
//! Ten steps, as in `mesh.rs`, on meshes with a `tensor` axis, a `context` axis or both, beside
//! `data` and `fsdp`. Every pair of choices appears in some case; most cases are of the long tier.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullshard_core::Platform;
use fullshard_graph::{MATMUL, Tensor};
use fullshard_models::layers::Linear;
use fullshard_models::layers::attention::context::ContextMethod;
use fullshard_models::layers::dim_names::{EMBED, VOCAB};
use fullshard_models::{CausalLm, Dimensions, LoweringOptions, Model, Scope, boxed};
use fullshard_optim::{Adafactor, AdamW, Optimizer, Sgd};
use fullshard_parallel::{FsdpConfig, MeshSpec, Placement, PlacementOptions, Remat, Settings};
use fullshard_step::{BatchShape, StepSpec, dialect};
use fullshard_train::{Metrics, Runner};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The vocabulary is not a multiple of the devices, nor is the width of three.
const GPT2: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 32, "n_embd": 40,
    "n_layer": 2, "n_head": 8, "n_inner": 56, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
    "attn_pdrop": 0.1}"#;
const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 1031, "max_position_embeddings": 32,
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 16,
    "num_key_value_heads": 8, "intermediate_size": 40, "tie_word_embeddings": false}"#;
const STEPS: usize = 10;

/// The options with their choices; a case has one of each.
const CHOICES: [(&str, &[&str]); 10] = [
    ("model", &["gpt2", "llama"]),
    (
        "mesh",
        &[
            "fsdp_1_tensor_8",
            "fsdp_4_tensor_2",
            "fsdp_3_tensor_2",
            "tensor_4_fsdp_2",
            "data_2_fsdp_2_tensor_2",
            "fsdp_1_context_8",
            "fsdp_2_context_4",
            "context_2_fsdp_2_tensor_2",
        ],
    ),
    ("tokens", &["replicated", "sharded"]),
    ("rows", &["flat", "batched"]),
    ("context", &["gather", "ring"]),
    ("strategy", &["full_shard", "weight_update", "hybrid_shard", "no_shard"]),
    ("layout", &["flat", "dim_0", "flattened"]),
    ("layers", &["unrolled", "scanned"]),
    ("remat", &["none", "full"]),
    ("run", &["one_adamw", "two_adafactor", "no_sync_sgd"]),
];

/// A case: one choice per option.
type Case = [&'static str; CHOICES.len()];

macro_rules! cases {
    ($($(#[$tier:meta])? $name:ident: [$($choice:tt)*];)*) => {
        const CASES: &[Case] = &[$([$(stringify!($choice)),*]),*];

        $(
            #[test]
            $(#[$tier])?
            fn $name() {
                check([$(stringify!($choice)),*]);
            }
        )*
    };
}

#[rustfmt::skip]
cases! {
    // model, mesh, tokens, rows, context, strategy, layout, layers, remat, run
    gpt2_tensor_8_full_shard_unrolled_one_adamw:                          [gpt2  fsdp_1_tensor_8           sharded    flat    gather full_shard    flat      unrolled none one_adamw];
    gpt2_fsdp_3_tensor_2_full_shard_scanned_two_adafactor:                [gpt2  fsdp_3_tensor_2           sharded    batched gather full_shard    dim_0     scanned  full two_adafactor];
    gpt2_fsdp_2_context_4_hybrid_shard_scanned_no_sync_sgd:               [gpt2  fsdp_2_context_4          replicated flat    ring   hybrid_shard  flattened scanned  none no_sync_sgd];
    llama_data_2_fsdp_2_tensor_2_weight_update_unrolled_one_adamw:        [llama data_2_fsdp_2_tensor_2    replicated batched gather weight_update flat      unrolled full one_adamw];
    llama_context_8_full_shard_unrolled_two_adafactor:                    [llama fsdp_1_context_8          replicated batched gather full_shard    flat      unrolled none two_adafactor];
    llama_context_2_fsdp_2_tensor_2_full_shard_scanned_one_adamw:         [llama context_2_fsdp_2_tensor_2 sharded    flat    ring   full_shard    flat      scanned  none one_adamw];
    gpt2_context_2_fsdp_2_tensor_2_no_shard_unrolled_no_sync_sgd:         [gpt2  context_2_fsdp_2_tensor_2 sharded    batched gather no_shard      dim_0     unrolled full no_sync_sgd];
    #[ignore = "long: all pairs of settings"]
    long_llama_fsdp_4_tensor_2_hybrid_shard_unrolled_two_adafactor:       [llama fsdp_4_tensor_2           sharded    batched ring   hybrid_shard  flattened unrolled full two_adafactor];
    #[ignore = "long: all pairs of settings"]
    long_llama_tensor_4_fsdp_2_no_shard_scanned_two_adafactor:            [llama tensor_4_fsdp_2           replicated flat    ring   no_shard      dim_0     scanned  none two_adafactor];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_context_8_weight_update_scanned_no_sync_sgd:                [gpt2  fsdp_1_context_8          sharded    flat    ring   weight_update flattened scanned  full no_sync_sgd];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_tensor_4_fsdp_2_hybrid_shard_unrolled_one_adamw:            [gpt2  tensor_4_fsdp_2           sharded    batched gather hybrid_shard  flattened unrolled full one_adamw];
    #[ignore = "long: all pairs of settings"]
    long_llama_fsdp_3_tensor_2_weight_update_unrolled_no_sync_sgd:        [llama fsdp_3_tensor_2           replicated flat    ring   weight_update flat      unrolled none no_sync_sgd];
    #[ignore = "long: all pairs of settings"]
    long_llama_fsdp_2_context_4_weight_update_unrolled_two_adafactor:     [llama fsdp_2_context_4          sharded    batched gather weight_update dim_0     unrolled full two_adafactor];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_fsdp_4_tensor_2_no_shard_scanned_one_adamw:                 [gpt2  fsdp_4_tensor_2           replicated flat    gather no_shard      dim_0     scanned  none one_adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_data_2_fsdp_2_tensor_2_full_shard_scanned_no_sync_sgd:      [gpt2  data_2_fsdp_2_tensor_2    sharded    flat    ring   full_shard    flattened scanned  none no_sync_sgd];
    #[ignore = "long: all pairs of settings"]
    long_llama_tensor_8_no_shard_scanned_no_sync_sgd:                     [llama fsdp_1_tensor_8           replicated batched ring   no_shard      flattened scanned  full no_sync_sgd];
    #[ignore = "long: all pairs of settings"]
    long_llama_tensor_8_hybrid_shard_scanned_two_adafactor:               [llama fsdp_1_tensor_8           replicated flat    ring   hybrid_shard  dim_0     scanned  none two_adafactor];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_fsdp_2_context_4_no_shard_scanned_one_adamw:                [gpt2  fsdp_2_context_4          replicated flat    gather no_shard      flat      scanned  full one_adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_context_2_fsdp_2_tensor_2_hybrid_shard_scanned_two_adafactor:[gpt2  context_2_fsdp_2_tensor_2 replicated batched gather hybrid_shard  flat      scanned  full two_adafactor];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_fsdp_4_tensor_2_full_shard_scanned_no_sync_sgd:             [gpt2  fsdp_4_tensor_2           replicated batched ring   full_shard    flat      scanned  full no_sync_sgd];
    #[ignore = "long: all pairs of settings"]
    long_llama_fsdp_3_tensor_2_hybrid_shard_unrolled_one_adamw:           [llama fsdp_3_tensor_2           sharded    batched ring   hybrid_shard  flattened unrolled none one_adamw];
    #[ignore = "long: all pairs of settings"]
    long_llama_tensor_4_fsdp_2_weight_update_unrolled_no_sync_sgd:        [llama tensor_4_fsdp_2           sharded    flat    ring   weight_update flat      unrolled full no_sync_sgd];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_context_8_no_shard_scanned_one_adamw:                       [gpt2  fsdp_1_context_8          replicated batched gather no_shard      dim_0     scanned  none one_adamw];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_data_2_fsdp_2_tensor_2_no_shard_unrolled_two_adafactor:     [gpt2  data_2_fsdp_2_tensor_2    sharded    flat    gather no_shard      dim_0     unrolled full two_adafactor];
    #[ignore = "long: all pairs of settings"]
    long_llama_context_2_fsdp_2_tensor_2_weight_update_scanned_one_adamw: [llama context_2_fsdp_2_tensor_2 replicated flat    ring   weight_update flattened scanned  none one_adamw];
    #[ignore = "long: all pairs of settings"]
    long_llama_data_2_fsdp_2_tensor_2_hybrid_shard_scanned_two_adafactor: [llama data_2_fsdp_2_tensor_2    replicated flat    ring   hybrid_shard  dim_0     scanned  none two_adafactor];
    #[ignore = "long: all pairs of settings"]
    long_llama_tensor_4_fsdp_2_full_shard_unrolled_two_adafactor:         [llama tensor_4_fsdp_2           sharded    batched ring   full_shard    dim_0     unrolled none two_adafactor];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_context_8_hybrid_shard_unrolled_two_adafactor:              [gpt2  fsdp_1_context_8          sharded    flat    gather hybrid_shard  flattened unrolled none two_adafactor];
    #[ignore = "long: all pairs of settings"]
    long_llama_fsdp_3_tensor_2_no_shard_scanned_two_adafactor:            [llama fsdp_3_tensor_2           sharded    batched ring   no_shard      flattened scanned  full two_adafactor];
    #[ignore = "long: all pairs of settings"]
    long_gpt2_fsdp_4_tensor_2_weight_update_scanned_one_adamw:            [gpt2  fsdp_4_tensor_2           sharded    batched gather weight_update flattened scanned  none one_adamw];
    #[ignore = "long: all pairs of settings"]
    long_llama_fsdp_2_context_4_full_shard_unrolled_two_adafactor:        [llama fsdp_2_context_4          sharded    batched ring   full_shard    flattened unrolled none two_adafactor];
    #[ignore = "long: all pairs of settings"]
    long_llama_tensor_8_weight_update_scanned_one_adamw:                  [llama fsdp_1_tensor_8           sharded    flat    ring   weight_update dim_0     scanned  none one_adamw];
}

/// Every two choices of different options appear together in some case.
#[test]
fn every_pair_of_choices_has_a_case() {
    check_pairs(&CHOICES, CASES);
}

fn choice(case: &Case, name: &str) -> &'static str {
    case[CHOICES.iter().position(|(known, _)| *known == name).unwrap()]
}

fn options(case: &Case) -> PlacementOptions {
    let layout = choice(case, "layout");
    let settings = Settings {
        shard_param_on_dim_0: layout == "dim_0",
        flatten_parameters: layout == "flattened",
        ..Settings::default()
    };
    PlacementOptions {
        strategy: choice(case, "strategy").parse().unwrap(),
        sequence_parallel: choice(case, "tokens") == "sharded",
        context_method: match choice(case, "context") {
            "ring" => ContextMethod::Ring,
            _ => ContextMethod::Gather,
        },
        config: FsdpConfig { settings, ..FsdpConfig::default() },
        remat: Some(if choice(case, "remat") == "full" { Remat::Full } else { Remat::None }),
        scan_layers: choice(case, "layers") == "scanned",
        dialect: dialect(Platform::Cpu),
        lowering: LoweringOptions {
            flatten_batch: choice(case, "rows") == "flat",
            ..LoweringOptions::default()
        },
        ..PlacementOptions::default()
    }
}

fn optimizer(case: &Case) -> Box<dyn Optimizer> {
    match choice(case, "run") {
        "two_adafactor" => Box::new(Adafactor::trainer()),
        "no_sync_sgd" => {
            Box::new(Sgd { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.0 })
        }
        _ => Box::new(AdamW::default()),
    }
}

fn batch(case: &Case) -> BatchShape {
    let accumulation = if choice(case, "run") == "one_adamw" { 1 } else { 2 };
    let sync_each_microbatch = choice(case, "run") != "no_sync_sgd";
    BatchShape { sequences: 24 / accumulation, tokens: 16, accumulation, sync_each_microbatch }
}

fn trained(spec: &StepSpec) -> Vec<Metrics> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let compiler = compiler(spec.placement.devices());
    // Adafactor divides gradients by their own size, also where they are rounding only, as those of
    // queries and keys are for weights as small as initial ones.
    let mut runner = match spec.optimizer.name() {
        "adafactor" => Runner::with_parameters(&compiler, spec, 42, |param| Ok(numbers(param))),
        _ => Runner::new(&compiler, spec, 42),
    }
    .unwrap();
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let step = |step: usize| {
        let tokens = tokens(spec.batch, spec.model.dimensions().vocabulary, step % 3);
        runner.step(&[&tokens, &tokens], 1e-3).unwrap().wait().unwrap()
    };
    (0..STEPS).map(step).collect()
}

fn spec_of(case: &Case, mesh: &MeshSpec, options: &PlacementOptions) -> StepSpec {
    let model = model(if choice(case, "model") == "gpt2" { GPT2 } else { LLAMA });
    let mesh = mesh.resolve(mesh.devices().unwrap()).unwrap();
    let placement = Placement::on_mesh(&model.tree(), &mesh, options).unwrap();
    StepSpec::new(model, placement, optimizer(case), batch(case), Some(1.0)).unwrap()
}

/// The same model, batches and optimizer on one device, unrolled. Dropout draws by position in the
/// activations, so their rows are the case's own, and so is accumulation.
fn one_device(case: &Case) -> Vec<Metrics> {
    static RUNS: Mutex<Option<HashMap<String, Vec<Metrics>>>> = Mutex::new(None);
    let key = format!("{} {} {}", choice(case, "model"), choice(case, "run"), choice(case, "rows"));
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    let lowering = options(case).lowering;
    let run = || {
        let options = PlacementOptions { lowering, ..PlacementOptions::default() };
        trained(&spec_of(case, &mesh("fsdp_1"), &options))
    };
    runs.get_or_insert_default().entry(key).or_insert_with(run).clone()
}

fn check(case: Case) {
    let expected = one_device(&case);
    let spec = spec_of(&case, &mesh(choice(&case, "mesh")), &options(&case));
    assert!(spec.step_program().unwrap().to_text().contains(MATMUL));
    compare(&case, &trained(&spec), &expected);
}

/// A model from outside whose head has a name and whose loss is that of its logits.
#[derive(Debug)]
struct Bigrams;

impl Model for Bigrams {
    fn class(&self) -> &'static str {
        "Bigrams"
    }

    fn task(&self) -> CausalLm {
        CausalLm { vocabulary: 37 }
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions { vocabulary: 37, positions: 16, ..Dimensions::default() }
    }

    fn forward(&self, nn: &Scope<'_>, tokens: &Tensor) -> fullshard_graph::Result<Tensor> {
        let x = nn.layer_norm("norm", &nn.embedding("table", tokens, 37, 24)?)?;
        Linear::new(37).dim_names([VOCAB, EMBED]).apply(nn, "head", &x)
    }
}

#[test]
fn logits_of_a_sliced_head_are_gathered_for_other_losses() {
    let [alone, sliced] = ["fsdp_1", "fsdp_2_tensor_4"].map(|words| {
        let (model, mesh) = (boxed(Bigrams).unwrap(), mesh(words));
        let mesh = mesh.resolve(mesh.devices().unwrap()).unwrap();
        let options = PlacementOptions::default();
        let placement = Placement::on_mesh(&model.tree(), &mesh, &options).unwrap();
        let spec = StepSpec::new(model, placement, adamw(), batch(&CASES[0]), Some(1.0)).unwrap();
        trained(&spec)
    });
    compare(&["bigrams"], &sliced, &alone);
}
