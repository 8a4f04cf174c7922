//! The flags of a run config on the command line: those of [`Flags::all`], or a few of them.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use fullshard::Result;
use fullshard::config::{ConfigError, Flag, FlagValue, Flags, Given, RunConfig, Takes};
use std::ffi::OsStr;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

/// Which flags a command takes.
pub trait FlagList {
    /// Their names; all of them if empty.
    const NAMES: &'static [&'static str];
    /// Whether a file with a config or with flags can come before them.
    const FILE: bool;
}

/// Everything that a run follows from.
pub struct RunFlags;

impl FlagList for RunFlags {
    const NAMES: &'static [&'static str] = &[];
    const FILE: bool = true;
}

/// What a benchmark of a step follows from, but for the size of its batch.
pub struct StepFlags;

impl FlagList for StepFlags {
    const NAMES: &'static [&'static str] = &[
        "config_name",
        "model_type",
        "config_overrides",
        "freeze",
        "scan_layers",
        "device",
        "plugin",
        "memory_fraction",
        "preallocate",
        "client_option",
        "xla_flag",
        "no_cache",
        "num_cores",
        "fsdp",
        "gather_ahead",
        "fsdp_config",
        "dtype",
        "bf16",
        "fp8",
        "remat",
        "gradient_checkpointing",
        "optim",
        "optim_args",
        "learning_rate",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "max_grad_norm",
        "gradient_accumulation_steps",
        "no_sync",
        "seed",
    ];
    const FILE: bool = true;
}

/// Which devices a command works on.
pub struct DeviceFlags;

impl FlagList for DeviceFlags {
    const NAMES: &'static [&'static str] =
        &["device", "plugin", "memory_fraction", "preallocate", "client_option"];
    const FILE: bool = false;
}

/// The variable that names a platform where no flag does.
const PLATFORM: (&str, &str) = ("device", "PJRT_DEVICE");

/// Where the file is among the arguments.
const FILE: &str = "config_file";

/// The flags of a list, as they were given.
pub struct Flagged<L> {
    given: Given,
    /// What the environment says, which gives way to everything else.
    environment: Given,
    file: Option<PathBuf>,
    list: PhantomData<L>,
}

impl<L: FlagList> Flagged<L> {
    /// The config that they come to, over one to begin with. A file takes the place of that, and
    /// flags win over the file.
    pub fn config(&self, base: impl FnOnce(&Given) -> Result<RunConfig>) -> Result<RunConfig> {
        let (base, given) = self.base(base)?;
        let base = self.environment.resolve(base)?;
        Ok(given.resolve(base)?)
    }

    /// The same without what the environment says.
    pub fn config_of_flags(
        &self,
        base: impl FnOnce(&Given) -> Result<RunConfig>,
    ) -> Result<RunConfig> {
        let (base, given) = self.base(base)?;
        Ok(given.resolve(base)?)
    }

    fn base(&self, base: impl FnOnce(&Given) -> Result<RunConfig>) -> Result<(RunConfig, Given)> {
        let Some(path) = &self.file else { return Ok((base(&self.given)?, self.given.clone())) };
        match Given::from_file(path)? {
            None => Ok((RunConfig::read(path)?, self.given.clone())),
            Some(in_file) => {
                let given = in_file.then(&self.given);
                Ok((base(&given)?, given))
            }
        }
    }
}

/// The flags of a list.
fn listed<L: FlagList>() -> Vec<Flag> {
    let is_listed = |flag: &Flag| L::NAMES.is_empty() || L::NAMES.contains(&flag.name);
    Flags::all().into_iter().filter(is_listed).collect()
}

fn argument(flag: Flag) -> Arg {
    let mut argument = Arg::new(flag.name)
        .long(flag.name)
        .visible_aliases(flag.aliases.iter().copied())
        .value_name(flag.value)
        .help_heading(flag.heading)
        .action(ArgAction::Append);
    argument = match flag.takes {
        Takes::One => argument.num_args(1),
        Takes::Switch => argument.num_args(0..=1).default_missing_value("true"),
        Takes::Many => argument.num_args(1..),
    };
    argument = match flag.choices {
        [] => {
            let check = flag.check;
            argument
                .value_parser(move |word: &str| check(&[word.to_owned()]).map(|()| word.to_owned()))
        }
        choices => argument.value_parser(clap::builder::PossibleValuesParser::new(choices)),
    };
    let default = flag.default.filter(|words| words.iter().any(|word| !word.is_empty()));
    let help = match default {
        Some(words) => format!("{} [default: {}]", flag.help, words.join(" ")),
        None => flag.help,
    };
    argument = argument.help(help);
    if flag.name == PLATFORM.0 { argument.env(PLATFORM.1) } else { argument }
}

impl<L: FlagList> Args for Flagged<L> {
    fn augment_args(command: Command) -> Command {
        let command = command.args(listed::<L>().into_iter().map(argument));
        if !L::FILE {
            return command;
        }
        command.arg(
            Arg::new(FILE).value_name("CONFIG").value_parser(clap::value_parser!(PathBuf)).help(
                "A run config, or a file of flags by name, in TOML or JSON; flags win over it",
            ),
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flagged::<L>::augment_args(command)
    }
}

impl<L: FlagList> FromArgMatches for Flagged<L> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Flagged<L>, clap::Error> {
        let (mut given, mut environment) = (Given::default(), Given::default());
        for flag in listed::<L>() {
            let into = match matches.value_source(flag.name) {
                Some(ValueSource::CommandLine) => &mut given,
                Some(ValueSource::EnvVariable) => &mut environment,
                _ => continue,
            };
            let words = matches.get_many::<String>(flag.name).into_iter().flatten();
            into.add(flag.name, words.cloned().collect()).map_err(refused)?;
        }
        let file = match L::FILE {
            true => matches.get_one::<PathBuf>(FILE).cloned(),
            false => None,
        };
        if let Some(file) = &file
            && !is_config(file)
        {
            let message = format!(
                "unexpected argument `{}`: a run config or a file of flags ends in .toml or .json",
                file.display()
            );
            return Err(clap::Error::raw(clap::error::ErrorKind::UnknownArgument, message));
        }
        Ok(Flagged { given, environment, file, list: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Flagged::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Reads a count of at least 1, for flags of single commands.
pub fn count(word: &str) -> Result<usize, String> {
    usize::read(&[word.to_owned()])
}

fn is_config(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    matches!(extension, Some("toml" | "json"))
}

fn refused(error: ConfigError) -> clap::Error {
    clap::Error::raw(clap::error::ErrorKind::InvalidValue, error.to_string())
}
