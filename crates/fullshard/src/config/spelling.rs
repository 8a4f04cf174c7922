//! Flags that are shorthands for fields with their own flags.

use super::RunConfig;
use super::error::ConfigError;
use super::flags::Given;
use super::section::Flag;
use super::types::Compute;
use super::value::{FlagValue, Takes};
use fullshard_parallel::{FsdpConfig, FsdpConfigError, Remat, WrapPolicy};

/// Name, value, heading and help of each.
const SHORTHANDS: [(&str, &str, &str, &str); 6] = [
    (
        "fsdp_config",
        "FILE|JSON",
        "Sharding",
        "FSDP config: the path of an fsdp_config.json, or inline JSON.",
    ),
    ("bf16", "BOOL", "Precision and memory", "Compute in bfloat16; same as --dtype bfloat16."),
    (
        "fp8",
        "BOOL",
        "Precision and memory",
        "Compute in bfloat16 with layer matmuls in FP8; same as --dtype float8_e4m3fn.",
    ),
    (
        "gradient_checkpointing",
        "BOOL",
        "Precision and memory",
        "Recompute layers in the backward pass; same as --remat full.",
    ),
    ("adafactor", "BOOL", "Optimizer", "Use Adafactor; same as --optim adafactor."),
    ("warmup_ratio", "X", "Training", "Fraction of all steps for learning rate warmup."),
];

pub(super) fn flags() -> Vec<Flag> {
    let flag = |(name, value, heading, help): (&'static str, &'static str, &'static str, &str)| {
        let is_switch = value == "BOOL";
        Flag {
            name,
            aliases: &[],
            value,
            help: help.to_owned(),
            heading,
            takes: if is_switch { Takes::Switch } else { Takes::One },
            choices: &[],
            default: is_switch.then(|| vec!["false".to_owned()]),
            check: match name {
                "warmup_ratio" => |words| f64::read(words).map(|_| ()),
                "fsdp_config" => |_| Ok(()),
                _ => |words| bool::read(words).map(|_| ()),
            },
        }
    };
    SHORTHANDS.into_iter().map(flag).collect()
}

/// Applies these flags to the fields they set.
pub(super) fn apply(config: &mut RunConfig, given: &Given) -> Result<(), ConfigError> {
    let fsdp = match given.words("fsdp_config") {
        Some(words) => Some(FsdpConfig::from_argument(&words.join(" "))?),
        None => None,
    };
    if let Some(fsdp) = &fsdp {
        for warning in &fsdp.ignored {
            tracing::warn!("{warning}");
        }
        config.fsdp.take(&fsdp.settings);
    }
    apply_wrap(config, given, fsdp.as_ref())?;
    apply_precision(config, given, fsdp.as_ref())?;
    apply_remat(config, given, fsdp.as_ref())?;
    if switch(given, "adafactor")? {
        if given.has("optim") && config.optimizer.name != "adafactor" {
            let optim = format!("`--optim {}`", config.optimizer.name);
            return Err(contradiction(optim, "`--adafactor`".into(), "leave one of them out"));
        }
        config.optimizer.name = "adafactor".to_owned();
    }
    if let Some(words) = given.words("warmup_ratio") {
        if given.has("warmup_steps") {
            return Err(ConfigError::Exclusive { first: "warmup_ratio", second: "warmup_steps" });
        }
        let ratio = f64::read(words).unwrap_or(f64::NAN);
        if !(0.0..1.0).contains(&ratio) {
            let (flag, value) = ("warmup_ratio".to_owned(), words.join(" "));
            let reason = "must be in [0, 1)".to_owned();
            return Err(ConfigError::Value { flag, value, reason });
        }
        config.schedule.warmup_steps = ratio;
    }
    Ok(())
}

/// Whether a switch was given and is on.
fn switch(given: &Given, flag: &str) -> Result<bool, ConfigError> {
    let Some(words) = given.words(flag) else { return Ok(false) };
    bool::read(words).map_err(|reason| ConfigError::Value {
        flag: flag.to_owned(),
        value: words.join(" "),
        reason,
    })
}

/// Resolves the modules to wrap from their flags, `--fsdp auto_wrap` and the FSDP config.
fn apply_wrap(
    config: &mut RunConfig,
    given: &Given,
    fsdp: Option<&FsdpConfig>,
) -> Result<(), ConfigError> {
    const CLASSES: &str = "fsdp_transformer_layer_cls_to_wrap";
    const MIN_SIZE: &str = "fsdp_min_num_params";
    // A minimum of 0 is Hugging Face's default and asks for nothing.
    let by_size = config.fsdp.min_num_params > 0;
    let flags = [(CLASSES, true), (MIN_SIZE, by_size)].into_iter();
    let flag = flags.filter(|(flag, asks)| *asks && given.has(flag)).map(|(flag, _)| flag).next();
    match (flag, fsdp.map(|fsdp| &fsdp.wrap)) {
        (None, Some(policy)) => config.fsdp.take_wrap(policy),
        (None, None) | (Some(_), None | Some(WrapPolicy::Blocks)) => {}
        (Some(flag), Some(policy)) => {
            let mut stated = config.fsdp.clone();
            stated.take_wrap(policy);
            if stated != config.fsdp {
                let (flag, stated) = (format!("`--{flag}`"), "the FSDP config".to_owned());
                return Err(contradiction(flag, stated, "state what to wrap in one of them"));
            }
        }
    }
    let words = given.words("fsdp").unwrap_or_default();
    let auto_wrap = words.iter().any(|words| words.contains("auto_wrap"));
    if auto_wrap && config.fsdp.wrap.as_ref().is_some_and(|classes| classes.0.is_empty()) {
        let (first, second) = ("`--fsdp auto_wrap`", "an empty list of classes to wrap");
        return Err(contradiction(first.into(), second.into(), "leave one of them out"));
    }
    Ok(())
}

/// Resolves the compute dtype from `--dtype`, `--bf16`, `--fp8` and the FSDP config.
fn apply_precision(
    config: &mut RunConfig,
    given: &Given,
    fsdp: Option<&FsdpConfig>,
) -> Result<(), ConfigError> {
    let flag = given.words("dtype").and_then(|words| Compute::read(words).ok());
    let flag = flag.map(|compute| (compute, format!("`--dtype {}`", compute.name())));
    let short = switch(given, "bf16")?.then(|| (Compute::Bfloat16, "`--bf16`".to_owned()));
    let stated = fsdp.and_then(|fsdp| Compute::of(fsdp.settings.stated_compute_dtype?));
    let stated = stated.map(|compute| {
        (compute, format!("`compute_dtype: {}` of the FSDP config", compute.name()))
    });
    let fp8 = switch(given, "fp8")?.then(|| (Compute::Float8, "`--fp8`".to_owned()));
    let mut all = flag.into_iter().chain(short).chain(stated).chain(fp8);
    let Some(mut chosen) = all.next() else { return Ok(()) };
    for other in all {
        // `--fp8` computes the rest in bfloat16, so the two are compatible.
        let refined = other.1 == "`--fp8`" && chosen.0 == Compute::Bfloat16;
        if chosen.0 != other.0 && !refined {
            let fix = match other.1.as_str() {
                "`--fp8`" => "what is not in FP8 is in bfloat16: leave one of them out",
                _ => "leave one of them out",
            };
            return Err(contradiction(chosen.1, other.1, fix));
        }
        chosen = other;
    }
    config.precision.compute = Some(chosen.0);
    Ok(())
}

/// Resolves the remat policy from `--remat`, `--gradient_checkpointing` and the FSDP config.
fn apply_remat(
    config: &mut RunConfig,
    given: &Given,
    fsdp: Option<&FsdpConfig>,
) -> Result<(), ConfigError> {
    let flag = config.remat.policy.clone().filter(|_| given.has("remat"));
    if switch(given, "gradient_checkpointing")? {
        if flag.is_some_and(|policy| policy != Remat::Full) {
            let (first, second) = ("`--remat`".into(), "`--gradient_checkpointing`".into());
            return Err(contradiction(first, second, "leave one of them out"));
        }
        config.remat.policy = Some(Remat::Full);
    } else if fsdp.is_some_and(|fsdp| fsdp.gradient_checkpointing) {
        match flag {
            None | Some(Remat::Full) => config.remat.policy = Some(Remat::Full),
            Some(policy) => tracing::warn!(
                "`xla_fsdp_grad_ckpt` of the FSDP config has no effect: --remat {policy} overrides it"
            ),
        }
    }
    Ok(())
}

fn contradiction(first: String, second: String, fix: &'static str) -> ConfigError {
    FsdpConfigError::Contradiction { first, second, fix }.into()
}
