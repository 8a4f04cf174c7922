//! The sections of a run config. Flags have Hugging Face's names; files have shorter keys. This is
//! the only place for a field's help and default.

use super::source::ConfigSource;
use super::types::{
    AheadChoice, AttentionChoice, CollectiveChoice, Compute, ContextChoice, OnSpike, ResumeFrom,
    SaveDtype, SaveWhen, Scan, Size, When, WrapClasses,
};
use fullshard_core::{MeshSpec, Platform};
use fullshard_data::hub::{MAIN, Token};
use fullshard_parallel::{Remat, Strategy};
use serde_json::{Map, Value};
use std::path::PathBuf;

super::section! {
    /// The model to train.
    Model, "Model" {
        /// Initialize from this checkpoint: a folder with config.json and model.safetensors, or the
        /// name of a model on the Hugging Face Hub.
        pretrained: Option<PathBuf> = None, "model_name_or_path", "DIR|NAME";
        /// Train from scratch with this config: a config.json, a folder with one, the name of a
        /// model on the hub, or inline JSON.
        config: Option<ConfigSource> = None, "config_name" | "config", "FILE|DIR|NAME|JSON";
        /// Revision of models, configs and tokenizers on the hub: a branch, a tag or a full commit.
        revision: String = MAIN.to_owned(), "model_revision", "REVISION";
        /// Access token for the hub; defaults to HF_TOKEN, or to the one that `hf auth login` saved.
        /// It is never written.
        token: Token = Token::default(), "token", "TOKEN";
        /// Train from scratch with the default config of this model type, such as gpt2 or llama.
        model_type: Option<String> = None, "model_type", "TYPE";
        /// Overrides of the default config, as key=value,key=value.
        overrides: Option<String> = None, "config_overrides", "ARGS";
        /// Names of parameters to freeze; * matches anything. May be repeated.
        freeze: Vec<String> = Vec::new(), "freeze", "PATTERN";
        /// Scan identical layers instead of unrolling them; auto: always on CPU, above 8 layers on
        /// TPU, never on GPU.
        scan_layers: Scan = Scan::Auto, "scan_layers", "auto|true|false";
        /// How attention is computed: in the best form of the platform (auto), or with the
        /// probabilities of all pairs in memory and one matmul for a fused projection, as in
        /// transformers' eager attention (eager).
        attention: AttentionChoice = AttentionChoice::Auto, "attn_implementation", "auto|eager";
    }
}

super::section! {
    /// The training and evaluation data.
    Data, "Data" {
        /// Name of a dataset on the Hugging Face Hub.
        dataset: Option<String> = None, "dataset_name", "NAME";
        /// Config name of the dataset.
        dataset_config: Option<String> = None, "dataset_config_name", "NAME";
        /// Training data files: .txt, .json, .jsonl, .csv or .parquet.
        train_file: Vec<PathBuf> = Vec::new(), "train_file", "FILE";
        /// Evaluation data files.
        validation_file: Vec<PathBuf> = Vec::new(), "validation_file", "FILE";
        /// Percentage of the training data to evaluate on if there is no validation data.
        validation_split_percentage: u8 = 5, "validation_split_percentage", "PERCENT";
        /// Train on the demo's synthetic text, which needs no files.
        demo: bool = false, "demo", "BOOL";
        /// Tokenizer: gpt2 (built in), a tokenizer.json, a folder with one, or the name of a model on
        /// the hub; defaults to that of the checkpoint, or gpt2.
        tokenizer: Option<String> = None, "tokenizer_name", "NAME|PATH";
        /// Tokens per block; defaults to the maximum length of tokenizer and model, at most 1024.
        block_size: Option<usize> = None, "block_size", "N";
        /// Pack text into blocks without dropping tokens. By default the remainder of every 1000
        /// examples that does not fill a block is dropped, as in run_clm.
        packing: bool = false, "packing", "BOOL";
        /// Keep the line breaks of text files.
        keep_linebreaks: bool = true, "keep_linebreaks", "BOOL";
        /// Maximum number of training blocks.
        max_train_samples: Option<usize> = None, "max_train_samples", "N";
        /// Maximum number of evaluation blocks.
        max_eval_samples: Option<usize> = None, "max_eval_samples", "N";
        /// Drop the last batch of an epoch if it is incomplete.
        drop_last: bool = false, "dataloader_drop_last", "BOOL";
        /// Random seed of the data order; defaults to --seed.
        seed: Option<u64> = None, "data_seed", "SEED";
        /// Folder for downloaded models and datasets and for tokenized text.
        cache_dir: Option<PathBuf> = None, "cache_dir", "DIR";
        /// Overwrite the cached tokens.
        overwrite_cache: bool = false, "overwrite_cache", "BOOL";
    }
}

super::section! {
    /// The devices to run on, and compile options.
    Device, "Devices" {
        /// Platform: cpu, cuda or tpu; defaults to cpu.
        platform: Option<Platform> = None, "device", "PLATFORM";
        /// PJRT plugin to use instead of the default one.
        plugin: Option<PathBuf> = None, "plugin", "FILE";
        /// Fraction of GPU memory that the client may use.
        memory_fraction: Option<f32> = None, "memory_fraction", "FRACTION";
        /// Preallocate GPU memory.
        preallocate: Option<bool> = None, "preallocate", "BOOL";
        /// Client option of the plugin, such as max_inflight_computations=4. May be repeated.
        client_options: Vec<String> = Vec::new(), "client_option", "NAME=VALUE";
        /// XLA compiler flag, such as xla_cpu_enable_fast_math=true. May be repeated.
        xla_flags: Vec<String> = Vec::new(), "xla_flag", "NAME=VALUE";
        /// The machine that the devices are, such as v4-128 or h100:8x2, whose network collectives
        /// follow. TPU slices are recognized without it.
        topology: Option<String> = None, "machine", "MACHINE";
        /// Disable the compile cache.
        no_cache: bool = false, "no_cache", "BOOL";
    }
}

super::section! {
    /// The device mesh.
    Mesh, "Devices" {
        /// Number of devices; defaults to those of --mesh, else to all GPUs or TPU devices of this
        /// machine, and to 1 on CPU.
        devices: Option<usize> = None, "num_cores" | "tpu_num_cores", "N";
        /// Device mesh: named axes and their sizes, the axis of neighboring devices last, such as
        /// data=2,fsdp=4. The axis tensor slices layers, context shards sequences, and all others
        /// shard the batch. -1 is the rest of the devices. Defaults to one axis, fsdp.
        shape: Option<MeshSpec> = None, "mesh", "AXES";
        /// Beside tensor parallelism (a mesh axis tensor), shard the tokens of norms and residuals
        /// over its devices too.
        sequence_parallel: bool = true, "sequence_parallel", "BOOL";
        /// Mesh axes that the compiler shards layers over by their annotations, instead of
        /// collectives written by hand: tensor.
        automatic: Vec<String> = Vec::new(), "automatic_axes", "AXIS";
        /// With context parallelism (a mesh axis context), how attention gets the keys and values
        /// of other devices: all-gathered (gather), or passed around a ring (ring), which needs
        /// less memory.
        context_method: ContextChoice = ContextChoice::Gather, "context_method", "HOW";
    }
}

super::section! {
    /// Fully sharded data parallelism. Keys without a flag are those of `fsdp_config.json`.
    Fsdp, "Sharding" {
        /// Sharding strategy: full_shard, shard_grad_op, weight_update, hybrid_shard,
        /// hybrid_shard_zero2 or no_shard. The hybrid ones shard over the mesh axis fsdp and
        /// replicate over the others. auto_wrap beside it asks for the default: the blocks of the
        /// model are wrapped.
        strategy: Strategy = Strategy::FullShard, "fsdp", "WORDS";
        /// Sharding rules instead of those of a strategy: a TOML or JSON file.
        rules: Option<PathBuf> = None, "sharding_rules", "FILE";
        /// How collectives over several mesh axes or dimensions of a torus run: all at once (flat),
        /// one axis after another (axes), the same in streams that each start with another axis
        /// (rotated), from the nearest devices to the farthest (hierarchical), or as the network
        /// model predicts is fastest (auto).
        collective: CollectiveChoice = CollectiveChoice::Auto, "collective", "HOW";
        /// All-gather the next scanned layer while computing the current one (true), or only the
        /// vectors of all layers at once before the scan (vectors), or nothing ahead (false). Auto:
        /// vectors on TPU v4, else nothing.
        gather_ahead: AheadChoice = AheadChoice::Auto, "gather_ahead", "auto|false|vectors|true";
        /// Module classes to wrap as FSDP units, separated by commas; defaults to the blocks of the
        /// model. Empty for one unit.
        wrap: Option<WrapClasses> = None, "fsdp_transformer_layer_cls_to_wrap", "CLASSES";
        /// Wrap modules with at least this many parameters instead; 0 does not.
        min_num_params: u64 = 0, "fsdp_min_num_params", "N";
        /// Whether parameters are resharded after the forward pass; the strategy sets the default.
        reshard_after_forward: Option<bool> = None;
        /// Whether the root keeps its full parameters between the forward and backward pass.
        disable_reshard_on_root: bool = true;
        /// Whether the parameters of a unit share one collective.
        flatten_parameters: bool = false;
        /// Whether parameters are sharded on dim 0 instead of flattened.
        shard_param_on_dim_0: bool = false;
        /// Whether the parameters of a unit are all-gathered together.
        coalesce_all_gather_ops: bool = false;
        /// Gradients are reduced together once they exceed this many megabytes; 0 reduces each
        /// separately.
        reduce_scatter_bucket_size_mb: f64 = 0.0;
        /// Whether gradients are reduced in float32 regardless of the compute dtype.
        fp32_reduce_scatter: bool = false;
        /// The dtype of buffers; defaults to the compute dtype.
        buffer_dtype: Option<Compute> = None;
        /// Divisors of gradients before and after the reduction.
        gradient_divide_factors: Option<(f64, f64)> = None;
        /// Groups of devices that shard together, with replicas in the other groups.
        sharding_groups: Option<Vec<Vec<usize>>> = None;
        /// Accepted without effect: one program runs on all devices.
        sharding_rank: Option<usize> = None;
        /// Number of devices that shard together.
        sharding_world_size: Option<usize> = None;
        /// Accepted without effect: SPMD programs have nothing to pin.
        pin_layout_in_collective_ops: Option<bool> = None;
        /// Whether optimization barriers separate unrolled layers in the forward pass.
        optimization_barrier_in_forward: Option<bool> = None;
        /// The same in the backward pass.
        optimization_barrier_in_backward: Option<bool> = None;
    }
}

super::section! {
    /// Numeric precision.
    Precision, "Precision and memory" {
        /// Compute dtype; defaults to that of the FSDP config, or float32.
        compute: Option<Compute> = None, "dtype", "TYPE";
    }
}

super::section! {
    /// Activation rematerialization.
    Rematerialization, "Precision and memory" {
        /// Rematerialization policy: none saves all activations, dots the outputs of matmuls and
        /// attention, minimal those of matmuls, save_dot_except_mlp, save_qkv and save_out fewer,
        /// full only the inputs of layers; minimal_offload and qkv_offload save in host memory. Or
        /// a list of qkv, attn_out, out_proj, mlp_in and mlp_gate, such as qkv,offload:mlp_in.
        policy: Option<Remat> = None, "remat", "POLICY";
        /// MiB of logits, in float32, that the loss computes at once. More needs memory, and adds
        /// fewer times to the gradient of the head. Defaults to 2048 on GPUs, else to 512.
        logits_chunk_mib: Option<usize> = None, "logits_chunk_mib", "MIB";
    }
}

super::section! {
    /// The optimizer.
    Optimizer, "Optimizer" {
        /// Optimizer: adamw (or Hugging Face's names for it), adafactor or sgd.
        name: String = "adamw".to_owned(), "optim", "NAME";
        /// Additional arguments of the optimizer, as key=value,key=value.
        args: String = String::new(), "optim_args", "ARGS";
        /// Peak learning rate; defaults to 5e-5.
        learning_rate: Option<f64> = None, "learning_rate", "RATE";
        /// Weight decay.
        weight_decay: f64 = 0.0, "weight_decay", "X";
        /// Beta1 for AdamW.
        adam_beta1: f64 = 0.9, "adam_beta1", "X";
        /// Beta2 for AdamW.
        adam_beta2: f64 = 0.999, "adam_beta2", "X";
        /// Epsilon for AdamW.
        adam_epsilon: f64 = 1e-8, "adam_epsilon", "X";
        /// Maximum gradient norm; 0 disables clipping.
        max_grad_norm: f64 = 1.0, "max_grad_norm", "X";
    }
}

super::section! {
    /// Training length, batch size and learning rate schedule.
    Schedule, "Training" {
        /// Run training; run_clm trains only if this is given.
        do_train: Option<bool> = None, "do_train", "BOOL";
        /// Batch size per device for training, before gradient accumulation.
        per_device_batch: usize = 8, "per_device_train_batch_size", "N";
        /// Number of micro-batches to accumulate gradients over before an update.
        gradient_accumulation_steps: usize = 1, "gradient_accumulation_steps", "N";
        /// Reduce gradients once per step instead of once per micro-batch.
        no_sync: bool = false, "no_sync", "BOOL";
        /// Number of training steps per launch of the compiled program; batches are fed ahead.
        iterations_per_loop: usize = 1, "iterations_per_loop", "N";
        /// Number of training epochs.
        epochs: f64 = 3.0, "num_train_epochs", "X";
        /// Number of training steps; if above 0, overrides --num_train_epochs.
        max_steps: i64 = -1, "max_steps", "N";
        /// Learning rate schedule: linear, cosine, constant_with_warmup and others.
        lr_scheduler: String = "linear".to_owned(), "lr_scheduler_type", "NAME";
        /// Additional arguments of the schedule, as JSON.
        lr_scheduler_kwargs: Map<String, Value> = Map::new(), "lr_scheduler_kwargs", "JSON";
        /// Number of warmup steps; below 1, a fraction of all steps.
        warmup_steps: f64 = 0.0, "warmup_steps", "X";
        /// Random seed of initialization, dropout and data order.
        seed: u64 = 42, "seed", "SEED";
        /// Make GPU runs repeat bit for bit: deterministic ops, and attention without cuDNN. Slower.
        full_determinism: bool = false, "full_determinism", "BOOL";
    }
}

super::section! {
    /// When to evaluate.
    Evaluation, "Evaluation" {
        /// Evaluate at the end; defaults to true if --eval_strategy is steps or epoch.
        do_eval: Option<bool> = None, "do_eval", "BOOL";
        /// When to evaluate during training.
        strategy: When = When::No, "eval_strategy" | "evaluation_strategy", "no|steps|epoch";
        /// Number of steps between evaluations; below 1, a fraction of all steps; defaults to
        /// --logging_steps.
        steps: Option<f64> = None, "eval_steps", "X";
        /// Number of steps or epochs before the first evaluation.
        delay: f64 = 0.0, "eval_delay", "X";
        /// Batch size per device for evaluation.
        per_device_batch: usize = 8, "per_device_eval_batch_size", "N";
    }
}

super::section! {
    /// Logging.
    Logging, "Logging" {
        /// When to log.
        strategy: When = When::Steps, "logging_strategy", "no|steps|epoch";
        /// Number of steps between logs; below 1, a fraction of all steps.
        steps: f64 = 500.0, "logging_steps", "X";
        /// Also log the first step.
        first_step: bool = false, "logging_first_step", "BOOL";
        /// Integrations to report to: tensorboard, none or all.
        report_to: Vec<String> = vec!["tensorboard".to_owned()], "report_to", "WHERE";
        /// Disable the progress bar.
        disable_tqdm: bool = false, "disable_tqdm", "BOOL";
        /// Write a profile of a few steps to this folder, if the plugin has a profiler.
        profile: Option<PathBuf> = None, "profile", "DIR";
    }
}

super::section! {
    /// Output files.
    Output, "Output" {
        /// Output folder for the model and the results.
        dir: PathBuf = "trainer_output".into(), "output_dir", "DIR";
        /// Overwrite an output folder that is not empty.
        overwrite: bool = false, "overwrite_output_dir", "BOOL";
        /// Maximum size of a file of the saved model, such as 5GB.
        max_shard_size: Size = Size(50_000_000_000), "max_shard_size", "SIZE";
        /// Dtype of the saved model: float32, bfloat16 or float16.
        save_dtype: SaveDtype = SaveDtype::Float32, "save_dtype", "TYPE";
        /// Folder for the model if the output folder cannot be written at the end; defaults to the
        /// system's folder for temporary files.
        rescue_dir: Option<PathBuf> = None, "rescue_dir", "DIR";
    }
}

super::section! {
    /// Checkpoints during training.
    Checkpoint, "Checkpoints" {
        /// When to save checkpoints: no, steps, epoch, or best for each best evaluation. The model
        /// is always saved at the end.
        strategy: SaveWhen = SaveWhen::Steps, "save_strategy", "no|steps|epoch|best";
        /// Number of steps between checkpoints; below 1, a fraction of all steps.
        steps: f64 = 500.0, "save_steps", "X";
        /// Maximum number of checkpoints to keep; the best one is kept beside them. Default: all.
        total_limit: Option<usize> = None, "save_total_limit", "N";
        /// Save the model without the optimizer's state, so that a run cannot resume from it.
        only_model: bool = false, "save_only_model", "BOOL";
        /// Resume from a checkpoint: its folder, or without a value the latest one of the output
        /// folder; auto does so only if there is one.
        resume: Option<ResumeFrom> = None, "resume_from_checkpoint", "DIR|auto|BOOL";
        /// After resuming, start the current epoch from its beginning.
        ignore_data_skip: bool = false, "ignore_data_skip", "BOOL";
        /// Save the best model at the end, by --metric_for_best_model, instead of the last.
        load_best: bool = false, "load_best_model_at_end", "BOOL";
        /// Metric of the best checkpoint; defaults to loss.
        metric: Option<String> = None, "metric_for_best_model", "NAME";
        /// Whether a greater metric is better; by default unless its name ends in loss.
        greater_is_better: Option<bool> = None, "greater_is_better", "BOOL";
        /// Maximum host memory for copies of the state while a checkpoint is written, such as
        /// 16GB; defaults to half of what is available. Training waits if it is not enough.
        memory: Option<Size> = None, "save_memory", "SIZE";
        /// Also copy the state to the memory of hosts every N steps: each process keeps its shards
        /// and those of another, so that a job that loses a host goes on from there. 0 does not.
        replicate_state: u64 = 0, "replicate_state", "N";
        /// The folder in memory for these copies.
        replicate_dir: PathBuf = "/dev/shm".into(), "replicate_dir", "DIR";
        /// Seconds to save and exit after SIGTERM, SIGHUP or Ctrl-C.
        grace: f64 = 60.0, "preemption_grace_s", "SECONDS";
    }
}

super::section! {
    /// Hangs and silent corruption.
    Guard, "Availability" {
        /// Seconds after which a step that does not end is stuck: the stacks of all threads are
        /// written to the output folder, and the job ends. 0 waits forever. By default 20 times the
        /// median of recent steps, at least 60, and 1800 for the first.
        step_timeout: Option<f64> = None, "step_timeout_s", "SECONDS";
        /// Number of steps between checks for silent corruption; 0 does not check. Checksums of the
        /// replicas of parameters and optimizer state are compared; where most of them have no
        /// replica, a step is run twice and its results compared.
        check_replicas: u64 = 0, "check_replicas", "N";
        /// What to do if the loss of a step is far above that of the steps before, or not finite:
        /// nothing (off), leave out its update (skip), or go back to the last checkpoint and on with
        /// the data after the spike (rollback).
        on_loss_spike: OnSpike = OnSpike::Off, "on_loss_spike", "off|skip|rollback";
        /// By how many standard deviations a loss spike exceeds the mean loss of recent steps.
        spike_factor: f64 = 6.0, "loss_spike_factor", "X";
    }
}
