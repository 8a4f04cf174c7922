//! `fullshard bench step`: its measurements, plans and errors.
#![allow(clippy::unwrap_used)]

use fullshard_core::Platform;
use fullshard_pjrt::plugins::{Store, find_or_install};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

const CONFIGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/configs");

const TINY: &str = r#"{"model_type": "gpt2", "vocab_size": 67, "n_positions": 16, "n_embd": 16,
    "n_layer": 2, "n_head": 2, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}"#;

/// 67·16 + 16·16 + 2·(12·16² + 13·16) + 2·16, as GPT-2 counts its parameters.
const TINY_PARAMETERS: u64 = 7920;

const BLOCKS: &str = r#"{"transformer_layer_cls_to_wrap": "GPT2Block"}"#;

/// A temporary folder of a test: files, plugin cache and compile cache.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.write("tiny.json", TINY);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, contents: &str) {
        fs::write(self.path(name), contents).unwrap();
    }

    /// Benchmarks a model of this folder, with an empty cache and the CPU plugin.
    fn step(&self, config: &str, args: &[&str]) -> Output {
        let store = Store::default_location().unwrap();
        let cpu = find_or_install(Platform::Cpu, None, &store).unwrap().path;
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullshard"));
        command.args(["bench", "step", "--config", config]).args(args);
        command.current_dir(self.0.path()).env("FULLSHARD_CACHE", self.path("cache"));
        command.env("FULLSHARD_CPU_PLUGIN", cpu).env_remove("PJRT_DEVICE").output().unwrap()
    }

    fn json(&self, config: &str, args: &[&str]) -> Value {
        let output = self.step(config, &[args, &["--json"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let stderr = text(&output.stderr);
        assert!(stderr.lines().all(|line| line.contains(" no effect ")), "{stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The plan of an example.
    fn plan(&self, config: &str, args: &[&str]) -> Value {
        self.json(&format!("{CONFIGS}/{config}"), &[args, &["--plan"]].concat())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The number and bytes of collectives of a kind per step.
fn collectives(report: &Value, kind: &str) -> (u64, u64) {
    let rows = report["collectives"].as_array().unwrap().iter();
    let rows: Vec<&Value> = rows.filter(|row| row["kind"] == kind).collect();
    assert!(rows.iter().all(|row| row["dtype"] == "f32" && row["group_size"] == 2), "{rows:?}");
    let sum = |field: &str| rows.iter().map(|row| row[field].as_u64().unwrap()).sum();
    (sum("count"), sum("bytes_per_step"))
}

/// The same from the rows by module, which must be of one axis, most bytes first.
fn collectives_of_modules(report: &Value, kind: &str) -> (u64, u64) {
    let rows = report["collectives_by_module"].as_array().unwrap();
    let bytes = |row: &Value| row["bytes"].as_u64().unwrap();
    assert!(rows.is_sorted_by_key(|row| std::cmp::Reverse(bytes(row))), "{rows:?}");
    let rows: Vec<&Value> = rows.iter().filter(|row| row["kind"] == kind).collect();
    assert!(rows.iter().all(|row| row["axis"] == "fsdp" && row["group"] == 2), "{rows:?}");
    let count = rows.iter().map(|row| row["count"].as_u64().unwrap()).sum();
    (count, rows.into_iter().map(bytes).sum())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn measures_one_device() {
    let folder = Folder::new();
    let args = ["--batch", "4", "--steps", "3", "--fixed_batch", "--learning_rate", "1e-2"];
    let report = folder.json("tiny.json", &args);
    assert_eq!(report["model"]["parameters"], TINY_PARAMETERS);
    assert_eq!(report["device_kind"], "cpu");
    assert_eq!((&report["chip"], &report["mfu"]["mfu_6n"]), (&Value::Null, &Value::Null));
    // 6·N·64, and 12·2·16·16 more per token.
    assert_eq!(report["flops"]["flops_6n"], 6.0 * TINY_PARAMETERS as f64 * 64.0);
    assert_eq!(number(&report["flops"]["palm"]) - number(&report["flops"]["flops_6n"]), 393_216.0);
    assert_eq!(report["collectives"], serde_json::json!([]));

    let (time, spread) = (&report["time"], &report["time"]["spread"]);
    assert_eq!(time["waited"].as_array().unwrap().len(), 3);
    assert!((number(&time["total"]) - 3.0 * number(&time["step"])).abs() < 1e-9);
    assert!(number(&spread["min"]) <= number(&spread["median"]), "{spread}");
    assert!(number(&spread["median"]) <= number(&spread["max"]), "{spread}");
    let rate = 64.0 / number(&time["step"]);
    assert!((number(&report["tokens_per_second"]) / rate - 1.0).abs() < 1e-9);

    let (first, last) = (number(&report["loss"]["first"]), number(&report["loss"]["last"]));
    assert!((first - 67_f64.ln()).abs() < 0.2, "untrained: {first}");
    assert!(last < first - 0.3, "{first} to {last}");
    assert!(number(&report["gradient_norm"]["first"]) > 0.0);

    // Parameters and two slots in f32, tokens and labels, and a few scalars.
    let state = 3 * 4 * TINY_PARAMETERS;
    let arguments = report["memory"]["arguments"].as_u64().unwrap();
    assert!((state + 2 * 4 * 64..state + 2 * 4 * 64 + 128).contains(&arguments), "{arguments}");
    assert_eq!(report["memory"]["aliased"], state);
    assert_eq!(report["estimate"]["parameters"], 4 * TINY_PARAMETERS);
    assert_eq!(report["estimate"]["optimizer"], 8 * TINY_PARAMETERS);
    assert_estimated(&report);

    assert_eq!(report["compile"]["cached"], false);
    let printed = text(&folder.step("tiny.json", &args).stdout);
    for part in [
        "GPT2LMHeadModel of 7,920 parameters on 1 device (cpu)",
        "(from the cache)",
        "MFU                  unknown: no known peak FLOP/s of `cpu` in float32",
        "collectives          none",
        "over 3 steps, one at a time",
    ] {
        assert!(printed.contains(part), "{part} in {printed}");
    }
}

#[test]
fn measures_two_devices() {
    let folder = Folder::new();
    let args = ["--fsdp_config", BLOCKS, "--num_cores", "2", "--batch", "4", "--steps", "2"];
    let report = folder.json("tiny.json", &[&args[..], &["--fixed-batch"]].concat());
    assert_eq!(report["settings"]["devices"], 2);
    assert_eq!(report["units"][1]["class"], "GPT2Block");
    let per_device = number(&report["tokens_per_second_per_device"]);
    assert!((per_device * 2.0 - number(&report["tokens_per_second"])).abs() < 1e-6 * per_device);
    // Every parameter is all-gathered at least once and its gradient reduce-scattered once.
    let parameters = 4 + 2 * 12;
    let bytes = 2 * report["estimate"]["parameters"].as_u64().unwrap();
    let (gathers, gathered) = collectives(&report, "all-gather");
    assert!(gathers >= parameters && gathered >= bytes, "{gathers}, {gathered} of {bytes}");
    assert_eq!(collectives(&report, "reduce-scatter"), (parameters, bytes));
    for kind in ["all-gather", "reduce-scatter"] {
        assert_eq!(collectives_of_modules(&report, kind), collectives(&report, kind));
    }
    let printed = text(&folder.step("tiny.json", &args).stdout);
    let table = printed.split("collectives by module").nth(1).unwrap();
    assert!(table.contains("transformer.h.*, backward\n"), "{table}");
    let memory = &report["memory"];
    assert!(memory["arguments"].as_u64().unwrap() < 3 * 4 * TINY_PARAMETERS, "{memory}");
    assert!(memory["temporaries"].as_u64().unwrap() > 0);
    assert_estimated(&report);
}

/// Figures of launches with several steps are per step; the batches of all are in memory.
#[test]
fn measures_launches_of_several_steps() {
    let folder = Folder::new();
    let args = ["--fsdp_config", BLOCKS, "--num_cores", "2", "--batch", "4", "--steps", "4"];
    let loops = [&args[..], &["--iterations_per_loop", "3"]].concat();
    let [one, three] = [&args[..], &loops].map(|args| folder.json("tiny.json", args));
    assert_eq!(three["settings"]["iterations_per_loop"], 3);
    assert_eq!(three["settings"]["steps"], 6, "whole launches");
    assert_ne!(three["compile"]["program"], one["compile"]["program"]);
    assert_eq!(three["loss"]["first"], one["loss"]["first"]);
    for kind in ["all-gather", "reduce-scatter"] {
        assert_eq!(collectives(&three, kind), collectives(&one, kind));
        assert_eq!(collectives_of_modules(&three, kind), collectives(&one, kind));
    }
    let time = &three["time"];
    assert_eq!(time["waited"].as_array().unwrap().len(), 2);
    assert!((number(&time["total"]) - 6.0 * number(&time["step"])).abs() < 1e-9);
    assert!(number(&time["single"]) > 0.0 && one["time"]["single"].is_null());
    // Tokens and labels of two more steps, and a few scalars.
    let arguments = |report: &Value| report["memory"]["arguments"].as_u64().unwrap();
    let more = arguments(&three) - arguments(&one);
    let batches = 2 * 2 * 4 * 32;
    assert!((batches..batches + 128).contains(&more), "{more}");
    let temporaries = |report: &Value| report["estimate"]["temporaries"].as_u64().unwrap();
    assert_eq!(temporaries(&three) - temporaries(&one), batches);
    assert_estimated(&three);

    let breakdown = folder.step("tiny.json", &[&loops[..], &["--breakdown"]].concat());
    let error = text(&breakdown.stderr);
    assert!(!breakdown.status.success() && error.contains("--iterations_per_loop"), "{error}");
}

/// The estimate is within 25 % of the compiled memory on CPU.
fn assert_estimated(report: &Value) {
    let (estimate, total) = (number(&report["estimate"]["total"]), &report["memory"]["total"]);
    assert!((estimate / number(total) - 1.0).abs() < 0.25, "{estimate} for {total}");
}

#[test]
fn plans_the_blog_post_without_a_device() {
    let folder = Folder::new();
    let fsdp = format!("{CONFIGS}/fsdp_config.json");
    let fsdp = ["--fsdp_config", &fsdp, "--fsdp", "full_shard auto_wrap"];
    let args = ["--num_cores", "4", "--batch", "128", "--optim", "adafactor", "--device", "tpu"];
    let plan = folder.plan("gpt2_config.json", &[fsdp, args[..4].try_into().unwrap()].concat());
    assert_eq!(plan["settings"]["optimizer"], "adamw");
    let plan = folder.plan("gpt2_config.json", &[&fsdp[..], &args].concat());
    assert_eq!(plan["model"]["parameters"], 2_196_691_968_u64);
    let settings = &plan["settings"];
    assert_eq!(settings["tokens_per_step"], 131_072);
    assert_eq!(
        (&settings["compute_dtype"], &settings["remat"]),
        (&"bfloat16".into(), &"full".into())
    );
    assert_eq!(settings["scan_layers"], true, "18 layers on a TPU");
    assert_eq!(
        (&plan["units"][1]["path"], &plan["units"][1]["count"]),
        (&"transformer.h.*".into(), &18.into())
    );
    // A quarter of the parameters in f32, and hardly any state.
    let estimate = &plan["estimate"];
    let quarter = 2_196_691_968 / 4 * 4;
    let parameters = estimate["parameters"].as_u64().unwrap();
    assert!((quarter..quarter + (1 << 20)).contains(&parameters), "{parameters}");
    assert!(estimate["optimizer"].as_u64().unwrap() < 8 << 20);
    assert!(!folder.path("cache").exists(), "no files are written");
    let cuda = [&fsdp[..], &args[..6], &["--device", "cuda"]].concat();
    assert_eq!(folder.plan("gpt2_config.json", &cuda)["settings"]["scan_layers"], false);
}

/// The number and bytes of collectives of a kind of a unit per pass.
fn planned_collectives(plan: &Value, unit: &str, kind: &str) -> (u64, u64) {
    let rows = plan["planned_collectives"].as_array().unwrap().iter();
    let rows: Vec<&Value> = rows.filter(|row| row["unit"] == unit && row["kind"] == kind).collect();
    let [row] = rows[..] else { panic!("{kind} of `{unit}` in {}", plan["planned_collectives"]) };
    (row["count"].as_u64().unwrap(), row["bytes_per_pass"].as_u64().unwrap())
}

#[test]
fn plan_lists_collectives() {
    let folder = Folder::new();
    let common = ["--plan", "--fsdp_config", BLOCKS, "--num_cores", "2"];
    let plan = |args: &[&str]| folder.json("tiny.json", &[&common[..], args].concat());
    // Unrolled layers share a row, like scanned layers.
    for scan in ["true", "false"] {
        let plan = plan(&["--scan_layers", scan]);
        let bytes = 2 * plan["estimate"]["parameters"].as_u64().unwrap();
        let (root, blocks) = ("", "transformer.h.*");
        let (scatters, of_root) = planned_collectives(&plan, root, "reduce-scatter");
        let (of_blocks, scattered) = planned_collectives(&plan, blocks, "reduce-scatter");
        assert_eq!((scatters, of_blocks, of_root + scattered), (4, 24, bytes));
        // The root stays unsharded for the backward pass, and blocks are all-gathered again.
        assert_eq!(planned_collectives(&plan, root, "all-gather"), (4, of_root));
        assert_eq!(planned_collectives(&plan, blocks, "all-gather"), (48, 2 * scattered));
        assert_eq!(plan["planned_collectives"][0]["dtype"], "f32");
    }
    let unsharded = plan(&["--fsdp", "no_shard", "--dtype", "bfloat16"]);
    assert_eq!(planned_collectives(&unsharded, "", "all-reduce"), (4, 2 * (67 + 16 + 2) * 16));
    let accumulated = plan(&["--gradient_accumulation_steps", "2", "--no_sync"]);
    assert_eq!(accumulated["planned_collectives"], Value::Null);
    let printed = text(&folder.step("tiny.json", &common).stdout);
    for part in
        ["planned collectives  ", "  (root)\n    all-gather ", "  transformer.h.*\n    all-gather "]
    {
        assert!(printed.contains(part), "{part} in {printed}");
    }
    let alone = text(&folder.step("tiny.json", &["--plan"]).stdout);
    assert!(alone.contains("planned collectives  none"), "{alone}");
}

#[test]
fn unused_learning_rate_is_not_reported() {
    let folder = Folder::new();
    let rate = |args: &[&str]| {
        let args = [&["--plan", "--optim", "adafactor"], args].concat();
        folder.json("tiny.json", &args)["settings"]["learning_rate"].clone()
    };
    assert_eq!(rate(&[]), 5e-5);
    assert_eq!(rate(&["--optim_args", "relative_step=true"]), Value::Null);
}

/// Warnings are about the resolved dtype, from the config or a flag.
#[test]
fn warns_of_unexpected_dtypes() {
    let folder = Folder::new();
    let stderr = |args: &[&str]| {
        let args = [&["--plan", "--num_cores", "2"], args].concat();
        let output = folder.step("tiny.json", &args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let wide = ["--fsdp_config", r#"{"xla_fsdp_settings": {"fp32_reduce_scatter": true}}"#];
    assert!(stderr(&wide).contains("`xla_fsdp_settings.fp32_reduce_scatter` has no effect here"));
    assert_eq!(stderr(&[&wide[..], &["--dtype", "bfloat16"]].concat()), "");
    assert!(
        stderr(&["--dtype", "float16"]).contains("no loss scaling here: bfloat16 has the range")
    );
}

#[test]
fn writes_the_step_without_a_device() {
    let folder = Folder::new();
    let args = ["--num_cores", "2", "--device", "tpu", "--text", "step.mlir"];
    let output = folder.step("tiny.json", &args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("step written to step.mlir"));
    let step = fs::read_to_string(folder.path("step.mlir")).unwrap();
    assert!(step.contains("mhlo.num_partitions = 2") && step.contains("stablehlo.all_gather"));
    assert!(!folder.path("cache").exists(), "no files are written");
    let missing = "--text is no/such/step.mlir, but there is no folder no/such: create it";
    let output = folder.step("tiny.json", &["--text", "no/such/step.mlir"]);
    assert!(text(&output.stderr).contains(missing), "{}", text(&output.stderr));
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "before the plan");
}

#[test]
fn examples_have_the_parameters_of_their_names() {
    let folder = Folder::new();
    for (config, parameters) in [
        ("gpt2_30m.json", 30_044_544_u64),
        ("gpt2_124m.json", 124_439_808),
        ("gpt2_1.5b.json", 1_557_611_200),
        ("llama_1b.json", 1_235_814_400),
    ] {
        let plan = folder.plan(config, &["--batch", "1", "--seq", "256"]);
        assert_eq!(plan["model"]["parameters"], parameters, "{config}");
    }
}

/// Each remat policy saves less than the previous one, and fewer devices need more memory.
#[test]
fn estimates_follow_the_settings() {
    let folder = Folder::new();
    let estimate = |args: &[&str]| {
        let common = ["--fsdp_config", BLOCKS, "--batch", "16"];
        folder.plan("gpt2_124m.json", &[&common[..], args].concat())["estimate"].clone()
    };
    let of = |estimate: &Value, field: &str| estimate[field].as_u64().unwrap();
    let saved = ["none", "dots", "full"].map(|policy| {
        // A scan saves no more than it needs without a policy.
        let unrolled = ["--remat", policy, "--num_cores", "4", "--scan_layers", "false"];
        of(&estimate(&unrolled), "activations")
    });
    assert!(saved[0] > saved[1] && saved[1] > saved[2], "{saved:?}");
    let [one, four] = ["1", "4"].map(|devices| estimate(&["--num_cores", devices]));
    assert!(of(&one, "parameters") >= 4 * of(&four, "parameters") - (1 << 20));
    let parts = ["parameters", "optimizer", "gradients", "activations", "temporaries"];
    let sum: u64 = parts.map(|field| of(&four, field)).iter().sum();
    assert_eq!(of(&four, "total"), sum);
    let cores = ["--num_cores", "4"];
    let temporaries = |args: &[&str]| of(&estimate(&[&cores[..], args].concat()), "temporaries");
    let full = temporaries(&[]);
    assert!(temporaries(&["--gather_ahead", "true", "--scan_layers", "true"]) > full);
    assert!(temporaries(&["--fsdp", "shard_grad_op"]) > full);
    assert!(temporaries(&["--dtype", "bfloat16"]) < full);
}

#[test]
fn errors_come_before_a_device_is_used() {
    let folder = Folder::new();
    let with = |from: &str, to: &str| TINY.replace(from, to);
    folder.write("broken.json", "{\"model_type\": ");
    folder.write("list.json", "[]");
    folder.write("odd.json", &with("\"n_embd\": 16", "\"n_embd\": 17"));
    folder.write("negative.json", &with("\"n_layer\": 2", "\"n_layer\": -2"));
    folder.write("zero.json", &with("\"vocab_size\": 67", "\"vocab_size\": 0"));
    folder.write("text.json", &with("\"n_head\": 2", "\"n_head\": \"two\""));
    folder.write("bert.json", &with("gpt2", "bert"));
    folder.write("nameless.json", "{}");
    folder.write("dropout.json", &with("\"attn_pdrop\": 0", "\"attn_pdrop\": 1.5"));
    for (config, expected) in [
        ("missing.json", "cannot read the config missing.json: No such file"),
        (".", "cannot read the config ./config.json: No such file"),
        ("broken.json", "in broken.json: the config is not a JSON object: EOF while parsing"),
        ("list.json", "the config is not a JSON object: it is []"),
        ("odd.json", "`n_embd` is 17, but must be a multiple of `n_head`, which is 2"),
        ("negative.json", "`n_layer` is -2, but must be an integer from 1 to 100000"),
        ("zero.json", "`vocab_size` is 0, but must be an integer from 1 to 2147483647"),
        ("text.json", "`n_head` is \"two\", but must be"),
        ("bert.json", "the supported models are gpt2 (GPT2LMHeadModel), llama"),
        ("nameless.json", "neither `model_type` nor `architectures`"),
        ("dropout.json", "`attn_pdrop` is 1.5, but must be a number from 0 to below 1"),
    ] {
        rejects(&folder, config, &[], 1, expected);
    }

    let both = r#"{"transformer_layer_cls_to_wrap": "GPT2Block", "min_num_params": 100}"#;
    let fp8 = r#"{"xla_fsdp_settings": {"compute_dtype": "float8_e4m3fn"}}"#;
    let half = r#"{"xla_fsdp_settings": {"compute_dtype": "float16"}}"#;
    for (args, expected) in [
        (&["--fsdp_config", "missing.json"][..], "cannot read the FSDP config missing.json"),
        (&["--fsdp_config", "."], "cannot read the FSDP config .: Is a directory"),
        (&["--fsdp_config", "{"], "the FSDP config is not JSON"),
        (&["--fsdp_config", "list.json"], "list.json: the FSDP config is []"),
        (&["--fsdp_config", r#"{"wrap": 1}"#], "unknown key `wrap`"),
        (&["--fsdp_config", &BLOCKS.replace("Block", "Blok")], "did you mean `GPT2Block`?"),
        (&["--fsdp_config", &BLOCKS.replace("GPT2Block", "ModuleList")], "wrap the modules in it"),
        (&["--fsdp_config", both], "wrapped by class or by size, leave one of them out"),
        (&["--fsdp_config", r#"{"xla_fsdp_settings": {"compute_dtype": "int8"}}"#], "\"bfloat16\""),
        (&["--fsdp_config", half, "--dtype", "bfloat16"], "contradict each other: leave one"),
        (&["--fsdp_config", fp8, "--bf16"], "`compute_dtype: float8_e4m3fn` of the FSDP config"),
        (&["--fsdp_config", half, "--fp8"], "what is not in FP8 is in bfloat16"),
        (&["--fp8", "--dtype", "float32"], "`--dtype float32` and `--fp8` contradict each other"),
        (&["--fp8", "--batch", "1", "--seq", "15"], "must be multiples of 16. Change them"),
        (&["--batch", "3", "--num_cores", "2"], "make it a multiple of 2, or use fewer devices"),
        (&["--batch", "2", "--num_cores", "4"], "2 sequences cannot be sharded over 4 devices"),
        (&["--batch", "100000", "--num_cores", "100000"], "at most 256 virtual devices"),
        (&["--seq", "17"], "17 tokens are longer than the 16 positions of the model"),
        (&["--seq", "1"], "the number of tokens in a sequence is 1, but must be at least 2"),
        (&["--batch", "1000000000000000000"], "lower --per_device_train_batch_size"),
        (&["--optim", "lion"], "unknown optimizer `lion`; supported are adamw"),
        (&["--optim_args", "momentum=0.9"], "AdamW takes no argument `momentum`"),
        (&["--freeze", "transformer.wtee.*"], "no parameter matches `transformer.wtee.*`"),
        (&["--freeze", "*"], "every parameter is frozen, so there is nothing to train"),
        (&["--freeze", "*.h.0.*", "--scan_layers", "true"], "(--scan_layers false)"),
        (&["--max_grad_norm", "-1"], "--max_grad_norm is -1, but must be a number of at least 0"),
        (&["--learning_rate", "nan"], "--learning_rate is NaN"),
        (&["--no_sync"], "add --gradient_accumulation_steps, or leave it out"),
        (
            &["--gather_ahead", "true", "--scan_layers", "false"],
            "add --scan_layers true, or leave it out",
        ),
        (&["--xla-flag", "nonsense"], "`nonsense` is not of the form name=value"),
        (&["--device", "cuda", "--plugin", "/no/such.so", "--json"], "/no/such.so"),
    ] {
        rejects(&folder, "tiny.json", args, 1, expected);
    }
}

#[test]
fn rejects_invalid_flags() {
    let folder = Folder::new();
    let count = "it must be an integer of at least 1";
    for (args, expected) in [
        (&["--num_cores", "0"][..], count),
        (&["--num_cores", "-4"], count),
        (&["--batch", "many"], count),
        (&["--seq", "0"], count),
        (&["--gradient_accumulation_steps", "0"], count),
        (&["--steps", "0"], count),
        (&["--dtype", "float8"], "[possible values: float32, bfloat16, float16, float8_e4m3fn]"),
        (&["--remat", "some"], "the policies are none, dots, minimal"),
        (&["--scan_layers", "maybe"], "[possible values: auto, true, false]"),
        (&["--device", "abacus"], "abacus"),
        (&["--fsdp", "full_shard offload"], "`--fsdp` is offload, which is not supported"),
        (&["--fsdp", "sharded"], "`--fsdp` is `sharded` but must be full_shard"),
        (&["--fsdp", "full_shard no_shard"], "contradict each other: choose one"),
        (&["--no_such_flag"], "--no_such_flag"),
    ] {
        rejects(&folder, "tiny.json", args, 2, expected);
    }
}

/// Checks that a command fails with an error on stderr, without stdout and files.
fn rejects(folder: &Folder, config: &str, args: &[&str], code: i32, expected: &str) {
    let output = folder.step(config, args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{config} {args:?}: {stderr}");
    assert!(stderr.contains("error: ") && stderr.contains(expected), "{config} {args:?}: {stderr}");
    assert_eq!(text(&output.stdout), "", "{config} {args:?}");
    assert!(!folder.path("cache").exists(), "{config} {args:?}");
}

#[test]
fn breakdown_needs_a_profiler() {
    let folder = Folder::new();
    let output = folder.step("tiny.json", &["--batch", "4", "--breakdown", "--json"]);
    assert!(!output.status.success() && output.stdout.is_empty());
    let words = "--breakdown is not supported: the plugin of cpu has no profiler";
    assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    assert!(!folder.path("cache/compiled").exists(), "it compiled");
    let output = folder.step("tiny.json", &["--breakdown", "--plan"]);
    assert!(text(&output.stderr).contains("cannot be used with"), "{}", text(&output.stderr));
}

/// The attention implementation and its reason are reported before a device is used.
#[test]
fn reports_the_attention_implementation() {
    let folder = Folder::new();
    let attention = |config: &str, args: &[&str]| {
        let report = folder.plan(config, args);
        let reason = report["attention"]["reason"].as_str().unwrap_or_default().to_owned();
        (report["attention"]["form"].as_str().unwrap().to_owned(), reason)
    };
    let bf16 = ["--device", "cuda", "--dtype", "bfloat16"];
    for config in ["gpt2_config.json", "llama_1b.json"] {
        assert_eq!(attention(config, &bf16), ("cudnn".into(), String::new()));
    }
    let (form, reason) = attention("gpt2_config.json", &["--device", "cuda", "--dtype", "float32"]);
    assert_eq!((&*form, &*reason), ("blockwise", "it supports bf16 and f16, not f32"));
    let cpu = attention("gpt2_config.json", &["--seq", "256"]);
    assert_eq!(cpu, ("custom_call".into(), String::new()));
    let eager = ["--seq", "256", "--attn_implementation", "eager"];
    let eager = attention("gpt2_config.json", &eager);
    assert_eq!(eager, ("unfused".into(), "--attn_implementation is eager".to_owned()));
    folder.write(
        "layers.json",
        &TINY.replace("\"n_head\"", "\"scale_attn_by_inverse_layer_idx\": true, \"n_head\""),
    );
    let path = folder.path("layers.json");
    let printed = folder.step(path.to_str().unwrap(), &[&bf16[..], &["--plan"]].concat());
    let words = "attention: unfused, not a kernel: the scale of scores depends on the layer";
    assert!(text(&printed.stdout).contains(words), "{}", text(&printed.stdout));

    folder.write("dropping.json", &TINY.replace("\"attn_pdrop\": 0", "\"attn_pdrop\": 0.1"));
    let dropping = |args: &[&str]| {
        let output = folder.step("dropping.json", &[&bf16[..], args, &["--plan"]].concat());
        text(&output.stdout) + &text(&output.stderr)
    };
    for (args, words) in [
        (&[][..], "attention: cuDNN\n"),
        (&["--scan_layers", "true"], "with scanned layers the backward pass would use another"),
        (
            &["--xla-flag", "xla_gpu_enable_command_buffer=FUSION,CUDNN"],
            "dropout 0.1 would use the same mask in every step: remove CUDNN from it",
        ),
    ] {
        let output = dropping(args);
        assert!(output.contains(words), "{args:?}: {output}");
    }
}

/// With and without a number of devices: the message is that of whoever starts the client.
#[test]
fn without_a_tpu_the_way_out_is_named() {
    let folder = Folder::new();
    for devices in [&[][..], &["--num_cores", "2"]] {
        let output = folder.step("tiny.json", &[&["--device", "tpu"], devices].concat());
        let stderr = text(&output.stderr);
        assert!(stderr.contains("error: no TPU available") && !output.status.success(), "{stderr}");
        assert!(stderr.contains("`fullshard plan` plans the run for a TPU slice"), "{stderr}");
    }
}
