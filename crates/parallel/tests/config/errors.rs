//! Configs that are rejected, with their error messages.

use fullshard_parallel::FsdpConfig;

fn error(json: &str) -> String {
    FsdpConfig::from_json(json).unwrap_err().to_string()
}

const KEYS: &str = "xla_fsdp_settings, transformer_layer_cls_to_wrap, min_num_params, \
                    auto_wrap_policy, xla_fsdp_grad_ckpt, activation_checkpointing, \
                    reshard_after_forward, xla";

const SETTINGS: &str = "compute_dtype, buffer_dtype, fp32_reduce_scatter, \
                        disable_reshard_on_root, flatten_parameters, shard_param_on_dim_0, \
                        coalesce_all_gather_ops, pin_layout_in_collective_ops, \
                        optimization_barrier_in_forward, optimization_barrier_in_backward, \
                        reshard_after_forward, reduce_scatter_bucket_size_mb, \
                        gradient_divide_factors, sharding_groups, sharding_rank, \
                        sharding_world_size";

#[test]
fn suggests_the_nearest_known_key() {
    for (json, message) in [
        (
            r#"{"fsdp_transformer_layers_cls_to_wrap": "A"}"#,
            "unknown key `fsdp_transformer_layers_cls_to_wrap` \
             (did you mean `transformer_layer_cls_to_wrap`?)",
        ),
        (r#"{"XLA": true}"#, "unknown key `XLA` (did you mean `xla`?)"),
        (
            r#"{"xla_fsdp_grad_checkpoint": true}"#,
            "unknown key `xla_fsdp_grad_checkpoint` (did you mean `xla_fsdp_grad_ckpt`?)",
        ),
        (
            r#"{"compute_dtype": "bfloat16"}"#,
            "unknown key `compute_dtype`; it belongs inside `xla_fsdp_settings`",
        ),
    ] {
        assert_eq!(error(json), format!("{message}; valid keys are {KEYS}"));
    }
    for (json, message) in [
        (
            r#"{"xla_fsdp_settings": {"compute_type": "bfloat16"}}"#,
            "unknown key `xla_fsdp_settings.compute_type` (did you mean `compute_dtype`?)",
        ),
        (
            r#"{"xla_fsdp_settings": {"xla_fsdp_grad_ckpt": true}}"#,
            "unknown key `xla_fsdp_settings.xla_fsdp_grad_ckpt`; it belongs beside \
             `xla_fsdp_settings`, not inside it",
        ),
        (
            r#"{"xla_fsdp_settings": {"quantize": true}}"#,
            "unknown key `xla_fsdp_settings.quantize`",
        ),
    ] {
        assert_eq!(error(json), format!("{message}; valid keys are {SETTINGS}"));
    }
}

#[test]
fn rejects_bad_values() {
    let class = "a class name or a list of them, such as [\"GPT2Block\"]";
    for (json, key, found, expected) in [
        (r#"{"xla": "true"}"#, "xla", r#""true""#, "true or false"),
        (r#"{"xla": 1}"#, "xla", "1", "true or false"),
        (r#"{"xla_fsdp_v2": "yes"}"#, "xla_fsdp_v2", r#""yes""#, "true or false"),
        (r#"{"fsdp_version": "2"}"#, "fsdp_version", r#""2""#, "a whole number"),
        (r#"{"backward_prefetch": 1}"#, "backward_prefetch", "1", "a string"),
        (
            r#"{"xla_fsdp_settings": ["compute_dtype"]}"#,
            "xla_fsdp_settings",
            r#"["compute_dtype"]"#,
            "an object of settings",
        ),
        (
            r#"{"fsdp_transformer_layer_cls_to_wrap": 3}"#,
            "fsdp_transformer_layer_cls_to_wrap",
            "3",
            class,
        ),
        (
            r#"{"transformer_layer_cls_to_wrap": ["A", 3]}"#,
            "transformer_layer_cls_to_wrap",
            r#"["A",3]"#,
            class,
        ),
        (
            r#"{"transformer_layer_cls_to_wrap": ""}"#,
            "transformer_layer_cls_to_wrap",
            r#""""#,
            class,
        ),
        (
            r#"{"transformer_layer_cls_to_wrap": "A,,B"}"#,
            "transformer_layer_cls_to_wrap",
            r#""A,,B""#,
            class,
        ),
        (
            r#"{"fsdp_min_num_params": -1}"#,
            "fsdp_min_num_params",
            "-1",
            "a whole number of elements, or 0 for no wrapping by size",
        ),
        (
            r#"{"min_num_params": 1.5}"#,
            "min_num_params",
            "1.5",
            "a whole number of elements, or 0 for no wrapping by size",
        ),
        (
            r#"{"min_num_params": "100M"}"#,
            "min_num_params",
            r#""100M""#,
            "a whole number of elements, or 0 for no wrapping by size",
        ),
        (
            r#"{"auto_wrap_policy": "ALWAYS"}"#,
            "auto_wrap_policy",
            r#""ALWAYS""#,
            "\"TRANSFORMER_BASED_WRAP\", \"SIZE_BASED_WRAP\" or \"NO_WRAP\"",
        ),
    ] {
        assert_eq!(error(json), format!("`{key}` is {found} but must be {expected}"));
    }
}

#[test]
fn rejects_bad_settings() {
    let dtypes = r#""float32", "bfloat16" or "float16""#;
    let compute_dtypes = "\"float32\", \"bfloat16\", \"float16\", or \"float8_e4m3fn\" for \
                          bfloat16 with the matmuls of layers in FP8";
    let bucket = "a number of megabytes from 0, for no buckets, to 65536";
    let factors = "two positive numbers, [before, after]: summed gradients are divided by their \
                   product, and anything but the number of devices scales them";
    for (key, value, expected) in [
        ("compute_dtype", r#""float64""#, compute_dtypes),
        ("compute_dtype", r#""float8_e5m2""#, compute_dtypes),
        ("compute_dtype", r#""bf16""#, compute_dtypes),
        ("compute_dtype", "16", compute_dtypes),
        ("buffer_dtype", r#""torch.float64""#, dtypes),
        ("buffer_dtype", r#""float8_e4m3fn""#, dtypes),
        ("flatten_parameters", "0", "true or false"),
        ("shard_param_on_dim_0", r#""True""#, "true or false"),
        ("reshard_after_forward", r#""full_shard""#, "true or false"),
        ("reduce_scatter_bucket_size_mb", "-1", bucket),
        ("reduce_scatter_bucket_size_mb", "26214400", bucket),
        ("reduce_scatter_bucket_size_mb", r#""25""#, bucket),
        ("gradient_divide_factors", "8", factors),
        ("gradient_divide_factors", "[8]", factors),
        ("gradient_divide_factors", "[4,0]", factors),
        ("gradient_divide_factors", "[-4,2]", factors),
        ("_shard_size_multiple", "-128", "a whole number"),
    ] {
        let json = format!(r#"{{"xla_fsdp_settings": {{"{key}": {value}}}}}"#);
        let message = format!("`xla_fsdp_settings.{key}` is {value} but must be {expected}");
        assert_eq!(error(&json), message);
    }
}

#[test]
fn rejects_unsupported_keys_with_a_reason() {
    let callable =
        "JSON cannot hold a function. Set transformer_layer_cls_to_wrap or min_num_params";
    let dummy = "a step without some of its ops trains nothing. Leave it out; `fullshard exec \
                 --profile` shows what each costs";
    for (key, value, reason) in [
        ("auto_wrap_policy", r#""size""#, callable),
        ("auto_wrapper_callable", r#""wrap""#, callable),
        (
            "param_init_fn",
            r#""init""#,
            "JSON cannot hold a function, and parameters are initialized as shards",
        ),
        ("_debug_dummy_forward_pass", "true", dummy),
        ("_debug_dummy_all_gather_op", "true", dummy),
        ("_debug_dummy_all_reduce_op", "true", dummy),
        ("_debug_dummy_reduce_scatter_op", "true", dummy),
        ("_debug_dummy_optimization_barrier_op", "true", dummy),
    ] {
        let json = format!(r#"{{"xla_fsdp_settings": {{"{key}": {value}}}}}"#);
        let found = format!("`xla_fsdp_settings.{key}` is {value}");
        assert_eq!(error(&json), format!("{found}, which is not supported: {reason}"));
    }
    let offload = "shards stay in device memory. Leave it out; more devices or gradient \
                   checkpointing make room";
    let precision = "set xla_fsdp_settings.compute_dtype instead";
    for (key, value, reason) in [
        ("fsdp_cpu_offload", "true", offload),
        ("fsdp_offload_params", "true", offload),
        ("mixed_precision", r#""bf16""#, precision),
        ("mixed_precision_policy", r#"{"param_dtype":"bf16"}"#, precision),
        (
            "fsdp_sharding_strategy",
            r#""HYBRID_SHARD""#,
            "set `--fsdp` instead, such as full_shard or hybrid_shard",
        ),
        (
            "ignored_modules",
            r#"["lm_head"]"#,
            "every parameter is sharded. To keep some from training, freeze them",
        ),
    ] {
        let message = format!("`{key}` is {value}, which is not supported: {reason}");
        assert_eq!(error(&format!(r#"{{"{key}": {value}}}"#)), message);
    }
}

#[test]
fn rejects_contradictions() {
    for (json, message) in [
        (
            r#"{"min_num_params": 5, "fsdp_min_num_params": 5}"#,
            "`min_num_params` and `fsdp_min_num_params` are the same key: leave one of them out",
        ),
        (
            r#"{"min_num_params": 1e8, "transformer_layer_cls_to_wrap": ["GPT2Block"]}"#,
            "`transformer_layer_cls_to_wrap: [\"GPT2Block\"]` and `min_num_params: 100000000` \
             contradict each other: modules are wrapped by class or by size, leave one of them out",
        ),
        (
            r#"{"activation_checkpointing": true, "xla_fsdp_grad_ckpt": false}"#,
            "`xla_fsdp_grad_ckpt: false` and `activation_checkpointing: true` contradict each \
             other: they are the same option, leave one of them out",
        ),
        (
            r#"{"reshard_after_forward": true,
                "xla_fsdp_settings": {"reshard_after_forward": false}}"#,
            "`xla_fsdp_settings.reshard_after_forward: false` and `reshard_after_forward: true` \
             contradict each other: they are the same option, leave one of them out",
        ),
        (
            r#"{"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_layer_cls_to_wrap": []}"#,
            "`auto_wrap_policy: TRANSFORMER_BASED_WRAP` and nothing to wrap contradict each \
             other: the policy follows from transformer_layer_cls_to_wrap or \
             min_num_params, leave auto_wrap_policy out",
        ),
    ] {
        assert_eq!(error(json), message);
    }
}

#[test]
fn rejects_other_json_than_objects() {
    let message = "must be a JSON object, such as {\"xla\": true}";
    assert_eq!(error("[]"), format!("the FSDP config is [] but {message}"));
    assert_eq!(error("true"), format!("the FSDP config is true but {message}"));
    assert_eq!(
        error(r#"{"xla": true,}"#),
        "the FSDP config is not JSON: trailing comma at line 1 column 14"
    );
    let long = format!("\"{}\"", "x".repeat(100));
    let shown = format!("\"{}…", "x".repeat(59));
    assert_eq!(error(&long), format!("the FSDP config is {shown} but {message}"));
}
