//! Quick plans of tensor and context parallelism: collectives against those of the step program,
//! memory and work against those of one device.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Case, ContextMethod, Shape};
use fullshard_parallel::Remat;
use fullshard_plan::{Report, quick};
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
