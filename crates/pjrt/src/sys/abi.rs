//! Checks our struct layouts against real plugins.
//!
//! A plugin rejects arguments that are smaller than it expects and reports the expected size. So
//! each call is made with a size that is too small on purpose, and the reported size compared with
//! our declaration: a plugin that expects more than we have would reject every call.

use super::*;
use crate::plugin::Plugin;
use crate::plugins::{Platform, Store, find_compiler};
use std::path::{Path, PathBuf};

/// The size a plugin expects of these arguments; none if it lacks that function.
fn expected_size<A: Args>(plugin: &Plugin) -> Option<usize> {
    const TOO_SMALL: usize = size_of::<usize>();
    let mut call = args::<A>();
    // SAFETY: every argument struct begins with its size.
    unsafe { (&raw mut call).cast::<usize>().write(TOO_SMALL) };
    // SAFETY: the plugin checks the size first, and rejects it.
    match unsafe { plugin.call(&mut call) } {
        Err(crate::Error::MissingFunction { .. }) => None,
        Err(error) if error.code() == Some(crate::Code::Unimplemented) => None,
        Err(error) => {
            let text = error.to_string();
            // The function name in the message shows that the slot is right. Plugins misspell one
            // name, and check one call against the size and name of another.
            let named = format!("unexpected {}", A::NAME).to_lowercase();
            let misnamed = A::SLOT == ExecutableGetCompiledMemoryStats::SLOT;
            assert!(misnamed || text.to_lowercase().contains(&named), "{}: {text}", A::NAME);
            let number = text.split(": expected ").nth(1).unwrap_or_else(|| panic!("{text}"));
            let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
            Some(digits.parse().unwrap_or_else(|_| panic!("{text}")))
        }
        Ok(()) => panic!("{} accepted arguments of {TOO_SMALL} bytes", A::NAME),
    }
}

/// Checks a list of argument structs.
macro_rules! check_all {
    ($plugin:expr, $($name:ident),* $(,)?) => {$(
        if let Some(expected) = expected_size::<$name>($plugin) {
            assert!(
                size_of::<$name>() >= expected,
                "{}: ours {} bytes, the plugin's {expected}", $name::NAME, size_of::<$name>()
            );
        }
    )*};
}

fn check(path: &Path) {
    let plugin = Plugin::load(path).unwrap();
    check_all!(
        plugin,
        PluginAttributes,
        EventDestroy,
        EventIsReady,
        EventAwait,
        EventOnReady,
        ClientCreate,
        ClientDestroy,
        ClientDmaMap,
        ClientDmaUnmap,
        ClientPlatformName,
        ClientPlatformVersion,
        ClientDevices,
        ClientAddressableDevices,
        ClientCompile,
        ClientBufferFromHostBuffer,
        DeviceDescriptionId,
        DeviceDescriptionProcessIndex,
        DeviceDescriptionAttributes,
        DeviceDescriptionKind,
        DeviceGetDescription,
        DeviceLocalHardwareId,
        DeviceAddressableMemories,
        DeviceMemoryStats,
        MemoryKind,
        ExecutableDestroy,
        ExecutableName,
        ExecutableNumPartitions,
        ExecutableNumOutputs,
        ExecutableGetCostAnalysis,
        ExecutableOptimizedProgram,
        ExecutableSerialize,
        LoadedExecutableDestroy,
        LoadedExecutableGetExecutable,
        LoadedExecutableAddressableDevices,
        LoadedExecutableExecute,
        ExecutableDeserializeAndLoad,
        ExecutableGetCompiledMemoryStats,
        BufferDestroy,
        BufferGetMemoryLayout,
        BufferOnDeviceSize,
        BufferIsDeleted,
        BufferCopyToDevice,
        BufferToHostBuffer,
        BufferReadyEvent,
        TopologyCreate,
        TopologyDestroy,
        TopologyGetDeviceDescriptions,
        TopologyAttributes,
        Compile,
    );
}

#[test]
fn layouts_match_installed_plugins() {
    let store = Store::default_location().unwrap();
    for kind in [Platform::Cpu, Platform::Tpu] {
        check(&store.install(kind).unwrap().path);
    }
}

/// The runtime libraries are gigabytes, so this uses the compile-only plugin.
#[test]
fn layouts_match_cuda_plugin() {
    check(&cuda_compiler());
}

fn cuda_compiler() -> PathBuf {
    let store = Store::default_location().unwrap();
    match find_compiler(Platform::Cuda, None, &store) {
        Ok(located) => located.path,
        Err(_) => store.install_compiler(Platform::Cuda, None).unwrap().path,
    }
}

/// By this a client knows whether to give its place in a job to the plugin.
#[test]
fn only_gpu_plugins_have_gpu_custom_calls() {
    let store = Store::default_location().unwrap();
    let installed = |kind| store.install(kind).unwrap().path;
    for (path, expected) in [
        (installed(Platform::Cpu), false),
        (installed(Platform::Tpu), false),
        (cuda_compiler(), true),
    ] {
        let plugin = Plugin::load(&path).unwrap();
        let found = plugin.extension(EXTENSION_GPU_CUSTOM_CALL).is_some();
        assert_eq!(found, expected, "{}", path.display());
    }
}

/// Nested structs, against the sizes in the C header.
#[test]
fn nested_structs_match_header_sizes() {
    assert_eq!(size_of::<Table>(), 40);
    assert_eq!(size_of::<NamedValue>(), 56);
    assert_eq!(size_of::<Program>(), 48);
    assert_eq!(size_of::<MemoryLayout>(), 80);
    assert_eq!(size_of::<ExecuteOptions>(), 144);
    assert_eq!(size_of::<ProfilerApi>(), 80);
    assert_eq!(size_of::<KeyValueGetArgs>(), 80);
    assert_eq!(size_of::<KeyValueTryGetArgs>(), 72);
    assert_eq!(size_of::<KeyValuePutArgs>(), 64);
    assert_eq!(size_of::<FfiApi>(), 192);
    assert_eq!(size_of::<CallFrame>(), 176);
    assert_eq!(size_of::<CallAttributes>(), 48);
    assert_eq!(size_of::<FutureSetError>(), 32);
    assert_eq!(size_of::<DeviceOrdinalGet>(), 32);
}

#[test]
fn slots_past_the_end_of_a_table_are_missing() {
    let table = Table {
        struct_size: size_of::<Table>(),
        extension_start: std::ptr::null_mut(),
        version_size: 0,
        version_extension: std::ptr::null_mut(),
        major: 0,
        minor: 1,
    };
    // SAFETY: the table is live and states its true size.
    assert!(unsafe { Table::function(&raw const table, 0) }.is_none());
}
