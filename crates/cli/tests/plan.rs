//! `fullshard plan`: the planned step is the trained step, its figures are consistent, and its
//! errors.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Folder, number, rejects, short, text};
use fullshard_core::Platform;
use fullshard_pjrt::plugins::Store;
use serde_json::Value;
use std::collections::BTreeSet;

/// The flags of a plan for a machine.
fn plan<'a>(machine: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let flags = ["plan", "--config", "tiny.json", "--fsdp_config", "fsdp.json"];
    let machine = ["--topology", machine];
    [&flags[..], &machine, more].concat()
}

fn planned(folder: &Folder, machine: &str, more: &[&str]) -> Value {
    let stdout = folder.stdout(&plan(machine, &[more, &["--json"]].concat()));
    serde_json::from_str(&stdout).unwrap()
}

/// The program hash that a run prints.
fn trained_program(stdout: &str) -> String {
    let line = stdout.lines().find(|line| line.starts_with("step program")).unwrap();
    line.split_whitespace().last().unwrap().to_owned()
}

#[test]
fn planned_step_is_the_trained_step() {
    let folder = Folder::new();
    let flags = ["--per_device_train_batch_size", "4", "--optim", "adafactor", "--bf16"];
    let report = planned(&folder, "cpu:4", &flags);
    let planned = report["program"].as_str().unwrap();
    assert_eq!(planned.len(), 64);
    let train = [&short(&["--max_steps", "1", "--block_size", "16"])[..], &flags].concat();
    let devices = train.iter().position(|&flag| flag == "--num_cores").unwrap() + 1;
    let train = [&train[..devices], &["4"], &train[devices + 1..]].concat();
    let trained = folder.stdout(&train);
    assert_eq!(trained_program(&trained), planned);

    let bench = ["bench", "step", "--config", "tiny.json", "--fsdp_config", "fsdp.json", "--json"];
    let bench = [&bench[..], &["--num_cores", "4", "--batch", "16", "--steps", "1"]].concat();
    let measured = folder.stdout(&[&bench[..], &flags[2..]].concat());
    let measured: Value = serde_json::from_str(&measured).unwrap();
    assert_eq!(measured["compile"]["program"], planned);
    // The compiled memory of the plan is that of the real step.
    assert_eq!(measured["memory"]["total"], report["memory"]["total"]);
    // All three have the same estimate.
    let quick = [&flags[..], &["--quick"]].concat();
    let estimate = self::planned(&folder, "cpu:4", &quick);
    for part in estimate["memory"]["parts"].as_array().unwrap() {
        assert_eq!(measured["estimate"][part["what"].as_str().unwrap()], part["bytes"]);
    }
    let estimate = folder.stdout(&plan("cpu:4", &quick));
    for part in
        ["  parameters ", "  optimizer ", "  gradients ", "  activations ", "  temporaries "]
    {
        let line = estimate.lines().find(|line| line.starts_with(part)).unwrap();
        assert!(trained.lines().any(|other| other == line), "{line} in {trained}");
    }
}

/// A plan of launches with several steps is of the program that trains, with times per step.
#[test]
fn planned_loop_is_the_trained_loop() {
    let folder = Folder::new();
    let flags = ["--per_device_train_batch_size", "4"];
    let loops = [&flags[..], &["--iterations_per_loop", "2"]].concat();
    let [one, two] = [&flags[..], &loops].map(|flags| planned(&folder, "cpu:2", flags));
    let train = [&short(&["--max_steps", "2", "--block_size", "16"])[..], &loops].concat();
    assert_eq!(trained_program(&folder.stdout(&train)), two["program"].as_str().unwrap());
    assert_ne!(two["program"], one["program"]);
    assert_eq!(two["settings"]["iterations_per_loop"], 2);
    let step = |report: &Value| number(&report["time"]["step"]);
    assert!((step(&two) / step(&one) - 1.0).abs() < 0.05, "{} and {}", step(&two), step(&one));
    let modules = |report: &Value| -> BTreeSet<(String, bool)> {
        let rows = report["time"]["modules"].as_array().unwrap().iter();
        let names = rows.map(|row| (row["module"].to_string(), row["backward"].as_bool().unwrap()));
        names.filter(|(module, _)| module != "\"\"").collect()
    };
    assert_eq!(modules(&two), modules(&one));
}

#[test]
fn figures_add_up() {
    let folder = Folder::new();
    let report = planned(&folder, "cpu:2", &["--tokens", "1e6", "--price", "2"]);
    let memory = &report["memory"];
    let parts = memory["parts"].as_array().unwrap();
    let names: Vec<&str> = parts.iter().map(|part| part["what"].as_str().unwrap()).collect();
    assert_eq!(names, ["parameters", "optimizer", "gradients", "activations", "temporaries"]);
    let sum: f64 = parts.iter().map(|part| number(&part["bytes"])).sum();
    assert_eq!(sum, number(&memory["total"]));
    // AdamW has two values per parameter.
    assert_eq!(number(&parts[1]["bytes"]), 2.0 * number(&parts[0]["bytes"]));
    assert!(memory["largest"].as_array().unwrap().len() <= 10);

    let time = &report["time"];
    let [step, compute, exposed] = ["step", "compute", "exposed"].map(|what| number(&time[what]));
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b.abs().max(1e-9), "{a} {b}");
    close(step, compute + exposed);
    let modules = time["modules"].as_array().unwrap();
    let all: f64 = modules.iter().map(|it| number(&it["compute"]) + number(&it["exposed"])).sum();
    close(all, step);
    let names: Vec<&str> = modules.iter().map(|it| it["module"].as_str().unwrap()).collect();
    for expected in ["transformer.h.*.attn.c_attn", "transformer.h.*.mlp.c_fc", "optimizer"] {
        assert!(names.contains(&expected), "{expected} is not in {names:?}");
    }
    let collectives = report["collectives"].as_array().unwrap();
    let communication: f64 =
        collectives.iter().map(|it| number(&it["seconds"]) - number(&it["hidden"])).sum();
    close(communication, exposed);
    assert!(collectives.iter().all(|it| it["group"] == 2 && it["axis"] == "fsdp"));

    let rates = &report["rates"];
    let days = 1e6 / number(&rates["tokens_per_second"]) / 86_400.0;
    close(number(&rates["days"]), days);
    close(number(&rates["cost_usd"]), days * 24.0 * 2.0 * 2.0);
}

#[test]
fn plans_are_cached() {
    let folder = Folder::new();
    let [first, second] = [(); 2].map(|()| planned(&folder, "cpu:2", &[]));
    assert_eq!(first["basis"]["cached"], false);
    assert_eq!(second["basis"]["cached"], true);
    for same in ["memory", "time", "collectives", "program"] {
        assert_eq!(first[same], second[same], "{same}");
    }
    let third = planned(&folder, "cpu:2", &["--no-cache"]);
    assert_eq!(third["basis"]["cached"], false);
}

#[test]
fn quick_plan_needs_no_plugin() {
    let folder = Folder::new();
    for machine in ["v4-8", "v5e-16", "v6e-8", "h100:8", "a100:2", "b200", "cpu:4"] {
        let mut command = folder.command(&plan(machine, &["--quick", "--json"]));
        let output = command.env("FULLSHARD_CPU_PLUGIN", "/nowhere").output().unwrap();
        assert!(output.status.success(), "{machine}: {}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["basis"]["kind"], "quick");
        assert_eq!(report["machine"]["name"], machine);
        assert!(number(&report["time"]["step"]) > 0.0);
    }
}

#[test]
fn the_start_of_a_job_grows_with_its_hosts() {
    let folder = Folder::new();
    let of = |machine| planned(&folder, machine, &["--quick"])["start_up"].clone();
    let [one, two, four] = ["h100:2", "h100:2x2", "h100:2x4"].map(of);
    assert_eq!(
        (&one["hosts"], &two["hosts"], &four["processes"]),
        (&1.into(), &2.into(), &4.into())
    );
    assert_eq!((number(&one["rendezvous"]), number(&one["programs"])), (0.0, 0.0));
    assert_eq!(number(&four["rendezvous"]), 2.0 * number(&two["rendezvous"]));
    assert!(number(&four["weights"]) < number(&two["weights"]));
    let printed = |machine| folder.stdout(&plan(machine, &["--quick"]));
    let (one, two) = (printed("h100:2"), printed("h100:2x2"));
    assert!(one.contains(" and compiling on 1 host;") && !one.contains("  rendezvous"), "{one}");
    for row in ["  rendezvous         10.00 ms ", "  programs ", "  compile            unknown "] {
        assert!(two.contains(row), "{row}: {two}");
    }
}

#[test]
fn failures_make_days_longer() {
    let folder = Folder::new();
    let flags = |more: &[&'static str]| [&["--quick", "--tokens", "1e9"], more].concat();
    let of = |more: &[&'static str]| planned(&folder, "h100:2x4", &flags(more));
    let goodput = |report: &Value| number(&report["goodput"]["goodput"]);
    let often = ["--host_mtbf_days", "0.01"];
    let (usual, often) = (of(&[]), of(&often));
    assert!(goodput(&usual) > 0.99 && goodput(&often) < 0.8);
    for report in [&usual, &often] {
        let days = number(&report["rates"]["days"]) / goodput(report);
        assert!((days / number(&report["goodput"]["days"]) - 1.0).abs() < 1e-9);
        // That of `train`.
        assert_eq!(number(&report["goodput"]["save_steps"]), 500.0);
    }
    let saves = of(&["--host_mtbf_days", "0.01", "--save_steps", "100"]);
    assert_eq!(number(&saves["goodput"]["save_steps"]), 100.0);
    let slow = of(&["--host_mtbf_days", "0.01", "--restart_s", "600"]);
    assert!(goodput(&slow) < goodput(&often));
    let printed = folder.stdout(&plan("h100:2x4", &flags(&[])));
    for row in [
        "goodput              100.0 % with a failure every 66.0 days on 4 hosts (264",
        "\n  redone steps ",
        "\ndays with failures   ",
    ] {
        assert!(printed.contains(row), "{row}: {printed}");
    }
}

#[test]
fn search_prints_a_valid_command_line() {
    let folder = Folder::new();
    let stdout = folder.stdout(&plan("cpu:2", &["--search", "--compiles", "1", "--optim", "sgd"]));
    let line = stdout.lines().last().unwrap();
    assert!(line.contains("--optim sgd") && line.contains("--num_cores 2"), "{line}");
    assert!(!line.contains("--search") && !line.contains("--topology"), "{line}");
    let words: Vec<&str> =
        line.split_whitespace().skip(1).map(|word| word.trim_matches('\'')).collect();
    assert_eq!(words[0], "train");
    // The same flags give the same plan.
    let best = trained_program(&stdout);
    let flags = words[1..].iter().filter(|word| !["--num_cores", "2"].contains(word));
    let again: Vec<&str> =
        ["plan", "--topology", "cpu:2", "--json"].into_iter().chain(flags.copied()).collect();
    let again: Value = serde_json::from_str(&folder.stdout(&again)).unwrap();
    assert_eq!(again["program"], best);
}

/// On one device, where nothing is gathered, it states nothing of that and causes no warning.
#[test]
fn best_command_line_of_one_device_states_no_sharding() {
    let folder = Folder::new();
    for machine in ["cpu:1", "v4:1x1x1"] {
        let flags = ["--quick", "--search", "--scan_layers", "true", "--topology", machine];
        let stdout = folder.stdout(&[&["plan", "--config", "tiny.json"], &flags[..]].concat());
        let line = stdout.lines().last().unwrap();
        assert!(line.contains("fullshard train") && !line.contains("gather_ahead"), "{line}");
    }
}

/// Without a flag the chip decides what is gathered ahead, where anything can be.
#[test]
fn plans_report_what_is_gathered_ahead() {
    let folder = Folder::new();
    let ahead = |machine, more: &[&str]| {
        let report =
            planned(&folder, machine, &[&["--quick", "--scan_layers", "true"], more].concat());
        report["settings"]["gather_ahead"].as_str().unwrap().to_owned()
    };
    assert_eq!(ahead("v4-8", &[]), "vectors");
    assert_eq!(ahead("v4-8", &["--gather_ahead", "false"]), "false");
    assert_eq!(ahead("v4-8", &["--fsdp", "shard_grad_op"]), "false");
    assert_eq!(ahead("v4:1x1x1", &[]), "false");
    assert_eq!(ahead("v5p-8", &[]), "false");
    let stdout = folder.stdout(&plan("v4-8", &["--quick", "--json", "--scan_layers", "false"]));
    assert!(stdout.contains(r#""gather_ahead": "false""#), "{stdout}");
}

#[test]
fn table1_has_the_published_runs() {
    let stdout = Folder::new().stdout(&["plan", "--table1", "--quick", "--json"]);
    let rows: Vec<Value> = serde_json::from_str(&stdout).unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["2B", "16B", "20B", "32B", "64B", "128B"]);
    for row in &rows {
        // The shapes match the published FLOPs, except the first, whose shape is published.
        let off = number(&row["flops"]) / number(&row["published"]["flops"]) - 1.0;
        let allowed = if row["name"] == "2B" { 0.05 } else { 0.01 };
        assert!(off.abs() < allowed, "{}: {off}", row["name"]);
        // The published figures are consistent: MFU = FLOPs / step / chips / peak.
        let published = &row["published"];
        let chips = number(&row["report"]["machine"]["devices"]);
        let mfu = number(&published["flops"]) / number(&published["step"]) / chips / 275e12;
        assert!((mfu - number(&published["mfu"])).abs() < 0.005, "{}: {mfu}", row["name"]);
    }
}

#[test]
fn errors_come_before_compilation() {
    let folder = Folder::new();
    let flags = |machine, more: &[&'static str]| plan(machine, more);
    rejects(&folder, &flags("v9-8", &[]), 1, "v9-8");
    rejects(&folder, &flags("v4-7", &[]), 1, "from v4-8");
    rejects(&folder, &flags("h200:9", &[]), 1, "from 1 to 8");
    rejects(
        &folder,
        &flags("cpu:2", &["--num_cores", "4"]),
        1,
        "--num_cores is 4, but cpu:2 has 2",
    );
    rejects(&folder, &flags("v4-8", &["--device", "cpu"]), 1, "--device is cpu");
    rejects(&folder, &flags("cpu:2", &["--block_size", "64"]), 1, "the model has 16 positions");
    rejects(&folder, &flags("cpu:2", &["--tokens", "0"]), 2, "above 0");
    rejects(&folder, &["plan", "--topology", "cpu:2"], 1, "--config_name");
    rejects(&folder, &["plan"], 2, "--topology");
    rejects(&folder, &flags("v4-8", &["--plugin", "gone.so"]), 1, "gone.so");
    rejects(&folder, &flags("cpu:2", &["--html", "."]), 1, "cannot write .: it is a folder");
    let missing = "--html is no/such/x.html, but there is no folder no/such: create it";
    rejects(&folder, &flags("cpu:2", &["--html", "no/such/x.html"]), 1, missing);
}

#[test]
fn does_not_compile_what_cannot_fit() {
    let folder = Folder::new();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/table1/128b.json");
    let args = ["plan", "--config", config, "--topology", "v4-8", "--fsdp_config", "fsdp.json"];
    rejects(&folder, &args, 1, "does not fit");
    // The formula still reports the memory, which exceeds the limit.
    let output = folder.run(&[&args[..], &["--quick", "--json"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(number(&report["memory"]["total"]) > number(&report["memory"]["limit"]));
}

#[test]
fn missing_libtpu_error_names_the_install_command() {
    let folder = Folder::new();
    let mut command = folder.command(&plan("v4-8", &[]));
    let output = command.env_remove("FULLSHARD_TPU_PLUGIN").env("HOME", folder.0.path());
    let output = output.env("PATH", "").output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("fullshard plugins install tpu"), "{stderr}");
}

/// A model whose weights are far larger than everything else that is communicated.
const NARROW: &str = r#"{"model_type": "gpt2", "vocab_size": 1031, "n_positions": 128,
    "n_embd": 512, "n_layer": 9, "n_head": 4, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}"#;

/// Plans with the real compiler, without a TPU.
fn for_v4(folder: &Folder, more: &[&str]) -> std::process::Output {
    folder.write("narrow.json", NARROW);
    let flags = ["plan", "--config", "narrow.json", "--fsdp_config", "fsdp.json", "--bf16"];
    let flags = [&flags[..], &["--topology", "v4-8", "--json"], more].concat();
    let store = Store::default_location().unwrap();
    let tpu = store.install(Platform::Tpu).unwrap().path;
    folder.command(&flags).env("FULLSHARD_TPU_PLUGIN", tpu).output().unwrap()
}

#[test]
#[ignore = "long: a minute of a processor, and libtpu"]
fn long_plans_a_slice_with_its_compiler() {
    let output = for_v4(&Folder::new(), &["--per_device_train_batch_size", "4"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["basis"]["compiler"].as_str().unwrap().contains("libtpu"));
    assert_eq!(report["machine"]["torus"], serde_json::json!([2, 2, 1]));
    let rates = &report["rates"];
    assert!(number(&rates["hfu"]) >= number(&rates["mfu"]) && number(&rates["mfu"]) < 0.5);
    let weights = |kind: &str| {
        let rows = report["collectives"].as_array().unwrap().iter();
        let rows = rows.filter(|row| row["kind"] == kind && number(&row["bytes"]) > 500_000.0);
        rows.map(|row| number(&row["count"])).sum::<f64>()
    };
    // Four weights of each layer, forward and backward, and the embedding.
    assert_eq!((weights("all-gather"), weights("reduce-scatter")), (73.0, 37.0));
}

#[test]
#[ignore = "long: a minute of a processor, and libtpu"]
fn long_reports_out_of_memory_in_the_compiler() {
    let more = ["--per_device_train_batch_size", "560", "--remat", "none"];
    let output = for_v4(&Folder::new(), &more);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let memory = &report["memory"];
    assert!(number(&memory["total"]) > number(&memory["limit"]));
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("runs out of memory"), "{warnings}");
}

#[test]
fn search_keeps_given_settings() {
    let folder = Folder::new();
    let flags = ["--search", "--compiles", "0", "--remat", "full", "--scan_layers", "true"];
    let output = folder.run(&plan("cpu:2", &flags));
    assert!(text(&output.stderr).contains("only --remat full is tried: leave out --remat"));
    let stdout = text(&output.stdout);
    let points: Vec<&str> = stdout.lines().filter(|line| line.starts_with("  estimated")).collect();
    assert!(points.iter().all(|line| line.contains("--remat full --scan_layers true")), "{stdout}");
    assert!(points.len() > 1, "{stdout}");
}

/// The blog post's 128B model: blocks are wrapped unless one unit is requested, and wrapping is the
/// first fix of that.
#[test]
fn large_model_fits_with_full_shard_alone() {
    let folder = Folder::new();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/table1/128b.json");
    let planned = |more: &[&str]| -> Value {
        let flags = ["plan", "--quick", "--json", "--config", config, "--topology", "v4-512"];
        let step = ["--per_device_train_batch_size", "4", "--block_size", "1024", "--bf16"];
        let memory = ["--optim", "adafactor", "--remat", "full", "--fsdp", "full_shard"];
        let output = folder.run(&[&flags[..], &step, &memory, more].concat());
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let bytes = |report: &Value| number(&report["memory"]["total"]) / f64::from(1 << 30);
    let (default, named, one_unit) = (
        planned(&[]),
        planned(&["--fsdp_transformer_layer_cls_to_wrap", "GPT2Block"]),
        planned(&["--fsdp_transformer_layer_cls_to_wrap", ""]),
    );
    assert_eq!(default, named);
    assert!(bytes(&default) < 20.0 && bytes(&one_unit) > 400.0, "{}", bytes(&default));
    let warning = &one_unit["warnings"][0];
    assert!(warning["what"].as_str().unwrap().contains("the whole model is one FSDP unit"));
    let fix = "wrap the blocks of the model with --fsdp_transformer_layer_cls_to_wrap GPT2Block";
    assert_eq!(warning["fix"], fix);
    assert!(one_unit["warnings"][1]["fix"].as_str().unwrap().starts_with(fix));
}
