//! Collectives: rank-coded data, checked on every device against sums computed here.
#![allow(clippy::unwrap_used)]

mod common;

use common::{cpu, on_each_device, upload, values};
use fullshard_pjrt::CompileOptions;

const SUM: &str = "({ ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32> })";

/// The rows of a device: every element is unique across devices.
fn rank_coded(device: usize, rows: usize) -> Vec<f32> {
    (0..rows * 4).map(|i| (1000 * (device + 1) + i) as f32).collect()
}

/// Runs `body` on `devices` devices with `rows` rows each, and returns the rows per device.
fn run(devices: usize, rows: usize, body: &str, result_rows: usize) -> Vec<Vec<f32>> {
    let client = cpu(devices);
    let text = on_each_device(devices, rows, body, result_rows);
    let program = client.compile(&text, &CompileOptions::new(devices)).unwrap();
    let inputs: Vec<_> =
        (0..devices).map(|d| upload(&client, &[rows, 4], &rank_coded(d, rows), d)).collect();
    let lists: Vec<_> = inputs.iter().map(|input| [input]).collect();
    let results = program.execute(&lists).unwrap();
    results.iter().map(|result| values(&result[0])).collect()
}

fn groups(devices: usize) -> String {
    let all: Vec<_> = (0..devices).map(|d| d.to_string()).collect();
    format!(
        "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, \
         replica_groups = dense<[[{}]]> : tensor<1x{devices}xi64>",
        all.join(", ")
    )
}

/// The element-wise sum of all devices' rows.
fn total(devices: usize, rows: usize) -> Vec<f32> {
    let all: Vec<_> = (0..devices).map(|d| rank_coded(d, rows)).collect();
    (0..rows * 4).map(|i| all.iter().map(|rows| rows[i]).sum()).collect()
}

#[test]
fn all_gather() {
    for n in [2, 4, 8] {
        let body = format!(
            r#"%y = "stablehlo.all_gather"(%x) <{{all_gather_dim = 0 : i64, {}, use_global_device_ids}}>
              : (tensor<2x4xf32>) -> tensor<{}x4xf32>"#,
            groups(n),
            2 * n
        );
        let expected: Vec<f32> = (0..n).flat_map(|d| rank_coded(d, 2)).collect();
        assert_eq!(run(n, 2, &body, 2 * n), vec![expected; n]);
    }
}

#[test]
fn all_reduce() {
    for n in [2, 4, 8] {
        let body = format!(
            r#"%y = "stablehlo.all_reduce"(%x) <{{{}, use_global_device_ids}}> {SUM}
              : (tensor<2x4xf32>) -> tensor<2x4xf32>"#,
            groups(n)
        );
        assert_eq!(run(n, 2, &body, 2), vec![total(n, 2); n]);
    }
}

#[test]
fn reduce_scatter() {
    for n in [2, 4, 8] {
        let rows = 2 * n;
        let body = format!(
            r#"%y = "stablehlo.reduce_scatter"(%x) <{{{}, scatter_dimension = 0 : i64, use_global_device_ids}}> {SUM}
              : (tensor<{rows}x4xf32>) -> tensor<2x4xf32>"#,
            groups(n)
        );
        let total = total(n, rows);
        let expected: Vec<_> = total.chunks(8).map(<[f32]>::to_vec).collect();
        assert_eq!(run(n, rows, &body, 2), expected);
    }
}

#[test]
fn all_to_all() {
    for n in [2, 4, 8] {
        let body = format!(
            r#"%y = "stablehlo.all_to_all"(%x) <{{{}, concat_dimension = 0 : i64, split_count = {n} : i64, split_dimension = 0 : i64}}>
              : (tensor<{n}x4xf32>) -> tensor<{n}x4xf32>"#,
            groups(n)
        );
        let row = |from: usize, to: usize| rank_coded(from, n)[4 * to..4 * to + 4].to_vec();
        let expected: Vec<Vec<f32>> =
            (0..n).map(|to| (0..n).flat_map(|from| row(from, to)).collect()).collect();
        assert_eq!(run(n, n, &body, n), expected);
    }
}

#[test]
fn collective_permute() {
    for n in [2, 4, 8] {
        let pairs: Vec<_> = (0..n).map(|d| format!("[{d}, {}]", (d + 1) % n)).collect();
        let body = format!(
            r#"%y = "stablehlo.collective_permute"(%x) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
              source_target_pairs = dense<[{}]> : tensor<{n}x2xi64>}}> : (tensor<2x4xf32>) -> tensor<2x4xf32>"#,
            pairs.join(", ")
        );
        let expected: Vec<_> = (0..n).map(|d| rank_coded((d + n - 1) % n, 2)).collect();
        assert_eq!(run(n, 2, &body, 2), expected);
    }
}

/// Axis `d` is manual with an explicit all-gather; axis `m` is left to Shardy, which has to insert
/// an all-reduce over it for the contracting dim of the matmul.
#[test]
fn manual_and_automatic_axes_in_one_program() {
    let client = cpu(4);
    let text = r#"
module @mixed attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["d"=2, "m"=2]>
  func.func public @main(
      %a: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {"m"}]>},
      %b: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"m"}, {}]>})
      -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) {
    %r = sdy.manual_computation(%a, %b)
        in_shardings=[<@mesh, [{"d"}, {"m"}]>, <@mesh, [{"m"}, {}]>]
        out_shardings=[<@mesh, [{"d"}, {}]>] manual_axes={"d"}
        (%x: tensor<2x4xf32>, %w: tensor<4x4xf32>) {
      %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}>
        : (tensor<2x4xf32>) -> tensor<4x4xf32>
      %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0]
        : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      sdy.return %y : tensor<4x4xf32>
    } : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    return %r : tensor<8x4xf32>
  }
}"#;
    let program = client.compile(text, &CompileOptions::new(4)).unwrap();
    let a = |i: usize, j: usize| (10 * i + j) as f32;
    let b = |i: usize, j: usize| (i * i + 3 * j + 1) as f32;
    let matmul: Vec<f32> =
        (0..4).flat_map(|i| (0..4).map(move |j| (0..4).map(|k| a(i, k) * b(k, j)).sum())).collect();
    let block = |f: &dyn Fn(usize, usize) -> f32, rows: [usize; 2], columns: &[usize]| {
        rows.iter().flat_map(|&i| columns.iter().map(move |&j| f(i, j))).collect::<Vec<_>>()
    };
    let inputs: Vec<_> = (0..4)
        .map(|device| {
            let (d, m) = (device / 2, device % 2);
            let pair = |k: usize| [2 * k, 2 * k + 1];
            let x = upload(&client, &[2, 2], &block(&a, pair(d), &pair(m)), device);
            let w = upload(&client, &[2, 4], &block(&b, pair(m), &[0, 1, 2, 3]), device);
            [x, w]
        })
        .collect();
    let lists: Vec<_> = inputs.iter().map(|[x, w]| [x, w]).collect();
    for result in program.execute(&lists).unwrap() {
        assert_eq!(values(&result[0]), matmul);
    }
}

/// Far more devices than cores, with many collectives over all of them.
#[test]
fn sixty_four_devices_do_not_time_out() {
    let n = 64;
    let mut body = String::from("%v0 = stablehlo.add %x, %x : tensor<2x4xf32>\n");
    for i in 0..20 {
        body += &format!(
            r#"%s{i} = "stablehlo.all_reduce"(%v{i}) <{{{}, use_global_device_ids}}> {SUM}
              : (tensor<2x4xf32>) -> tensor<2x4xf32>
              %k{i} = stablehlo.constant dense<{}.0> : tensor<2x4xf32>
              %v{} = stablehlo.divide %s{i}, %k{i} : tensor<2x4xf32>
            "#,
            groups(n),
            n,
            i + 1
        );
    }
    body += "%y = stablehlo.add %v20, %v20 : tensor<2x4xf32>";
    let mean: Vec<f32> = total(n, 2).iter().map(|sum| 4.0 * sum / n as f32).collect();
    assert_eq!(run(n, 2, &body, 2), vec![mean; n]);
}

/// Many threads launch programs with collectives.
#[test]
fn concurrent_launches() {
    let n = 4;
    let client = cpu(n);
    let body = format!(
        r#"%y = "stablehlo.all_reduce"(%x) <{{{}, use_global_device_ids}}> {SUM}
              : (tensor<2x4xf32>) -> tensor<2x4xf32>"#,
        groups(n)
    );
    let text = on_each_device(n, 2, &body, 2);
    let program = client.compile(&text, &CompileOptions::new(n)).unwrap();
    let inputs: Vec<_> = (0..n).map(|d| upload(&client, &[2, 4], &rank_coded(d, 2), d)).collect();
    let lists: Vec<_> = inputs.iter().map(|input| [input]).collect();
    std::thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                let mut results = Vec::new();
                for _ in 0..20 {
                    results = program.execute(&lists).unwrap();
                }
                for result in &results {
                    assert_eq!(values(&result[0]), total(n, 2));
                }
            });
        }
    });
}

/// The host launches far ahead of the devices, with a collective in every launch.
#[test]
fn launches_run_far_ahead() {
    let n = 4;
    let client = cpu(n);
    let body = format!(
        r#"%s = "stablehlo.all_reduce"(%x) <{{{}, use_global_device_ids}}> {SUM}
              : (tensor<64x4xf32>) -> tensor<64x4xf32>
          %k = stablehlo.constant dense<{n}.0> : tensor<64x4xf32>
          %y = stablehlo.divide %s, %k : tensor<64x4xf32>"#,
        groups(n)
    );
    let text = on_each_device(n, 64, &body, 64);
    let program = client.compile(&text, &CompileOptions::new(n)).unwrap();
    let mut state: Vec<_> =
        (0..n).map(|d| vec![upload(&client, &[64, 4], &[d as f32; 256], d)]).collect();
    for _ in 0..500 {
        let lists: Vec<_> = state.iter().map(|list| [&list[0]]).collect();
        state = program.execute(&lists).unwrap();
    }
    for list in &state {
        assert_eq!(values(&list[0]), [1.5; 256]);
    }
}
