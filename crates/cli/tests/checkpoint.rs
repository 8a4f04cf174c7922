//! `fullshard checkpoint` on the checkpoints of one short run, and on recorded weights of other
//! formats.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The flags of a run of four steps on two devices that saves every second one.
const FLAGS: &str = "--do_eval --max_steps 4 --save_steps 2 --eval_strategy steps --eval_steps 2 \
    --load_best_model_at_end --report_to none";

/// The parameters of the model: embeddings, two layers of a width of 16, the last norm.
const PARAMETERS: usize = (96 + 16) * 16 + 2 * (12 * 16 * 16 + 13 * 16) + 2 * 16;

const MODEL: &str = "model-00001-of-00002.safetensors";

/// The files of a run.
static RUN: LazyLock<Vec<(PathBuf, Vec<u8>)>> = LazyLock::new(|| {
    let folder = Folder::new();
    train(&folder, FLAGS);
    let names = folder.names().into_iter().filter(|path| path.is_file());
    let files = names.map(|path| {
        let name = path.strip_prefix(folder.path("")).unwrap();
        (name.to_owned(), fs::read(&path).unwrap())
    });
    files.filter(|(name, _)| name.starts_with("out")).collect()
});

fn train(folder: &Folder, flags: &str) {
    let flags: Vec<&str> = flags.split_whitespace().collect();
    folder.stdout(&[&short(&[])[..], &flags].concat());
}

/// A folder with the run, and recorded weights of other formats.
fn folder() -> Folder {
    let folder = Folder::new();
    for (name, content) in RUN.iter() {
        let path = folder.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/data");
    symlink(data.canonicalize().unwrap(), folder.path("recorded")).unwrap();
    folder
}

fn words(command: &str) -> Vec<&str> {
    ["checkpoint"].into_iter().chain(command.split_whitespace()).collect()
}

/// The exit code and the JSON of a command.
fn json(folder: &Folder, command: &str) -> (i32, Value) {
    let output = folder.run(&words(&format!("{command} --json")));
    let value = serde_json::from_slice(&output.stdout);
    let value = value.unwrap_or_else(|_| panic!("{command}: {}", text(&output.stderr)));
    (output.status.code().unwrap(), value)
}

/// The exit code and the text of a command.
fn shown(folder: &Folder, command: &str) -> (i32, String) {
    let output = folder.run(&words(command));
    (output.status.code().unwrap(), text(&output.stdout))
}

/// Checks that a command fails with an error, and changes nothing.
fn fails(folder: &Folder, command: &str, code: i32, expected: &str) {
    rejects(folder, &words(command), code, expected);
}

/// Changes one byte in the middle of a file.
fn change(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn cut(path: &Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 8]).unwrap();
}

fn remove(path: &Path) {
    fs::remove_file(path).unwrap();
}

#[test]
fn lists_which_checkpoint_is_best_and_which_is_resumed() {
    let folder = folder();
    let (code, list) = json(&folder, "list out");
    assert_eq!((code, list.as_array().unwrap().len()), (0, 2), "{list}");
    assert_eq!([&list[0]["step"], &list[1]["step"]], [4, 2]);
    let best = &folder.json("out/trainer_state.json")["best_model_checkpoint"];
    for (found, resumes) in list.as_array().unwrap().iter().zip([true, false]) {
        assert_eq!((&found["state"], &found["resumes"]), (&json!("complete"), &json!(resumes)));
        assert_eq!(found["best"], found["path"] == *best, "{list}");
        assert!(number(&found["saved_at"]) > 1.7e9 && number(&found["bytes"]) > 1e5, "{list}");
    }
    let (_, text) = shown(&folder, "list out");
    assert!(text.lines().nth(1).unwrap().contains("resumed by --resume"), "{text}");
    assert_eq!(text.matches("best").count(), 1, "{text}");
}

#[test]
fn lists_why_checkpoints_cannot_be_used() {
    let folder = folder();
    remove(&folder.path("out/checkpoint-4/COMMITTED"));
    let (code, list) = json(&folder, "list out");
    // Without a manifest that counts it is not known when it was saved.
    let (resumed, other) = (&list[0], &list[1]);
    assert_eq!((code, &other["step"], &other["state"]), (0, &json!(4), &json!("not_committed")));
    assert_eq!((&resumed["resumes"], &other["saved_at"]), (&json!(true), &Value::Null));

    cut(&folder.path("out/checkpoint-2/trainer_state.json"));
    let (_, list) = json(&folder, "list out");
    let reason = list[0]["reason"].as_str().unwrap();
    assert!(list[0]["state"] == "damaged" && reason.starts_with("trainer_state.json: it is "));
    let (_, text) = shown(&folder, "list out");
    assert!(text.contains("not committed") && text.contains("damaged: trainer_state"), "{text}");
    assert!(text.contains("can use none of them"), "{text}");
}

#[test]
fn verifies_all_checkpoints_of_a_run() {
    let folder = folder();
    let (code, found) = json(&folder, "verify out");
    assert_eq!((code, &found["complete"]), (0, &json!(true)), "{found}");
    assert_eq!(found["checkpoints"].as_array().unwrap().len(), 2);
    assert!(number(&found["checkpoints"][0]["bytes"]) > 1e5);
    let (code, text) = shown(&folder, "verify out/checkpoint-2");
    assert!(code == 0 && text.starts_with("out/checkpoint-2: complete, "), "{text}");
}

/// The problems that `verify` finds after damage to a file of a checkpoint.
fn problems(damage: fn(&Path), file: &str) -> Vec<String> {
    let folder = folder();
    damage(&folder.path("out/checkpoint-2").join(file));
    let (code, found) = json(&folder, "verify out");
    assert_eq!((code, &found["complete"]), (1, &json!(false)), "{found}");
    assert_eq!(found["checkpoints"][1]["problems"], json!([]), "the other is complete");
    let list = found["checkpoints"][0]["problems"].as_array().unwrap();
    let (_, text) = shown(&folder, "verify out/checkpoint-2");
    let problems = list.iter().map(|problem| {
        let name = Path::new(problem["path"].as_str().unwrap()).file_name().unwrap();
        format!("{}: {}", name.to_string_lossy(), problem["reason"].as_str().unwrap())
    });
    problems.inspect(|problem| assert!(text.contains(problem), "{text}")).collect()
}

/// A test for each way to damage a checkpoint.
macro_rules! damages {
    ($($name:ident: $damage:expr, $file:expr, $problem:literal;)*) => {
        $(#[test]
        fn $name() {
            let found = problems($damage, $file);
            assert!(found.len() == 1 && found[0].starts_with($problem), "{found:?}");
        })*
    };
}

damages! {
    verify_finds_a_changed_bit: change, MODEL,
        "model-00001-of-00002.safetensors: its checksum is not that of the manifest";
    verify_finds_a_cut_file: cut, "optimizer-00002-of-00002.safetensors",
        "optimizer-00002-of-00002.safetensors: it is ";
    verify_finds_a_missing_file: remove, "tokenizer.json", "tokenizer.json: it is missing";
    verify_finds_a_missing_marker: remove, "COMMITTED",
        "checkpoint-2: it has no file COMMITTED: it was not committed";
    verify_finds_a_missing_manifest: remove, "manifest.json", "manifest.json: it is missing";
    verify_finds_a_changed_manifest: change, "manifest.json",
        "manifest.json: its checksum is not that of COMMITTED";
}

#[test]
fn info_describes_a_checkpoint() {
    let folder = folder();
    let (code, info) = json(&folder, "info out/checkpoint-2");
    assert_eq!((code, &info["format"]), (0, &json!("fullshard checkpoint")), "{info}");
    assert_eq!((&info["tensors"], &info["parameters"]), (&json!(28), &json!(PARAMETERS)));
    assert_eq!((&info["bytes"], &info["dtypes"]), (&json!(4 * PARAMETERS), &json!({ "F32": 28 })));
    assert!(info.get("tensor_list").is_none());
    let found = &info["checkpoint"];
    assert_eq!((&found["step"], &found["mesh"]), (&json!(2), &json!({ "fsdp": 2 })), "{info}");
    assert_eq!((&found["optimizer"], &found["optimizer_tensors"]), (&json!("adamw"), &json!(56)));
    assert_eq!(number(&found["data"]["example"]), 2.0 * number(&found["data"]["batch"]));
    assert_eq!(found["fullshard"], env!("CARGO_PKG_VERSION"));
    assert!(found["files"][MODEL].is_u64() && found["config"]["schedule"]["max_steps"] == 4);

    let (_, text) = shown(&folder, "info out/checkpoint-2 --tensors");
    let tensor = "transformer.wte.weight.exp_avg  [96, 16]  F32  2 shards";
    for part in ["8,384", "fsdp 2", "adamw", MODEL, "schedule.max_steps", "tiny.json", tensor] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn info_describes_other_formats() {
    let folder = folder();
    for (path, format, tensors, parameters) in [
        ("pretrained/llama_bf16_sharded", "safetensors", 21, 1112),
        ("pretrained/llama_bf16_bin_sharded", "torch", 21, 1112),
        ("xla_fsdp/dim0/net", "PyTorch/XLA FSDP", 14, 658),
    ] {
        let (code, info) = json(&folder, &format!("info recorded/{path} --tensors"));
        assert_eq!((code, &info["format"]), (0, &json!(format)), "{info}");
        assert_eq!((&info["tensors"], &info["parameters"]), (&json!(tensors), &json!(parameters)));
        let list = info["tensor_list"].as_array().unwrap();
        assert!(list.len() == tensors && list[0]["dims"].is_array(), "{info}");
        assert_eq!(info["checkpoint"], Value::Null);
    }
    let (_, info) = json(&folder, "info out");
    assert_eq!(info["format"], "safetensors", "the model at the end of the run: {info}");
}

#[test]
fn resharded_checkpoints_have_the_same_state() {
    let folder = folder();
    for (n, file) in [(1, "model.safetensors"), (3, "model-00003-of-00003.safetensors")] {
        let command = format!("reshard out/checkpoint-2 --output again/{n} --num_shards {n}");
        let (code, written) = json(&folder, &command);
        assert_eq!((code, &written["step"], &written["tensors"]), (0, &json!(2), &json!(84)));
        let (code, found) = json(&folder, &format!("diff out/checkpoint-2 again/{n}"));
        assert_eq!((code, &found["bit_equal"]), (0, &json!(84)), "{found}");
        assert_eq!(shown(&folder, &format!("verify again/{n}")).0, 0);
        let (_, info) = json(&folder, &format!("info again/{n}"));
        assert!(info["checkpoint"]["most_shards"] == n, "{info}");
        let output = folder.path("again").join(n.to_string());
        assert!(output.join(file).is_file(), "{info}");
        for name in ["config.json", "tokenizer.json", "trainer_state.json", "run_config.toml"] {
            let original = folder.path("out/checkpoint-2").join(name);
            assert_eq!(fs::read(original).unwrap(), fs::read(output.join(name)).unwrap(), "{name}");
        }
    }
    assert_eq!(fs::read_dir(folder.path("again")).unwrap().count(), 2, "nothing unfinished");
    // Full tensors are those of a Hugging Face model.
    assert_eq!(shown(&folder, "diff out/checkpoint-2 again/1/model.safetensors").0, 0);
}

#[test]
fn runs_resume_from_a_resharded_checkpoint_bit_for_bit() {
    let folder = folder();
    let resharded = shown(&folder, "reshard out/checkpoint-2 --output resharded --num_shards 5");
    assert_eq!(resharded.0, 0, "{}", resharded.1);
    for (from, to) in [("out/checkpoint-2", "original"), ("resharded", "other")] {
        // The last value of a flag counts.
        train(&folder, &format!("{FLAGS} --resume_from_checkpoint {from} --output_dir {to}"));
    }
    let (code, found) = json(&folder, "diff original/checkpoint-4 other/checkpoint-4");
    assert_eq!((code, &found["bit_equal"]), (0, &json!(84)), "{found}");
    let (code, found) = json(&folder, "diff resharded other/checkpoint-4");
    assert!(code == 1 && number(&found["bit_equal"]) < 84.0, "it trained: {found}");
}

#[test]
fn consolidates_a_checkpoint() {
    let folder = folder();
    let (code, written) = json(&folder, "consolidate out/checkpoint-4 --output hf");
    assert_eq!((code, &written["tensors"]), (0, &json!(28)), "{written}");
    assert_eq!(written["bytes"], 4 * PARAMETERS);
    assert_eq!(written["files"], json!(["model.safetensors"]), "{written}");
    let others = written["others"].as_array().unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        assert!(others.contains(&json!(name)) && folder.path("hf").join(name).is_file(), "{name}");
    }
    assert_eq!(fs::read_dir(folder.path("hf")).unwrap().count(), 1 + others.len());
    let (code, found) = json(&folder, "diff out/checkpoint-4 hf");
    assert_eq!((code, &found["bit_equal"]), (0, &json!(28)), "{found}");
}

#[test]
fn consolidates_in_shards_of_another_dtype() {
    let folder = folder();
    let command = "consolidate out/checkpoint-4 --output hf --save_dtype bfloat16";
    let (code, written) = json(&folder, &format!("{command} --max_shard_size 5KB"));
    assert_eq!((code, &written["dtypes"]), (0, &json!({ "BF16": 28 })), "{written}");
    assert!(written["files"].as_array().unwrap().len() > 2, "{written}");
    assert!(folder.path("hf/model.safetensors.index.json").is_file());
    assert_eq!(folder.json("hf/config.json")["dtype"], "bfloat16");

    let (code, found) = json(&folder, "diff out/checkpoint-4 hf");
    assert_eq!((code, &found["compared"], &found["bit_equal"]), (1, &json!(28), &json!(0)));
    assert_eq!(found["other_dtypes"][0]["b"], "BF16");
    let relative = number(&found["largest_relative"]["max_relative"]);
    assert!((1e-4..=1.0 / 256.0).contains(&relative), "{relative}");
    let absolute = number(&found["largest_absolute"]["max_absolute"]);
    for (tolerance, expected) in [(absolute, 0), (absolute / 2.0, 1)] {
        let (code, text) =
            shown(&folder, &format!("diff out/checkpoint-4 hf --tolerance {tolerance}"));
        assert_eq!(code, expected, "{text}");
    }
}

#[test]
fn consolidates_other_formats() {
    let folder = folder();
    let (code, text) = shown(&folder, "consolidate recorded/xla_fsdp/dim0/net --output net");
    assert!(code == 0 && text.contains("weights only: add the model's config.json"), "{text}");
    assert_eq!(shown(&folder, "diff net recorded/xla_fsdp/dim0.safetensors").0, 0);
    // Integers stay as they are.
    let (_, info) = json(&folder, "info net");
    assert_eq!(info["dtypes"], json!({ "F32": 13, "I64": 1 }), "{info}");

    let llama = "recorded/pretrained/llama_bf16_sharded";
    let (_, written) = json(&folder, &format!("consolidate {llama} --output llama"));
    assert_eq!(written["dtypes"], json!({ "BF16": 21 }), "{written}");
    assert_eq!(shown(&folder, "diff llama recorded/pretrained/llama_bf16_bin_sharded").0, 0);
}

#[test]
fn diff_tells_what_differs() {
    let folder = folder();
    let (code, found) = json(&folder, "diff out/checkpoint-2 out/checkpoint-4");
    assert_eq!((code, &found["same"], &found["compared"]), (1, &json!(false), &json!(84)));
    let progress = found["progress"].as_array().unwrap();
    assert!(progress.contains(&json!({ "name": "step", "a": 2, "b": 4 })), "{found}");
    assert!(number(&found["largest_absolute"]["max_absolute"]) > 0.0, "{found}");

    let command = "diff out/checkpoint-2 recorded/pretrained/gpt2_tied_bin";
    let (code, found) = json(&folder, command);
    assert_eq!((code, &found["only_in_b"]), (1, &json!(["lm_head.weight"])), "{found}");
    assert_eq!(found["other_dims"][0]["a"], json!([48]), "{found}");
    assert_eq!(found["progress"], json!([]), "only one is a checkpoint");
    let (_, text) = shown(&folder, command);
    assert!(text.contains("other dims: ") && text.ends_with("different\n"), "{text}");
}

#[test]
fn rejects_the_folder_of_a_run_and_names_its_checkpoints() {
    let folder = folder();
    remove(&folder.path("out/model.safetensors"));
    let expected =
        "out is the folder of a run with checkpoints: pass one of checkpoint-2, checkpoint-4";
    for command in [
        "reshard out --output new --num_shards 2",
        "consolidate out --output new",
        "info out",
        "diff out/checkpoint-2 out",
    ] {
        fails(&folder, command, 1, expected);
    }
}

#[test]
fn rejects_outputs_that_are_not_empty_before_it_reads() {
    let folder = folder();
    let expected = "cannot write to out: it is not empty";
    fails(&folder, "reshard missing --output out --num_shards 2", 1, expected);
    fails(&folder, "consolidate missing --output out", 1, expected);
    fails(&folder, "consolidate missing --output train.txt", 1, "cannot write train.txt");
    fs::create_dir(folder.path("empty")).unwrap();
    let (code, _) = shown(&folder, "consolidate out --output empty");
    assert!(code == 0 && folder.path("empty/model.safetensors").is_file());
}

/// A test for each wrong argument.
macro_rules! mistakes {
    ($($name:ident: $command:literal, $code:literal, $expected:literal;)*) => {
        $(#[test]
        fn $name() {
            fails(&folder(), $command, $code, $expected);
        })*
    };
}

mistakes! {
    rejects_a_missing_source: "reshard missing --output new --num_shards 2", 1,
        "cannot read missing: No such file";
    rejects_a_model_where_a_checkpoint_is_needed:
        "reshard recorded/pretrained/gpt2_tied --output new --num_shards 2", 1,
        "recorded/pretrained/gpt2_tied is not a checkpoint of a run";
    rejects_to_verify_what_has_no_checksums: "verify recorded/pretrained/gpt2_tied", 1,
        "has no checkpoints: pass the --output_dir of a run";
    rejects_to_list_a_missing_folder: "list missing", 1, "cannot read missing: No such file";
    rejects_no_shards: "reshard out/checkpoint-2 --output new --num_shards 0", 2, "--num_shards";
    rejects_a_negative_tolerance: "diff out out --tolerance=-1", 2, "at least 0";
    rejects_an_unknown_dtype: "consolidate out --output new --save_dtype int8", 2, "bfloat16";
}

/// Damage stops what would copy it, and nothing is left.
#[test]
fn rejects_damaged_and_uncommitted_sources() {
    let folder = folder();
    change(&folder.path("out/checkpoint-2").join(MODEL));
    let expected = "model-00001-of-00002.safetensors is damaged";
    fails(&folder, "reshard out/checkpoint-2 --output new --num_shards 3", 1, expected);
    fails(&folder, "consolidate out/checkpoint-2 --output new", 1, expected);
    fails(&folder, "diff out/checkpoint-2 out/checkpoint-4", 1, expected);
    remove(&folder.path("out/checkpoint-2/COMMITTED"));
    let expected = "out/checkpoint-2 is not a complete checkpoint: it has no file COMMITTED";
    fails(&folder, "consolidate out/checkpoint-2 --output new", 1, expected);
    fails(&folder, "info out/checkpoint-2", 1, expected);
}
