//! How a model is to be sharded, as Hugging Face's `--fsdp` and `--fsdp_config` say it.
//!
//! A config is read and checked before anything else happens, so a mistake costs seconds and not
//! a compilation. Nothing is skipped in silence: a key is used, or it changes nothing here and a
//! warning says why, or it is refused with the way out. Switching off what there is not is fine.
//!
//! | key | here |
//! |---|---|
//! | `transformer_layer_cls_to_wrap` | [`WrapPolicy::Classes`]: a name, names with commas, a list |
//! | `min_num_params` | [`WrapPolicy::MinSize`]; 0 is none; not together with classes |
//! | `auto_wrap_policy` | may say once more which of the two it is |
//! | `xla_fsdp_grad_ckpt`, `activation_checkpointing` | [`FsdpConfig::gradient_checkpointing`] |
//! | `xla_fsdp_settings` | [`Settings`] |
//! | `reshard_after_forward` | that of the settings |
//! | `xla` | everything runs on XLA: may be missing, false gives a warning |
//! | `xla_fsdp_v2` | one program for all devices is what always runs: a warning |
//! | what steers torch's own FSDP only | a warning |
//! | offloading, hybrid groups, other precisions | refused |
//!
//! Any key may carry the prefix `fsdp_`, as older versions want it. A null is as good as no key.

mod error;
mod keys;
mod settings;
mod strategy;

pub use error::FsdpConfigError;
pub(crate) use fullshard_models::distance;
pub use fullshard_models::nearest;
pub use settings::{Settings, default_divide_factors};
pub use strategy::Strategy;

use keys::{Keys, SWITCH, agreed, whole};
use serde_json::Value;
use std::path::Path;

/// The contents of an `fsdp_config.json`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FsdpConfig {
    /// Which modules become units of their own.
    pub wrap: WrapPolicy,
    /// Whether each layer is computed again on the way back: `xla_fsdp_grad_ckpt`.
    pub gradient_checkpointing: bool,
    /// How a unit is sharded and computed: `xla_fsdp_settings`.
    pub settings: Settings,
    /// Keys of the config that change nothing here, and why. See [`FsdpConfig::warnings`].
    pub ignored: Vec<String>,
}

/// Which modules become FSDP units. The root always is one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum WrapPolicy {
    /// Only the root.
    #[default]
    None,
    /// Every module of one of these classes.
    Classes(Vec<String>),
    /// Modules of at least this many elements that no unit inside them owns.
    MinSize(usize),
}

impl FsdpConfig {
    /// Reads the argument of `--fsdp_config`: JSON itself if it begins with `{`, else a path.
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
            ("xla_fsdp_grad_ckpt", keys.switch("xla_fsdp_grad_ckpt")?),
            ("activation_checkpointing", keys.switch("activation_checkpointing")?),
        )?;
        let mut settings = Settings::read(&mut inner)?;
        settings.reshard_after_forward = agreed(
            ("xla_fsdp_settings.reshard_after_forward", settings.reshard_after_forward),
            ("reshard_after_forward", keys.switch("reshard_after_forward")?),
        )?;
        accept_or_refuse(&mut keys)?;

        keys.finish(&inner)?;
        inner.finish(&keys)?;
        Ok(FsdpConfig {
            wrap,
            gradient_checkpointing: gradient_checkpointing.unwrap_or(false),
            settings,
            ignored: [keys.ignored, inner.ignored].concat(),
        })
    }

    /// What of the config changes nothing here or does harm, and why, for people to read.
    pub fn warnings(&self) -> Vec<String> {
        [self.ignored.clone(), self.settings.warnings()].concat()
    }
}

impl WrapPolicy {
    fn read(keys: &mut Keys) -> Result<WrapPolicy, FsdpConfigError> {
        let classes = keys.read("transformer_layer_cls_to_wrap", CLASSES, classes)?;
        let classes = classes.unwrap_or_default();
        let min_size = keys.read("min_num_params", MIN_SIZE, whole)?.unwrap_or(0);
        let named = keys.read("auto_wrap_policy", NAMES, policy_name)?;
        let policy = match (classes.is_empty(), min_size) {
            (true, 0) => WrapPolicy::None,
            (true, _) => WrapPolicy::MinSize(min_size),
            (false, 0) => WrapPolicy::Classes(classes),
            (false, _) => {
                return Err(FsdpConfigError::Contradiction {
                    first: format!("`transformer_layer_cls_to_wrap: {classes:?}`"),
                    second: format!("`min_num_params: {min_size}`"),
                    way_out: "modules are wrapped by class or by size, leave one of them out",
                });
            }
        };
        match named {
            Some(name) if name != policy.name() => Err(FsdpConfigError::Contradiction {
                first: format!("`auto_wrap_policy: {name}`"),
                second: policy.to_string(),
                way_out: "what is wrapped follows from transformer_layer_cls_to_wrap or \
                          min_num_params, leave auto_wrap_policy out",
            }),
            _ => Ok(policy),
        }
    }

    /// The name that newer configs have for it.
    fn name(&self) -> &'static str {
        match self {
            WrapPolicy::None => "NO_WRAP",
            WrapPolicy::Classes(_) => "TRANSFORMER_BASED_WRAP",
            WrapPolicy::MinSize(_) => "SIZE_BASED_WRAP",
        }
    }
}

impl std::fmt::Display for WrapPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WrapPolicy::None => f.write_str("nothing to wrap"),
            WrapPolicy::Classes(classes) => write!(f, "wrapping {}", classes.join(", ")),
            WrapPolicy::MinSize(size) => write!(f, "wrapping from {size} elements"),
        }
    }
}

/// The keys that are no fields: those that change nothing and those that cannot be.
fn accept_or_refuse(keys: &mut Keys) -> Result<(), FsdpConfigError> {
    const SCHEDULE: &str = "when parameters are gathered is decided as the program is compiled";
    const MADE_THERE: &str = "parameters are made on each device";
    const OFFLOAD: &str = "shards stay in device memory. Leave it out; more devices or gradient \
                           checkpointing make room";
    const PRECISION: &str = "say the type to compute in with xla_fsdp_settings.compute_dtype";

    if keys.switch("xla")? == Some(false) {
        let warning = "`xla` is false, which elsewhere chooses torch's own FSDP: here everything \
                       runs on XLA, and `xla_fsdp_settings` apply";
        keys.ignored.push(warning.to_owned());
    }
    for (key, reason) in [
        ("xla_fsdp_v2", "one program for all devices always runs, and the settings apply to it"),
        ("forward_prefetch", SCHEDULE),
        ("limit_all_gathers", SCHEDULE),
        ("use_orig_params", "parameters keep their names however they are sharded"),
        ("sync_module_states", MADE_THERE),
        ("cpu_ram_efficient_loading", MADE_THERE),
    ] {
        keys.accept(key, SWITCH, Value::is_boolean, reason)?;
    }
    keys.accept("backward_prefetch", "a text", Value::is_string, SCHEDULE)?;
    let unsaved = "there are no checkpoints yet";
    keys.accept("state_dict_type", "a text", Value::is_string, unsaved)?;
    let version = "the versions of torch's FSDP train alike, and so does this";
    keys.accept("version", "a whole number", Value::is_u64, version)?;

    for (key, reason) in [
        ("cpu_offload", OFFLOAD),
        ("offload_params", OFFLOAD),
        ("mixed_precision", PRECISION),
        ("mixed_precision_policy", PRECISION),
        ("sharding_strategy", "say it with `--fsdp`: full_shard, shard_grad_op or no_shard"),
        ("ignored_modules", "every parameter is sharded. To keep some from training, freeze them"),
    ] {
        keys.refuse(key, reason)?;
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
