//! Devices: the plugin of a config's platform, its client, and the user's caches.

use crate::config::{Device, RunConfig};
use crate::error::{Error, Result};
use crate::format;
use crate::job::Membership;
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
        self.client_in(&Membership::alone(), devices)
    }

    /// Starts a client of one process of a job, with at least `devices` devices of its own.
    fn client_in(&self, membership: &Membership, devices: usize) -> Result<(Client, Located)> {
        let (plugin, located) = self.load()?;
        let mut options = self.client_options(devices)?;
        if let Some(gpus) = self.gpus_of(membership) {
            options = options.set(VISIBLE, Value::Ints(gpus));
        }
        Ok((membership.client(plugin, &options)?, located))
    }

    /// The GPUs of a process that shares its host with others, unless the config names some.
    fn gpus_of(&self, membership: &Membership) -> Option<Vec<i64>> {
        let named = |text: &String| text.starts_with(VISIBLE);
        if self.kind() != Platform::Cuda || self.client_options.iter().any(named) {
            return None;
        }
        let (local, of) = membership.place_on_host();
        share(count_gpus()?, local, of)
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
    pub fn count_devices(&mut self, membership: &Membership) -> Result<Option<Client>> {
        self.processes = membership.process().count;
        let sized = self.mesh.shape.as_ref().and_then(MeshSpec::devices);
        let sized = self.mesh.devices.or(sized).is_some();
        let known = match self.platform() {
            Platform::Cpu => true,
            Platform::Cuda => sized,
            Platform::Tpu => sized && self.device.topology.is_some(),
        };
        if known {
            self.check_processes()?;
            return Ok(None);
        }
        let client = self.start_client(membership)?;
        if !sized {
            self.mesh.devices = Some(client.device_count());
        }
        if self.device.topology.is_none() {
            let devices: Vec<&DeviceDescription> = client.global_devices().iter().collect();
            self.device.topology = tpu_topology(&devices);
        }
        self.check_processes()?;
        Ok(Some(client))
    }

    /// Rejects devices that do not divide into processes.
    fn check_processes(&self) -> Result<()> {
        let (devices, processes) = (self.devices(), self.processes);
        if devices.is_multiple_of(processes) && devices > 0 {
            return Ok(());
        }
        let below = (devices / processes).max(1) * processes;
        Err(Error::Usage(format!(
            "the mesh has {}, which {processes} processes cannot share equally: use {below} or {}",
            format::count(devices, "device"),
            below + processes
        )))
    }

    /// The client of a run; an error if it has fewer devices than the mesh.
    pub fn client(&self, membership: &Membership) -> Result<Client> {
        if self.platform() == Platform::Cpu {
            fullshard_pjrt::keep_freed_memory();
        }
        let client = self.start_client(membership)?;
        let (needed, available) = (self.devices(), client.device_count());
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
    fn start_client(&self, membership: &Membership) -> Result<Client> {
        match (self.platform(), self.device.client_in(membership, self.local_devices())) {
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

/// The option of a GPU client that lists its devices.
const VISIBLE: &str = "visible_devices";

/// The share of a host's GPUs that one of several processes has: the same number each. With fewer
/// GPUs than processes some share one, which NCCL supports only for tests.
fn share(gpus: usize, local: usize, of: usize) -> Option<Vec<i64>> {
    if of < 2 || gpus == 0 {
        return None;
    }
    let each = (gpus / of).max(1);
    Some((0..each).map(|i| ((local * each + i) % gpus) as i64).collect())
}

/// The GPUs that this process may use.
fn count_gpus() -> Option<usize> {
    if let Ok(visible) = std::env::var("CUDA_VISIBLE_DEVICES") {
        return Some(visible.split(',').filter(|id| !id.trim().is_empty()).count());
    }
    let entries = std::fs::read_dir("/dev").ok()?.flatten();
    let is_gpu = |name: &str| {
        let number = name.strip_prefix("nvidia").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    Some(entries.filter(|entry| entry.file_name().to_str().is_some_and(is_gpu)).count())
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

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn processes_of_a_host_share_its_gpus() {
        assert_eq!(share(8, 0, 1), None);
        assert_eq!(share(8, 3, 8), Some(vec![3]));
        assert_eq!(share(8, 1, 2), Some(vec![4, 5, 6, 7]));
        assert_eq!(share(4, 2, 3), Some(vec![2]));
        assert_eq!(share(1, 5, 8), Some(vec![0]));
        assert_eq!(share(0, 1, 2), None);
    }
}
