//! The compile cache: hits, misses, and corrupt entries.
#![allow(clippy::unwrap_used)]

mod common;

use common::{DOUBLE, cpu, on_each_device, upload, values};
use fullshard_pjrt::seal::{seal, unseal};
use fullshard_pjrt::{CacheOutcome, Client, CompileCache, CompileOptions, Flag};
use proptest::prelude::*;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

struct Fixture {
    folder: tempfile::TempDir,
    cache: CompileCache,
    client: Client,
}

impl Fixture {
    fn new() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let cache = CompileCache::at(folder.path().join("cache"));
        Fixture { folder, cache, client: cpu(2) }
    }

    /// Compiles and runs the doubling program.
    fn double(&self, options: &CompileOptions) -> CacheOutcome {
        let (double, outcome) = self.cache.compile(&self.client, DOUBLE, options).unwrap();
        let device = double.devices()[0];
        let x = upload(&self.client, &[4], &[1.0, 2.0, 3.0, 4.0], device);
        assert_eq!(values(&double.execute(&[[&x]]).unwrap()[0][0]), [2.0, 4.0, 6.0, 8.0]);
        outcome
    }

    fn entries(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path().join("cache")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

#[test]
fn second_compile_is_a_hit() {
    let fixture = Fixture::new();
    let options = CompileOptions::new(1);
    assert_eq!(fixture.double(&options), CacheOutcome::Miss);
    assert_eq!(fixture.double(&options), CacheOutcome::Hit);
    let other = Fixture { client: cpu(2), ..fixture };
    assert_eq!(other.double(&options), CacheOutcome::Hit, "another client of the same plugin");
}

#[test]
fn changed_program_or_options_miss() {
    let fixture = Fixture::new();
    let plain = CompileOptions::new(1);
    for options in [
        plain.clone(),
        plain.clone().flag("xla_cpu_enable_fast_math", Flag::Bool(true)),
        plain.device_ids(vec![1]),
    ] {
        assert_eq!(fixture.double(&options), CacheOutcome::Miss);
    }
    let spaced = format!("{DOUBLE} ");
    let (_, outcome) =
        fixture.cache.compile(&fixture.client, &spaced, &CompileOptions::new(1)).unwrap();
    assert_eq!(outcome, CacheOutcome::Miss);
}

/// A loop with all-reduces beside an all-gather and a reduce-scatter that do not depend on it:
/// only the order of collectives in the program says which comes first.
fn loop_beside_collectives(devices: usize) -> String {
    let all: Vec<_> = (0..devices).map(|d| d.to_string()).collect();
    let groups = format!(
        "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, \
         replica_groups = dense<[[{}]]> : tensor<1x{devices}xi64>, use_global_device_ids",
        all.join(", ")
    );
    let sum = "({ ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %s = stablehlo.add %p, %q : tensor<f32>
        stablehlo.return %s : tensor<f32> })";
    let gathered = format!("tensor<{}x4xf32>", 64 * devices);
    let body = format!(
        r#"%zero = stablehlo.constant dense<0> : tensor<i32>
           %one = stablehlo.constant dense<1> : tensor<i32>
           %limit = stablehlo.constant dense<6> : tensor<i32>
           %start = stablehlo.tanh %x : tensor<64x4xf32>
           %looped:2 = stablehlo.while(%i = %zero, %acc = %start) : tensor<i32>, tensor<64x4xf32>
             cond {{
               %more = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
               stablehlo.return %more : tensor<i1>
             }} do {{
               %total = "stablehlo.all_reduce"(%acc) <{{{groups}}}> {sum}
                 : (tensor<64x4xf32>) -> tensor<64x4xf32>
               %small = stablehlo.sine %total : tensor<64x4xf32>
               %next = stablehlo.add %i, %one : tensor<i32>
               stablehlo.return %next, %small : tensor<i32>, tensor<64x4xf32>
             }}
           %other = stablehlo.cosine %x : tensor<64x4xf32>
           %g = "stablehlo.all_gather"(%other) <{{all_gather_dim = 0 : i64, {groups}}}>
             : (tensor<64x4xf32>) -> {gathered}
           %d = stablehlo.multiply %g, %g : {gathered}
           %scattered = "stablehlo.reduce_scatter"(%d) <{{scatter_dimension = 0 : i64, {groups}}}>
             {sum} : ({gathered}) -> tensor<64x4xf32>
           %y = stablehlo.add %looped#1, %scattered : tensor<64x4xf32>"#
    );
    on_each_device(devices, 64, &body, 64).replace("x4xf32", "x1024xf32")
}

/// A step that lost the order of its collectives hangs; where fences go is tested in `order`.
#[test]
fn loaded_programs_with_collectives_give_the_same_results() {
    for devices in [2, 4, 8] {
        let fixture = Fixture { client: cpu(devices), ..Fixture::new() };
        let text = loop_beside_collectives(devices);
        let inputs: Vec<_> = (0..devices)
            .map(|device| {
                let row: Vec<_> = (0..64 * 1024).map(|i| (device * 7 + i) as f32).collect();
                [upload(&fixture.client, &[64, 1024], &row, device)]
            })
            .collect();
        let lists: Vec<_> = inputs.iter().map(|[input]| [input]).collect();
        let run = |expected: CacheOutcome, times: usize| {
            let options = CompileOptions::new(devices);
            let (program, outcome) =
                fixture.cache.compile(&fixture.client, &text, &options).unwrap();
            assert_eq!(outcome, expected);
            let results = || -> Vec<Vec<f32>> {
                let results = program.execute(&lists).unwrap();
                results.iter().map(|result| values(&result[0])).collect()
            };
            (0..times).map(|_| results()).collect::<Vec<_>>()
        };
        let compiled = run(CacheOutcome::Miss, 1).remove(0);
        for loaded in run(CacheOutcome::Hit, 20) {
            assert!(loaded == compiled, "bit for bit on {devices} devices");
        }
    }
}

#[test]
fn corrupt_entries_are_rewritten() {
    let fixture = Fixture::new();
    let options = CompileOptions::new(1);
    fixture.double(&options);
    let [path] = fixture.entries().try_into().unwrap();
    let good = fs::read(&path).unwrap();
    let mut flipped = good.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    // The last has a valid digest, but is not a program.
    let nonsense = seal(b"not a program");
    for corrupt in [&good[..good.len() / 2], &flipped, b"", b"garbage", &nonsense] {
        fs::write(&path, corrupt).unwrap();
        assert_eq!(fixture.double(&options), CacheOutcome::Miss);
        assert_eq!(fixture.double(&options), CacheOutcome::Hit);
    }
    assert_eq!(fixture.entries(), [path], "no temporary files stay behind");
}

#[test]
fn unwritable_cache_still_compiles() {
    let fixture = Fixture::new();
    let blocked = fixture.folder.path().join("file");
    fs::write(&blocked, "a file where the folder should be").unwrap();
    for cache in [blocked.clone(), blocked.join("below")] {
        let cache = CompileCache::at(cache);
        let (_, outcome) = cache.compile(&fixture.client, DOUBLE, &CompileOptions::new(1)).unwrap();
        assert_eq!(outcome, CacheOutcome::Unstored);
    }
}

#[test]
fn temporary_files_of_killed_processes_are_removed() {
    let fixture = Fixture::new();
    fixture.double(&CompileOptions::new(1));
    let [entry] = fixture.entries().try_into().unwrap();
    let orphan = entry.with_file_name(".tmpAbCdEf");
    let days = Duration::from_secs(2 * 24 * 3600);
    File::create(&orphan).unwrap().set_modified(SystemTime::now() - days).unwrap();
    assert_eq!(fixture.double(&CompileOptions::new(1)), CacheOutcome::Hit);
    assert!(orphan.exists(), "nothing was written");
    fs::remove_file(&entry).unwrap();
    fixture.double(&CompileOptions::new(1));
    assert_eq!(fixture.entries(), [entry]);
}

proptest! {
    #[test]
    fn entries_round_trip(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
        let entry = seal(&payload);
        prop_assert_eq!(unseal(&entry), Some(payload.as_slice()));
    }

    #[test]
    fn detects_any_corruption(
        payload in proptest::collection::vec(any::<u8>(), 0..200),
        position in any::<proptest::sample::Index>(),
        bit in 0..8_u32,
        length in any::<proptest::sample::Index>(),
    ) {
        let entry = seal(&payload);
        let mut flipped = entry.clone();
        flipped[position.index(entry.len())] ^= 1 << bit;
        prop_assert_eq!(unseal(&flipped), None);
        prop_assert_eq!(unseal(&entry[..length.index(entry.len())]), None);
    }

    #[test]
    fn rejects_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert_eq!(unseal(&bytes), None);
    }
}
