//! Quick plans of tensor and context parallelism: collectives against those of the step program,
//! memory and work against those of one device.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Case, ContextMethod, Shape};
use fullshard_parallel::Remat;
use fullshard_plan::{MemoryEstimate, Report, quick};
use std::collections::BTreeMap;

/// Kind and bytes of collectives over an axis, with their number.
type Counts = BTreeMap<(String, u64), u64>;

/// Collectives of less are sums of norms, losses and counts.
const SMALL: u64 = 1 << 10;

fn case(machine: &'static str, mesh: &'static str) -> Case {
    let shape = Shape::Llama(3, 512, 8, 4, 1024, 32000);
    Case { mesh: Some(mesh), scan: false, ..Case::new(machine, shape, 2) }
}

fn plan(case: &Case) -> Report {
    quick(&case.spec(), &case.machine()).unwrap()
}

/// The collectives of a quick plan over an axis.
fn planned(case: &Case, axis: &str) -> Counts {
    let mut counts = Counts::new();
    for row in plan(case).collectives.iter().filter(|row| row.axis == axis && row.bytes >= SMALL) {
        *counts.entry((row.kind.clone(), row.bytes)).or_default() += row.count;
    }
    counts
}

/// The collectives of the step program whose first group has some devices.
fn traced(case: &Case, devices: &str) -> Counts {
    let text = case.spec().launch_program().unwrap().to_text();
    let mut counts = Counts::new();
    for kind in ["all_gather", "reduce_scatter", "all_reduce", "collective_permute"] {
        for (at, _) in text.match_indices(&format!("\"stablehlo.{kind}\"")) {
            let (_, rest) = text[at..].split_once("dense<[").unwrap();
            // The types follow the region of a reduction.
            let (_, types) = rest.split_once(" : (tensor<").unwrap();
            let (types, _) = types.split_once('\n').unwrap();
            let bytes = types.split("tensor<").map(tensor_bytes).max().unwrap();
            if rest.starts_with(devices) && bytes >= SMALL {
                *counts.entry((kind.replace('_', "-"), bytes)).or_default() += 1;
            }
        }
    }
    counts
}

/// The bytes of a type such as `2x512xbf16>`.
fn tensor_bytes(text: &str) -> u64 {
    let text = text.split('>').next().unwrap();
    let (dims, dtype) = text.rsplit_once('x').unwrap_or(("1", text));
    let size = if dtype == "f32" { 4 } else { 2 };
    dims.split('x').map(|dim| dim.parse::<u64>().unwrap()).product::<u64>() * size
}

#[test]
fn tensor_collectives_match_the_program() {
    for remat in [Remat::None, Remat::Full, Remat::SaveOut, Remat::SaveQkv] {
        for sequence_parallel in [true, false] {
            let case = Case {
                remat: remat.clone(),
                sequence_parallel,
                ..case("h100:8", "fsdp=2,tensor=4")
            };
            let expected = traced(&case, "[0, 1, 2, 3], [4, 5, 6, 7]");
            assert!(expected.len() > 2);
            assert_eq!(planned(&case, "tensor"), expected, "{remat:?} {sequence_parallel}");
        }
    }
}

#[test]
fn context_collectives_match_the_program() {
    for remat in [Remat::None, Remat::Full, Remat::SaveOut] {
        let case = Case { remat: remat.clone(), ..case("h100:8", "fsdp=2,context=4") };
        let expected = traced(&case, "[0, 1, 2, 3], [4, 5, 6, 7]");
        assert_eq!(expected.len(), 2);
        assert_eq!(planned(&case, "context"), expected, "{remat:?}");
        // A ring of two is not a loop.
        let ring = Case { context: ContextMethod::Ring, mesh: Some("fsdp=4,context=2"), ..case };
        let expected = traced(&ring, "[0, 1], [1, 0]");
        assert_eq!(expected.len(), 2);
        assert_eq!(planned(&ring, "context"), expected, "{remat:?}");
    }
}

/// Keys and values of three other devices, in each pass of three layers, and the sums of their
/// gradients in `f32`, which go once around. A compiled step has the same.
#[test]
fn a_ring_passes_gradients_once_around() {
    let case = Case {
        context: ContextMethod::Ring,
        remat: Remat::None,
        ..case("h100:8", "fsdp=2,context=4")
    };
    let own = 2 * 1024 / 4 * 2 * 256;
    let kind = "collective-permute".to_owned();
    let expected = [((kind.clone(), 2 * own), 2 * 3 * 3), ((kind, 4 * own), 3 * 4)];
    assert_eq!(planned(&case, "context"), expected.into());
}

/// The estimate of a step with scanned layers and full remat, where the peak is in a layer.
fn memory(case: Case) -> MemoryEstimate {
    let case = Case { scan: true, ..case };
    let estimate = MemoryEstimate::new(&case.spec(), case.machine().kind).unwrap();
    assert!(estimate.gradients > 0, "the peak is at the logits: {estimate:?}");
    estimate
}

const SMALL_VOCABULARY: Shape = Shape::Llama(3, 512, 8, 4, 1024, 512);

/// Two sequences of 1024 tokens per device, in `bf16`.
const TOKENS: u64 = 2 * 1024;

#[test]
fn slices_are_all_that_a_device_holds() {
    let of = |mesh, sequence_parallel| {
        let case = case("h100:8", mesh);
        memory(Case { shape: SMALL_VOCABULARY, sequence_parallel, ..case })
    };
    let (plain, sliced) = (of("fsdp=8", true), of("fsdp=2,tensor=4", true));
    // The embedding and the head, and the largest matrix, with their gradients.
    assert_eq!(plain.temporaries, 2 * 2 * (2 * 512 * 512 + 512 + 512 * 1024));
    assert_eq!(sliced.temporaries, 2 * 2 * (2 * 512 * 128 + 512 + 512 * 256));
    // Inputs of layers, and of matmuls: queries, keys and values, and the rest, of which the
    // residual stream is not sliced.
    let inputs = 5 * 512 + 512 / 4 + 1024 / 4;
    let outputs = (512 + 2 * 256 + 2 * 1024) / 4 + 2 * 512;
    let working_set = 2 * TOKENS * (inputs + 2 * outputs + 512 / 4);
    assert_eq!(sliced.activations, 3 * 2 * (TOKENS / 4) * 512 + working_set);
    let all_tokens = of("fsdp=2,tensor=4", false);
    assert_eq!(all_tokens.activations, 3 * 2 * TOKENS * 512 + working_set);
}

/// With as many tokens per device, the keys and values of all devices and blocks in `f32` are more.
#[test]
fn gathered_keys_take_memory() {
    let of = |mesh, batch, context| {
        let case = case("h100:8", mesh);
        memory(Case { shape: SMALL_VOCABULARY, batch, context, ..case })
    };
    let plain = of("fsdp=8", 2, ContextMethod::Gather);
    let (keys, merged) = (2 * 2 * 256 * TOKENS, 4 * 512 * TOKENS);
    let gathered = of("fsdp=2,context=4", 8, ContextMethod::Gather);
    assert_eq!(gathered.activations, plain.activations + 2 * 4 * keys + 2 * merged);
    let ring = of("fsdp=2,context=4", 8, ContextMethod::Ring);
    assert_eq!(ring.activations, plain.activations + 2 * 2 * keys + 2 * merged);
    assert_eq!((ring.parameters, ring.optimizer), (plain.parameters, plain.optimizer));
}

/// Devices share the work of a step, whichever axis shards it.
#[test]
fn work_is_divided() {
    let of = |mesh, batch| {
        let shape = Shape::Llama(8, 2048, 16, 8, 8192, 32000);
        let case = Case { shape, batch, tokens: 4096, ..case("h100:8", mesh) };
        plan(&case).time.compute
    };
    let plain = of("fsdp=8", 1);
    for (mesh, batch, most) in
        [("fsdp=2,tensor=4", 4, 1.1), ("tensor=8", 8, 1.1), ("fsdp=2,context=4", 4, 1.2)]
    {
        let ratio = of(mesh, batch) / plain;
        assert!((0.9..most).contains(&ratio), "{mesh}: {ratio}");
    }
}

#[test]
fn compute_waits_for_tensor_collectives() {
    let of = |machine| plan(&case(machine, "fsdp=2,tensor=4"));
    let report = of("h100:8");
    let over_tensor = report.collectives.iter().filter(|row| row.axis == "tensor");
    assert!(over_tensor.filter(|row| row.bytes >= SMALL).all(|row| row.hidden == 0.0));
    assert!(report.notes.iter().any(|note| note.contains("tensor parallelism")));
    let what: Vec<&str> = report.warnings.iter().map(|it| it.what.as_str()).collect();
    assert!(what.iter().any(|what| what.contains("of tensor parallelism")), "{what:?}");
    let modules = &report.collectives_by_module;
    assert!(modules.iter().any(|row| row.cause() == "model.layers.*.mlp, backward"));
}
