//! Roles in which something goes wrong, and the world that reports it.

use crate::COUNT;
use crate::process::{Process, call, coded, over, reduction, vector};
use fullshard_pjrt::mpi::{MpiCall, World};
use fullshard_pjrt::{
    DType, MPI_ALL_GATHER, MPI_ALL_REDUCE, MPI_ALL_TO_ALL, MPI_PERMUTE, MPI_REDUCE_SCATTER,
};
use std::env;
use std::time::{Duration, Instant};

pub fn world() {
    let me = Process::start(1);
    assert!(me.world.library_version().contains("MPICH"), "{}", me.world.library_version());
    assert!(World::start(me.size).is_ok(), "starting again is the same world");
    for length in [0, 5, 100_000] {
        let bytes = if me.rank == 0 { vec![7; length] } else { Vec::new() };
        assert_eq!(me.world.broadcast(bytes).unwrap(), vec![7; length]);
    }
    // Nobody leaves a barrier before the last arrives.
    let start = Instant::now();
    if me.rank == 1 {
        std::thread::sleep(Duration::from_millis(300));
    }
    me.world.barrier().unwrap();
    assert!(me.rank == 1 || start.elapsed() > Duration::from_millis(100));
    let world = me.world;
    me.finish();
    assert!(world.barrier().unwrap_err().to_string().contains("MPI has ended"));
}

/// Bad calls fail by name, and the good one after them works.
pub fn garbage() {
    let me = Process::start(1);
    let (n, all, ty) = (me.size, me.all(), vector(DType::F32, 4));
    let reversed = vec![(0..n).rev().collect::<Vec<_>>()];
    let sum = |attributes: &str| call(MPI_ALL_REDUCE, attributes, "%x", &ty, &ty);
    let (double, f8) = (vector(DType::F32, 8), vector(DType::F8E5M2, 4));
    me.prepare(1, &all, 1);
    let cases = [
        (sum(&reduction(0, 0, &reversed)), &ty, "has no communicator for its groups"),
        (sum(&reduction(0, 9, &all)), &ty, "channel 9 of device 0 has no communicator"),
        (sum(&over(0, &all)), &ty, "no attribute `reduction`"),
        (sum(&reduction(7, 0, &all)), &ty, "no reduction 7"),
        (
            sum(
                "channel = 0 : i64, group = array<i64: 0, 1>, group_size = 3 : i64, reduction = 0 : i64",
            ),
            &ty,
            "2 processes do not make groups of 3",
        ),
        (
            sum("channel = 0 : i64, group_size = 2 : i64, reduction = 0 : i64"),
            &ty,
            "no attribute `group`",
        ),
        (
            call(MPI_ALL_GATHER, &over(0, &all), "%x", &ty, &ty),
            &ty,
            "4 elements does not give a result of 4 in a group of 2",
        ),
        (
            call(MPI_REDUCE_SCATTER, &over(0, &all), "%x", &ty, &double),
            &double,
            "4 elements does not give a result of 8",
        ),
        (
            call(
                MPI_PERMUTE,
                "channel = 0 : i64, pairs = array<i64: 0, 9>, devices = 1 : i64",
                "%x",
                &ty,
                &ty,
            ),
            &ty,
            "no device 9 among 2",
        ),
        (
            call(
                MPI_PERMUTE,
                "channel = 0 : i64, pairs = array<i64: 0, 1, 1, 1, 0, 0>, devices = 1 : i64",
                "%x",
                &ty,
                &ty,
            ),
            &ty,
            "is in two pairs",
        ),
        (call(MPI_ALL_TO_ALL, &over(0, &all), "%x", &ty, &f8), &f8, "differ in element type"),
    ];
    let x = coded(DType::F32, me.rank, 4);
    for (expression, result, expected) in cases {
        let program = me.compile(&ty, &[(expression, result.clone())]);
        let error = me.try_run(&program, &x).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    for (groups, expected) in [
        (vec![vec![0, 5]], "no process 5 among 2"),
        (vec![vec![0], vec![0]], "process 0 is in two groups"),
        (vec![vec![0, 1], vec![]], "differ in size"),
    ] {
        let call = MpiCall { channel: 3, groups };
        let error = me.world.collectives().prepare(&[call], 1).unwrap_err().to_string();
        assert!(error.contains("channel 3") && error.contains(expected), "{error}");
    }
    let program = me.compile(&ty, &[(sum(&reduction(0, 0, &all)), ty.clone())]);
    let sums: Vec<f32> = (0..4).map(|i| (0..n).map(|rank| (3 * rank + i) as f32).sum()).collect();
    assert_eq!(me.run(&program, &x)[0].values::<f32>().unwrap(), sums);
    me.finish();
}

/// A message that is too long for its receiver: the error of MPI has the call and the channel.
pub fn truncated() {
    let me = Process::start(1);
    let calls = [MpiCall { channel: 4, groups: vec![] }];
    me.world.collectives().prepare(&calls, 1).unwrap();
    let elements = if me.rank == 0 { 800 } else { 400 };
    let ty = vector(DType::F32, elements);
    let attributes = "channel = 4 : i64, pairs = array<i64: 0, 1>, devices = 1 : i64";
    let permute = call(MPI_PERMUTE, attributes, "%x", &ty, &ty);
    let program = me.compile(&ty, &[(permute, ty.clone())]);
    let outcome = me.try_run(&program, &coded(DType::F32, me.rank, elements));
    if me.rank == 1 {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("MPI_Isendrecv on channel 4: "), "{error}");
        // MPI's own message, which depends on the network.
        assert!(error.contains("error stack"), "{error}");
    }
    println!("process {} is right", me.rank);
    // The end of a process ends the others.
    me.world.barrier().unwrap();
}

/// Several sums at a time on one channel. The delay keeps the first under way. XLA runs programs of
/// up to eight ops, or of small tensors, one op after another.
pub fn twice() {
    let me = Process::start(1);
    let (all, ty) = (me.all(), vector(DType::F32, 4096));
    me.prepare(1, &all, 1);
    let sum = |k: i64| {
        // An attribute that nobody reads makes the calls different.
        let attributes = format!("{}, k = {k} : i64", reduction(0, 0, &all));
        (call(MPI_ALL_REDUCE, &attributes, "%x", &ty, &ty), ty.clone())
    };
    let program = me.compile(&ty, &(0..12).map(sum).collect::<Vec<_>>());
    let error = me.try_run(&program, &coded(DType::F32, me.rank, 4096)).unwrap_err().to_string();
    assert!(error.contains("channel 0 of device 0 is used twice at a time"), "{error}");
    println!("process {} is right", me.rank);
    // The end of a process ends the others.
    me.world.barrier().unwrap();
}

pub fn different() {
    let me = Process::start(1);
    let call = MpiCall { channel: me.rank as i64, groups: me.all() };
    let error = me.world.collectives().prepare(&[call], 1).unwrap_err().to_string();
    assert!(error.contains("processes prepared different collectives"), "{error}");
    me.finish();
}

pub fn exhaust() {
    let me = Process::start(1);
    let call = |channel| MpiCall { channel, groups: me.all() };
    let calls: Vec<MpiCall> = (0..5000).map(call).collect();
    let start = Instant::now();
    let error = me.world.collectives().prepare(&calls, 1).unwrap_err().to_string();
    println!("{error} ({:?})", start.elapsed());
    assert!(error.contains("--scan_layers true"), "{error}");
    me.finish();
}

/// Process 1 is killed while the others wait for it.
pub fn die() {
    let me = Process::start(1);
    let (all, ty) = (me.all(), vector(DType::F32, 4));
    me.prepare(1, &all, 1);
    let sum = call(MPI_ALL_REDUCE, &reduction(0, 0, &all), "%x", &ty, &ty);
    let program = me.compile(&ty, &[(sum, ty.clone())]);
    for step in 0.. {
        if me.rank == 1 && step == 10 {
            println!("process 1 dies");
            let pid = std::process::id().to_string();
            std::process::Command::new("kill").args(["-9", &pid]).status().unwrap();
        }
        me.run(&program, &coded(DType::F32, me.rank, 4));
    }
}

/// A world that must not start.
pub fn alone() {
    let count = env::var(COUNT).unwrap().parse().unwrap();
    match World::start(count) {
        Ok(world) => panic!("started {} processes", world.size()),
        Err(error) => panic!("{error}"),
    }
}
