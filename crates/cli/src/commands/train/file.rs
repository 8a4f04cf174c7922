//! A single argument that ends in `.json` or `.toml` is a file of all arguments.

use crate::error::{Error, Result};
use clap::Command;
use fullshard_parallel::nearest;
use serde_json::{Map, Value};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The arguments of a command, those of a file in its place if it is just one.
pub fn expanded(command: &Command, arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let [program, name, file] = &arguments[..] else { return Ok(arguments) };
    let takes_files = ["train", "run_clm", "run-clm"].iter().any(|known| name == known);
    let extension = Path::new(file).extension().and_then(OsStr::to_str);
    let read: fn(&str) -> Result<Value, String> = match extension {
        Some("json") if takes_files => from_json,
        Some("toml") if takes_files => from_toml,
        _ => return Ok(arguments),
    };
    let path = Path::new(file);
    let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
    let value = read(&text).map_err(|reason| Error::file(path, reason))?;
    let Value::Object(object) = value else {
        return Err(Error::file(path, "an object of arguments is needed"));
    };
    let subcommand = command.find_subcommand("train").unwrap_or(command);
    let flags = flags(subcommand, &object).map_err(|reason| Error::file(path, reason))?;
    Ok([program.clone(), name.clone()].into_iter().chain(flags).collect())
}

fn from_json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))
}

fn from_toml(text: &str) -> Result<Value, String> {
    toml::from_str(text).map_err(|error| format!("no TOML: {error}"))
}

fn flags(command: &Command, object: &Map<String, Value>) -> Result<Vec<OsString>, String> {
    let names = command.get_arguments().filter_map(|argument| argument.get_long());
    let known: Vec<String> = names.map(|name| name.replace('-', "_")).collect();
    let mut flags = Vec::new();
    for (key, value) in object {
        let name = key.replace('-', "_");
        if !known.contains(&name) {
            let meant = nearest(&name, known.iter().map(String::as_str));
            let meant = meant.map(|meant| format!("; perhaps `{meant}` was meant"));
            return Err(format!("there is no argument `{key}`{}", meant.unwrap_or_default()));
        }
        let flag = name.replace('_', "-");
        match value {
            Value::Null => {}
            Value::Array(values) => flags.extend(values.iter().map(|each| written(&flag, each))),
            value => flags.push(written(&flag, value)),
        }
    }
    Ok(flags)
}

fn written(flag: &str, value: &Value) -> OsString {
    match value {
        Value::String(text) => format!("--{flag}={text}").into(),
        other => format!("--{flag}={other}").into(),
    }
}
