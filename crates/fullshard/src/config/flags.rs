//! Converts between flags and run configs.

use super::RunConfig;
use super::error::ConfigError;
use super::section::{Flag, Section};
use super::{file, spelling};
use fullshard_parallel::nearest;
use serde_json::{Map, Value};
use std::path::Path;

/// Runs an expression for each section of a config, with its name.
macro_rules! each_section {
    ($config:expr, $section:ident, $name:ident => $run:expr) => {
        each_section!($config, $section, $name => $run,
            model data device mesh fsdp precision remat optimizer schedule evaluation logging output
            checkpoint guard)
    };
    ($config:expr, $section:ident, $name:ident => $run:expr, $($field:ident)*) => {{
        let config = $config;
        $({
            let ($section, $name) = (&mut config.$field, stringify!($field));
            let _ = $name;
            $run
        })*
    }};
}

/// The flags of a run config.
#[derive(Debug, Clone, Copy)]
pub struct Flags;

impl Flags {
    /// All flags: one for each field that has one, and the shorthands.
    pub fn all() -> Vec<Flag> {
        fn of<S: Section>(_: &S) -> Vec<Flag> {
            S::flags()
        }
        let mut flags = Vec::new();
        each_section!(&mut RunConfig::default(), section, _name => flags.extend(of(section)));
        flags.extend(spelling::flags());
        flags
    }

    /// The keys of a config file that no flag sets, as `section.key`.
    pub fn keys_without() -> Vec<String> {
        fn of<S: Section>(_: &S) -> Vec<&'static str> {
            S::keys_without_flags()
        }
        let mut keys = Vec::new();
        each_section!(&mut RunConfig::default(), section, name => {
            keys.extend(of(section).into_iter().map(|key| format!("{name}.{key}")));
        });
        keys
    }

    /// The flag with a name or alias.
    fn find(name: &str) -> Result<Flag, ConfigError> {
        let all = Flags::all();
        let is_named = |flag: &&Flag| flag.name == name || flag.aliases.contains(&name);
        all.iter().find(is_named).cloned().ok_or_else(|| {
            let near = nearest(name, all.iter().map(|flag| flag.name));
            let hint = near.map(|near| format!(" (did you mean `{near}`?)"));
            ConfigError::UnknownFlag { name: name.to_owned(), hint: hint.unwrap_or_default() }
        })
    }
}

/// The given flags.
#[derive(Debug, Clone, Default)]
pub struct Given(Vec<(&'static str, Vec<String>)>);

impl Given {
    /// Adds a flag with its words. Names may have dashes instead of underscores.
    pub fn add(&mut self, name: &str, words: Vec<String>) -> Result<(), ConfigError> {
        let flag = Flags::find(&name.replace('-', "_"))?;
        self.0.push((flag.name, words));
        Ok(())
    }

    /// Reads flags by name from a `.json` or `.toml` file; `None` if it is a run config, with
    /// sections and a version.
    pub fn from_file(path: &Path) -> Result<Option<Given>, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let value = file::object(path, &text)?;
        if file::is_run_config(&value) {
            return Ok(None);
        }
        let in_file = |reason: String| ConfigError::File { path: path.to_owned(), reason };
        let Value::Object(object) = value else {
            return Err(in_file("expected an object of arguments".to_owned()));
        };
        Given::from_object(&object).map(Some).map_err(|error| in_file(error.to_string()))
    }

    fn from_object(object: &Map<String, Value>) -> Result<Given, ConfigError> {
        let word = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let mut given = Given::default();
        for (key, value) in object {
            let words = match value {
                Value::Null => continue,
                Value::Array(values) => values.iter().map(word).collect(),
                value => vec![word(value)],
            };
            given.add(key, words)?;
        }
        Ok(given)
    }

    /// These flags, overridden by others.
    pub fn then(mut self, others: &Given) -> Given {
        self.0.extend(others.0.iter().cloned());
        self
    }

    /// Whether a flag was given.
    pub fn has(&self, name: &str) -> bool {
        self.words(name).is_some()
    }

    /// The words of a given flag. If repeated, the last counts; lists accumulate.
    pub(super) fn words(&self, name: &str) -> Option<&[String]> {
        self.0.iter().rev().find(|(known, _)| *known == name).map(|(_, words)| words.as_slice())
    }

    /// Applies these flags to a config.
    pub fn resolve(&self, base: RunConfig) -> Result<RunConfig, ConfigError> {
        let mut config = base;
        for (name, words) in &self.0 {
            let mut set = None;
            each_section!(&mut config, section, _name => set = set.or_else(|| section.set(name, words)));
            if let Some(Err(reason)) = set {
                let (flag, value) = ((*name).to_owned(), words.join(" "));
                return Err(ConfigError::Value { flag, value, reason });
            }
        }
        spelling::apply(&mut config, self)?;
        config.check()?;
        Ok(config)
    }
}

impl RunConfig {
    /// The flags that produce this config, without defaults.
    pub fn to_flags(&self) -> Vec<String> {
        let of = |config: &RunConfig| {
            let mut words = Vec::new();
            each_section!(&mut config.clone(), section, _name => words.extend(section.words()));
            words
        };
        let mut flags = Vec::new();
        for ((name, words), (_, default)) in of(self).into_iter().zip(of(&RunConfig::default())) {
            if let Some(words) = words.filter(|words| Some(words) != default.as_ref()) {
                flags.push(format!("--{name}"));
                flags.extend(words);
            }
        }
        let fsdp = self.fsdp.flagless_json();
        if fsdp.as_object().is_some_and(|fsdp| !fsdp.is_empty()) {
            flags.extend(["--fsdp_config".to_owned(), fsdp.to_string()]);
        }
        flags
    }
}
