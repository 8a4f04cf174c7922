//! Profiles: device traces as an XSpace for XProf and TensorBoard.

mod read;

pub use read::{DeviceProfile, Kernel, read_profile};

use crate::error::{Code, Error, Result};
use crate::plugin::Plugin;
use crate::sys;
use crate::value;
use prost::Message;
use std::ffi::c_void;
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::{SystemTime, UNIX_EPOCH};

/// A running profile. Dropping it discards the profile.
pub struct Profile {
    plugin: &'static Plugin,
    api: *const sys::ProfilerApi,
    raw: *mut c_void,
}

impl Plugin {
    /// Starts a profile of the plugin's devices.
    pub fn start_profile(&'static self) -> Result<Profile> {
        let missing = || Error::MissingExtension { plugin: self.name(), extension: "profiler" };
        let extension = self.extension(sys::EXTENSION_PROFILER).ok_or_else(missing)?;
        // SAFETY: an extension is never freed.
        if unsafe { (*extension).struct_size } < size_of::<sys::ProfilerExtension>() {
            return Err(missing());
        }
        // SAFETY: an extension of this kind has this type, and is long enough.
        let api = unsafe { (*extension.cast::<sys::ProfilerExtension>()).api };
        // SAFETY: as above; null is checked for.
        if api.is_null() || unsafe { (*api).struct_size } < size_of::<sys::ProfilerApi>() {
            return Err(missing());
        }
        let options = ProfileOptions::default_for_training().encode_to_vec();
        let mut profile = Profile { plugin: self, api, raw: ptr::null_mut() };
        let mut create = sys::ProfilerCreate {
            struct_size: size_of::<sys::ProfilerCreate>(),
            options: options.as_ptr().cast(),
            options_size: options.len(),
            profiler: ptr::null_mut(),
        };
        // SAFETY: the options outlive the call.
        unsafe { profile.call("profiler create", |api| api.create, &mut create) }?;
        profile.raw = create.profiler;
        profile.call_handle("profiler start", |api| api.start)?;
        Ok(profile)
    }
}

impl Profile {
    /// Ends the profile and returns the XSpace.
    pub fn finish(self) -> Result<Vec<u8>> {
        self.call_handle("profiler stop", |api| api.stop)?;
        let mut collect = sys::ProfilerCollectData {
            struct_size: size_of::<sys::ProfilerCollectData>(),
            profiler: self.raw,
            buffer: ptr::null_mut(),
            buffer_size: 0,
        };
        // SAFETY: the profiler is live.
        unsafe { self.call("profiler collect", |api| api.collect_data, &mut collect) }?;
        if collect.buffer.is_null() {
            // The plugin only returned the size and needs a buffer.
            let mut bytes = vec![0_u8; collect.buffer_size];
            collect.buffer = bytes.as_mut_ptr();
            // SAFETY: the buffer has the requested size and outlives the call.
            unsafe { self.call("profiler collect", |api| api.collect_data, &mut collect) }?;
            bytes.truncate(bytes.len().saturating_sub(1));
            return Ok(bytes);
        }
        // Plugins report one byte more than the XSpace has.
        let len = collect.buffer_size.saturating_sub(1);
        // SAFETY: the buffer is the plugin's and lives until the profiler is destroyed.
        Ok(unsafe { value::slice(collect.buffer, len) }.to_vec())
    }

    fn call_handle(
        &self,
        name: &'static str,
        pick: impl Fn(&sys::ProfilerApi) -> Option<sys::ProfilerFunction>,
    ) -> Result<()> {
        let mut handle = sys::ProfilerHandle {
            struct_size: size_of::<sys::ProfilerHandle>(),
            profiler: self.raw,
        };
        // SAFETY: the profiler is live.
        unsafe { self.call(name, pick, &mut handle) }
    }

    /// # Safety
    /// `args` are the arguments of the picked function, and their pointers are valid for it.
    unsafe fn call<A>(
        &self,
        name: &'static str,
        pick: impl Fn(&sys::ProfilerApi) -> Option<sys::ProfilerFunction>,
        args: &mut A,
    ) -> Result<()> {
        // SAFETY: the table is never freed.
        let api = unsafe { &*self.api };
        let missing =
            || Error::MissingExtension { plugin: self.plugin.name(), extension: "profiler" };
        let function = pick(api).ok_or_else(missing)?;
        // SAFETY: the caller vouches for function and arguments.
        let error = unsafe { function((&raw mut *args).cast()) };
        if error.is_null() {
            return Ok(());
        }
        let message = self.take_error_message(error);
        Err(Error::Call { function: name, code: Code::Unknown, message })
    }

    fn take_error_message(&self, error: *mut c_void) -> String {
        let mut message = sys::ProfilerErrorMessage {
            struct_size: size_of::<sys::ProfilerErrorMessage>(),
            private: ptr::null_mut(),
            error,
            message: ptr::null(),
            message_size: 0,
        };
        let mut destroy = sys::ProfilerErrorDestroy {
            struct_size: size_of::<sys::ProfilerErrorDestroy>(),
            private: ptr::null_mut(),
            error,
        };
        // SAFETY: the error is live until it is destroyed, and the text is copied before.
        unsafe {
            let api = &*self.api;
            if let Some(error_message) = api.error_message {
                error_message((&raw mut message).cast());
            }
            let text = value::text(message.message, message.message_size);
            if let Some(error_destroy) = api.error_destroy {
                error_destroy((&raw mut destroy).cast());
            }
            text
        }
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // A failure is ignored.
            let _ = self.call_handle("profiler destroy", |api| api.destroy);
        }
    }
}

/// Writes an XSpace where XProf and TensorBoard look for it under `dir`, and returns the path.
pub fn write_profile(dir: &Path, xspace: &[u8]) -> Result<PathBuf> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "host" } else { host.trim() };
    let folder = dir.join("plugins/profile").join(format!("run-{seconds}"));
    let path = folder.join(format!("{host}.xplane.pb"));
    let io = |source| Error::Io { path: path.clone(), source };
    fs::create_dir_all(&folder).map_err(io)?;
    fs::write(&path, xspace).map_err(io)?;
    Ok(path)
}

/// The profiler options we set.
#[derive(Clone, PartialEq, Message)]
struct ProfileOptions {
    #[prost(uint32, tag = "2")]
    host_tracer_level: u32,
    #[prost(uint32, tag = "3")]
    device_tracer_level: u32,
    #[prost(uint32, tag = "5")]
    version: u32,
    #[prost(bool, tag = "7")]
    enable_hlo_proto: bool,
}

impl ProfileOptions {
    /// Host and device activity, with the HLO so that kernels can be traced back to it.
    fn default_for_training() -> ProfileOptions {
        ProfileOptions {
            host_tracer_level: 2,
            device_tracer_level: 1,
            version: 1,
            enable_hlo_proto: true,
        }
    }
}
