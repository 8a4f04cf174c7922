//! Every flag, and every key of a config file, has an effect or a message: none is silent.
//!
//! The table names for each what is expected of it: another step program, a run that goes another
//! way, a warning or an error that names it. Each row is held against a run without it.
#![allow(clippy::unwrap_used)]

mod observe;

use fullshard::config::Flags;
use observe::{Flag, Folder, Observed};
use std::collections::BTreeSet;

/// What is expected of a flag.
#[derive(Clone, Copy)]
enum Expect {
    /// The programs of training and evaluation, or how they are compiled, are others.
    Program,
    /// The program is the same, and the run is another: steps, losses, logs, files.
    Run,
    /// A warning has these words.
    Warns(&'static str),
    /// An error has these words.
    Fails(&'static str),
    /// It needs what is not here; this test of another file covers it.
    Elsewhere(&'static str, &'static str),
}
use Expect::{Elsewhere, Fails, Program, Run, Warns};

/// A row: the flag with a value, flags that are given both times, and what is expected. A value of
/// `-` takes a flag of the base away.
type Row = (&'static str, &'static str, &'static [Flag], Expect);

const TWO: Flag = ("num_cores", "2");
const FOUR: Flag = ("num_cores", "4");
const LLAMA: Flag = (
    "config_name",
    r#"{"model_type": "llama", "vocab_size": 96, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16}"#,
);
const WIDER: &str = r#"{"model_type": "gpt2", "vocab_size": 96, "n_positions": 16, "n_embd": 32,
    "n_layer": 2, "n_head": 2}"#;
/// Its feed-forward layers are large enough for rings.
const LARGE: &str = r#"{"model_type": "gpt2", "vocab_size": 96, "n_positions": 16, "n_embd": 128,
    "n_layer": 1, "n_head": 2}"#;
/// Its logits are computed in chunks.
const LONGER: &str = r#"{"model_type": "gpt2", "vocab_size": 4096, "n_positions": 256, "n_embd": 16,
    "n_layer": 1, "n_head": 2}"#;
const SAVES: Flag = ("save_strategy", "steps");
const EVAL: Flag = ("do_eval", "true");
const EPOCH: [Flag; 2] = [("max_steps", "-1"), ("num_train_epochs", "1")];
const UNROLLED: Flag = ("scan_layers", "false");
const DROPOUT_ON_GPU: [Flag; 2] = [("device", "cuda"), ("num_cores", "1")];

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("model_name_or_path", "saved", &[("config_name", "-"), ("model_type", "gpt2")], Fails("model_type")),
    ("config_name", WIDER, &[], Program),
    ("model_revision", "v2", &[], Warns("--model_revision has no effect")),
    ("model_revision", "v2", &[], Elsewhere("crates/cli/tests/hub.rs", "trains_a_model_of_the_hub_and_again_offline")),
    ("token", "secret", &[], Warns("--token has no effect")),
    ("token", "secret", &[], Elsewhere("crates/cli/tests/hub.rs", "trains_a_model_of_the_hub_and_again_offline")),
    ("model_type", "gpt2", &[("config_name", "-"), ("model_type", "llama")], Program),
    ("config_overrides", "n_layer=1", &[("config_name", "-"), ("model_type", "gpt2")], Program),
    ("freeze", "transformer.wte.*", &[], Program),
    ("scan_layers", "false", &[], Program),
    ("attn_implementation", "eager", &[], Warns("--attn_implementation has no effect: sequences this short")),
    ("attn_implementation", "eager", &[LLAMA], Program),
    ("attn_implementation", "eager", &[TWO, ("mesh", "context=2")], Warns("--attn_implementation has no effect: attention over a context axis")),
    ("attn_implementation", "eager", &[("device", "cuda"), ("num_cores", "1"), ("dtype", "bfloat16")], Program),
    ("dataset_name", "fullshard/no-such-dataset", &[("train_file", "-"), ("validation_file", "-")], Fails("no-such-dataset")),
    ("dataset_config_name", "other", &[], Fails("dataset_name")),
    ("train_file", "validation.txt", &[], Run),
    ("validation_file", "train.txt", &[EVAL], Run),
    ("validation_split_percentage", "20", &[EVAL, ("validation_file", "-")], Run),
    ("demo", "true", &[], Fails("train_file")),
    ("demo", "true", &[], Elsewhere("crates/cli/tests/train.rs", "demo_prints_its_progress")),
    ("tokenizer_name", "gpt2", &[], Fails("tokenizer `gpt2`")),
    ("block_size", "8", &[], Program),
    ("packing", "true", &[], Run),
    ("keep_linebreaks", "false", &[], Run),
    ("max_train_samples", "5", &[], Run),
    ("max_eval_samples", "1", &[EVAL], Run),
    ("dataloader_drop_last", "true", &[EPOCH[0], EPOCH[1], ("max_train_samples", "5")], Run),
    ("data_seed", "9", &[], Run),
    ("cache_dir", "other-cache", &[], Run),
    ("overwrite_cache", "true", &[], Run),
    ("device", "tpu", &[("num_cores", "1")], Program),
    ("plugin", "no-such-plugin.so", &[], Fails("no-such-plugin.so")),
    ("memory_fraction", "0.5", &[], Warns("--memory_fraction has no effect")),
    ("preallocate", "false", &[], Warns("--preallocate has no effect")),
    ("client_option", "nonsense", &[], Fails("--client_option")),
    ("xla_flag", "xla_cpu_enable_fast_math=true", &[], Program),
    ("no_cache", "true", &[], Run),
    ("num_cores", "2", &[], Program),
    ("mesh", "data=2,fsdp=2", &[FOUR], Program),
    ("mesh", "data=3,fsdp=-1", &[FOUR], Fails("`fsdp` would not be a whole number")),
    ("mesh", "data=2,fsdp=-1", &[], Fails("add --num_cores")),
    ("mesh", "data=2,fsdp=3", &[FOUR], Fails("has 6 devices, but there are 4")),
    ("collective", "axes", &[FOUR, ("mesh", "data=2,fsdp=2")], Program),
    ("collective", "hierarchical", &[FOUR, ("mesh", "data=2,fsdp=2")], Program),
    ("collective", "rotated", &[FOUR, ("mesh", "data=2,fsdp=2")], Program),
    ("collective", "ring", &[TWO, ("config_name", LARGE)], Program),
    ("collective", "ring", &[TWO], Warns("--collective has no effect: no gradient")),
    ("mesh", "data=2,expert=2", &[FOUR], Fails("no expert parallelism yet")),
    ("mesh", "fsdp=2,tensor=2", &[FOUR], Program),
    ("mesh", "fsdp=2,context=2", &[FOUR], Program),
    ("mesh", "fsdp=1,tensor=4", &[FOUR], Fails("do not divide the 2 heads")),
    ("sequence_parallel", "false", &[FOUR, ("mesh", "fsdp=2,tensor=2")], Program),
    ("sequence_parallel", "false", &[TWO], Warns("--sequence_parallel has no effect: the mesh has no axis tensor")),
    ("automatic_axes", "tensor", &[FOUR, ("mesh", "fsdp=2,tensor=2")], Program),
    ("automatic_axes", "tensor", &[TWO], Warns("--automatic_axes has no effect: the mesh has no axis tensor")),
    ("automatic_axes", "fsdp", &[TWO], Fails("mesh axis `fsdp` cannot be automatic (--automatic_axes)")),
    ("automatic_axes", "tensor", &[("num_cores", "8"), ("mesh", "fsdp=2,context=2,tensor=2")], Fails("leave `context` out of the mesh")),
    ("automatic_axes", "tensor", &[FOUR, ("mesh", "fsdp=2,tensor=2"), ("fp8", "true")], Fails("leave out FP8")),
    ("context_method", "ring", &[FOUR, ("mesh", "fsdp=2,context=2")], Program),
    ("context_method", "ring", &[TWO], Warns("--context_method has no effect: the mesh has no axis context")),
    ("collective", "axes", &[TWO], Warns("--collective has no effect: the mesh has one axis")),
    ("machine", "v4-8", &[FOUR, ("device", "tpu"), ("collective", "axes")], Program),
    ("machine", "v9-8", &[TWO], Fails("v9-8")),
    ("sharding_rules", "no-such-rules.toml", &[TWO], Fails("no-such-rules.toml")),
    ("sharding_rules", "rules.toml", &[], Elsewhere("crates/fullshard/tests/rules.rs", "example_gives_the_program_of_full_shard")),
    ("fsdp", "no_shard", &[TWO], Program),
    ("fsdp", "shard_grad_op", &[TWO], Program),
    ("fsdp", "weight_update", &[TWO], Program),
    ("fsdp", "hybrid_shard", &[FOUR, ("mesh", "data=2,fsdp=2")], Program),
    ("fsdp", "hybrid_shard_zero2", &[FOUR, ("mesh", "data=2,fsdp=2")], Program),
    ("fsdp", "hybrid_shard", &[TWO], Warns("no axis besides fsdp has replicas")),
    ("fsdp", "hybrid_shard", &[FOUR, ("mesh", "data=2,x=2")], Fails("no axis `fsdp`")),
    ("fsdp.sharding_groups", "[[0, 1], [2, 3]]", &[FOUR], Program),
    ("fsdp.sharding_groups", "[[0, 3], [1, 2]]", &[FOUR], Fails("equal distances")),
    ("fsdp.sharding_groups", "[[0, 1], [2, 3]]", &[FOUR, ("mesh", "data=4,fsdp=1")], Fails("leave one of them out")),
    ("fsdp.sharding_world_size", "2", &[FOUR], Program),
    ("fsdp.sharding_world_size", "2", &[FOUR, ("fsdp", "no_shard")], Fails("has no sharding groups")),
    ("fsdp.sharding_rank", "0", &[TWO], Warns("sharding_rank` has no effect")),
    ("fsdp", "no_shard", &[], Warns("FSDP settings have no effect on one device: strategy")),
    ("gather_ahead", "true", &[TWO], Program),
    ("gather_ahead", "vectors", &[TWO], Program),
    ("gather_ahead", "vectors", &[TWO, UNROLLED], Fails("add --scan_layers true, or leave it out")),
    ("gather_ahead", "vectors", &[TWO, ("fsdp_config", r#"{"xla_fsdp_settings": {"flatten_parameters": true}}"#)], Fails("(flatten_parameters is on)")),
    ("gather_ahead", "vectors", &[TWO, ("fsdp_config", r#"{"xla_fsdp_settings": {"coalesce_all_gather_ops": true}}"#)], Fails("(coalesce_all_gather_ops is on)")),
    ("fsdp_transformer_layer_cls_to_wrap", "", &[TWO], Program),
    ("fsdp_min_num_params", "600", &[TWO], Program),
    ("fsdp_config", r#"{"min_num_params": 600}"#, &[TWO], Program),
    ("fsdp.reshard_after_forward", "false", &[TWO], Program),
    ("fsdp.disable_reshard_on_root", "false", &[TWO, UNROLLED], Program),
    ("fsdp.flatten_parameters", "true", &[TWO], Program),
    ("fsdp.shard_param_on_dim_0", "true", &[TWO], Program),
    ("fsdp.coalesce_all_gather_ops", "true", &[TWO], Program),
    ("fsdp.reduce_scatter_bucket_size_mb", "1.0", &[TWO], Program),
    ("fsdp.fp32_reduce_scatter", "true", &[TWO, ("bf16", "true")], Program),
    ("fsdp.fp32_reduce_scatter", "true", &[TWO], Warns("`xla_fsdp_settings.fp32_reduce_scatter` has no effect")),
    ("fsdp.buffer_dtype", "\"bfloat16\"", &[LLAMA], Program),
    ("fsdp.buffer_dtype", "\"bfloat16\"", &[], Warns("`buffer_dtype` has no effect")),
    ("fsdp.gradient_divide_factors", "[2.0, 2.0]", &[TWO], Program),
    ("fsdp.pin_layout_in_collective_ops", "false", &[], Warns("pin_layout_in_collective_ops` has no effect")),
    ("fsdp.optimization_barrier_in_forward", "false", &[TWO, UNROLLED], Program),
    ("fsdp.optimization_barrier_in_forward", "false", &[], Warns("`optimization_barrier_in_forward` has no effect")),
    ("fsdp.optimization_barrier_in_backward", "false", &[TWO, UNROLLED], Program),
    ("fsdp.optimization_barrier_in_backward", "false", &[], Warns("`optimization_barrier_in_backward` has no effect")),
    ("dtype", "bfloat16", &[], Program),
    ("bf16", "true", &[], Program),
    ("fp8", "true", &[], Program),
    ("logits_chunk_mib", "64", &[], Warns("--logits_chunk_mib has no effect: the logits of a vocabulary this small")),
    ("logits_chunk_mib", "0", &[], Fails("at least 1")),
    ("logits_chunk_mib", "1", &[("config_name", LONGER), ("block_size", "256")], Program),
    ("remat", "full", &[], Program),
    ("remat", "qkv,attn_out", &[], Program),
    ("remat", "qkv,mlp_gate", &[], Fails("have no such activation: they name qkv")),
    ("remat", "minimal_offload", &[], Fails("cuda and tpu do")),
    ("remat", "minimal_offload", &[("device", "tpu"), ("num_cores", "1")], Program),
    ("remat", "qkv_offload", &[("device", "tpu"), ("num_cores", "1"), UNROLLED], Warns("--remat qkv_offload may save no memory")),
    ("remat", "none", &[("fsdp_config", r#"{"xla_fsdp_grad_ckpt": true}"#)], Warns("`xla_fsdp_grad_ckpt` of the FSDP config has no effect")),
    ("gradient_checkpointing", "true", &[], Program),
    ("optim", "sgd", &[], Program),
    ("optim_args", "beta1=0.9", &[("optim", "adafactor")], Program),
    ("adafactor", "true", &[], Program),
    ("learning_rate", "1e-3", &[], Run),
    ("weight_decay", "0.1", &[], Program),
    ("adam_beta1", "0.5", &[], Program),
    ("adam_beta2", "0.5", &[], Program),
    ("adam_epsilon", "1e-3", &[], Program),
    ("max_grad_norm", "0.01", &[], Program),
    ("do_train", "false", &[EVAL], Run),
    ("per_device_train_batch_size", "4", &[], Program),
    ("gradient_accumulation_steps", "2", &[], Program),
    ("no_sync", "true", &[TWO, ("gradient_accumulation_steps", "2")], Program),
    ("iterations_per_loop", "3", &[], Program),
    ("iterations_per_loop", "0", &[], Fails("--iterations_per_loop is `0`")),
    ("num_train_epochs", "2", &[EPOCH[0], ("max_train_samples", "5")], Run),
    ("max_steps", "2", &[], Run),
    ("lr_scheduler_type", "constant", &[], Run),
    ("lr_scheduler_kwargs", r#"{"num_cycles": 2}"#, &[("lr_scheduler_type", "cosine_with_restarts")], Run),
    ("warmup_steps", "2", &[], Run),
    ("warmup_ratio", "0.5", &[], Run),
    ("seed", "7", &[], Run),
    ("full_determinism", "true", &[], Warns("--full_determinism has no effect")),
    ("full_determinism", "true", &DROPOUT_ON_GPU, Program),
    ("do_eval", "true", &[], Run),
    ("eval_strategy", "steps", &[("eval_steps", "1")], Run),
    ("eval_steps", "2", &[("eval_strategy", "steps")], Run),
    ("eval_delay", "2", &[("eval_strategy", "steps"), ("eval_steps", "1")], Run),
    ("per_device_eval_batch_size", "3", &[EVAL], Program),
    ("logging_strategy", "no", &[], Run),
    ("logging_steps", "2", &[], Run),
    ("logging_first_step", "true", &[("logging_steps", "2")], Run),
    ("report_to", "none", &[], Run),
    ("disable_tqdm", "true", &[], Elsewhere("crates/cli/tests/train.rs", "disable_tqdm")),
    ("profile", "profiles", &[], Fails("--profile is not supported")),
    ("output_dir", "other-output", &[], Run),
    ("overwrite_output_dir", "true", &[], Elsewhere("crates/cli/tests/train.rs", "--overwrite_output_dir")),
    ("max_shard_size", "5KB", &[], Run),
    ("save_dtype", "bfloat16", &[], Run),
    ("rescue_dir", "elsewhere", &[], Elsewhere("crates/cli/tests/kill/disk.rs", "--rescue_dir")),
    ("save_strategy", "steps", &[], Run),
    ("save_steps", "1", &[SAVES], Run),
    ("save_total_limit", "1", &[SAVES, ("save_steps", "1")], Run),
    ("save_total_limit", "1", &[], Warns("--save_total_limit has no effect")),
    ("save_only_model", "true", &[SAVES], Run),
    ("resume_from_checkpoint", "true", &[], Fails("no checkpoint to resume from")),
    ("resume_from_checkpoint", "true", &[], Elsewhere("crates/cli/tests/kill/resume.rs", "--resume_from_checkpoint")),
    ("ignore_data_skip", "true", &[], Warns("--ignore_data_skip has no effect")),
    ("ignore_data_skip", "true", &[], Elsewhere("crates/cli/tests/kill/resume.rs", "--ignore_data_skip")),
    ("load_best_model_at_end", "true", &[], Fails("--eval_strategy")),
    ("load_best_model_at_end", "true", &[], Elsewhere("crates/cli/tests/kill/resume.rs", "--load_best_model_at_end")),
    ("metric_for_best_model", "accuracy", &[], Fails("--metric_for_best_model")),
    ("metric_for_best_model", "loss", &[], Warns("--metric_for_best_model has no effect")),
    ("greater_is_better", "true", &[], Warns("--greater_is_better has no effect")),
    ("greater_is_better", "true", &[("save_strategy", "best"), ("eval_strategy", "steps"), ("eval_steps", "1")], Run),
    ("save_memory", "1MB", &[], Warns("--save_memory has no effect")),
    ("save_memory", "1MB", &[], Elsewhere("crates/cli/tests/kill/resume.rs", "--save_memory")),
    ("replicate_state", "2", &[], Warns("--replicate_state has no effect")),
    ("replicate_state", "2", &[], Elsewhere("crates/cli/tests/hosts/drills/mod.rs", "--replicate_state")),
    ("replicate_dir", "memory", &[], Warns("--replicate_dir has no effect")),
    ("replicate_dir", "memory", &[], Elsewhere("crates/cli/tests/hosts/drills/mod.rs", "--replicate_dir")),
    ("preemption_grace_s", "-1", &[], Fails("--preemption_grace_s")),
    ("preemption_grace_s", "1", &[], Elsewhere("crates/cli/tests/kill/signals.rs", "--preemption_grace_s")),
    ("step_timeout_s", "-1", &[], Fails("--step_timeout_s")),
    ("step_timeout_s", "2", &[], Elsewhere("crates/cli/tests/hosts/ends.rs", "--step_timeout_s")),
    ("check_replicas", "1", &[DROPOUT_ON_GPU[0], DROPOUT_ON_GPU[1]], Fails("--full_determinism")),
    ("check_replicas", "1", &[], Elsewhere("crates/train/src/guard/replica_tests.rs", "check_replicas")),
    ("on_loss_spike", "skip", &[], Program),
    ("on_loss_spike", "rollback", &[], Fails("--save_strategy")),
    ("on_loss_spike", "rollback", &[], Elsewhere("crates/fullshard/tests/guard.rs", "OnSpike::Rollback")),
    ("loss_spike_factor", "0", &[], Fails("--loss_spike_factor")),
    ("loss_spike_factor", "3", &[], Warns("--loss_spike_factor has no effect")),
    ("loss_spike_factor", "3", &[], Elsewhere("crates/fullshard/tests/guard.rs", "spike_factor")),
];

fn check((flag, value, context, expect): &Row) {
    let label = format!("--{flag} {value}");
    let folder = Folder::new();
    if let Elsewhere(file, test) = expect {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
        assert!(std::fs::read_to_string(&path).unwrap().contains(test), "{label}: not in {file}");
        return;
    }
    let with = || folder.config(context, Some((flag, value)));
    if let Fails(words) = expect {
        let error = with().and_then(|config| Observed::run(&config, &folder)).unwrap_err();
        assert!(error.contains(words), "{label}: {error}");
        return;
    }
    let without = folder.config(context, None).unwrap();
    let program = Observed::program(&without);
    let ((with, with_program), warnings) = observe::warned(|| {
        let with = with().unwrap();
        let program = Observed::program(&with);
        (with, program)
    });
    match expect {
        Program => assert_ne!(with_program, program, "{label} does not change the program"),
        Warns(words) => assert!(warnings.contains(words), "{label}: {warnings:?}"),
        _ => {
            assert_eq!(with_program, program, "{label} changes the program");
            let without = Observed::run(&without, &folder).unwrap();
            let with = Observed::run(&with, &folder).unwrap();
            assert_ne!(with, without, "{label} does not change the run");
        }
    }
}

/// Tests of slices of the table, which run beside each other.
macro_rules! slices {
    ($($name:ident $index:literal)*) => {
        const SLICES: usize = [$($index),*].len();
        $(#[test]
        fn $name() {
            let rows = ROWS.iter().skip($index).step_by(SLICES);
            let failed: Vec<String> = rows
                .filter_map(|row| std::panic::catch_unwind(|| check(row)).err())
                .map(|error| error.downcast_ref::<String>().cloned().unwrap_or_default())
                .collect();
            assert!(failed.is_empty(), "{}", failed.join("\n"));
        })*
    };
}
slices! { rows_0 0 rows_1 1 }

#[test]
fn the_table_has_every_flag_and_key() {
    let rows: BTreeSet<String> = ROWS.iter().map(|row| row.0.to_owned()).collect();
    let flags = Flags::all().into_iter().map(|flag| flag.name.to_owned());
    let expected: BTreeSet<String> = flags.chain(Flags::keys_without()).collect();
    let missing: Vec<_> = expected.difference(&rows).collect();
    assert!(missing.is_empty(), "no row says what these do: {missing:?}");
}
