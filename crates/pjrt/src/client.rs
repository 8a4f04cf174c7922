//! Clients and their devices.

use crate::calls;
use crate::device::{Device, DeviceDescription};
use crate::error::{Error, Result};
use crate::in_flight::InFlight;
use crate::key_value::{Callbacks, KeyValueStore};
use crate::plugin::Plugin;
use crate::sys::{self, Args, args};
use crate::value::{self, NamedValues, Value};
use fullshard_core::Process;
use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;

/// Options for creating a client. Each plugin supports only its own and rejects others.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientOptions {
    values: NamedValues,
}

impl ClientOptions {
    /// No options.
    pub fn new() -> ClientOptions {
        ClientOptions::default()
    }

    /// Number of virtual devices of the CPU client.
    pub fn cpu_device_count(self, count: usize) -> ClientOptions {
        self.set_count("cpu_device_count", count)
    }

    /// The fraction of device memory a GPU client allocates.
    pub fn memory_fraction(self, fraction: f32) -> ClientOptions {
        self.set("memory_fraction", Value::Float(fraction))
    }

    /// Whether a GPU client preallocates its memory rather than allocating on demand.
    pub fn preallocate(self, preallocate: bool) -> ClientOptions {
        self.set("preallocate", Value::Bool(preallocate))
    }

    fn set_count(self, name: &str, count: usize) -> ClientOptions {
        self.set(name, Value::Int(i64::try_from(count).unwrap_or(i64::MAX)))
    }

    /// Any option, by the plugin's name for it.
    pub fn set(mut self, name: &str, value: Value) -> ClientOptions {
        self.values.retain(|(known, _)| known != name);
        self.values.push((name.to_owned(), value));
        self
    }
}

/// A plugin's view of the devices of this machine. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub(crate) handle: Arc<ClientHandle>,
}

/// Shared by buffers, events and executables to keep their client alive.
pub(crate) struct ClientHandle {
    pub(crate) plugin: &'static Plugin,
    pub(crate) raw: *mut sys::Client,
    pub(crate) platform: String,
    version: String,
    pub(crate) devices: Vec<Device>,
    pub(crate) process: Process,
    pub(crate) global_devices: Vec<DeviceDescription>,
    pub(crate) in_flight: InFlight,
    /// The id of the next launch.
    pub(crate) launches: AtomicI32,
    /// What the plugin calls until its client is destroyed, which is before this is dropped.
    _callbacks: Option<Callbacks>,
}

// SAFETY: PJRT clients may be used from any thread.
unsafe impl Send for ClientHandle {}
// SAFETY: as above.
unsafe impl Sync for ClientHandle {}

impl Client {
    /// Creates a client of `plugin` in a process alone.
    pub fn new(plugin: &'static Plugin, options: &ClientOptions) -> Result<Client> {
        Client::create(plugin, options, Process::alone(), None)
    }

    /// Creates a client of `plugin` in one process of a job. Every process calls this, and it
    /// returns when all have.
    ///
    /// GPU plugins find one another through `store`, and TPU plugins by their environment. The CPU
    /// plugin knows nothing of other processes: there the client only knows its place, does not
    /// wait, and compiles programs for the devices of its own process.
    pub fn in_job(
        plugin: &'static Plugin,
        options: &ClientOptions,
        process: Process,
        store: Arc<dyn KeyValueStore>,
    ) -> Result<Client> {
        let process = Process::new(process.index, process.count)?;
        let is_gpu = plugin.extension(sys::EXTENSION_GPU_CUSTOM_CALL).is_some();
        if process.is_alone() || !is_gpu {
            return Client::create(plugin, options, process, None);
        }
        let options = options.clone().set_count("node_id", process.index);
        let options = options.set_count("num_nodes", process.count);
        Client::create(plugin, &options, process, Some(Callbacks::new(store)))
    }

    fn create(
        plugin: &'static Plugin,
        options: &ClientOptions,
        process: Process,
        callbacks: Option<Callbacks>,
    ) -> Result<Client> {
        let values = value::to_raw(&options.values);
        let mut call = args::<sys::ClientCreate>();
        call.create_options = values.as_ptr();
        call.num_options = values.len();
        if let Some(callbacks) = &callbacks {
            callbacks.set(&mut call);
        }
        // SAFETY: the options outlive the call, and the callbacks the client.
        unsafe { plugin.call(&mut call) }?;
        let mut handle = ClientHandle {
            plugin,
            raw: plugin.check_made(call.client, sys::ClientCreate::NAME)?,
            platform: String::new(),
            version: String::new(),
            devices: Vec::new(),
            process,
            global_devices: Vec::new(),
            in_flight: InFlight::default(),
            launches: AtomicI32::new(1),
            _callbacks: callbacks,
        };
        // From here `handle` destroys the client if a step fails.
        handle.platform = handle.text::<sys::ClientPlatformName>()?;
        handle.version = handle.text::<sys::ClientPlatformVersion>()?;
        handle.devices = handle.list_devices()?;
        if handle.spans_processes() {
            handle.devices.sort_by_key(|device| device.description().id);
        }
        handle.global_devices = handle.find_global_devices()?;
        if handle.is_cpu() {
            calls::register(plugin, handle.devices.len())?;
        }
        Ok(Client { handle: Arc::new(handle) })
    }

    /// The plugin of the client.
    pub fn plugin(&self) -> &'static Plugin {
        self.handle.plugin
    }

    /// The platform's name, such as `cpu`, `cuda` or `tpu`.
    pub fn platform_name(&self) -> &str {
        &self.handle.platform
    }

    /// The platform's version, as the plugin reports it.
    pub fn platform_version(&self) -> &str {
        &self.handle.version
    }

    /// The devices this process can use.
    pub fn devices(&self) -> &[Device] {
        &self.handle.devices
    }

    /// The device at `index` of [`Client::devices`].
    pub fn device(&self, index: usize) -> Result<&Device> {
        let count = self.handle.devices.len();
        self.handle.devices.get(index).ok_or(Error::NoSuchDevice { index, count })
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let devices = self.handle.devices.len();
        write!(f, "Client({}, {devices} devices)", self.handle.platform)
    }
}

impl ClientHandle {
    fn text<A: ClientText>(&self) -> Result<String> {
        let mut call = A::for_client(self.raw);
        // SAFETY: the client is live.
        unsafe { self.plugin.call(&mut call) }?;
        let (data, size) = call.text();
        // SAFETY: the call succeeded, so it filled both fields.
        Ok(unsafe { value::text(data, size) })
    }

    fn list_devices(&self) -> Result<Vec<Device>> {
        let mut call = args::<sys::ClientAddressableDevices>();
        call.client = self.raw;
        // SAFETY: the client is live.
        unsafe { self.plugin.call(&mut call) }?;
        // SAFETY: the call succeeded, so it filled both fields.
        let devices = unsafe { value::slice(call.devices, call.num_devices) };
        // SAFETY: these are devices of the live client.
        devices.iter().map(|&device| unsafe { Device::read(self.plugin, device) }).collect()
    }

    /// The devices of all processes, as the plugin lists them.
    pub(crate) fn describe_all_devices(&self) -> Result<Vec<DeviceDescription>> {
        let mut call = args::<sys::ClientDevices>();
        call.client = self.raw;
        // SAFETY: the client is live.
        unsafe { self.plugin.call(&mut call) }?;
        // SAFETY: the call succeeded, so it filled both fields.
        let devices = unsafe { value::slice(call.devices, call.num_devices) };
        let describe = |&device: &*mut sys::Device| {
            let mut call = sys::DeviceGetDescription { device, ..args() };
            // SAFETY: these are devices of the live client, and so are their descriptions.
            unsafe {
                self.plugin.call(&mut call)?;
                DeviceDescription::read(self.plugin, call.description)
            }
        };
        devices.iter().map(describe).collect()
    }

    /// Whether the devices are virtual and share the host's memory and threads.
    pub(crate) fn is_cpu(&self) -> bool {
        self.platform == "cpu"
    }

    /// The index of a plugin device in the client's list.
    pub(crate) fn position(&self, raw: *mut sys::Device) -> Option<usize> {
        self.devices.iter().position(|device| device.raw == raw)
    }
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        self.in_flight.clear();
        let mut call = args::<sys::ClientDestroy>();
        call.client = self.raw;
        // SAFETY: everything that uses the client holds a reference to this handle, so nothing
        // uses it anymore. A failure is ignored.
        let _ = unsafe { self.plugin.call(&mut call) };
    }
}

/// Calls that return a string of a client.
trait ClientText: Args {
    fn for_client(client: *mut sys::Client) -> Self;
    fn text(&self) -> (*const c_char, usize);
}

macro_rules! client_text {
    ($($name:ident),*) => {$(
        impl ClientText for sys::$name {
            fn for_client(client: *mut sys::Client) -> Self {
                sys::$name { client, ..args() }
            }

            fn text(&self) -> (*const c_char, usize) {
                (self.text, self.text_size)
            }
        }
    )*};
}
client_text!(ClientPlatformName, ClientPlatformVersion);
