//! Leak tests: clients, buffers, programs and events over a thousand rounds.
#![allow(clippy::unwrap_used)]

mod common;

use common::{ACCUMULATE, DOUBLE, cpu, on_each_device, upload, values};
use fullshard_pjrt::{CompileOptions, HostTensor};

/// The resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Runs `round` until memory is stable, then `rounds` times more: memory must not grow.
///
/// There are enough rounds that leaking one object per round would show: a thousand where objects
/// are large or expensive, more where they are only handles.
fn check(what: &str, rounds: usize, mut round: impl FnMut()) {
    const ALLOWED: usize = 1 << 20;
    for _ in 0..rounds / 4 {
        round();
    }
    let before = resident();
    for _ in 0..rounds {
        round();
    }
    let growth = resident().saturating_sub(before);
    println!("{what}: {growth} bytes over {rounds} rounds");
    assert!(growth < ALLOWED, "{what}: {growth} bytes over {rounds} rounds");
}

/// A single test, so that nothing else in the process allocates meanwhile.
#[test]
fn nothing_leaks() {
    let big = vec![1.0_f32; 1 << 14];

    let client = cpu(2);
    check("buffers", 1000, || {
        let tensor = HostTensor::from_values(&[1 << 14], &big).unwrap();
        let source = client.upload(&tensor, 0).unwrap();
        let copy = source.copy_to(1).unwrap();
        drop(copy.download().unwrap());
        let again = client.upload_async(tensor, 1).unwrap();
        again.ready_event().unwrap().on_ready(|result| result.unwrap()).unwrap();
        assert_eq!(again.to_host().unwrap().bytes().len(), 1 << 16);
    });

    let body = "%y = stablehlo.add %x, %x : tensor<4096x4xf32>";
    let text = on_each_device(2, 4096, body, 4096);
    let program = client.compile(&text, &CompileOptions::new(2)).unwrap();
    let inputs = [0, 1].map(|d| upload(&client, &[4096, 4], &big, d));
    check("runs", 1000, || {
        let results = program.execute(&[[&inputs[0]], [&inputs[1]]]).unwrap();
        assert_eq!(values(&results[1][0])[0], 2.0);
    });

    let accumulate = client.compile(ACCUMULATE, &CompileOptions::new(1)).unwrap();
    let x = upload(&client, &[4], &[1.0; 4], 0);
    let mut sum = upload(&client, &[4], &[0.0; 4], 0);
    check("donations", 20_000, || {
        sum = accumulate.execute(&[[&sum, &x]]).unwrap().remove(0).remove(0);
    });

    check("errors", 5000, || {
        assert!(client.compile("not a program", &CompileOptions::new(1)).is_err());
        assert!(accumulate.execute(&[[&x, &x]]).is_err());
    });

    let bytes = accumulate.executable().serialize().unwrap();
    check("programs", 1000, || {
        let loaded = client.load(&bytes).unwrap();
        assert_eq!(
            loaded.executable().optimized_program().unwrap().module().unwrap().name,
            "accumulate"
        );
    });

    check("clients", 1000, || {
        let client = cpu(2);
        let x = upload(&client, &[4], &[1.0; 4], 0);
        assert_eq!(values(&x), [1.0; 4]);
    });

    check("compiles", 1000, || {
        client.compile(DOUBLE, &CompileOptions::new(1)).unwrap();
    });
}
