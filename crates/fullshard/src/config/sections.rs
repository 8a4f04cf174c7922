//! What a run is made of, section by section. Flags have Hugging Face's names; files have shorter
//! keys. A field's help and default stand here and nowhere else.

use super::source::ConfigSource;
use super::value::{FlagValue, Takes, choices};
use fullshard_core::Platform;
use fullshard_parallel::{Remat, Strategy};
use serde_json::{Map, Value};
use std::path::PathBuf;

choices! {
    /// When something happens during training.
    When {
        /// Never.
        No = "no",
        /// Every N steps.
        Steps = "steps",
        /// At the end of each epoch.
        Epoch = "epoch",
    }
}

choices! {
    /// Whether equal layers are scanned: one body in a loop, rather than unrolled.
    Scan {
        /// As the platform does best: on CPU always, on TPU above 8 layers, on GPU never.
        Auto = "auto",
        /// Scanned.
        True = "true",
        /// Unrolled.
        False = "false",
    }
}

choices! {
    /// The type to compute in.
    Compute {
        /// Single precision.
        Float32 = "float32",
        /// Brain float.
        Bfloat16 = "bfloat16",
        /// Half precision, without loss scaling.
        Float16 = "float16",
        /// `bfloat16`, with the matmuls of layers in FP8.
        Float8 = "float8_e4m3fn",
    }
}

/// In any case: `PJRT_DEVICE` is often in capitals.
impl FlagValue for Platform {
    fn read(words: &[String]) -> Result<Platform, String> {
        String::read(words)?
            .to_ascii_lowercase()
            .parse::<Platform>()
            .map_err(|error| error.to_string())
    }

    fn words(&self) -> Option<Vec<String>> {
        Some(vec![self.name().to_owned()])
    }
}

/// A bare `--fsdp` is `full_shard`, as elsewhere.
impl FlagValue for Strategy {
    const TAKES: Takes = Takes::Switch;

    fn read(words: &[String]) -> Result<Strategy, String> {
        if words.is_empty() { Ok(Strategy::FullShard) } else { super::value::parsed(words) }
    }

    fn words(&self) -> Option<Vec<String>> {
        Some(vec![self.name().to_owned()])
    }
}

impl FlagValue for Remat {
    const CHOICES: &'static [&'static str] = &["none", "dots", "full"];

    fn read(words: &[String]) -> Result<Remat, String> {
        super::value::parsed(words)
    }

    fn words(&self) -> Option<Vec<String>> {
        Some(vec![self.name().to_owned()])
    }
}

super::section! {
    /// Which model is trained.
    Model, "Model" {
        /// Initialize from this checkpoint: a folder with config.json and model.safetensors.
        pretrained: Option<PathBuf> = None, "model_name_or_path", "DIR";
        /// Train from scratch with this config: a config.json, a folder that has one, or the JSON
        /// itself.
        config: Option<ConfigSource> = None, "config_name" | "config", "FILE|DIR|JSON";
        /// Train from scratch with the default config of a model type, such as gpt2 or llama.
        model_type: Option<String> = None, "model_type", "TYPE";
        /// Changes to that default config, as key=value,key=value.
        overrides: Option<String> = None, "config_overrides", "ARGS";
        /// Parameters that are not trained, by name, with * for anything.
        freeze: Vec<String> = Vec::new(), "freeze", "PATTERN";
        /// Whether equal layers are scanned rather than unrolled; auto: on CPU always, on TPU above
        /// 8 layers, on GPU never.
        scan_layers: Scan = Scan::Auto, "scan_layers", "auto|true|false";
    }
}

super::section! {
    /// What it is trained on.
    Data, "Data" {
        /// A dataset of the Hugging Face hub.
        dataset: Option<String> = None, "dataset_name", "NAME";
        /// Which config of the dataset.
        dataset_config: Option<String> = None, "dataset_config_name", "NAME";
        /// Text to train on: .txt, .json, .jsonl, .csv or .parquet, one file or several.
        train_file: Vec<PathBuf> = Vec::new(), "train_file", "FILE";
        /// Text to evaluate on.
        validation_file: Vec<PathBuf> = Vec::new(), "validation_file", "FILE";
        /// Percentage of the training text that is set aside for evaluation if there is no other.
        validation_split_percentage: u8 = 5, "validation_split_percentage", "PERCENT";
        /// Train on the demo's made-up language, which needs no files.
        demo: bool = false, "demo", "BOOL";
        /// gpt2, which is built in, a tokenizer.json, or a folder that has one; by default that of the
        /// checkpoint, or gpt2.
        tokenizer: Option<String> = None, "tokenizer_name", "NAME|PATH";
        /// Tokens per block; by default as many as tokenizer and model allow, and at most 1024.
        block_size: Option<usize> = None, "block_size", "N";
        /// Pack text into blocks without dropping anything. By default the rest of every thousand
        /// examples that does not fill a block is dropped, as run_clm does.
        packing: bool = false, "packing", "BOOL";
        /// Whether lines of text keep their line breaks.
        keep_linebreaks: bool = true, "keep_linebreaks", "BOOL";
        /// Train on at most this many blocks.
        max_train_samples: Option<usize> = None, "max_train_samples", "N";
        /// Evaluate on at most this many blocks.
        max_eval_samples: Option<usize> = None, "max_eval_samples", "N";
        /// Drop the last batch of an epoch if it is not full.
        drop_last: bool = false, "dataloader_drop_last", "BOOL";
        /// Seed of the order of blocks; by default the seed of the run.
        seed: Option<u64> = None, "data_seed", "SEED";
        /// Folder for downloaded datasets and tokenized text.
        cache_dir: Option<PathBuf> = None, "cache_dir", "DIR";
        /// Tokenize again even if the tokens are cached.
        overwrite_cache: bool = false, "overwrite_cache", "BOOL";
    }
}

super::section! {
    /// Which devices it runs on, and how programs are compiled for them.
    Device, "Devices" {
        /// The platform: cpu, cuda or tpu; by default cpu.
        platform: Option<Platform> = None, "device", "PLATFORM";
        /// A PJRT plugin to use instead of the one that would be found.
        plugin: Option<PathBuf> = None, "plugin", "FILE";
        /// The share of its memory a GPU client may take.
        memory_fraction: Option<f32> = None, "memory_fraction", "FRACTION";
        /// Whether a GPU client allocates its memory up front.
        preallocate: Option<bool> = None, "preallocate", "BOOL";
        /// Another option of the plugin, such as max_inflight_computations=4.
        client_options: Vec<String> = Vec::new(), "client_option", "NAME=VALUE";
        /// A compiler flag, such as xla_cpu_enable_fast_math=true.
        xla_flags: Vec<String> = Vec::new(), "xla_flag", "NAME=VALUE";
        /// Compile every program, without the compile cache.
        no_cache: bool = false, "no_cache", "BOOL";
    }
}

super::section! {
    /// The mesh of devices: the size of each axis.
    Mesh, "Devices" {
        /// Number of devices that parameters and batches are sharded over; by default 1.
        fsdp: Option<usize> = None, "num_cores" | "tpu_num_cores", "N";
    }
}

super::section! {
    /// Fully sharded data parallelism: what is sharded, and how. Keys without a flag are those of
    /// `fsdp_config.json`.
    Fsdp, "Sharding" {
        /// What is sharded: full_shard, shard_grad_op or no_shard, with auto_wrap if you like.
        strategy: Strategy = Strategy::FullShard, "fsdp", "WORDS";
        /// All-gather the next scanned layer while one is computed.
        gather_ahead: bool = false, "gather_ahead", "BOOL";
        /// Module classes that become units of their own.
        wrap: Vec<String> = Vec::new();
        /// Modules of at least this many parameters become units of their own, instead.
        min_num_params: Option<usize> = None;
        /// Whether full parameters are resharded after the forward pass; by default as the strategy
        /// says.
        reshard_after_forward: Option<bool> = None;
        /// Whether the root keeps its full parameters between forward and backward pass.
        disable_reshard_on_root: bool = true;
        /// Whether the parameters of a unit are one collective.
        flatten_parameters: bool = false;
        /// Whether parameters are sharded along dim 0 rather than flattened.
        shard_param_on_dim_0: bool = false;
        /// Whether the parameters of a unit are all-gathered together.
        coalesce_all_gather_ops: bool = false;
        /// Gradients are reduced together once they exceed this many megabytes; 0 reduces each by
        /// itself.
        reduce_scatter_bucket_size_mb: f64 = 0.0;
        /// Whether gradients are reduced in float32 whatever the compute type.
        fp32_reduce_scatter: bool = false;
        /// The type of tables that are not parameters; by default the compute type.
        buffer_dtype: Option<Compute> = None;
        /// What gradients are divided by before and after they are summed.
        gradient_divide_factors: Option<(f64, f64)> = None;
        /// Accepted from configs that have it; programs for all devices have nothing to pin.
        pin_layout_in_collective_ops: bool = true;
        /// Whether unrolled layers are kept apart by barriers in the forward pass.
        optimization_barrier_in_forward: bool = true;
        /// The same in the backward pass.
        optimization_barrier_in_backward: bool = true;
    }
}

super::section! {
    /// The types that numbers have.
    Precision, "Precision and memory" {
        /// The type to compute in; by default what the FSDP config says, or float32.
        compute: Option<Compute> = None, "dtype", "TYPE";
    }
}

super::section! {
    /// What the backward pass recomputes.
    Rematerialization, "Precision and memory" {
        /// What is saved for the backward pass: everything (none), the results of matmuls and
        /// attention (dots), or only the inputs of layers (full).
        policy: Option<Remat> = None, "remat", "POLICY";
    }
}

super::section! {
    /// The optimizer.
    Optimizer, "Optimizer" {
        /// The optimizer: adamw (or Hugging Face's names for it), adafactor or sgd.
        name: String = "adamw".to_owned(), "optim", "NAME";
        /// More arguments for the optimizer, as key=value,key=value.
        args: String = String::new(), "optim_args", "ARGS";
        /// The peak learning rate; by default 5e-5.
        learning_rate: Option<f64> = None, "learning_rate", "RATE";
        /// Weight decay.
        weight_decay: f64 = 0.0, "weight_decay", "X";
        /// AdamW's beta1.
        adam_beta1: f64 = 0.9, "adam_beta1", "X";
        /// AdamW's beta2.
        adam_beta2: f64 = 0.999, "adam_beta2", "X";
        /// AdamW's epsilon.
        adam_epsilon: f64 = 1e-8, "adam_epsilon", "X";
        /// Clip gradients to this norm; 0 does not clip.
        max_grad_norm: f64 = 1.0, "max_grad_norm", "X";
    }
}

super::section! {
    /// How long training is, and on how much at a time.
    Schedule, "Training" {
        /// Whether to train; `run_clm` does only if given.
        do_train: Option<bool> = None, "do_train", "BOOL";
        /// Sequences per device and micro-batch.
        per_device_batch: usize = 8, "per_device_train_batch_size", "N";
        /// Micro-batches whose gradients are added up before an update.
        gradient_accumulation_steps: usize = 1, "gradient_accumulation_steps", "N";
        /// Reduce gradients once per step rather than once per micro-batch.
        no_sync: bool = false, "no_sync", "BOOL";
        /// Number of training epochs.
        epochs: f64 = 3.0, "num_train_epochs", "X";
        /// Number of training steps; above 0 it takes the place of the epochs.
        max_steps: i64 = -1, "max_steps", "N";
        /// The learning rate schedule: linear, cosine, constant_with_warmup and others.
        lr_scheduler: String = "linear".to_owned(), "lr_scheduler_type", "NAME";
        /// More arguments for the schedule, as JSON.
        lr_scheduler_kwargs: Map<String, Value> = Map::new(), "lr_scheduler_kwargs", "JSON";
        /// Steps over which the learning rate warms up; below 1 a fraction of all steps.
        warmup_steps: f64 = 0.0, "warmup_steps", "X";
        /// Seed of the initial weights, of dropout and of the order of blocks.
        seed: u64 = 42, "seed", "SEED";
    }
}

super::section! {
    /// When the model is evaluated.
    Evaluation, "Evaluation" {
        /// Whether to evaluate at the end; by default if there are evaluations during training.
        do_eval: Option<bool> = None, "do_eval", "BOOL";
        /// When to evaluate during training.
        strategy: When = When::No, "eval_strategy" | "evaluation_strategy", "no|steps|epoch";
        /// Steps between evaluations; below 1 a fraction of all steps; by default those between logs.
        steps: Option<f64> = None, "eval_steps", "X";
        /// Steps or epochs before the first evaluation.
        delay: f64 = 0.0, "eval_delay", "X";
        /// Sequences per device and batch of an evaluation.
        per_device_batch: usize = 8, "per_device_eval_batch_size", "N";
    }
}

super::section! {
    /// What is reported while it runs.
    Logging, "Logging" {
        /// When to log.
        strategy: When = When::Steps, "logging_strategy", "no|steps|epoch";
        /// Steps between logs; below 1 a fraction of all steps.
        steps: f64 = 500.0, "logging_steps", "X";
        /// Log the first step too.
        first_step: bool = false, "logging_first_step", "BOOL";
        /// Where logs go beside the terminal: tensorboard, none or all.
        report_to: Vec<String> = vec!["tensorboard".to_owned()], "report_to", "WHERE";
        /// Show no progress bar.
        disable_tqdm: bool = false, "disable_tqdm", "BOOL";
        /// Write a profile of a few steps into this folder, where the plugin can.
        profile: Option<PathBuf> = None, "profile", "DIR";
    }
}

super::section! {
    /// What is written, and where.
    Output, "Output" {
        /// Folder for the model and the results.
        dir: PathBuf = "trainer_output".into(), "output_dir", "DIR";
        /// Write into an output folder that is not empty.
        overwrite: bool = false, "overwrite_output_dir", "BOOL";
        /// When to save a checkpoint during training: only `no` is supported so far. The model is
        /// always saved at the end.
        save_strategy: String = "no".to_owned(), "save_strategy", "WHEN";
    }
}

/// Arguments as a JSON object.
impl FlagValue for Map<String, Value> {
    fn read(words: &[String]) -> Result<Map<String, Value>, String> {
        let text = String::read(words)?;
        serde_json::from_str(&text).map_err(|error| format!("it is no JSON object: {error}"))
    }

    fn words(&self) -> Option<Vec<String>> {
        (!self.is_empty()).then(|| vec![Value::Object(self.clone()).to_string()])
    }
}
