//! FSDP configs: values, warnings and error messages.
#![allow(clippy::unwrap_used)]

mod errors;

use fullshard_graph::DType;
use fullshard_parallel::config::default_divide_factors;
use fullshard_parallel::{FsdpConfig, FsdpConfigError, Settings, Strategy, WrapPolicy};

/// The config of the PyTorch/XLA FSDP blog post for GPT-2, verbatim.
const BLOG_POST: &str = r#"
    {
        "fsdp_transformer_layer_cls_to_wrap": [
            "GPT2Block"
        ],
        "xla": true,
        "xla_fsdp_settings": {
            "compute_dtype": "bfloat16",
            "shard_param_on_dim_0": true,
            "pin_layout_in_collective_ops": true
        },
       "xla_fsdp_grad_ckpt": true
    }
"#;

fn read(json: &str) -> FsdpConfig {
    FsdpConfig::from_json(json).unwrap()
}

/// Reads one setting.
fn setting(json: &str) -> FsdpConfig {
    read(&format!(r#"{{"xla_fsdp_settings": {{{json}}}}}"#))
}

fn classes(names: &[&str]) -> WrapPolicy {
    WrapPolicy::Classes(names.iter().map(|name| (*name).to_owned()).collect())
}

/// What is said of a key that cannot have an effect.
const PINNED: &str = "`xla_fsdp_settings.pin_layout_in_collective_ops` has no effect here: one \
                      program runs on all devices, so layouts cannot differ";

#[test]
fn blog_post_config() {
    let config = read(BLOG_POST);
    let settings = Settings {
        compute_dtype: DType::Bf16,
        stated_compute_dtype: Some(DType::Bf16),
        shard_param_on_dim_0: true,
        pin_layout_in_collective_ops: Some(true),
        ..Settings::default()
    };
    assert_eq!(
        config,
        FsdpConfig {
            wrap: classes(&["GPT2Block"]),
            gradient_checkpointing: true,
            settings,
            ignored: Vec::new(),
        }
    );
    assert_eq!(config.warnings(), [PINNED]);
    assert!(config.settings.reshard(Strategy::FullShard).unwrap());
}

#[test]
fn empty_config_has_the_documented_defaults() {
    let config = read("{}");
    assert_eq!(config, FsdpConfig::default());
    assert_eq!(config.wrap, WrapPolicy::Blocks);
    assert!(!config.gradient_checkpointing);
    let Settings {
        compute_dtype,
        fp8,
        stated_compute_dtype,
        buffer_dtype,
        fp32_reduce_scatter,
        reshard_after_forward,
        disable_reshard_on_root,
        flatten_parameters,
        shard_param_on_dim_0,
        pin_layout_in_collective_ops,
        optimization_barrier_in_forward,
        optimization_barrier_in_backward,
        reduce_scatter_bucket_size_mb,
        coalesce_all_gather_ops,
        gradient_divide_factors,
        sharding_groups,
        sharding_rank,
        sharding_world_size,
    } = config.settings;
    assert_eq!((sharding_groups, sharding_rank, sharding_world_size), (None, None, None));
    assert_eq!((compute_dtype, stated_compute_dtype, buffer_dtype), (DType::F32, None, None));
    assert!(!fp8 && !fp32_reduce_scatter && !flatten_parameters && !shard_param_on_dim_0);
    assert!(!coalesce_all_gather_ops && reshard_after_forward.is_none());
    assert!(disable_reshard_on_root);
    assert_eq!(pin_layout_in_collective_ops, None);
    assert_eq!((optimization_barrier_in_forward, optimization_barrier_in_backward), (None, None));
    assert_eq!((reduce_scatter_bucket_size_mb, gradient_divide_factors), (0.0, None));
}

#[test]
fn reads_every_setting() {
    let config = read(
        r#"{"xla": true, "xla_fsdp_settings": {
            "compute_dtype": "torch.bfloat16", "buffer_dtype": "float32",
            "fp32_reduce_scatter": true, "reshard_after_forward": false,
            "disable_reshard_on_root": false, "shard_param_on_dim_0": true,
            "pin_layout_in_collective_ops": false, "optimization_barrier_in_forward": false,
            "optimization_barrier_in_backward": false, "reduce_scatter_bucket_size_mb": 25.5,
            "coalesce_all_gather_ops": true, "gradient_divide_factors": [4, 2],
            "sharding_groups": [[0, 1], [2, 3]], "sharding_rank": 1,
            "sharding_world_size": 2}}"#,
    );
    assert_eq!(
        config.settings,
        Settings {
            compute_dtype: DType::Bf16,
            fp8: false,
            stated_compute_dtype: Some(DType::Bf16),
            buffer_dtype: Some(DType::F32),
            fp32_reduce_scatter: true,
            reshard_after_forward: Some(false),
            disable_reshard_on_root: false,
            flatten_parameters: false,
            shard_param_on_dim_0: true,
            pin_layout_in_collective_ops: Some(false),
            optimization_barrier_in_forward: Some(false),
            optimization_barrier_in_backward: Some(false),
            reduce_scatter_bucket_size_mb: 25.5,
            coalesce_all_gather_ops: true,
            gradient_divide_factors: Some((4.0, 2.0)),
            sharding_groups: Some(vec![vec![0, 1], vec![2, 3]]),
            sharding_rank: Some(1),
            sharding_world_size: Some(2),
        }
    );
    let rank = "`xla_fsdp_settings.sharding_rank` has no effect here: one program runs on all \
                devices, and each knows its rank";
    assert_eq!(config.warnings(), [PINNED, rank]);
    assert!(setting(r#""flatten_parameters": true"#).settings.flatten_parameters);
    let types = setting(r#""compute_dtype": "float32", "fp32_reduce_scatter": false"#).settings;
    assert_eq!(types, Settings { stated_compute_dtype: Some(DType::F32), ..Settings::default() });
}

#[test]
fn keys_with_and_without_the_prefix() {
    let bare = BLOG_POST.replace("fsdp_transformer", "transformer");
    assert_ne!(bare, BLOG_POST);
    assert_eq!(read(&bare), read(BLOG_POST));
    assert_eq!(read(r#"{"fsdp_min_num_params": 7}"#), read(r#"{"min_num_params": 7}"#));
    assert_eq!(read(r#"{"fsdp_xla": true}"#), read(r#"{"xla": true}"#));
}

#[test]
fn classes_and_sizes() {
    let wrap = |json: &str| read(json).wrap;
    assert_eq!(wrap(r#"{"transformer_layer_cls_to_wrap": "A"}"#), classes(&["A"]));
    assert_eq!(wrap(r#"{"transformer_layer_cls_to_wrap": "A, B"}"#), classes(&["A", "B"]));
    assert_eq!(wrap(r#"{"transformer_layer_cls_to_wrap": ["A", "B"]}"#), classes(&["A", "B"]));
    assert_eq!(wrap(r#"{"transformer_layer_cls_to_wrap": []}"#), WrapPolicy::Root);
    assert_eq!(wrap(r#"{"min_num_params": 100000000}"#), WrapPolicy::MinSize(100_000_000));
    assert_eq!(wrap(r#"{"min_num_params": 1e8}"#), WrapPolicy::MinSize(100_000_000));
    assert_eq!(wrap(r#"{"min_num_params": 0}"#), WrapPolicy::Blocks);
    let both = r#"{"min_num_params": 0, "transformer_layer_cls_to_wrap": "A",
                   "auto_wrap_policy": "transformer_based_wrap"}"#;
    assert_eq!(wrap(both), classes(&["A"]));
}

#[test]
fn null_is_the_same_as_no_key() {
    let nulls = r#"{"min_num_params": null, "cpu_offload": null,
                    "xla_fsdp_settings": {"buffer_dtype": null, "sharding_groups": null}}"#;
    assert_eq!(read(nulls), FsdpConfig::default());
    assert_eq!(read(r#"{"xla_fsdp_settings": null}"#), FsdpConfig::default());
}

#[test]
fn accepts_torch_names() {
    assert!(read(r#"{"activation_checkpointing": true}"#).gradient_checkpointing);
    assert!(
        read(r#"{"activation_checkpointing": true, "xla_fsdp_grad_ckpt": true}"#)
            .gradient_checkpointing
    );
    let config = read(r#"{"reshard_after_forward": false}"#);
    assert_eq!(config.settings.reshard_after_forward, Some(false));
    assert!(config.warnings().is_empty());
}

#[test]
fn keys_without_effect_are_warnings() {
    let schedule = "the compiler schedules the all-gathers";
    let on_device = "parameters are initialized on each device";
    let step = "a training step is one program, which ends with the step";
    let collective = "`flatten_parameters` makes a unit one collective already";
    for (json, reason) in [
        (r#""xla_fsdp_v2": true"#, "one SPMD program always runs, and the settings apply to it"),
        (r#""fsdp_forward_prefetch": true"#, schedule),
        (r#""limit_all_gathers": true"#, schedule),
        (r#""fsdp_backward_prefetch": "backward_pre""#, schedule),
        (r#""use_orig_params": true"#, "parameters keep their names however they are sharded"),
        (r#""sync_module_states": true"#, on_device),
        (r#""cpu_ram_efficient_loading": true"#, on_device),
        (
            r#""fsdp_state_dict_type": "FULL_STATE_DICT""#,
            "checkpoints hold the shards of all devices and load on any mesh",
        ),
        (
            r#""fsdp_version": 2"#,
            "all versions of PyTorch FSDP train the same way, and so does this",
        ),
    ] {
        let key = json.split('"').nth(1).unwrap();
        let warnings = read(&format!("{{{json}}}")).warnings();
        assert_eq!(warnings, [format!("`{key}` has no effect here: {reason}")]);
    }
    for (json, reason) in [
        (r#""sync_on_finalization": true"#, step),
        (r#""mark_step_on_finalization": true"#, step),
        (
            r#""execute_sharding_on_init": true"#,
            "parameters are initialized as shards, never in full",
        ),
        (
            r#""_shard_size_multiple": 64"#,
            "flat shards are padded to multiples of 128 elements, dim 0 shards to full rows",
        ),
        (
            r#""_use_xla_patched_linear": true"#,
            "gathered parameters are saved for the backward pass only where resharding is off",
        ),
        (r#""_debug_print": true"#, "the plan and the compiled program can be printed instead"),
        (r#""_debug_msg": "mine""#, "there is no debug output to label"),
        (
            r#""shard_param_on_dim_0": true, "flatten_parameters": true"#,
            "`flatten_parameters` leaves no dimensions to shard",
        ),
        (r#""reduce_scatter_bucket_size_mb": 25, "flatten_parameters": true"#, collective),
        (r#""coalesce_all_gather_ops": true, "flatten_parameters": true"#, collective),
        (r#""fp32_reduce_scatter": true"#, "gradients are computed in float32 already"),
    ] {
        let key = json.split('"').nth(1).unwrap();
        let warning = format!("`xla_fsdp_settings.{key}` has no effect here: {reason}");
        assert_eq!(setting(json).warnings(), [warning]);
    }
    assert_eq!(
        read(r#"{"xla": false}"#).warnings(),
        ["`xla` is false, which elsewhere selects PyTorch FSDP: here everything runs on XLA, and \
          `xla_fsdp_settings` apply"]
    );
}

#[test]
fn float16_is_a_warning() {
    let config = setting(r#""compute_dtype": "torch.float16", "fp32_reduce_scatter": true"#);
    assert_eq!(config.settings.compute_dtype, DType::F16);
    assert_eq!(
        config.warnings(),
        ["small gradients underflow in float16, since there is no loss scaling here: bfloat16 \
          has the range"]
    );
}

/// The matmuls of layers are in FP8; the rest, communication included, is in bfloat16.
#[test]
fn fp8_is_for_matmuls_only() {
    let config = setting(r#""compute_dtype": "torch.float8_e4m3fn""#);
    let expected = Settings {
        compute_dtype: DType::Bf16,
        fp8: true,
        stated_compute_dtype: Some(DType::F8E4M3FN),
        ..Settings::default()
    };
    assert_eq!((config.settings.clone(), config.warnings()), (expected, Vec::new()));
    assert!(!setting(r#""compute_dtype": "bfloat16""#).settings.fp8);
}

/// Warnings are about the current settings, not those that were read.
#[test]
fn warnings_follow_the_settings() {
    let mut config = setting(r#""fp32_reduce_scatter": true"#);
    assert_eq!(config.warnings().len(), 1);
    config.settings.compute_dtype = DType::Bf16;
    assert_eq!(config.warnings(), Vec::<String>::new());
}

#[test]
fn disabling_unsupported_features_is_fine() {
    let off = r#"{"cpu_offload": false, "xla_fsdp_v2": false, "forward_prefetch": false,
                  "xla_fsdp_settings": {"_debug_dummy_forward_pass": false,
                                        "_shard_size_multiple": 128}}"#;
    assert_eq!(read(off), FsdpConfig::default());
}

#[test]
fn coalesced_gathers_work_with_pinned_layouts() {
    let config =
        setting(r#""coalesce_all_gather_ops": true, "pin_layout_in_collective_ops": true"#);
    assert!(config.settings.coalesce_all_gather_ops);
    assert_eq!(config.warnings(), [PINNED]);
}

#[test]
fn argument_is_json_or_a_path() {
    let folder = std::env::temp_dir().join(format!("fullshard-config-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("fsdp_config.json");
    let argument = path.to_str().unwrap();

    let missing = FsdpConfig::from_argument(argument).unwrap_err();
    assert!(matches!(missing, FsdpConfigError::Unreadable { .. }));
    assert_eq!(
        missing.to_string(),
        format!(
            "cannot read the FSDP config {argument}: No such file or directory (os error 2). Pass \
             the path of a JSON file, or the JSON itself, beginning with `{{`"
        )
    );
    std::fs::write(&path, BLOG_POST).unwrap();
    assert_eq!(FsdpConfig::from_argument(argument).unwrap(), read(BLOG_POST));
    assert_eq!(FsdpConfig::from_argument(BLOG_POST).unwrap(), read(BLOG_POST));

    std::fs::write(&path, r#"{"xla": 1}"#).unwrap();
    let bad = FsdpConfig::from_argument(argument).unwrap_err().to_string();
    assert_eq!(bad, format!("{argument}: `xla` is 1 but must be true or false"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn parses_strategies() {
    for (words, strategy) in [
        ("full_shard", Strategy::FullShard),
        ("full_shard auto_wrap", Strategy::FullShard),
        ("auto_wrap,shard_grad_op", Strategy::ShardGradOp),
        (" no_shard ", Strategy::NoShard),
        ("full_shard, full_shard", Strategy::FullShard),
        ("auto_wrap", Strategy::FullShard),
        ("hybrid_shard auto_wrap", Strategy::HybridShard),
        ("hybrid_shard_zero2", Strategy::HybridShardZero2),
        ("weight_update", Strategy::WeightUpdate),
        ("true", Strategy::FullShard),
    ] {
        assert_eq!(words.parse::<Strategy>().unwrap(), strategy, "{words}");
    }
    let valid = "full_shard, shard_grad_op, weight_update, hybrid_shard, hybrid_shard_zero2 or \
                 no_shard, optionally with auto_wrap";
    let choose = "choose one of them";
    for (words, message) in [
        ("", format!("`--fsdp` is empty but must be {valid}")),
        ("full_shard fast", format!("`--fsdp` is `fast` but must be {valid}")),
        ("Full_Shard", format!("`--fsdp` is `Full_Shard` but must be {valid}")),
        (
            "full_shard shard_grad_op",
            format!("`--fsdp full_shard` and `shard_grad_op` contradict each other: {choose}"),
        ),
        (
            "no_shard auto_wrap full_shard",
            format!("`--fsdp no_shard` and `full_shard` contradict each other: {choose}"),
        ),
        (
            "full_shard offload",
            "`--fsdp` is offload, which is not supported: shards stay in device memory. Leave \
             it out; more devices or gradient checkpointing make room"
                .to_owned(),
        ),
    ] {
        assert_eq!(words.parse::<Strategy>().unwrap_err().to_string(), message);
    }
}

#[test]
fn strategies_and_resharding() {
    let reshard = |choice, strategy| {
        Settings { reshard_after_forward: choice, ..Settings::default() }.reshard(strategy)
    };
    assert!(reshard(None, Strategy::FullShard).unwrap());
    assert!(reshard(Some(true), Strategy::FullShard).unwrap());
    assert!(!reshard(Some(false), Strategy::FullShard).unwrap());
    assert!(!reshard(None, Strategy::ShardGradOp).unwrap());
    assert!(!reshard(Some(false), Strategy::ShardGradOp).unwrap());
    assert!(!reshard(None, Strategy::NoShard).unwrap());
    for strategy in [Strategy::ShardGradOp, Strategy::NoShard] {
        assert_eq!(
            reshard(Some(true), strategy).unwrap_err().to_string(),
            format!(
                "`--fsdp {strategy}` and `reshard_after_forward: true` contradict each other: \
                 write `--fsdp full_shard`, or leave reshard_after_forward out"
            )
        );
    }
}

#[test]
fn divide_factors() {
    for (world, factors) in [
        (1, (1.0, 1.0)),
        (2, (2.0, 1.0)),
        (4, (2.0, 2.0)),
        (8, (4.0, 2.0)),
        (16, (4.0, 4.0)),
        (32, (8.0, 4.0)),
        (64, (8.0, 8.0)),
        (256, (16.0, 16.0)),
        (3, (2.0, 1.5)),
        (6, (4.0, 1.5)),
    ] {
        assert_eq!(default_divide_factors(world), factors, "{world} devices");
        assert_eq!(Settings::default().divide_factors(world), factors, "{world} devices");
    }
    let given = setting(r#""gradient_divide_factors": [8, 1]"#).settings;
    assert_eq!(given.divide_factors(8), (8.0, 1.0));
    let scaling = setting(r#""gradient_divide_factors": [2, 1]"#).settings;
    assert_eq!(scaling.divide_factors(8), (2.0, 1.0), "four times the mean, as requested");
    let mean = setting(r#""gradient_divide_factors": [1, 1]"#).settings;
    assert_eq!(mean.divide_factors(8), (1.0, 8.0));
}
