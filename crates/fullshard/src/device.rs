//! Devices: the plugin of a config's platform, its client, and the user's caches.

use crate::config::{Device, RunConfig};
use crate::error::{Error, Result};
use crate::format;
use fullshard_core::{Chip, MeshSpec, Platform};
use fullshard_pjrt::plugins::{Located, Store, find_compiler, find_or_install};
use fullshard_pjrt::{Client, ClientOptions, CompileCache, DeviceDescription, Plugin, Value};
use std::path::PathBuf;

impl Device {
    /// The platform; defaults to CPU.
    pub fn kind(&self) -> Platform {
        self.platform.unwrap_or(Platform::Cpu)
    }

    /// Finds and loads the plugin; the CPU plugin is downloaded on first use.
    pub fn load(&self) -> Result<(&'static Plugin, Located)> {
        let store = Store::default_location()?;
        let located = find_or_install(self.kind(), self.plugin.as_deref(), &store)?;
        located.verify()?;
        Ok((Plugin::load(&located.path)?, located))
    }

    /// Finds and loads a plugin that only compiles. For GPUs its files are an eighth of those that
    /// execution needs.
    pub fn load_compiler(&self) -> Result<&'static Plugin> {
        if self.kind() != Platform::Cuda {
            return Ok(self.load()?.0);
        }
        let store = Store::default_location()?;
        let located = find_compiler(self.kind(), self.plugin.as_deref(), &store)?;
        located.verify()?;
        Ok(Plugin::load(&located.path)?)
    }

    /// Starts a client with at least `devices` devices, where their number is configurable.
    pub fn client(&self, devices: usize) -> Result<(Client, Located)> {
        let (plugin, located) = self.load()?;
        Ok((Client::new(plugin, &self.client_options(devices)?)?, located))
    }

    /// The compile cache, unless the config disables it.
    pub fn compile_cache(&self) -> Result<Option<CompileCache>> {
        match self.no_cache {
            true => Ok(None),
            false => Ok(Some(compile_cache()?)),
        }
    }

    fn client_options(&self, devices: usize) -> Result<ClientOptions> {
        let mut options = ClientOptions::new();
        if self.kind() == Platform::Cpu {
            options = options.cpu_device_count(devices.max(1));
        }
        if let Some(fraction) = self.memory_fraction {
            options = options.memory_fraction(fraction);
        }
        if let Some(preallocate) = self.preallocate {
            options = options.preallocate(preallocate);
        }
        self.client_options.iter().try_fold(options, |options, text| {
            let (name, value) = client_option(text)?;
            Ok(options.set(name, value))
        })
    }
}

impl RunConfig {
    /// Sets the size of the mesh, if it is not given: all accelerators of this machine, or one CPU
    /// device; and the topology of TPUs. Returns the client that counted them.
    pub fn count_devices(&mut self) -> Result<Option<Client>> {
        let sized = self.mesh.shape.as_ref().and_then(MeshSpec::devices);
        let sized = self.mesh.devices.or(sized).is_some();
        let known = match self.platform() {
            Platform::Cpu => true,
            Platform::Cuda => sized,
            Platform::Tpu => sized && self.device.topology.is_some(),
        };
        if known {
            return Ok(None);
        }
        let client = self.start_client()?;
        if !sized {
            self.mesh.devices = Some(client.devices().len());
        }
        if self.device.topology.is_none() {
            let devices: Vec<&DeviceDescription> =
                client.devices().iter().map(|device| device.description()).collect();
            self.device.topology = tpu_topology(&devices);
        }
        Ok(Some(client))
    }

    /// The client of a run; an error if it has fewer devices than the mesh.
    pub fn client(&self) -> Result<Client> {
        if self.platform() == Platform::Cpu {
            fullshard_pjrt::keep_freed_memory();
        }
        let client = self.start_client()?;
        let (needed, available) = (self.devices(), client.devices().len());
        if needed <= available {
            return Ok(client);
        }
        Err(Error::Usage(format!(
            "--num_cores is {needed}, but this machine has {}: use at most {available}, or virtual \
             devices with --device cpu",
            format::count(available, &format!("{} device", client.platform_name())),
        )))
    }
}

impl RunConfig {
    fn start_client(&self) -> Result<Client> {
        match (self.platform(), self.device.client(self.devices())) {
            (_, Ok((client, _))) => Ok(client),
            (Platform::Tpu, Err(error @ (Error::Pjrt(_) | Error::Plugin(_)))) => {
                Err(Error::Usage(format!(
                    "no TPU available: {error}; `fullshard plan` plans the run for a TPU slice, \
                     `bench step --plan` and `--text` need no device, and --device cpu runs on \
                     virtual devices"
                )))
            }
            (_, Err(error)) => Err(error),
        }
    }
}

/// The slice that TPU devices are, such as `v4:2x2x1`, if all of its chips are there.
fn tpu_topology(devices: &[&DeviceDescription]) -> Option<String> {
    let generation = Chip::of_kind(&devices.first()?.kind)?.tpu?;
    let side = |dim: usize| {
        let places = devices.iter().map(|device| device.coordinates()?.get(dim).copied());
        let most = places.collect::<Option<Vec<i64>>>()?.into_iter().max()?;
        usize::try_from(most + 1).ok()
    };
    let dims = (0..generation.torus_rank).map(side).collect::<Option<Vec<usize>>>()?;
    let chips: usize = dims.iter().product();
    let complete = chips * generation.devices_per_chip() == devices.len();
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    complete.then(|| format!("{}:{}", generation.name, dims.join("x")))
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

fn client_option(text: &str) -> Result<(&str, Value)> {
    let invalid = || Error::Usage(format!("--client_option is `{text}`: must be NAME=VALUE"));
    let (name, value) = text.split_once('=').ok_or_else(invalid)?;
    let value = match value {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => match (value.parse::<i64>(), value.parse::<f32>()) {
            (Ok(int), _) => Value::Int(int),
            (_, Ok(float)) => Value::Float(float),
            _ => Value::Text(value.to_owned()),
        },
    };
    Ok((name, value))
}
