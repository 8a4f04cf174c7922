//! Invalid runs: each error comes with a fix, and nothing is written.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Folder, TINY, rejects, short, text};
use std::fs;
use std::process::Command;

/// Errors before a device is used, which leave no files.
#[test]
fn errors_leave_no_files() {
    let folder = Folder::new();
    folder.write("page.pdf", "no text");
    folder.write("few.json", &TINY.replace("96", "50"));
    fs::create_dir(folder.path("full")).unwrap();
    folder.write("full/file", "something");
    folder.write("no.json", "{}");
    let base = [
        "run_clm",
        "--config_name",
        "tiny.json",
        "--tokenizer_name",
        "tokenizer.json",
        "--train_file",
        "train.txt",
        "--validation_file",
        "validation.txt",
        "--do_train",
    ];
    let without = |flag: &str| {
        let at = base.iter().position(|known| *known == flag).unwrap();
        [&base[..at], &base[at + 2..]].concat()
    };
    let with = |more: &[&'static str]| [&base[..], more].concat();
    let changed = |flag: &'static str, value: &'static str| {
        let at = base.iter().position(|known| *known == flag).unwrap();
        let mut args = base.to_vec();
        args[at + 1] = value;
        args
    };
    for (args, expected) in [
        (without("--train_file"), "no data to train on: pass text files with --train_file"),
        (changed("--train_file", "missing.txt"), "cannot read missing.txt: No such file"),
        (changed("--train_file", "page.pdf"), "text files end in .txt, .json"),
        (changed("--train_file", "."), ".: text files end in"),
        (changed("--config_name", "missing.json"), "cannot read the config missing.json"),
        (changed("--config_name", "few.json"), "tokens, but the model's vocabulary only 50"),
        (without("--config_name"), "no model given: pass a config.json"),
        (changed("--tokenizer_name", "bert"), "model bert: HF_HUB_OFFLINE"),
        (changed("--tokenizer_name", "./bert"), "no tokenizer `./bert`: pass `gpt2`"),
        (changed("--config_name", "bert"), "has no revision `main` of it"),
        (with(&["--model_revision", "../v2", "--tokenizer_name", "bert"]), "not a revision"),
        (changed("--tokenizer_name", "no.json"), "no.json: not a tokenizer.json"),
        (with(&["--block_size", "17"]), "--block_size is 17, but the model has 16 positions"),
        (with(&["--output_dir", "full"]), "which is not empty: add --resume_from_checkpoint"),
        (with(&["--output_dir", "tiny.json"]), "which is a file: name a folder"),
        (with(&["--output_dir", "/proc/none"]), "which cannot be written to"),
        (base[..9].to_vec(), "nothing to do: add --do_train, --do_eval or both"),
        (with(&["--resume_from_checkpoint", "x"]), "x is not a complete checkpoint"),
        (with(&["--resume_from_checkpoint"]), "no checkpoint to resume from"),
        (with(&["--load_best_model_at_end"]), "add --eval_strategy"),
        (with(&["--fp16"]), "there is no loss scaling: use --bf16"),
        (with(&["--push_to_hub"]), "upload the output folder by hand"),
        (with(&["--deepspeed", "ds.json"]), "--fsdp full_shard shards all"),
        (with(&["--report_to", "wandb"]), "--report_to is `wandb`, but must be tensorboard"),
        (with(&["--lr_scheduler_type", "steep"]), "steep"),
        (with(&["--lr_scheduler_kwargs", "{\"a\": 1}"]), "unknown option `a`"),
        (with(&["--warmup_ratio", "2"]), "--warmup_ratio is `2`, but must be"),
        (with(&["--model_type", "gpt2"]), "--config_name cannot be used with --model_type"),
        (with(&["--dataset_name", "wikitext"]), "cannot be used with --train_file"),
        (with(&["--optim", "lion"]), "unknown optimizer `lion`"),
        (with(&["--bf16", "--dtype", "float32"]), "contradict each other"),
        (with(&["--remat", "none", "--gradient_checkpointing"]), "contradict each other"),
        (with(&["--learning_rate", "-1"]), "--learning_rate is -1"),
        (with(&["--per_device_train_batch_size", "999999999999"]), "tokens per step"),
        (
            vec!["run_clm", "--train_file", "train.txt", "--do_train", "--model_type", "bert"],
            "--model_type is `bert`, but must be one of gpt2, llama",
        ),
        (
            vec![
                "run_clm",
                "--train_file",
                "train.txt",
                "--do_train",
                "--model_type",
                "gpt2",
                "--config_overrides",
                "n_layers=2",
            ],
            "did you mean `n_layer`?",
        ),
        (
            vec![
                "run_clm",
                "--train_file",
                "train.txt",
                "--do_train",
                "--model_name_or_path",
                "./gpt2-xl",
            ],
            "--model_name_or_path is ./gpt2-xl, which is not a folder",
        ),
        (
            vec![
                "run_clm",
                "--train_file",
                "train.txt",
                "--do_train",
                "--model_name_or_path",
                "gpt2-xl",
            ],
            "model gpt2-xl: HF_HUB_OFFLINE",
        ),
        (with(&["--num_cores", "100000"]), "a CPU has at most 256 virtual devices"),
        (vec!["train", "--tokenizer_name", "gpt2"], "pass text files with --train_file"),
    ] {
        rejects(&folder, &args, 1, expected);
    }
    for (args, expected) in [
        (with(&["--num_cores", "0"]), "it must be an integer of at least 1"),
        (with(&["--save_memory", "lots"]), "lots"),
        (with(&["--do_eval", "perhaps"]), "it must be true or false"),
        (with(&["--eval_strategy", "sometimes"]), "[possible values: no, steps, epoch]"),
        (with(&["--num_train_epoch", "1"]), "--num_train_epochs"),
        (with(&["--fsdp", "sharded"]), "`--fsdp` is `sharded`"),
    ] {
        rejects(&folder, &args, 2, expected);
    }
}

/// Errors after text is read or devices are used; the output folder is unchanged.
#[test]
fn later_errors_leave_no_output() {
    let folder = Folder::new();
    folder.write("empty.txt", "");
    fs::write(folder.path("latin.txt"), b"caf\xe9\n").unwrap();
    folder.write("rows.jsonl", "{\"text\": 1}\n");
    folder.write(
        "large.json",
        &TINY
            .replace("\"n_embd\": 16", "\"n_embd\": 65536")
            .replace("\"n_layer\": 2", "\"n_layer\": 100"),
    );
    let base = |config: &'static str, file: &'static str, more: &[&'static str]| {
        let base = [
            "run_clm",
            "--config_name",
            config,
            "--tokenizer_name",
            "tokenizer.json",
            "--train_file",
            file,
            "--validation_file",
            "validation.txt",
            "--do_train",
            "--output_dir",
            "out",
        ];
        [&base[..], more].concat()
    };
    let alone = |args: Vec<&'static str>| -> Vec<&'static str> {
        args.into_iter().map(|flag| if flag == "--do_train" { "--do_eval" } else { flag }).collect()
    };
    for (args, expected) in [
        (base("tiny.json", "empty.txt", &[]), "empty.txt has 0 tokens, which do not fill a block"),
        (base("tiny.json", "latin.txt", &[]), "latin.txt, line 1: the byte at offset 3"),
        (base("tiny.json", "rows.jsonl", &[]), "rows.jsonl, row 1: column `text`"),
        (base("large.json", "train.txt", &[]), "a step needs about"),
        (base("large.json", "train.txt", &[]), "a smaller model"),
        (alone(base("large.json", "train.txt", &[])), "the parameters need"),
        (
            base("tiny.json", "train.txt", &["--num_train_epochs", "0"]),
            "--num_train_epochs is 0, but must be a number above 0",
        ),
        (
            base("tiny.json", "train.txt", &["--logging_steps", "1.5"]),
            "--logging_steps is 1.5, but must be",
        ),
        (
            base("tiny.json", "train.txt", &["--save_steps", "1.5"]),
            "--save_steps is 1.5, but must be a whole number",
        ),
        (
            base(
                "tiny.json",
                "train.txt",
                &["--dataloader_drop_last", "--per_device_train_batch_size", "4096"],
            ),
            "training blocks, but a step needs 4096",
        ),
        (
            base("tiny.json", "train.txt", &["--device", "cuda", "--plugin", "/no/such.so"]),
            "/no/such.so",
        ),
        (base("tiny.json", "train.txt", &["--profile", "trace", "--max_steps", "2"]), "--profile"),
    ] {
        let output = folder.run(&args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains("error: ") && stderr.contains(expected), "{args:?}: {stderr}");
        assert!(!folder.path("out").exists(), "{args:?}");
    }
}

/// Without network and plugin, the error of a first run has a fix.
#[test]
fn failed_downloads_are_reported() {
    let folder = Folder::new();
    let no_network = |command: &mut Command| {
        command.env("PIP_INDEX_URL", "http://127.0.0.1:9").env("PIP_RETRIES", "0");
        command.env("HF_ENDPOINT", "http://127.0.0.1:9");
        text(&command.output().unwrap().stderr)
    };
    let mut command = folder.command(&short(&[]));
    command.env_remove("FULLSHARD_CPU_PLUGIN").env("PATH", "/nowhere");
    let stderr = no_network(&mut command);
    assert!(stderr.contains("error: ") && stderr.contains("plugin"), "{stderr}");
    let mut command = folder.command(&[
        "run_clm",
        "--dataset_name",
        "wikitext",
        "--do_train",
        "--model_type",
        "gpt2",
    ]);
    let stderr = no_network(&mut command);
    assert!(stderr.contains("error: ") && stderr.contains("--train_file"), "{stderr}");
}
