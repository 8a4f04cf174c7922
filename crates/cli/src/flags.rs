//! The flags of a run config on the command line: all of [`Flags::all`], or a subset.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use fullshard::Result;
use fullshard::config::{ConfigError, Flag, FlagValue, Flags, Given, RunConfig, Takes};
use std::ffi::OsStr;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

/// The flags of a command.
pub trait FlagList {
    /// Whether the command takes a flag.
    fn takes(flag: &Flag) -> bool;
    /// Whether the command takes a file with a config or flags.
    const FILE: bool;
}

/// All flags of a run.
pub struct RunFlags;

impl FlagList for RunFlags {
    const FILE: bool = true;

    fn takes(_: &Flag) -> bool {
        true
    }
}

/// The flags of a step benchmark, without the batch size.
pub struct StepFlags;

impl FlagList for StepFlags {
    const FILE: bool = true;

    fn takes(flag: &Flag) -> bool {
        const SECTIONS: [&str; 5] =
            ["Model", "Devices", "Sharding", "Precision and memory", "Optimizer"];
        const OTHERS: [&str; 4] =
            ["gradient_accumulation_steps", "no_sync", "iterations_per_loop", "seed"];
        let is_checkpoint = flag.name == "model_name_or_path";
        (SECTIONS.contains(&flag.heading) && !is_checkpoint) || OTHERS.contains(&flag.name)
    }
}

/// The flags that select devices.
pub struct DeviceFlags;

impl FlagList for DeviceFlags {
    const FILE: bool = false;

    fn takes(flag: &Flag) -> bool {
        const COMPILING: [&str; 3] = ["xla_flag", "no_cache", "num_cores"];
        flag.heading == "Devices" && !COMPILING.contains(&flag.name)
    }
}

/// The platform flag and its environment variable.
const PLATFORM: (&str, &str) = ("device", "PJRT_DEVICE");

/// The name of the file argument.
const FILE: &str = "config_file";

/// The given flags of a list.
pub struct Flagged<L> {
    given: Given,
    /// Flags of the environment, which everything else overrides.
    environment: Given,
    file: Option<PathBuf>,
    list: PhantomData<L>,
}

impl<L: FlagList> Flagged<L> {
    /// The config of these flags, applied to a base config. A file replaces the base, and flags
    /// override the file.
    pub fn config(&self, base: impl FnOnce(&Given) -> Result<RunConfig>) -> Result<RunConfig> {
        let (base, given) = self.base(base)?;
        let base = self.environment.resolve(base)?;
        Ok(given.resolve(base)?)
    }

    /// The same without the environment.
    pub fn config_of_flags(
        &self,
        base: impl FnOnce(&Given) -> Result<RunConfig>,
    ) -> Result<RunConfig> {
        let (base, given) = self.base(base)?;
        Ok(given.resolve(base)?)
    }

    /// Whether a file with a config or flags is given.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
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
    Flags::all().into_iter().filter(L::takes).collect()
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
            Arg::new(FILE)
                .value_name("CONFIG")
                .value_parser(clap::value_parser!(PathBuf))
                .help("Run config, or file of flags by name, in TOML or JSON; flags override it"),
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
            let given: Vec<Vec<&String>> = matches
                .get_occurrences(flag.name)
                .map(|all| all.map(Iterator::collect).collect())
                .unwrap_or_default();
            // The last one wins, as with argparse.
            let kept = if flag.adds_up() { 0 } else { given.len().saturating_sub(1) };
            let words = given[kept..].iter().flatten().map(|&word| word.clone());
            into.add(flag.name, words.collect()).map_err(invalid)?;
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

/// Parses a count of at least 1.
pub fn count(word: &str) -> Result<usize, String> {
    usize::read(&[word.to_owned()])
}

fn is_config(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    matches!(extension, Some("toml" | "json"))
}

fn invalid(error: ConfigError) -> clap::Error {
    clap::Error::raw(clap::error::ErrorKind::InvalidValue, error.to_string())
}
