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

/// Serialization by the CPU runtime loses the order of collectives.
#[test]
fn programs_with_collectives_are_not_cached_on_cpu() {
    let fixture = Fixture::new();
    let body = r#"%y = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}>
        : (tensor<1x4xf32>) -> tensor<2x4xf32>"#;
    let text = on_each_device(2, 1, body, 2);
    for _ in 0..2 {
        let (program, outcome) =
            fixture.cache.compile(&fixture.client, &text, &CompileOptions::new(2)).unwrap();
        assert_eq!(outcome, CacheOutcome::Unstored);
        let inputs = [0, 1].map(|d| upload(&fixture.client, &[1, 4], &[d as f32; 4], d));
        let results = program.execute(&[[&inputs[0]], [&inputs[1]]]).unwrap();
        for result in results {
            assert_eq!(values(&result[0]), [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        }
    }
    assert!(!fixture.folder.path().join("cache").exists());
}

/// An existing entry with collectives is not used either.
#[test]
fn cached_programs_with_collectives_are_not_loaded_on_cpu() {
    let fixture = Fixture::new();
    let local = on_each_device(2, 1, "%y = stablehlo.add %x, %x : tensor<1x4xf32>", 1);
    let options = CompileOptions::new(2);
    let outcome = |text: &str| fixture.cache.compile(&fixture.client, text, &options).unwrap().1;
    assert_eq!(outcome(&local), CacheOutcome::Miss);
    assert_eq!(outcome(&local), CacheOutcome::Hit, "without collectives");
    let body = r#"%y = "stablehlo.all_reduce"(%x) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
        ^bb0(%left: tensor<f32>, %right: tensor<f32>):
          %sum = stablehlo.add %left, %right : tensor<f32>
          stablehlo.return %sum : tensor<f32>
        }) : (tensor<1x4xf32>) -> tensor<1x4xf32>"#;
    let text = on_each_device(2, 1, body, 1);
    let program = fixture.client.compile(&text, &options).unwrap();
    let [path] = fixture.entries().try_into().unwrap();
    fs::write(&path, program.executable().serialize().unwrap()).unwrap();
    assert_eq!(outcome(&local), CacheOutcome::Miss, "the replaced entry has collectives");
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
