//! Launch overhead: a trivial program with eight arguments on one and on eight devices, compared
//! with JAX in the same run.
//!
//!     cargo bench -p fullshard-pjrt --bench dispatch
//!
//! JAX runs with `python3`, or the interpreter in FULLSHARD_BENCH_PYTHON; without JAX only our own
//! figures are printed.
#![allow(clippy::unwrap_used)]

use fullshard_pjrt::plugins::{Platform, Store, find_or_install};
use fullshard_pjrt::{Buffer, Client, ClientOptions, CompileOptions, HostTensor, Plugin};
use std::process::Command;
use std::time::Instant;

const ARGUMENTS: usize = 8;
const LAUNCHES: usize = 2000;
const ROUNDS: usize = 15;

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/dispatch_jax.py");
    let python = std::env::var("FULLSHARD_BENCH_PYTHON").unwrap_or("python3".into());
    println!("microseconds per launch, best and median of {ROUNDS} rounds of {LAUNCHES} launches");
    for devices in [1, 8] {
        let ours = measure(devices);
        print_row("fullshard", devices, ours);
        let settings = [devices, ARGUMENTS, LAUNCHES, ROUNDS].map(|n| n.to_string());
        let output = Command::new(&python).arg(script).args(settings).output();
        let peer = output.ok().filter(|output| output.status.success()).and_then(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let mut numbers = text.split_whitespace().map(str::parse::<f64>);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        });
        match peer {
            Some(peer) => {
                print_row("JAX", devices, peer);
                println!(
                    "  ours / JAX: {:.2} best, {:.2} median",
                    ours.0 / peer.0,
                    ours.1 / peer.1
                );
            }
            None => println!("  JAX could not be run with {python}"),
        }
    }
}

fn print_row(who: &str, devices: usize, (best, median): (f64, f64)) {
    println!("  {who:<10} {devices} devices  best {best:>8.2}  median {median:>8.2}");
}

/// Best and median microseconds per launch.
fn measure(devices: usize) -> (f64, f64) {
    let store = Store::default_location().unwrap();
    let located = find_or_install(Platform::Cpu, None, &store).unwrap();
    let plugin = Plugin::load(&located.path).unwrap();
    let options = ClientOptions::new().cpu_device_count(devices);
    let client = Client::new(plugin, &options).unwrap();
    let program = client.compile(&text(devices), &CompileOptions::new(devices)).unwrap();
    let one = HostTensor::from_values(&[1], &[1.0_f32]).unwrap();
    let inputs: Vec<Vec<Buffer>> = (0..devices)
        .map(|d| (0..ARGUMENTS).map(|_| client.upload(&one, d).unwrap()).collect())
        .collect();
    let lists: Vec<Vec<&Buffer>> = inputs.iter().map(|list| list.iter().collect()).collect();
    let mut rounds: Vec<f64> = (0..=ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let mut results = Vec::new();
            for _ in 0..LAUNCHES {
                results = program.execute(&lists).unwrap();
            }
            for buffer in results.iter().flatten() {
                buffer.ready_event().unwrap().wait().unwrap();
            }
            start.elapsed().as_secs_f64() * 1e6 / LAUNCHES as f64
        })
        .skip(1)
        .collect();
    rounds.sort_by(f64::total_cmp);
    (rounds[0], rounds[ROUNDS / 2])
}

/// The sum of the arguments, which are sharded over the devices.
fn text(devices: usize) -> String {
    let ty = format!("tensor<{devices}xf32>");
    let sharding = r#"{sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}"#;
    let parameters: Vec<_> = (0..ARGUMENTS).map(|i| format!("%a{i}: {ty} {sharding}")).collect();
    let mut body = String::new();
    for i in 1..ARGUMENTS {
        let left = if i == 1 { "%a0".into() } else { format!("%s{}", i - 1) };
        body += &format!("%s{i} = stablehlo.add {left}, %a{i} : {ty}\n");
    }
    format!(
        "module @dispatch {{ sdy.mesh @mesh = <[\"x\"={devices}]>
         func.func public @main({}) -> ({ty} {sharding}) {{
           {body} return %s{} : {ty} }} }}",
        parameters.join(", "),
        ARGUMENTS - 1
    )
}
