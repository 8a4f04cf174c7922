//! Rematerialization policies in step programs: the matmuls that each recomputes, the bytes that
//! scanned layers stack for the backward pass, and host memory in compiled programs.
#![allow(clippy::unwrap_used)]

use fullshard_core::Platform;
use fullshard_graph::DType;
use fullshard_models::from_json;
use fullshard_optim::from_name;
use fullshard_parallel::{FsdpConfig, Placement, PlacementOptions, Remat, Settings, WrapPolicy};
use fullshard_pjrt::{CompileOptions, CompiledMemory};
use fullshard_step::{
    BatchShape, Error, StepSpec, check_offload, compiler_flags, dialect, lowering,
};
use fullshard_testing::compile_ahead;

const SEQUENCES: usize = 128;
const TOKENS: usize = 128;
const HIDDEN: usize = 256;
const HEADS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Model {
    Gpt2,
    Llama,
}

use Model::{Gpt2, Llama};

impl Model {
    fn config(self, layers: usize) -> String {
        match self {
            Gpt2 => format!(
                r#"{{"model_type": "gpt2", "vocab_size": 1024, "n_positions": {TOKENS},
                "n_embd": {HIDDEN}, "n_layer": {layers}, "n_head": {HEADS}, "resid_pdrop": 0,
                "embd_pdrop": 0, "attn_pdrop": 0}}"#
            ),
            Llama => format!(
                r#"{{"model_type": "llama", "vocab_size": 1024, "hidden_size": {HIDDEN},
                "max_position_embeddings": {TOKENS}, "num_hidden_layers": {layers},
                "num_attention_heads": {HEADS}, "num_key_value_heads": 1,
                "intermediate_size": 512, "tie_word_embeddings": true}}"#
            ),
        }
    }

    fn block(self) -> &'static str {
        if self == Gpt2 { "GPT2Block" } else { "LlamaDecoderLayer" }
    }
}

/// A step of `layers` layers in `bf16`.
struct Case {
    model: Model,
    layers: usize,
    devices: usize,
    scanned: bool,
}

impl Case {
    fn try_spec(&self, remat: &str, kind: Option<Platform>) -> Result<StepSpec, Error> {
        let model = from_json(&self.model.config(self.layers)).unwrap();
        let wrap = WrapPolicy::Classes(vec![self.model.block().to_owned()]);
        let settings = Settings { compute_dtype: DType::Bf16, ..Settings::default() };
        let options = PlacementOptions {
            config: FsdpConfig { wrap, settings, ..FsdpConfig::default() },
            remat: Some(remat.parse().unwrap()),
            scan_layers: self.scanned,
            lowering: kind.map(lowering).unwrap_or_default(),
            dialect: kind.map(dialect).unwrap_or_default(),
            ..PlacementOptions::default()
        };
        let placement = Placement::new(&model.tree(), self.devices, &options).unwrap();
        let sequences = SEQUENCES * self.devices;
        let batch =
            BatchShape { sequences, tokens: TOKENS, accumulation: 1, sync_each_microbatch: true };
        let optimizer = from_name("sgd", &Default::default()).unwrap();
        StepSpec::new(model, placement, optimizer, batch, None)
    }

    fn spec(&self, remat: &str, kind: Option<Platform>) -> StepSpec {
        self.try_spec(remat, kind).unwrap()
    }

    fn text(&self, remat: &str) -> String {
        self.spec(remat, None).step_program().unwrap().to_text()
    }

    /// The memory of the compiled step.
    fn memory(&self, remat: &str, kind: Platform, flags: &[&str]) -> CompiledMemory {
        let spec = self.spec(remat, Some(kind));
        let defaults = compiler_flags(kind, spec.model.attention_form());
        let mut all = defaults.iter().chain(flags);
        let options = CompileOptions::new(self.devices);
        let options = all.try_fold(options, |options, flag| options.flag_text(flag)).unwrap();
        let text = spec.step_program().unwrap().to_text();
        compile_ahead(kind, &text, &options).unwrap().memory().unwrap()
    }
}

/// The policies with the matmuls that a layer of GPT-2 and of Llama recomputes, whose projections
/// are one and three. Attention has two; the first is recomputed even if its output is saved, since
/// scores are not.
const POLICIES: [(&str, usize, usize); 11] = [
    ("none", 0, 0),
    ("dots", 1, 1),
    ("minimal", 2, 2),
    ("save_dot_except_mlp", 2 + 1, 2 + 2),
    ("save_qkv", 2 + 1 + 1, 2 + 1 + 2),
    ("save_out", 1 + 1 + 1, 1 + 3 + 2),
    ("full", 2 + 1 + 1 + 1, 2 + 3 + 1 + 2),
    ("minimal_offload", 2, 2),
    ("qkv_offload", 2 + 1 + 1, 2 + 1 + 2),
    ("qkv,attn_out", 1 + 1 + 1, 1 + 1 + 2),
    ("mlp_in,offload:out_proj", 2 + 1, 2 + 3 + 1),
];

#[test]
fn every_preset_has_a_row() {
    for preset in Remat::presets() {
        assert!(POLICIES.iter().any(|(name, ..)| *name == preset.to_string()), "{preset}");
    }
}

#[test]
fn recomputes_the_matmuls_that_are_not_saved() {
    const LAYERS: usize = 2;
    for (model, scanned) in [(Gpt2, false), (Gpt2, true), (Llama, false), (Llama, true)] {
        let case = Case { model, layers: LAYERS, devices: 1, scanned };
        let count = |remat| case.text(remat).matches("stablehlo.dot_general").count();
        let all_saved = count("none");
        for (remat, gpt2, llama) in POLICIES {
            let per_layer = if model == Gpt2 { gpt2 } else { llama };
            let expected = if scanned { per_layer } else { LAYERS * per_layer };
            let found = count(remat) - all_saved;
            assert_eq!(found, expected, "{model:?}, scanned: {scanned}, {remat}");
        }
    }
}

/// Bytes per layer that the first loop of a program, the forward pass, stacks.
fn stacked_bytes(text: &str, layers: usize) -> usize {
    let forward = text.split("stablehlo.while").nth(1).unwrap();
    let updates = forward.lines().filter(|line| line.contains("dynamic_update_slice"));
    updates
        .map(|line| {
            let ty = line.split(": (tensor<").nth(1).unwrap().split('>').next().unwrap();
            let (dims, dtype) = ty.rsplit_once('x').unwrap();
            let bytes = if dtype == "bf16" { 2 } else { 4 };
            bytes * dims.split('x').map(|dim| dim.parse::<usize>().unwrap()).product::<usize>()
        })
        .sum::<usize>()
        / layers
}

/// A scan stacks the input of a layer, what the policy names and the statistics of norms, each once.
/// Without remat it also stacks scores, unless attention is a kernel, and the statistics of softmax,
/// which are a few numbers per row; a kernel's are saved with its output. Outputs of our own kernels
/// for norms and GELU are saved as well, as they are by unrolled layers.
#[test]
fn scanned_layers_save_no_more_than_the_policy_names() {
    let tokens = SEQUENCES * TOKENS;
    let kinds = [None, Some(Platform::Cpu), Some(Platform::Cuda), Some(Platform::Tpu)];
    for (model, kind) in [Gpt2, Llama].into_iter().flat_map(|it| kinds.map(|kind| (it, kind))) {
        let case = Case { model, layers: 3, devices: 1, scanned: true };
        for (remat, ..) in POLICIES {
            let spec = case.spec(remat, kind);
            let names: Vec<_> = spec.placement.remat.saved().iter().map(|it| it.name).collect();
            let saved = spec.model.checkpoints().iter();
            let saved = saved.filter(|known| names.contains(&known.name.as_str()));
            let width = HIDDEN + saved.map(|known| known.width).sum::<usize>();
            let text = spec.step_program().unwrap().to_text();
            let found = stacked_bytes(&text, case.layers);
            let fused = spec.attention_unsupported_reason().is_none();
            let has_scores = remat == "none" && !fused;
            let scores = if has_scores { 2 * tokens * HEADS * TOKENS } else { 0 };
            let kernels = match model {
                Gpt2 => 2 * HIDDEN + 4 * HIDDEN,
                Llama => 2 * HIDDEN,
            };
            let has_kernels = remat == "none" && kind == Some(Platform::Cuda);
            let width = width + if has_kernels { kernels } else { 0 };
            let norms = if model == Gpt2 { 2 * 2 } else { 2 };
            let statistics = match remat {
                "none" => norms + 2 * HEADS,
                _ if fused && names.contains(&"attn_out") => norms + HEADS,
                _ => norms,
            };
            let least = 2 * tokens * width + scores;
            let range = least..=least + 4 * tokens * statistics;
            assert!(range.contains(&found), "{model:?} {kind:?} {remat}: {found}, {range:?}");
        }
    }
}

#[test]
fn models_declare_the_sizes_of_what_they_name() {
    for (model, expected) in [
        (Gpt2, vec![("qkv", 768, 256 * 768), ("attn_out", 256, 0), ("out_proj", 256, 65536)]),
        (Llama, vec![("qkv", 512, 256 * 512), ("attn_out", 256, 0), ("out_proj", 256, 65536)]),
    ] {
        let spec = Case { model, layers: 2, devices: 1, scanned: true }.spec("none", None);
        let checkpoints = spec.model.checkpoints();
        let find = |name: &str| checkpoints.iter().find(|known| known.name == name);
        for (name, width, weights) in expected {
            let found = find(name).unwrap();
            assert_eq!((found.width, found.weights), (width, weights), "{model:?}, {name}");
            assert_eq!(found.attention, name == "attn_out");
        }
        let inner = if model == Gpt2 { 4 * HIDDEN } else { 2 * HIDDEN };
        assert_eq!(find("mlp_in").map(|known| known.weights), Some(HIDDEN * inner));
        assert_eq!(find("mlp_gate").is_some(), model == Llama);
    }
}

/// HFU counts two FLOPs per token for each weight of a matmul that is recomputed, and attention
/// where its output is not saved.
#[test]
fn hardware_flops_follow_the_policy() {
    let case = Case { model: Gpt2, layers: 3, devices: 1, scanned: true };
    let (h, per_layer) = (HIDDEN * HIDDEN, 3.0 * (2 * SEQUENCES * TOKENS) as f64);
    for (remat, weights, attention) in [
        ("none", 0, false),
        ("dots", 0, false),
        ("minimal", 0, true),
        ("minimal_offload", 0, true),
        ("save_qkv", h + 4 * h, true),
        ("save_out", 3 * h + 4 * h, false),
        ("full", 3 * h + h + 4 * h, true),
        ("qkv,attn_out", h + 4 * h, false),
    ] {
        let spec = case.spec(remat, None);
        let (model, hardware) = (spec.model_flops(), spec.hardware_flops());
        let more = per_layer * weights as f64;
        assert_eq!(hardware.flops_6n - model.flops_6n, more, "{remat}");
        let of_attention = if attention { (model.palm - model.flops_6n) / 3.0 } else { 0.0 };
        let off = hardware.palm - model.palm - more - of_attention;
        assert!(off.abs() < 1e-9 * model.palm, "{remat}: {off}");
    }
}

#[test]
fn rejects_names_that_the_model_does_not_have() {
    let case = |model| Case { model, layers: 2, devices: 1, scanned: true };
    let error = case(Gpt2).try_spec("qkv,mlp_gate", None).err().unwrap().to_string();
    assert!(error.contains("`mlp_gate`") && error.contains("GPT2LMHeadModel"), "{error}");
    assert!(error.ends_with("they name qkv, attn_out, out_proj, mlp_in"), "{error}");
    assert!(case(Llama).try_spec("qkv,mlp_gate", None).is_ok());
    assert!(case(Gpt2).try_spec("minimal", None).is_ok(), "presets name what some models have");
}

#[test]
fn rejects_host_memory_where_there_is_none() {
    let offload: Remat = "qkv,offload:mlp_in".parse().unwrap();
    let error = check_offload(Platform::Cpu, &offload).unwrap_err().to_string();
    assert!(error.contains("--remat qkv,offload:mlp_in") && error.contains("cuda and tpu"));
    for platform in Platform::ALL {
        assert!(check_offload(platform, &Remat::Minimal).is_ok());
        assert_eq!(check_offload(platform, &offload).is_ok(), platform != Platform::Cpu);
    }
}

/// Compiles a policy and the one that offloads the same. All that it saves is in host memory, and
/// device memory falls by most of that: the compiler holds what one or two layers move.
fn check_offloaded(case: &Case, kind: Platform, flags: &[&str]) {
    let spec = case.spec("minimal", Some(kind));
    let moved = case.layers - usize::from(spec.placement.saves_last_layer());
    let widths = spec.model.checkpoints().iter().filter(|known| known.name != "attn_out");
    let width: usize = widths.map(|known| known.width).sum();
    let layer = (2 * SEQUENCES * TOKENS * width) as u64;
    let saved = case.memory("minimal", kind, flags);
    let offloaded = case.memory("minimal_offload", kind, flags);
    let fell = saved.temporaries as i64 - offloaded.temporaries as i64;
    let figures = format!("{layer} per layer, {saved:?}, {offloaded:?}");
    assert_eq!(saved.host, 0);
    assert_eq!(offloaded.host, moved as u64 * layer, "{figures}");
    assert!(fell >= (moved as i64 - 2) * layer as i64, "fell by {fell}: {figures}");
}

/// A test for each stack and platform. In unrolled layers, the scheduler that hides latency moves
/// activations back as early as memory allows, which is at once in a program as small as this.
macro_rules! offloaded {
    ($($(#[$tier:meta])? $name:ident: $model:ident, $devices:literal, $scanned:literal, $kind:ident, $flags:expr;)*) => {
        $(#[test]
        $(#[$tier])?
        fn $name() {
            let case = Case { model: $model, layers: 4, devices: $devices, scanned: $scanned };
            check_offloaded(&case, Platform::$kind, $flags);
        })*
    };
}

const IN_ORDER: &[&str] = &["xla_gpu_enable_latency_hiding_scheduler=false"];

offloaded! {
    #[ignore = "long: two programs for a TPU"]
    long_gpt2_offloads_on_tpu: Gpt2, 1, true, Tpu, &[];
    llama_offloads_on_two_tpus: Llama, 2, true, Tpu, &[];
    gpt2_offloads_on_two_gpus: Gpt2, 2, true, Cuda, &[];
    #[ignore = "long: two programs for a GPU"]
    long_llama_offloads_on_gpu: Llama, 1, true, Cuda, &[];
    gpt2_unrolled_offloads_on_gpu: Gpt2, 1, false, Cuda, IN_ORDER;
}

/// TPUs move unrolled layers' activations back before all are moved out, if memory allows: here
/// device memory falls by less than one layer saves, 41 of 67 MB.
#[test]
#[ignore = "long: two programs for a TPU"]
fn long_gpt2_unrolled_offloads_on_tpu() {
    let case = Case { model: Gpt2, layers: 4, devices: 1, scanned: false };
    let [saved, offloaded] =
        ["minimal", "minimal_offload"].map(|remat| case.memory(remat, Platform::Tpu, &[]));
    let layer = (2 * SEQUENCES * TOKENS * 8 * HIDDEN) as u64;
    let figures = format!("{layer} per layer, {saved:?}, {offloaded:?}");
    assert!(saved.host == 0 && offloaded.host >= 3 * layer, "{figures}");
    assert!(offloaded.temporaries < saved.temporaries, "{figures}");
}

/// Each further layer takes no more memory in a scan than unrolled, but for its gradients, which a
/// scan stacks in `f32`.
fn check_memory_per_layer(kind: Platform) {
    for (model, remat) in [(Gpt2, "none"), (Gpt2, "dots"), (Llama, "none"), (Llama, "dots")] {
        let per_layer = |scanned| {
            let [few, many] = [2, 4].map(|layers| {
                let case = Case { model, layers, devices: 1, scanned };
                case.memory(remat, kind, &[]).temporaries
            });
            (many - few) / 2
        };
        let spec = Case { model, layers: 1, devices: 1, scanned: true }.spec(remat, None);
        let layer = spec.placement.parameters.iter().filter(|param| param.stack.is_some());
        let gradients = 4 * layer.map(|param| param.elements()).sum::<usize>() as u64;
        let (scanned, unrolled) = (per_layer(true), per_layer(false));
        println!("{model:?} {remat}: {scanned} bytes per scanned layer, {unrolled} unrolled");
        assert!(scanned <= unrolled + gradients, "{model:?}, {remat}: {scanned}, {unrolled}");
    }
}

#[test]
#[ignore = "long: two sizes of eight programs"]
fn long_scanned_layers_take_no_more_memory_on_gpu() {
    check_memory_per_layer(Platform::Cuda);
}

#[test]
#[ignore = "long: two sizes of eight programs"]
fn long_scanned_layers_take_no_more_memory_on_tpu() {
    check_memory_per_layer(Platform::Tpu);
}
