//! Roles with several devices, loops, and many launches in flight.

use crate::common::{on_each_device, upload, values};
use crate::process::{Process, call, reduction, vector};
use fullshard_pjrt::mpi::MpiCall;
use fullshard_pjrt::{
    Buffer, CompileOptions, DType, HostTensor, LoadedExecutable, MPI_ALL_REDUCE, MPI_PERMUTE,
};
use std::time::{Duration, Instant};

const PAIR: &str = "tensor<1x4xf32>";

/// XLA's own sum over the two devices of a process.
fn sum_over_devices(from: &str, to: &str) -> String {
    format!(
        r#"%{to} = "stablehlo.all_reduce"(%{from}) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
             replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}}> ({{
             ^bb0(%p: tensor<f32>, %q: tensor<f32>):
               %s = stablehlo.add %p, %q : tensor<f32>
               stablehlo.return %s : tensor<f32>
           }}) : ({PAIR}) -> {PAIR}
"#
    )
}

/// MPI's sum over processes.
fn sum_over_processes(from: &str, to: &str, groups: &[Vec<usize>]) -> String {
    let operand = format!("%{from}");
    let sum = call(MPI_ALL_REDUCE, &reduction(0, 0, groups), &operand, PAIR, PAIR);
    format!("%{to} = {sum}\n")
}

/// Launches a program of two devices with this many of each number.
fn launch_pair(me: &Process, program: &LoadedExecutable, values: [f32; 2]) -> Vec<Vec<Buffer>> {
    let x = [0, 1].map(|device| upload(&me.client, &[1, 4], &[values[device]; 4], device));
    program.execute(&[[&x[0]], [&x[1]]]).unwrap()
}

/// XLA's own sum over two devices of a process before MPI's over processes, and after it. The two
/// programs share communicators, and are in flight in turn.
pub fn devices() {
    let me = Process::start(2);
    let all = me.all();
    me.prepare(1, &all, 2);
    let programs = [
        sum_over_devices("x", "z") + &sum_over_processes("z", "y", &all),
        sum_over_processes("x", "z", &all) + &sum_over_devices("z", "y"),
    ]
    .map(|body| {
        let text = on_each_device(2, 1, &body, 1);
        me.client.compile(&text, &CompileOptions::new(2)).unwrap()
    });
    let launch = |round: usize| {
        let of = |device: usize| (2 * me.rank + device + 1 + 10 * round) as f32;
        launch_pair(&me, &programs[round % 2], [of(0), of(1)])
    };
    let launches: Vec<Vec<Vec<Buffer>>> = (0..100).map(launch).collect();
    for (round, results) in launches.iter().enumerate() {
        let n = 2 * me.size;
        let sum = (n * (n + 1) / 2 + 10 * round * n) as f32;
        for device in results {
            assert_eq!(values(&device[0]), [sum; 4], "launch {round}");
        }
    }
    me.finish();
}

/// Sums over devices and processes in a loop, as scanned layers have, compiled and loaded from
/// their serialized form.
pub fn scanned() {
    let me = Process::start(2);
    let all = me.all();
    me.prepare(1, &all, 2);
    // The mean over all devices, plus one, ten times.
    let n = (2 * me.size) as f32;
    let body = format!(
        r#"%zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %ten = stablehlo.constant dense<10> : tensor<i32>
      %n = stablehlo.constant dense<{n:?}> : {PAIR}
      %unit = stablehlo.constant dense<1.0> : {PAIR}
      %l:2 = "stablehlo.while"(%zero, %x) ({{
        ^bb0(%i: tensor<i32>, %v: {PAIR}):
          %c = stablehlo.compare LT, %i, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
      }}, {{
        ^bb0(%i: tensor<i32>, %v: {PAIR}):
          {}{}
          %mean = stablehlo.divide %w, %n : {PAIR}
          %next = stablehlo.add %mean, %unit : {PAIR}
          %j = stablehlo.add %i, %one : tensor<i32>
          stablehlo.return %j, %next : tensor<i32>, {PAIR}
      }}) : (tensor<i32>, {PAIR}) -> (tensor<i32>, {PAIR})
      %y = stablehlo.add %l#1, %unit : {PAIR}"#,
        sum_over_devices("v", "u"),
        sum_over_processes("u", "w", &all)
    );
    let text = on_each_device(2, 1, &body, 1);
    let compiled = me.client.compile(&text, &CompileOptions::new(2)).unwrap();
    let loaded = me.client.load(&compiled.executable().serialize().unwrap()).unwrap();
    for program in [compiled, loaded] {
        let launch = |round: usize| {
            let of = |device: usize| (2 * me.rank + device + 20 * round) as f32;
            launch_pair(&me, &program, [of(0), of(1)])
        };
        let launches: Vec<Vec<Vec<Buffer>>> = (0..20).map(launch).collect();
        for (round, results) in launches.iter().enumerate() {
            let expected = (n - 1.0) / 2.0 + 20.0 * round as f32 + 11.0;
            for device in results {
                assert_eq!(values(&device[0]), [expected; 4], "launch {round}");
            }
        }
    }
    me.finish();
}

/// A ring over all devices of all processes, and one in which some receive nothing.
pub fn permute() {
    let me = Process::start(2);
    let n = 2 * me.size;
    me.world
        .collectives()
        .prepare(&[0, 1].map(|channel| MpiCall { channel, groups: vec![] }), 2)
        .unwrap();
    let rings: [Vec<(usize, usize)>; 2] =
        [(0..n).map(|from| (from, (from + 1) % n)).collect(), vec![(0, n - 1), (n - 1, 1), (2, 2)]];
    let ty = "tensor<1x4xf32>";
    for (channel, pairs) in rings.iter().enumerate() {
        let flat: Vec<String> =
            pairs.iter().flat_map(|&(from, to)| [from.to_string(), to.to_string()]).collect();
        let attributes = format!(
            "channel = {channel} : i64, pairs = array<i64: {}>, devices = 2 : i64",
            flat.join(", ")
        );
        let body = format!("%y = {}", call(MPI_PERMUTE, &attributes, "%x", ty, ty));
        let text = on_each_device(2, 1, &body, 1);
        let program = me.client.compile(&text, &CompileOptions::new(2)).unwrap();
        for round in 0..20 {
            let of = |device: usize| [(100 * round + device + 1) as f32; 4];
            let x = [0, 1].map(|d| upload(&me.client, &[1, 4], &of(2 * me.rank + d), d));
            let results = program.execute(&[[&x[0]], [&x[1]]]).unwrap();
            for (device, result) in results.iter().enumerate() {
                let to = 2 * me.rank + device;
                let from = pairs.iter().find(|pair| pair.1 == to).map(|pair| pair.0);
                assert_eq!(values(&result[0]), from.map_or([0.0; 4], of), "to device {to}");
            }
        }
    }
    me.finish();
}

/// 16 sums that do not depend on one another, 200 launches in flight, processes at different
/// paces.
pub fn flight() {
    const SUMS: usize = 16;
    let me = Process::start(1);
    let (all, ty) = (me.all(), vector(DType::F32, 512));
    me.prepare(SUMS as i64, &all, 1);
    // Constants of different cost order the calls differently.
    let scaled = |k: usize| {
        let sum = call(MPI_ALL_REDUCE, &reduction(0, k as i64, &all), &format!("%z{k}"), &ty, &ty);
        let line = format!(
            "stablehlo.constant dense<{}.0> : {ty}\n    %z{k} = stablehlo.multiply %c{k}, %x : {ty}",
            k + 1
        );
        (line, sum)
    };
    let lines: String = (0..SUMS)
        .map(|k| {
            let (line, sum) = scaled(k);
            format!("    %c{k} = {line}\n    %r{k} = {sum}\n")
        })
        .collect();
    let names = (0..SUMS).map(|k| format!("%r{k}")).collect::<Vec<_>>().join(", ");
    let types = vec![ty.as_str(); SUMS].join(", ");
    let text = format!(
        "module @m {{\n  func.func public @main(%x: {ty}) -> ({types}) {{\n{lines}    \
         return {names} : {types}\n  }}\n}}"
    );
    let program = me.client.compile(&text, &CompileOptions::new(1)).unwrap();
    let mut state = me.rank as u64 + 1;
    let mut launch = |step: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros((state >> 33) % 2000));
        let x = upload(&me.client, &[512], &[(me.rank + 1 + step) as f32; 512], 0);
        program.execute(&[[&x]]).unwrap().remove(0)
    };
    let launches: Vec<Vec<Buffer>> = (0..200).map(&mut launch).collect();
    for (step, results) in launches.iter().enumerate() {
        let sum = (me.size * (me.size + 1) / 2 + step * me.size) as f32;
        for (k, result) in results.iter().enumerate() {
            assert_eq!(values(result), [(k + 1) as f32 * sum; 512], "sum {k} of launch {step}");
        }
    }
    me.finish();
}

/// Matmuls beside a delayed sum. Times are printed, since machines differ.
pub fn overlap() {
    let me = Process::start(1);
    let all = me.all();
    me.prepare(1, &all, 1);
    let (matrix, ty) = ("tensor<512x512xf32>", vector(DType::F32, 512));
    let matmuls = |count: usize| -> String {
        (1..=count)
            .map(|k| {
                let last = k - 1;
                format!(
                    "    %a{k} = stablehlo.dot_general %a{last}, %a0, contracting_dims = [1] x [0] \
                     : ({matrix}, {matrix}) -> {matrix}\n"
                )
            })
            .collect()
    };
    let sum = call(MPI_ALL_REDUCE, &reduction(0, 0, &all), "%x", &ty, &ty);
    let negate = format!("stablehlo.negate %x : {ty}");
    for (name, count, y) in [("matmuls", 24, &negate), ("sum", 0, &sum), ("both", 24, &sum)] {
        let lines = matmuls(count);
        let text = format!(
            "module @m {{\n  func.func public @main(%x: {ty}) -> ({ty}, {matrix}) {{
    %a0 = stablehlo.broadcast_in_dim %x, dims = [0] : ({ty}) -> {matrix}
{lines}    %y = {y}\n    return %y, %a{count} : {ty}, {matrix}\n  }}\n}}"
        );
        let program = me.client.compile(&text, &CompileOptions::new(1)).unwrap();
        let x = HostTensor::from_values(&[512], &[0.001 * (me.rank + 1) as f32; 512]).unwrap();
        me.run(&program, &x);
        me.world.barrier().unwrap();
        let start = Instant::now();
        let found = me.run(&program, &x);
        println!("process {}: {name} {:.0} ms", me.rank, start.elapsed().as_secs_f64() * 1e3);
        let total = 0.001 * (me.size * (me.size + 1) / 2) as f32;
        let expected = if name == "matmuls" { -0.001 * (me.rank + 1) as f32 } else { total };
        let found = found[0].values::<f32>().unwrap();
        assert!(found.iter().all(|x| (x - expected).abs() < 1e-6), "{name}: {}", found[0]);
        assert!(name == "matmuls" || start.elapsed() >= Duration::from_millis(200));
    }
    me.finish();
}
