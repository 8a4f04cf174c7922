//! Shared test helpers: a CPU client and programs in StableHLO text.
#![allow(dead_code)]

use fullshard_pjrt::mpi::{self, Installation};
use fullshard_pjrt::plugins::{Kind, Platform, Store, find, find_compiler};
use fullshard_pjrt::{Buffer, Client, ClientOptions, HostTensor, Plugin};

/// The plugin of a kind, downloaded on first use.
pub fn plugin(kind: Platform) -> &'static Plugin {
    let store = Store::default_location().unwrap();
    let located = match find(kind, None, &store).unwrap() {
        Some(located) => located.path,
        None => store.install(kind).unwrap().path,
    };
    Plugin::load(&located).unwrap()
}

/// A plugin that compiles for a kind of device, downloaded on first use.
pub fn compiler(kind: Platform) -> &'static Plugin {
    let store = Store::default_location().unwrap();
    let path = match find_compiler(kind, None, &store) {
        Ok(located) => located.path,
        Err(_) => store.install_compiler(kind, None).unwrap().path,
    };
    Plugin::load(&path).unwrap()
}

/// The MPI package, downloaded on first use.
pub fn mpi() -> Installation {
    let store = Store::default_location().unwrap();
    store.install(Kind::Mpi).unwrap();
    mpi::installed(&store).unwrap().unwrap()
}

/// A client for single-device tests: the CPU, or the platform in FULLSHARD_TEST_DEVICE.
pub fn one_device() -> Client {
    let kind =
        std::env::var("FULLSHARD_TEST_DEVICE").map_or(Platform::Cpu, |name| name.parse().unwrap());
    match kind {
        Platform::Cpu => cpu(1),
        // Tests run concurrently, so none may preallocate all memory.
        Platform::Cuda => {
            let options = ClientOptions::new().preallocate(false);
            Client::new(plugin(kind), &options).unwrap()
        }
        Platform::Tpu => Client::new(plugin(kind), &ClientOptions::new()).unwrap(),
    }
}

/// A CPU client with `devices` virtual devices.
pub fn cpu(devices: usize) -> Client {
    let options = ClientOptions::new().cpu_device_count(devices);
    Client::new(plugin(Platform::Cpu), &options).unwrap()
}

/// Uploads f32 values to a device.
pub fn upload(client: &Client, dims: &[usize], values: &[f32], device: usize) -> Buffer {
    client.upload(&HostTensor::from_values(dims, values).unwrap(), device).unwrap()
}

/// The values of an f32 buffer.
pub fn values(buffer: &Buffer) -> Vec<f32> {
    buffer.to_host().unwrap().values().unwrap()
}

/// Doubles a vector of four.
pub const DOUBLE: &str = "
module @double {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = stablehlo.add %x, %x : tensor<4xf32>
    return %y : tensor<4xf32>
  }
}";

/// Adds its second argument to its first, which it donates.
pub const ACCUMULATE: &str = "
module @accumulate {
  func.func public @main(%sum: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4xf32>)
      -> tensor<4xf32> {
    %y = stablehlo.add %sum, %x : tensor<4xf32>
    return %y : tensor<4xf32>
  }
}";

/// A program over `devices` devices on one mesh axis: the argument has `local_rows` rows of four
/// per device, `body` computes `%y` of `result_rows` rows from `%x`, and the results are stacked.
pub fn on_each_device(devices: usize, local_rows: usize, body: &str, result_rows: usize) -> String {
    let rows = devices * local_rows;
    let stacked = devices * result_rows;
    format!(
        r#"
module @each attributes {{mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["x"={devices}]>
  func.func public @main(%a: tensor<{rows}x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
      -> (tensor<{stacked}x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) {{
    %r = sdy.manual_computation(%a) in_shardings=[<@mesh, [{{"x"}}, {{}}]>]
        out_shardings=[<@mesh, [{{"x"}}, {{}}]>] manual_axes={{"x"}} (%x: tensor<{local_rows}x4xf32>) {{
      {body}
      sdy.return %y : tensor<{result_rows}x4xf32>
    }} : (tensor<{rows}x4xf32>) -> tensor<{stacked}x4xf32>
    return %r : tensor<{stacked}x4xf32>
  }}
}}"#
    )
}

/// All-gathers from every device, squares, and reduce-scatters.
pub fn gather_and_scatter(devices: usize) -> String {
    let all: Vec<_> = (0..devices).map(|d| d.to_string()).collect();
    let groups = format!(
        "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, \
         replica_groups = dense<[[{}]]> : tensor<1x{devices}xi64>, use_global_device_ids",
        all.join(", ")
    );
    let gathered = format!("tensor<{}x4xf32>", 64 * devices);
    let body = format!(
        r#"%g = "stablehlo.all_gather"(%x) <{{all_gather_dim = 0 : i64, {groups}}}>
             : (tensor<64x4xf32>) -> {gathered}
           %d = stablehlo.multiply %g, %g : {gathered}
           %y = "stablehlo.reduce_scatter"(%d) <{{scatter_dimension = 0 : i64, {groups}}}> ({{
             ^bb0(%p: tensor<f32>, %q: tensor<f32>):
               %s = stablehlo.add %p, %q : tensor<f32>
               stablehlo.return %s : tensor<f32>
           }}) : ({gathered}) -> tensor<64x4xf32>"#
    );
    // Large enough that the compiler does not prefer fewer steps over fewer bytes.
    on_each_device(devices, 64, &body, 64).replace("x4xf32", "x4096xf32")
}
