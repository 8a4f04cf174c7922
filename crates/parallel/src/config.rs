//! How a model is sharded, as in Hugging Face's `--fsdp` and `--fsdp_config`.
//!
//! A config is read and checked before anything else happens, so a mistake costs seconds and not
//! a compilation. No key is ignored silently: it is used, or it has no effect here and a warning
//! states why, or it is rejected with a fix. Disabling an unsupported feature is fine.
//!
//! | key | here |
//! |---|---|
//! | `transformer_layer_cls_to_wrap` | [`WrapPolicy::Classes`]: a name, names with commas, a list; an empty list is [`WrapPolicy::Root`], no key [`WrapPolicy::Blocks`] |
//! | `min_num_params` | [`WrapPolicy::MinSize`]; 0 is none; not together with classes |
//! | `auto_wrap_policy` | may repeat which of the two it is |
//! | `xla_fsdp_grad_ckpt`, `activation_checkpointing` | [`FsdpConfig::gradient_checkpointing`] |
//! | `xla_fsdp_settings` | [`Settings`] |
//! | `reshard_after_forward` | that of the settings |
//! | `xla` | everything runs on XLA: may be missing, false is a warning |
//! | `xla_fsdp_v2` | one SPMD program always runs: a warning |
//! | options of PyTorch FSDP only | a warning |
//! | `sharding_groups`, `sharding_world_size` | a mesh with replicas: [`Settings::group_mesh`] |
//! | offloading, other precisions | rejected |
//!
//! Any key may have the prefix `fsdp_`, as older versions require. A null is the same as no key.

mod error;
mod groups;
mod keys;
mod settings;
mod strategy;

pub use error::FsdpConfigError;
pub(crate) use fullshard_models::distance;
pub use fullshard_models::nearest;
pub use settings::{Settings, default_divide_factors};
pub use strategy::Strategy;

use keys::{BOOL, Keys, agreed, integer};
use serde_json::Value;
use std::path::Path;

/// The contents of an `fsdp_config.json`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FsdpConfig {
    /// Which modules become units.
    pub wrap: WrapPolicy,
    /// Whether each layer is recomputed in the backward pass: `xla_fsdp_grad_ckpt`.
    pub gradient_checkpointing: bool,
    /// How a unit is sharded and computed: `xla_fsdp_settings`.
    pub settings: Settings,
    /// Keys of the config that have no effect here, and why. See [`FsdpConfig::warnings`].
    pub ignored: Vec<String>,
}

/// Which modules become FSDP units. The root is always one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum WrapPolicy {
    /// The blocks of the model: the modules of its repeated layers, which `transformers` lists as
    /// `_no_split_modules`.
    #[default]
    Blocks,
    /// Only the root: the whole model is one unit.
    Root,
    /// Every module of one of these classes.
    Classes(Vec<String>),
    /// Modules of at least this many elements that no unit inside them owns.
    MinSize(usize),
}

impl FsdpConfig {
    /// Reads the argument of `--fsdp_config`: JSON if it begins with `{`, else a path.
    pub fn from_argument(argument: &str) -> Result<FsdpConfig, FsdpConfigError> {
        if argument.trim_start().starts_with('{') {
            FsdpConfig::from_json(argument)
        } else {
            FsdpConfig::from_file(argument)
        }
    }

    /// Reads a file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<FsdpConfig, FsdpConfigError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|source| FsdpConfigError::Unreadable { path: path.to_owned(), source })?;
        FsdpConfig::from_json(&text).map_err(|error| FsdpConfigError::InFile {
            path: path.to_owned(),
            source: Box::new(error),
        })
    }

    /// Reads JSON.
    pub fn from_json(text: &str) -> Result<FsdpConfig, FsdpConfigError> {
        let mut keys = Keys::of_config(serde_json::from_str(text)?)?;
        let mut inner = keys.of_settings()?;

        let wrap = WrapPolicy::read(&mut keys)?;
        let gradient_checkpointing = agreed(
            ("xla_fsdp_grad_ckpt", keys.read_bool("xla_fsdp_grad_ckpt")?),
            ("activation_checkpointing", keys.read_bool("activation_checkpointing")?),
        )?;
        let mut settings = Settings::read(&mut inner)?;
        settings.reshard_after_forward = agreed(
            ("xla_fsdp_settings.reshard_after_forward", settings.reshard_after_forward),
            ("reshard_after_forward", keys.read_bool("reshard_after_forward")?),
        )?;
        check_other_keys(&mut keys)?;

        keys.finish(&inner)?;
        inner.finish(&keys)?;
        Ok(FsdpConfig {
            wrap,
            gradient_checkpointing: gradient_checkpointing.unwrap_or(false),
            settings,
            ignored: [keys.ignored, inner.ignored].concat(),
        })
    }

    /// Warnings about keys that have no effect here or do harm, with the reason.
    pub fn warnings(&self) -> Vec<String> {
        [self.ignored.clone(), self.settings.warnings()].concat()
    }
}

impl WrapPolicy {
    fn read(keys: &mut Keys) -> Result<WrapPolicy, FsdpConfigError> {
        let classes = keys.read("transformer_layer_cls_to_wrap", CLASSES, classes)?;
        let min_size = keys.read("min_num_params", MIN_SIZE, integer)?.unwrap_or(0);
        let named = keys.read("auto_wrap_policy", NAMES, policy_name)?;
        let policy = match (classes, min_size) {
            (None, 0) if named.as_deref() == Some("NO_WRAP") => WrapPolicy::Root,
            (None, 0) => WrapPolicy::Blocks,
            (Some(classes), 0) if classes.is_empty() => WrapPolicy::Root,
            (Some(classes), 0) => WrapPolicy::Classes(classes),
            (None, _) => WrapPolicy::MinSize(min_size),
            (Some(classes), _) if classes.is_empty() => WrapPolicy::MinSize(min_size),
            (Some(classes), _) => {
                return Err(FsdpConfigError::Contradiction {
                    first: format!("`transformer_layer_cls_to_wrap: {classes:?}`"),
                    second: format!("`min_num_params: {min_size}`"),
                    fix: "modules are wrapped by class or by size, leave one of them out",
                });
            }
        };
        match named {
            Some(name) if name != policy.name() => Err(FsdpConfigError::Contradiction {
                first: format!("`auto_wrap_policy: {name}`"),
                second: policy.to_string(),
                fix: "the policy follows from transformer_layer_cls_to_wrap or \
                          min_num_params, leave auto_wrap_policy out",
            }),
            _ => Ok(policy),
        }
    }

    /// Its name in newer configs.
    fn name(&self) -> &'static str {
        match self {
            WrapPolicy::Root => "NO_WRAP",
            WrapPolicy::Blocks | WrapPolicy::Classes(_) => "TRANSFORMER_BASED_WRAP",
            WrapPolicy::MinSize(_) => "SIZE_BASED_WRAP",
        }
    }
}

impl std::fmt::Display for WrapPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WrapPolicy::Blocks => f.write_str("wrapping the blocks of the model"),
            WrapPolicy::Root => f.write_str("nothing to wrap"),
            WrapPolicy::Classes(classes) => write!(f, "wrapping {}", classes.join(", ")),
            WrapPolicy::MinSize(size) => write!(f, "wrapping from {size} elements"),
        }
    }
}

/// The keys without a field: those that have no effect and those that are not supported.
fn check_other_keys(keys: &mut Keys) -> Result<(), FsdpConfigError> {
    const SCHEDULE: &str = "the compiler schedules the all-gathers";
    const ON_DEVICE: &str = "parameters are initialized on each device";
    const OFFLOAD: &str = "shards stay in device memory. Leave it out; more devices or gradient \
                           checkpointing make room";
    const PRECISION: &str = "set xla_fsdp_settings.compute_dtype instead";

    if keys.read_bool("xla")? == Some(false) {
        let warning = "`xla` is false, which elsewhere selects PyTorch FSDP: here everything runs \
                       on XLA, and `xla_fsdp_settings` apply";
        keys.ignored.push(warning.to_owned());
    }
    for (key, reason) in [
        ("xla_fsdp_v2", "one SPMD program always runs, and the settings apply to it"),
        ("forward_prefetch", SCHEDULE),
        ("limit_all_gathers", SCHEDULE),
        ("use_orig_params", "parameters keep their names however they are sharded"),
        ("sync_module_states", ON_DEVICE),
        ("cpu_ram_efficient_loading", ON_DEVICE),
    ] {
        keys.accept(key, BOOL, Value::is_boolean, reason)?;
    }
    keys.accept("backward_prefetch", "a string", Value::is_string, SCHEDULE)?;
    let unsaved = "checkpoints hold the shards of all devices and load on any mesh";
    keys.accept("state_dict_type", "a string", Value::is_string, unsaved)?;
    let version = "all versions of PyTorch FSDP train the same way, and so does this";
    keys.accept("version", "a whole number", Value::is_u64, version)?;

    for (key, reason) in [
        ("cpu_offload", OFFLOAD),
        ("offload_params", OFFLOAD),
        ("mixed_precision", PRECISION),
        ("mixed_precision_policy", PRECISION),
        ("sharding_strategy", "set `--fsdp` instead, such as full_shard or hybrid_shard"),
        ("ignored_modules", "every parameter is sharded. To keep some from training, freeze them"),
    ] {
        keys.reject(key, reason)?;
    }
    Ok(())
}

const CLASSES: &str = "a class name or a list of them, such as [\"GPT2Block\"]";

fn classes(value: &Value) -> Option<Vec<String>> {
    let names: Vec<&str> = match value {
        Value::String(names) => names.split(',').map(str::trim).collect(),
        Value::Array(names) => names.iter().map(Value::as_str).collect::<Option<_>>()?,
        _ => return None,
    };
    let nameless = names.iter().any(|name| name.is_empty());
    (!nameless).then(|| names.into_iter().map(str::to_owned).collect())
}

const MIN_SIZE: &str = "a whole number of elements, or 0 for no wrapping by size";

const NAMES: &str = "\"TRANSFORMER_BASED_WRAP\", \"SIZE_BASED_WRAP\" or \"NO_WRAP\"";

fn policy_name(value: &Value) -> Option<String> {
    const KNOWN: [&str; 3] = ["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"];
    let name = value.as_str()?.to_uppercase();
    KNOWN.contains(&name.as_str()).then_some(name)
}
