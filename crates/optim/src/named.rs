//! Optimizers by the names and options of Hugging Face's Trainer.

use crate::{Adafactor, AdamW, Error, Optimizer, Sgd, StepSize};

/// The names of optimizers. All those of AdamW are the same here: they only differ in how torch
/// computes it.
pub const OPTIMIZERS: &[&str] =
    &["adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adafactor", "sgd"];

/// What Trainer's flags say about an optimizer, with their defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// `learning_rate`, where one was asked for: Adafactor with `relative_step` refuses it. The
    /// rate of a step is told to [`Optimizer::scalars`].
    pub learning_rate: Option<f64>,
    /// `weight_decay`.
    pub weight_decay: f64,
    /// `adam_beta1`.
    pub adam_beta1: f64,
    /// `adam_beta2`.
    pub adam_beta2: f64,
    /// `adam_epsilon`.
    pub adam_epsilon: f64,
    /// `optim_args`: more for the optimizer, as `key=value,key=value`. SGD takes `momentum`,
    /// `dampening`, `nesterov` and `weight_decay`; Adafactor takes `scale_parameter`,
    /// `relative_step`, `warmup_init`, `beta1`, `clip_threshold`, `decay_rate`, `eps1` and
    /// `eps2`.
    pub arguments: String,
}

impl Default for Options {
    fn default() -> Options {
        let AdamW { beta1, beta2, epsilon, weight_decay } = AdamW::default();
        Options {
            learning_rate: None,
            weight_decay,
            adam_beta1: beta1,
            adam_beta2: beta2,
            adam_epsilon: epsilon,
            arguments: String::new(),
        }
    }
}

/// The optimizer of a name.
pub fn from_name(name: &str, options: &Options) -> Result<Box<dyn Optimizer>, Error> {
    at_least_zero("weight_decay", options.weight_decay)?;
    match name {
        "adamw" | "adamw_torch" | "adamw_torch_fused" | "adamw_hf" => Ok(Box::new(adamw(options)?)),
        "adafactor" => Ok(Box::new(adafactor(options)?)),
        "sgd" => Ok(Box::new(sgd(options)?)),
        _ => Err(Error::UnknownOptimizer { name: name.to_owned(), known: OPTIMIZERS }),
    }
}

fn adamw(options: &Options) -> Result<AdamW, Error> {
    Arguments::parse("AdamW", &options.arguments, &[])?;
    fraction("adam_beta1", options.adam_beta1)?;
    fraction("adam_beta2", options.adam_beta2)?;
    at_least_zero("adam_epsilon", options.adam_epsilon)?;
    Ok(AdamW {
        beta1: options.adam_beta1,
        beta2: options.adam_beta2,
        epsilon: options.adam_epsilon,
        weight_decay: options.weight_decay,
    })
}

fn sgd(options: &Options) -> Result<Sgd, Error> {
    let known = &["momentum", "dampening", "nesterov", "weight_decay"];
    let arguments = Arguments::parse("SGD", &options.arguments, known)?;
    let sgd = Sgd {
        momentum: arguments.number("momentum")?.unwrap_or(0.0),
        dampening: arguments.number("dampening")?.unwrap_or(0.0),
        nesterov: arguments.flag("nesterov")?.unwrap_or(false),
        weight_decay: arguments.number("weight_decay")?.unwrap_or(options.weight_decay),
    };
    at_least_zero("momentum", sgd.momentum)?;
    at_least_zero("weight_decay", sgd.weight_decay)?;
    if sgd.nesterov && (sgd.momentum == 0.0 || sgd.dampening != 0.0) {
        return Err(Error::NesterovWithoutMomentum);
    }
    Ok(sgd)
}

fn adafactor(options: &Options) -> Result<Adafactor, Error> {
    let known = &[
        "scale_parameter",
        "relative_step",
        "warmup_init",
        "beta1",
        "clip_threshold",
        "decay_rate",
        "eps1",
        "eps2",
    ];
    let arguments = Arguments::parse("Adafactor", &options.arguments, known)?;
    let trainer = Adafactor::trainer();
    let relative = arguments.flag("relative_step")?.unwrap_or(false);
    let warmup = arguments.flag("warmup_init")?.unwrap_or(false);
    let step_size = match (relative, warmup, options.learning_rate) {
        (true, _, Some(learning_rate)) => {
            return Err(Error::LearningRateWithRelativeStep { learning_rate });
        }
        (true, warmup, None) => StepSize::Relative { warmup },
        (false, true, _) => return Err(Error::WarmupWithoutRelativeStep),
        (false, false, _) => StepSize::Given,
    };
    let adafactor = Adafactor {
        step_size,
        scale_parameter: arguments.flag("scale_parameter")?.unwrap_or(trainer.scale_parameter),
        beta1: arguments.number("beta1")?.or(trainer.beta1),
        clip_threshold: arguments.number("clip_threshold")?.unwrap_or(trainer.clip_threshold),
        decay_rate: arguments.number("decay_rate")?.unwrap_or(trainer.decay_rate),
        epsilon: arguments.number("eps1")?.unwrap_or(trainer.epsilon),
        scale_epsilon: arguments.number("eps2")?.unwrap_or(trainer.scale_epsilon),
        weight_decay: options.weight_decay,
    };
    adafactor.beta1.map_or(Ok(()), |beta1| fraction("beta1", beta1))?;
    let above_zero = |value: f64| value > 0.0;
    require("clip_threshold", adafactor.clip_threshold, above_zero, "above 0")?;
    require("eps1", adafactor.epsilon, above_zero, "above 0")?;
    require("decay_rate", adafactor.decay_rate, |rate| rate < 0.0, "below 0")?;
    at_least_zero("eps2", adafactor.scale_epsilon)?;
    Ok(adafactor)
}

fn fraction(option: &'static str, value: f64) -> Result<(), Error> {
    require(option, value, |value| (0.0..1.0).contains(&value), "at least 0 and below 1")
}

fn at_least_zero(option: &'static str, value: f64) -> Result<(), Error> {
    require(option, value, |value| value >= 0.0, "at least 0")
}

fn require(
    option: &'static str,
    value: f64,
    holds: impl Fn(f64) -> bool,
    expected: &'static str,
) -> Result<(), Error> {
    if value.is_finite() && holds(value) {
        return Ok(());
    }
    Err(Error::OutOfRange { option, value, expected })
}

/// Arguments of the form `key=value,key=value`.
struct Arguments<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Arguments<'a> {
    fn parse(
        optimizer: &'static str,
        text: &'a str,
        known: &'static [&'static str],
    ) -> Result<Arguments<'a>, Error> {
        let pairs = text.split(',').map(str::trim).filter(|argument| !argument.is_empty());
        let pairs = pairs.map(|argument| {
            let (key, value) =
                argument.split_once('=').ok_or_else(|| bad(argument, "of the form key=value"))?;
            let (key, value) = (key.trim(), value.trim());
            if known.contains(&key) {
                return Ok((key, value));
            }
            Err(Error::UnknownArgument { optimizer, key: key.to_owned(), known })
        });
        Ok(Arguments(pairs.collect::<Result<_, Error>>()?))
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        let parse =
            |value: &str| value.parse().map_err(|_| bad(&format!("{key}={value}"), "a number"));
        self.get(key).map(parse).transpose()
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        let parse = |value: &str| match value.to_lowercase().as_str() {
            "true" | "1" | "yes" => Ok(true),
            "false" | "0" | "no" => Ok(false),
            _ => Err(bad(&format!("{key}={value}"), "true or false")),
        };
        self.get(key).map(parse).transpose()
    }
}

fn bad(argument: &str, expected: &'static str) -> Error {
    Error::BadArgument { argument: argument.to_owned(), expected }
}
