//! Which devices a command works on: the flags they share, and the client made from them.

use crate::error::{Error, Result};
use clap::Args;
use fullshard_pjrt::plugins::{Located, PluginKind, Store, find_compiler, find_or_install};
use fullshard_pjrt::{Client, ClientOptions, CompileCache, Plugin, Value};
use std::path::PathBuf;

/// Flags that choose a plugin and its devices.
#[derive(Args, Clone)]
pub struct Target {
    /// The kind of device: cpu, cuda or tpu.
    #[arg(long, env = "PJRT_DEVICE", value_parser = parse_kind)]
    pub device: Option<PluginKind>,
    /// A plugin file to use instead of the one that would be found.
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// The share of its memory a GPU client may take.
    #[arg(long, value_name = "FRACTION")]
    pub memory_fraction: Option<f32>,
    /// Whether a GPU client takes its memory at once.
    #[arg(long, value_name = "BOOL")]
    pub preallocate: Option<bool>,
    /// Another option of the plugin, such as max_inflight_computations=4.
    #[arg(long = "client-option", value_name = "NAME=VALUE", value_parser = parse_option)]
    pub options: Vec<(String, Value)>,
}

impl Target {
    /// The plugin of a kind, perhaps from a given file, with no options.
    pub fn only(kind: PluginKind, plugin: Option<PathBuf>) -> Target {
        Target {
            device: Some(kind),
            plugin,
            memory_fraction: None,
            preallocate: None,
            options: Vec::new(),
        }
    }

    /// The kind asked for; the CPU if none was.
    pub fn kind(&self) -> PluginKind {
        self.device.unwrap_or(PluginKind::Cpu)
    }

    /// Finds the plugin, fetching the CPU's on first use, and loads it.
    pub fn load(&self) -> Result<(&'static Plugin, Located)> {
        let store = Store::default_location()?;
        let located = find_or_install(self.kind(), self.plugin.as_deref(), &store)?;
        Ok((Plugin::load(&located.path)?, located))
    }

    /// Finds a plugin that need only compile, and loads it.
    pub fn load_compiler(&self) -> Result<(&'static Plugin, Located)> {
        let store = Store::default_location()?;
        let located = find_compiler(self.kind(), self.plugin.as_deref(), &store)?;
        Ok((Plugin::load(&located.path)?, located))
    }

    /// Starts a client with at least `devices` devices, where the platform has a choice.
    pub fn client(&self, devices: usize) -> Result<(Client, Located)> {
        let (plugin, located) = self.load()?;
        Ok((Client::new(plugin, &self.client_options(devices))?, located))
    }

    fn client_options(&self, devices: usize) -> ClientOptions {
        let mut options = ClientOptions::new();
        if self.kind() == PluginKind::Cpu {
            options = options.cpu_device_count(devices.max(1));
        }
        if let Some(fraction) = self.memory_fraction {
            options = options.memory_fraction(fraction);
        }
        if let Some(preallocate) = self.preallocate {
            options = options.preallocate(preallocate);
        }
        let extra = self.options.iter().cloned();
        extra.fold(options, |options, (name, value)| options.set(&name, value))
    }
}

/// The compile cache in the user's cache folder.
pub fn compile_cache() -> Result<CompileCache> {
    Ok(CompileCache::at(cache_root()?.join("compiled")))
}

/// The user's cache folder.
pub fn cache_root() -> Result<PathBuf> {
    let plugins = Store::default_location()?;
    Ok(plugins.folder().parent().unwrap_or(plugins.folder()).to_owned())
}

fn parse_kind(text: &str) -> std::result::Result<PluginKind, String> {
    text.to_ascii_lowercase().parse().map_err(|error| format!("{error}"))
}

fn parse_option(text: &str) -> std::result::Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    let value = match value {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => match (value.parse::<i64>(), value.parse::<f32>()) {
            (Ok(int), _) => Value::Int(int),
            (_, Ok(float)) => Value::Float(float),
            _ => Value::Text(value.to_owned()),
        },
    };
    Ok((name.to_owned(), value))
}

/// The kinds of plugin a command that names none should look at.
pub fn kinds_to_show(target: &Target) -> Result<Vec<PluginKind>> {
    match target.device {
        Some(kind) => Ok(vec![kind]),
        None if target.plugin.is_some() => {
            Err(Error::Usage("--plugin needs --device to say what kind of plugin it is".into()))
        }
        None => Ok(PluginKind::ALL.to_vec()),
    }
}
