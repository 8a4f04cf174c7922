//! Configs: defaults, alternative names, and errors.
#![allow(clippy::unwrap_used)]

use fullshard_models::gpt2::Gpt2Config;
use fullshard_models::layers::rotary::Scaling;
use fullshard_models::llama::LlamaConfig;
use fullshard_models::{Initializer, from_file, from_json};
use std::error::Error;

#[track_caller]
fn assert_rejected(config: &str, message: &str) {
    let error = from_json(config).unwrap_err().to_string();
    assert_eq!(error, message, "for {config}");
}

fn gpt2(fields: &str) -> String {
    format!("{{\"model_type\": \"gpt2\", {fields}}}")
}

fn llama(fields: &str) -> String {
    format!("{{\"model_type\": \"llama\", {fields}}}")
}

#[test]
fn rejects_bad_sizes_and_numbers() {
    let size = "but must be an integer from 1 to 2147483647";
    for (field, value) in [("n_head", "0"), ("n_embd", "-8"), ("vocab_size", "\"many\"")] {
        let config = gpt2(&format!("\"{field}\": {value}"));
        assert_rejected(&config, &format!("`{field}` is {value}, {size}"));
    }
    for (field, value) in [("n_positions", "1.5"), ("n_inner", "[3]"), ("n_head", "true")] {
        let config = gpt2(&format!("\"{field}\": {value}"));
        assert_rejected(&config, &format!("`{field}` is {value}, {size}"));
    }
    assert_rejected(&gpt2("\"hidden_size\": 0"), &format!("`hidden_size` is 0, {size}"));
    assert_rejected(
        &gpt2("\"n_layer\": 0"),
        "`n_layer` is 0, but must be an integer from 1 to 100000",
    );
    assert_rejected(
        &gpt2("\"attn_pdrop\": 1.0"),
        "`attn_pdrop` is 1.0, but must be a number from 0 to below 1",
    );
    assert_rejected(
        &gpt2("\"resid_pdrop\": -0.1"),
        "`resid_pdrop` is -0.1, but must be a number from 0 to below 1",
    );
    assert_rejected(
        &gpt2("\"layer_norm_epsilon\": 0"),
        "`layer_norm_epsilon` is 0, but must be a number above 0",
    );
    assert_rejected(
        &llama("\"rms_norm_eps\": -1e-6"),
        "`rms_norm_eps` is -1e-6, but must be a number above 0",
    );
    assert_rejected(
        &llama("\"initializer_range\": -0.02"),
        "`initializer_range` is -0.02, but must be a number of at least 0",
    );
    assert_rejected(
        &gpt2("\"tie_word_embeddings\": \"yes\""),
        "`tie_word_embeddings` is \"yes\", but must be true or false",
    );
}

#[test]
fn rejects_huge_sizes() {
    for value in ["2147483648", "18446744073709551615", "1e30"] {
        let shown: serde_json::Value = serde_json::from_str(value).unwrap();
        assert_rejected(
            &llama(&format!("\"vocab_size\": {value}")),
            &format!("`vocab_size` is {shown}, but must be an integer from 1 to 2147483647"),
        );
    }
    assert_rejected(
        &gpt2("\"n_layer\": 2000000000"),
        "`n_layer` is 2000000000, but must be an integer from 1 to 100000",
    );
    assert_rejected(
        &llama("\"num_hidden_layers\": 100001"),
        "`num_hidden_layers` is 100001, but must be an integer from 1 to 100000",
    );
    let smaller = |field: &str, value: &str, product: &str| {
        format!("`{field}` is {value}, but must be smaller: {product}, above 2^48")
    };
    assert_rejected(
        &gpt2("\"n_embd\": 2000000004, \"vocab_size\": 1, \"n_positions\": 1"),
        &smaller("n_embd", "2000000004", "`n_layer` times `n_embd` times `n_embd` is 4.8e19"),
    );
    assert_rejected(
        &gpt2("\"vocab_size\": 2000000000, \"n_embd\": 1200000"),
        &smaller("vocab_size", "2000000000", "`vocab_size` times `n_embd` is 2.4e15"),
    );
    assert_rejected(
        &gpt2("\"n_positions\": 2000000000, \"n_embd\": 1200000"),
        &smaller("n_positions", "2000000000", "`n_positions` times `n_embd` is 2.4e15"),
    );
    assert_rejected(
        &gpt2("\"n_inner\": 2000000000, \"n_layer\": 1000"),
        &smaller("n_inner", "2000000000", "`n_layer` times `n_embd` times `n_inner` is 1.5e15"),
    );
    assert_rejected(
        &llama("\"intermediate_size\": 2147483647, \"num_hidden_layers\": 64"),
        &smaller(
            "intermediate_size",
            "2147483647",
            "`num_hidden_layers` times `hidden_size` times `intermediate_size` is 5.6e14",
        ),
    );
    assert_rejected(
        &llama("\"head_dim\": 2147483646"),
        &smaller(
            "head_dim",
            "2147483646",
            "`num_hidden_layers` times `hidden_size` times `num_attention_heads` times `head_dim` \
             is 9.0e15",
        ),
    );
}

#[test]
fn largest_sizes_can_be_counted() {
    let most = (1_usize << 48) as f64;
    let model = gpt2(
        "\"n_embd\": 1024, \"n_head\": 1, \"n_inner\": 2147483647, \"n_layer\": 128,
         \"vocab_size\": 2147483647, \"n_positions\": 2147483647",
    );
    let elements = from_json(&model).unwrap().tree().elements() as f64;
    assert!(elements > 2.0 * most && elements < 32.0 * most, "{elements}");
}

#[test]
fn padding_token_is_in_the_vocabulary_or_none() {
    let token = |value: &str| {
        let config = format!("{{\"vocab_size\": 50, \"pad_token_id\": {value}}}");
        LlamaConfig::from_json(&config).unwrap().pad_token_id
    };
    assert_eq!(["null", "-1", "0", "49"].map(token), [None, None, Some(0), Some(49)]);
    assert_eq!(LlamaConfig::from_json("{}").unwrap().pad_token_id, None);
    for value in ["50", "1.5", "\"<pad>\""] {
        assert_rejected(
            &llama(&format!("\"vocab_size\": 50, \"pad_token_id\": {value}")),
            &format!(
                "`pad_token_id` is {value}, but must be null or a token of the vocabulary, from 0 \
                 to 49"
            ),
        );
    }
}

#[test]
fn rejects_inconsistent_fields() {
    assert_rejected(
        &gpt2("\"n_embd\": 100, \"n_head\": 12"),
        "`n_embd` is 100, but must be a multiple of `n_head`, which is 12",
    );
    assert_rejected(
        &gpt2("\"add_cross_attention\": true"),
        "`add_cross_attention` is true, but must be false: there is no encoder to attend to",
    );
    assert_rejected(
        &llama("\"hidden_size\": 100, \"num_attention_heads\": 8"),
        "`hidden_size` is 100, but must be a multiple of `num_attention_heads`, which is 8",
    );
    assert_rejected(
        &llama("\"num_attention_heads\": 8, \"num_key_value_heads\": 3"),
        "`num_key_value_heads` is 3, but must be a divisor of `num_attention_heads`, which is 8",
    );
    assert_rejected(
        &llama("\"hidden_size\": 15, \"num_attention_heads\": 3"),
        "`head_dim` is 5, but must be even, because rotary embeddings rotate pairs (the default is \
         `hidden_size` / `num_attention_heads`)",
    );
}

#[test]
fn unknown_choices_list_the_supported_ones() {
    let activations = "one of gelu, gelu_10, gelu_accurate, gelu_fast, gelu_new, gelu_python, \
                       gelu_python_tanh, gelu_pytorch_tanh, hardswish, leaky_relu, linear, mish, \
                       quick_gelu, relu, relu2, relu6, sigmoid, silu, swish, tanh";
    assert_rejected(
        &gpt2("\"activation_function\": \"gelo\""),
        &format!("`activation_function` is \"gelo\", but must be {activations}"),
    );
    assert_rejected(
        &llama("\"hidden_act\": 3"),
        &format!("`hidden_act` is 3, but must be {activations}"),
    );
    assert_rejected(
        &llama("\"rope_scaling\": {\"type\": \"longrope\"}"),
        "`rope_scaling.type` is \"longrope\", but must be one of default, linear, dynamic, yarn, \
         llama3",
    );
    let known = "the supported models are gpt2 (GPT2LMHeadModel), llama (LlamaForCausalLM)";
    assert_rejected(
        "{\"model_type\": \"bert\"}",
        &format!("`model_type` is \"bert\", but {known}"),
    );
    assert_rejected(
        "{\"architectures\": [\"BertModel\"]}",
        &format!("`architectures` is \"BertModel\", but {known}"),
    );
    assert_rejected(
        "{\"n_embd\": 12}",
        "neither `model_type` nor `architectures` is set; the supported models are gpt2 \
         (GPT2LMHeadModel), llama (LlamaForCausalLM)",
    );
}

#[test]
fn rejects_bad_rotary_scaling() {
    assert_rejected(
        &llama("\"rope_parameters\": {\"rope_type\": \"linear\"}"),
        "`rope_parameters.factor` is missing; it must be a number above 0",
    );
    assert_rejected(
        &llama("\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 0}"),
        "`rope_scaling.factor` is 0, but must be a number above 0",
    );
    assert_rejected(
        &llama(
            "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \
             \"low_freq_factor\": 4, \"high_freq_factor\": 1}",
        ),
        "`rope_scaling.high_freq_factor` is 1, but must be above `low_freq_factor`, which is 4",
    );
    assert_rejected(
        &llama("\"rope_parameters\": 10000"),
        "`rope_parameters` is 10000, but must be an object",
    );
    assert_rejected(&llama("\"rope_theta\": 0"), "`rope_theta` is 0, but must be a number above 0");
}

#[test]
fn json_errors_have_line_and_column() {
    assert_rejected(
        "{\"model_type\": \"gpt2\",\n \"n_embd\": }",
        "the config is not a JSON object: expected value at line 2 column 12",
    );
    assert_rejected("[1]", "the config is not a JSON object: it is [1]");
}

#[test]
fn errors_name_the_file() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    let error = from_file(format!("{data}/none.json")).unwrap_err();
    let expected = format!("cannot read the config {data}/none.json: No such file or directory");
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert!(error.source().is_some());
    let error = from_file(format!("{data}/record.py")).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("in {data}/record.py: the config is not a JSON")),
        "{error}"
    );
}

#[test]
fn defaults_match_transformers() {
    let config = Gpt2Config::from_json("{}").unwrap();
    assert_eq!((config.vocab_size, config.n_positions, config.n_embd), (50257, 1024, 768));
    assert_eq!((config.n_layer, config.n_head, config.n_inner), (12, 12, 3072));
    assert_eq!(config.activation_function.name, "gelu_new");
    assert_eq!((config.embd_pdrop, config.attn_pdrop, config.resid_pdrop), (0.1, 0.1, 0.1));
    assert_eq!((config.layer_norm_epsilon, config.initializer_range), (1e-5, 0.02));
    assert!(config.scale_attn_weights && config.tie_word_embeddings);
    assert!(!config.scale_attn_by_inverse_layer_idx && !config.reorder_and_upcast_attn);

    let config = LlamaConfig::from_json("{}").unwrap();
    assert_eq!((config.vocab_size, config.hidden_size), (32000, 4096));
    assert_eq!((config.intermediate_size, config.num_hidden_layers), (11008, 32));
    assert_eq!((config.num_attention_heads, config.num_key_value_heads), (32, 32));
    assert_eq!((config.head_dim, config.max_position_embeddings), (128, 2048));
    assert_eq!(config.hidden_act.name, "silu");
    assert_eq!((config.initializer_range, config.rms_norm_eps), (0.02, 1e-6));
    assert!(!config.tie_word_embeddings && !config.attention_bias && !config.mlp_bias);
    assert_eq!((config.rotary.theta, config.rotary.scaling), (10000.0, Scaling::Default));
}

#[test]
fn accepts_alternative_names_and_unknown_fields() {
    let config = "{\"architectures\": [\"GPT2LMHeadModel\"], \"hidden_size\": 20,
        \"num_attention_heads\": 5, \"num_hidden_layers\": 3, \"max_position_embeddings\": 9,
        \"n_ctx\": 4, \"n_inner\": null, \"vocab_size\": 30, \"summary_type\": \"cls_index\",
        \"what_is_this\": {\"a\": 1}}";
    let sizes = from_json(config).unwrap().dimensions();
    assert_eq!((sizes.hidden, sizes.heads, sizes.layers), (20, 5, 3));
    assert_eq!((sizes.head, sizes.inner, sizes.positions, sizes.vocabulary), (4, 80, 9, 30));
}

#[test]
fn old_and_new_names_of_rotary_scaling_match() {
    let old = "{\"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}";
    let new = "{\"rope_parameters\":
        {\"rope_theta\": 5e5, \"rope_type\": \"linear\", \"factor\": 2.0}}";
    let [old, new] = [old, new].map(|text| LlamaConfig::from_json(text).unwrap());
    assert_eq!(old, new);
    assert_eq!((new.rotary.theta, new.rotary.scaling), (5e5, Scaling::Linear { factor: 2.0 }));
}

#[test]
fn initializers_match_transformers() {
    let model = from_json(&gpt2("\"n_layer\": 8, \"initializer_range\": 0.04")).unwrap();
    let tree = model.tree();
    let named = tree.named_parameters();
    let initializer = |name: &str| {
        named.iter().find(|(known, _)| known == name).map(|(_, p)| p.initializer).unwrap()
    };
    let normal = |deviation| Initializer::Normal { std: deviation };
    assert_eq!(initializer("transformer.wpe.weight"), normal(0.04));
    assert_eq!(initializer("transformer.h.3.attn.c_attn.weight"), normal(0.04));
    assert_eq!(initializer("transformer.h.3.attn.c_proj.weight"), normal(0.01));
    assert_eq!(initializer("transformer.h.7.mlp.c_proj.weight"), normal(0.01));
    assert_eq!(initializer("transformer.h.0.mlp.c_fc.bias"), Initializer::Zeros);
    assert_eq!(initializer("transformer.h.0.ln_1.weight"), Initializer::Ones);
    assert_eq!(initializer("transformer.ln_f.bias"), Initializer::Zeros);
}

#[test]
fn only_the_padding_token_of_llama_is_zero_initialized() {
    let zero_rows = |config: &str| -> Vec<(String, usize)> {
        let tree = from_json(config).unwrap().tree();
        let named = tree.named_parameters().into_iter();
        named.filter_map(|(name, p)| Some((name, p.zero_row?))).collect()
    };
    let found = zero_rows(&llama("\"num_hidden_layers\": 2, \"pad_token_id\": 7"));
    assert_eq!(found, [("model.embed_tokens.weight".to_owned(), 7)]);
    assert_eq!(zero_rows(&llama("\"pad_token_id\": -1")), []);
    assert_eq!(zero_rows(&gpt2("\"pad_token_id\": 7")), []);
}

#[test]
fn gpt2_small_has_124_million_parameters() {
    assert_eq!(from_json("{\"model_type\": \"gpt2\"}").unwrap().tree().elements(), 124_439_808);
}
