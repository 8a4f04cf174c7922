//! One process of a job: its place, its part of arrays, and its programs.
#![allow(clippy::unwrap_used)]

mod common;

use common::{DOUBLE, cpu, gather_and_scatter, on_each_device, plugin};
use fullshard_core::Mesh;
use fullshard_pjrt::plugins::Platform;
use fullshard_pjrt::{
    Array, ArrayType, CacheOutcome, Client, ClientOptions, CompileCache, CompileOptions, DType,
    Error, HostTensor, KeyValueError, KeyValueStore, LoadedExecutable, Process, TensorType, Tiling,
};
use std::fs;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

/// A store that nobody may use: on CPU the plugin knows nothing of other processes.
struct Unused;

impl KeyValueStore for Unused {
    fn get(&self, key: &str, _: Duration) -> Result<Vec<u8>, KeyValueError> {
        panic!("get {key}")
    }

    fn try_get(&self, key: &str) -> Result<Vec<u8>, KeyValueError> {
        panic!("try_get {key}")
    }

    fn put(&self, key: &str, _: &[u8]) -> Result<(), KeyValueError> {
        panic!("put {key}")
    }
}

/// The CPU client of a process with two devices.
fn in_job(index: usize, count: usize) -> Client {
    let options = ClientOptions::new().cpu_device_count(2);
    let process = Process { index, count };
    Client::in_job(plugin(Platform::Cpu), &options, process, Arc::new(Unused)).unwrap()
}

/// A tensor of 8 rows over the four devices of two processes, on the mesh axes `data` across
/// processes and `fsdp` in each.
fn over_job(rows: &[&str]) -> ArrayType {
    let mesh = Mesh::new(&[("data", 2), ("fsdp", 2)]).unwrap();
    let tiling = Tiling::over_mesh(&mesh.sharding(&[rows, &[]]).unwrap());
    ArrayType { ty: TensorType::new(DType::F32, &[8, 4]), tiling: Arc::new(tiling) }
}

fn counting(rows: usize) -> HostTensor {
    let values: Vec<f32> = (0..rows * 4).map(|value| value as f32).collect();
    HostTensor::from_values(&[rows, 4], &values).unwrap()
}

/// The first row of each shard, from values that count.
fn first_rows(array: &Array) -> Vec<f32> {
    let first =
        |shard: &fullshard_pjrt::Buffer| shard.to_host().unwrap().values::<f32>().unwrap()[0] / 4.0;
    array.shards().iter().map(first).collect()
}

#[test]
fn clients_know_their_place() {
    let client = in_job(1, 2);
    assert_eq!(client.process(), Process::new(1, 2).unwrap());
    assert_eq!((client.devices().len(), client.device_count()), (2, 4));
    let places: Vec<_> = client.global_devices().iter().map(|it| (it.process, it.id)).collect();
    assert_eq!(places, [(0, 0), (0, 1), (1, 2), (1, 3)]);

    let alone = cpu(3);
    assert_eq!((alone.process(), alone.device_count()), (Process::alone(), 3));
    let listed: Vec<_> = alone.devices().iter().map(|it| it.description().clone()).collect();
    assert_eq!(alone.global_devices(), listed);

    let (options, store) = (ClientOptions::new(), Arc::new(Unused));
    let outside = Process { index: 2, count: 2 };
    let error = Client::in_job(plugin(Platform::Cpu), &options, outside, store).unwrap_err();
    assert!(error.to_string().contains("no process 2 in a job of 2"), "{error}");
}

#[test]
fn arrays_have_the_tiles_of_their_process() {
    for index in [0, 1] {
        let client = in_job(index, 2);
        let array = over_job(&["data", "fsdp"]);
        let mut filled = Vec::new();
        let fill = |tile: &fullshard_pjrt::Tile| {
            filled.push(tile.ranges[0].start);
            Ok::<_, Error>(vec![0; 2 * 4 * 4])
        };
        Array::fill(&client, &array, &[0, 1], fill).unwrap();
        assert_eq!(filled, [4 * index, 4 * index + 2], "process {index}");

        let rows = Array::from_host(&client, &counting(8), array.tiling.clone(), &[0, 1]).unwrap();
        assert_eq!(rows.positions(), 2 * index..2 * index + 2);
        assert_eq!(first_rows(&rows), [4 * index, 4 * index + 2].map(|row| row as f32));
        let mut read = Vec::new();
        let reading = rows.read_tiles(|tile, tensor| {
            let values = tensor.values::<f32>()?;
            read.push((tile.index, tile.ranges[0].clone(), values[0] / 4.0));
            Ok(())
        });
        reading.unwrap();
        let (tile, row) = (2 * index, 4 * index);
        let expected =
            [(tile, row..row + 2, row as f32), (tile + 1, row + 2..row + 4, row as f32 + 2.0)];
        assert_eq!(read, expected);

        let mut owned = 0;
        let crossed = over_job(&["data"]);
        let fill = |tile: &fullshard_pjrt::Tile, bytes: &mut [u8]| {
            owned += 1;
            bytes.fill(tile.index as u8);
            Ok::<_, Error>(())
        };
        let array = Array::fill_owned(&client, &crossed, &[0, 1], fill).unwrap();
        assert_eq!(owned, 1, "both devices of a process share its tile");
        assert!(array.shards()[1].to_host().unwrap().bytes().iter().all(|&b| b == index as u8));
    }
}

#[test]
fn only_arrays_that_are_here_are_read_as_a_whole() {
    let client = in_job(1, 2);
    let on_devices = |rows: &[&str]| {
        let tiling = over_job(rows).tiling;
        Array::from_host(&client, &counting(8), tiling, &[0, 1]).unwrap()
    };
    assert_eq!(on_devices(&[]).to_host().unwrap(), counting(8), "replicated");
    assert_eq!(on_devices(&["fsdp"]).to_host().unwrap(), counting(8), "sharded in each process");
    for (rows, here) in [(&["data"][..], "1 of its 2"), (&["data", "fsdp"], "2 of its 4")] {
        let error = on_devices(rows).to_host().unwrap_err();
        assert!(matches!(error, Error::PartlyElsewhere { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains("f32[8,4] is partly on other processes"), "{error}");
        assert!(error.contains(here), "{error}");
    }
    // An array over the devices of this process alone.
    let tiling =
        Tiling::over_mesh(&Mesh::new(&[("fsdp", 2)]).unwrap().sharding(&[&["fsdp"], &[]]).unwrap());
    let local = Array::from_host(&client, &counting(8), Arc::new(tiling), &[0, 1]).unwrap();
    assert_eq!((local.positions(), local.to_host().unwrap()), (0..2, counting(8)));
}

#[test]
fn arrays_need_all_devices_of_their_process() {
    let client = in_job(1, 2);
    let fill = |_: &_| Ok::<_, Error>(vec![0; 2 * 4 * 4]);
    for devices in [&[][..], &[0], &[0, 1, 0], &[0, 1, 0, 1]] {
        let error = Array::fill(&client, &over_job(&["data", "fsdp"]), devices, fill).unwrap_err();
        let count = devices.len();
        let expected = format!("over 4 devices does not match {count} devices on one of 2");
        assert!(error.to_string().contains(&expected), "{error}");
    }
    let error = Array::from_shards(&over_job(&[]), Vec::new()).unwrap_err().to_string();
    assert!(error.contains("over 4 devices does not match 0"), "{error}");
}

/// Doubles the rows that the devices of one process have.
fn double_rows(client: &Client) -> LoadedExecutable {
    let body = "%y = stablehlo.add %x, %x : tensor<2x4xf32>";
    client.compile(&on_each_device(2, 2, body, 2), &CompileOptions::new(2)).unwrap()
}

#[test]
fn programs_of_a_process_take_arrays_of_the_job() {
    let client = in_job(1, 2);
    let program = double_rows(&client);
    assert_eq!(program.argument_type(0).unwrap().ty.dims, [4, 4], "as compiled");
    let rows = over_job(&["data", "fsdp"]);
    let program = program.across_processes(from_ref(&rows), from_ref(&rows)).unwrap();
    assert_eq!(program.devices(), [0, 1]);
    assert_eq!(program.argument_type(0).unwrap().ty, rows.ty);
    assert_eq!(program.result_type(0).unwrap().tiling, rows.tiling);
    assert!(program.argument_type(1).unwrap_err().to_string().contains("no argument 1"));

    let array = Array::from_host(&client, &counting(8), rows.tiling, program.devices()).unwrap();
    let doubled = program.execute_arrays(&[&array]).unwrap().remove(0);
    assert_eq!((doubled.ty(), doubled.positions()), (&rows.ty, 2..4));
    assert_eq!(first_rows(&doubled), [8.0, 12.0]);

    let other = over_job(&["fsdp", "data"]);
    let array = Array::from_host(&client, &counting(8), other.tiling, &[0, 1]).unwrap();
    let error = program.execute_arrays(&[&array]).unwrap_err().to_string();
    assert!(error.contains("takes f32[8,4] tiled"), "{error}");
}

#[test]
fn types_across_processes_must_fit_the_program() {
    let client = in_job(1, 2);
    let rows = over_job(&["data", "fsdp"]);
    // With the fastest axis across processes the tiles of a process are no range, but a part.
    let strided = over_job(&["fsdp", "data"]);
    double_rows(&client).across_processes(&[strided], from_ref(&rows)).unwrap();

    let wide = ArrayType { ty: TensorType::new(DType::F32, &[16, 4]), ..rows.clone() };
    let ints = ArrayType { ty: TensorType::new(DType::I32, &[8, 4]), ..rows.clone() };
    let local = double_rows(&client).argument_type(0).unwrap();
    for wrong in [over_job(&[]), over_job(&["data"]), over_job(&["fsdp"]), wide, ints, local] {
        let given = (from_ref(&wrong), from_ref(&rows));
        let error = double_rows(&client).across_processes(given.0, given.1).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("argument 0 of `each` is f32[4,4]"), "{wrong:?}: {error}");
        let error = double_rows(&client).across_processes(given.1, given.0).unwrap_err();
        assert!(error.to_string().contains("result 0 of `each`"), "{wrong:?}: {error}");
    }
    let error = double_rows(&client).across_processes(&[], from_ref(&rows)).unwrap_err();
    assert!(error.to_string().contains("has 1 arguments but 0 types"), "{error}");
    // On one of the two devices.
    let single = client.compile(DOUBLE, &CompileOptions::new(1)).unwrap();
    let full = ArrayType {
        ty: TensorType::new(DType::F32, &[4]),
        tiling: Arc::new(Tiling::replicated(1, 4)),
    };
    let error = single.across_processes(from_ref(&full), from_ref(&full)).unwrap_err();
    assert!(error.to_string().contains("argument 0 of `double`"), "{error}");
    let error =
        double_rows(&cpu(2)).across_processes(from_ref(&rows), from_ref(&rows)).unwrap_err();
    assert!(error.to_string().contains("only CPU programs of several processes"), "{error}");
}

#[test]
fn processes_share_a_cache_and_jobs_of_other_sizes_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CompileCache::at(folder.path());
    let compile =
        |client: &Client| cache.compile(client, DOUBLE, &CompileOptions::new(1)).unwrap().1;
    assert_eq!(compile(&in_job(0, 2)), CacheOutcome::Miss);
    assert_eq!(compile(&in_job(1, 2)), CacheOutcome::Hit, "the other process");
    assert_eq!(compile(&in_job(0, 3)), CacheOutcome::Miss, "more processes");
    assert_eq!(compile(&cpu(4)), CacheOutcome::Miss, "as many devices in one process");
    assert_eq!(compile(&cpu(2)), CacheOutcome::Miss, "fewer devices");
    assert_eq!(compile(&in_job(0, 1)), CacheOutcome::Hit, "a job of one is no job");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
}

#[test]
fn one_process_compiles_and_the_others_load() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CompileCache::at(folder.path());
    let (text, options) = (gather_and_scatter(2), CompileOptions::new(2));
    let (first, second) = (in_job(0, 2), in_job(1, 2));
    let (program, sent, outcome) = cache.compile_to_share(&first, &text, &options).unwrap();
    assert_eq!(outcome, CacheOutcome::Miss);
    let loaded = second.load(&sent).unwrap();
    assert_eq!((loaded.signature(), loaded.devices()), (program.signature(), program.devices()));
    let run = |client: &Client, program: &LoadedExecutable| {
        let rows = HostTensor::from_values(&[128, 4096], &vec![3.0_f32; 128 * 4096]).unwrap();
        let tiling = program.argument_type(0).unwrap().tiling;
        let rows = Array::from_host(client, &rows, tiling, program.devices()).unwrap();
        program.execute_arrays(&[&rows]).unwrap()[0].to_host().unwrap()
    };
    let result = run(&second, &loaded);
    assert_eq!(result, run(&first, &program));
    assert_eq!(result.values::<f32>().unwrap()[0], 18.0, "nine from each of two devices");

    let (_, again, outcome) = cache.compile_to_share(&first, &text, &options).unwrap();
    assert_eq!(outcome, CacheOutcome::Hit);
    assert_eq!(again, sent, "the entry itself, not serialized once more");
}
