//! Compiles the step programs of every model for all three platforms, each with the lowering
//! options of its platform; for TPUs and GPUs ahead of time.
//!
//! Cases differ in everything that changes the ops of a step. A new model gets its own.
#![allow(clippy::unwrap_used)]

use fullshard_core::Platform;
use fullshard_graph::{DType, Program};
use fullshard_models::from_json;
use fullshard_optim::from_name;
use fullshard_parallel::{
    FsdpConfig, GatherAhead, Placement, PlacementOptions, Remat, Settings, Strategy, WrapPolicy,
};
use fullshard_pjrt::{CompileOptions, Flag};
use fullshard_step::{BatchShape, StepSpec, compiler_flags, dialect, lowering};
use fullshard_testing::{CLIENT, compile_ahead};

const GPT2: &str = r#"{"model_type": "gpt2", "vocab_size": 1031, "n_positions": 512, "n_embd": 32,
    "n_layer": 2, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}"#;
const GPT2_DROPOUT: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 64,
    "n_embd": 32, "n_layer": 2, "n_head": 2}"#;
const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 1031, "max_position_embeddings": 64,
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 112, "tie_word_embeddings": false}"#;
const LLAMA_TIED: &str = r#"{"model_type": "llama", "vocab_size": 131, "hidden_size": 32,
    "max_position_embeddings": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48, "attention_bias": true, "tie_word_embeddings": true}"#;

/// The options of a step.
struct Case {
    model: &'static str,
    devices: usize,
    tokens: usize,
    settings: Settings,
    strategy: Strategy,
    remat: Remat,
    scanned: bool,
    gather_ahead: GatherAhead,
    accumulation: usize,
    sync_each_microbatch: bool,
    optimizer: &'static str,
    iterations_per_loop: usize,
}

impl Case {
    /// One device, unrolled layers in `bf16` that save everything.
    fn new(model: &'static str) -> Case {
        Case {
            model,
            devices: 1,
            tokens: 64,
            settings: Settings { compute_dtype: DType::Bf16, ..Settings::default() },
            strategy: Strategy::FullShard,
            remat: Remat::None,
            scanned: false,
            gather_ahead: GatherAhead::Nothing,
            accumulation: 1,
            sync_each_microbatch: true,
            optimizer: "adamw",
            iterations_per_loop: 1,
        }
    }

    fn spec(&self, kind: Platform) -> StepSpec {
        let model = from_json(self.model).unwrap();
        let is_gpt2 = self.model.contains("gpt2");
        let block = if is_gpt2 { "GPT2Block" } else { "LlamaDecoderLayer" };
        let wrap = WrapPolicy::Classes(vec![block.to_owned()]);
        let options = PlacementOptions {
            strategy: self.strategy,
            config: FsdpConfig { wrap, settings: self.settings.clone(), ..FsdpConfig::default() },
            remat: Some(self.remat.clone()),
            scan_layers: self.scanned,
            gather_ahead: self.gather_ahead,
            lowering: lowering(kind),
            dialect: dialect(kind),
            frozen: Vec::new(),
            ..PlacementOptions::default()
        };
        let placement = Placement::new(&model.tree(), self.devices, &options).unwrap();
        let batch = BatchShape {
            sequences: 2 * self.devices,
            tokens: self.tokens,
            accumulation: self.accumulation,
            sync_each_microbatch: self.sync_each_microbatch,
        };
        let optimizer = from_name(self.optimizer, &Default::default()).unwrap();
        let spec = StepSpec::new(model, placement, optimizer, batch, Some(1.0)).unwrap();
        spec.with_iterations_per_loop(self.iterations_per_loop).unwrap()
    }

    /// Compiles the program of a launch for a platform.
    fn check(&self, kind: Platform) {
        let spec = self.spec(kind);
        let form = spec.model.attention_form();
        compile(kind, &spec.launch_program().unwrap(), &compiler_flags(kind, form));
    }
}

fn compile(kind: Platform, program: &Program, flags: &[&str]) {
    let options = CompileOptions::new(program.devices());
    let options = flags.iter().try_fold(options, |options, flag| options.flag_text(flag)).unwrap();
    let text = program.to_text();
    let memory = match kind {
        Platform::Cpu => {
            let options = options.flag("xla_backend_optimization_level", Flag::Int(1));
            CLIENT.compile(&text, &options).and_then(|loaded| loaded.executable().memory())
        }
        _ => compile_ahead(kind, &text, &options).and_then(|executable| executable.memory()),
    };
    let memory = memory.unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert!(memory.total() > 0);
}

/// A test for each case on each platform.
macro_rules! cases {
    ($($name:ident: $case:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn cpu() {
                $case.check(Platform::Cpu);
            }

            #[test]
            fn tpu() {
                $case.check(Platform::Tpu);
            }

            #[test]
            fn cuda() {
                $case.check(Platform::Cuda);
            }
        }
    )*};
}

cases! {
    gpt2_f32: Case { settings: Settings::default(), ..Case::new(GPT2) };
    gpt2_scanned_blockwise_attention: Case {
        devices: 4, tokens: 512, remat: Remat::Full, scanned: true, gather_ahead: GatherAhead::Layer,
        optimizer: "adafactor", ..Case::new(GPT2)
    };
    gpt2_fp8_accumulated: Case {
        devices: 2, remat: Remat::Dots, accumulation: 2,
        settings: Settings { fp8: true, flatten_parameters: true, ..Case::new(GPT2).settings },
        ..Case::new(GPT2)
    };
    gpt2_dropout_scanned: Case { remat: Remat::Full, scanned: true, ..Case::new(GPT2_DROPOUT) };
    gpt2_dropout_unrolled: Case { remat: Remat::Dots, ..Case::new(GPT2_DROPOUT) };
    gpt2_dropout_in_a_loop: Case {
        remat: Remat::Dots, iterations_per_loop: 3, ..Case::new(GPT2_DROPOUT)
    };
    llama_scanned_no_sync_in_a_loop: Case {
        devices: 4, scanned: true, accumulation: 2, sync_each_microbatch: false,
        optimizer: "adafactor", iterations_per_loop: 3, ..Case::new(LLAMA)
    };
    llama_recomputed: Case { remat: Remat::Full, ..Case::new(LLAMA) };
    llama_scanned_fp8_no_sync: Case {
        devices: 4, remat: Remat::Dots, scanned: true, accumulation: 2, sync_each_microbatch: false,
        settings: Settings { fp8: true, shard_param_on_dim_0: true, ..Case::new(LLAMA).settings },
        ..Case::new(LLAMA)
    };
    llama_replicated: Case {
        devices: 2, strategy: Strategy::NoShard, optimizer: "sgd", ..Case::new(LLAMA_TIED)
    };
}

/// The other programs: those that initialize the state, and the evaluation step.
fn check_others(kind: Platform) {
    let spec = |model| Case { devices: 2, ..Case::new(model) }.spec(kind);
    compile(kind, &spec(LLAMA).eval_program(2).unwrap(), &[]);
    for init in spec(GPT2_DROPOUT).init_programs().unwrap() {
        compile(kind, &init.program, &[]);
    }
}

#[test]
fn init_and_eval_on_cpu() {
    check_others(Platform::Cpu);
}

#[test]
fn init_and_eval_on_tpu() {
    check_others(Platform::Tpu);
}

#[test]
fn init_and_eval_on_cuda() {
    check_others(Platform::Cuda);
}
