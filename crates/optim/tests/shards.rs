//! With any sharding over any number of devices, updates match those of one device.
#![allow(clippy::unwrap_used)]

mod common;

use common::{
    Layers, Placed, Trained, TrainingRun, call, compile, difference, rms, step_program, train,
};
use fullshard_graph::{Argument, DType, Mesh, MeshExt, Program, Tensor, TensorType};
use fullshard_optim::{
    Adafactor, AdamW, Layout, Optimizer, Sgd, SlotKind, clip_factor, global_norm,
};
use fullshard_pjrt::HostTensor;
use fullshard_pjrt::hlo::{CollectiveKind, collectives};
use std::sync::LazyLock;

const SHAPES: [&[usize]; 7] =
    [&[7, 5], &[13], &[3, 4, 5], &[1], &[64, 3], &[2, 3, 2, 5], &[3, 4, 8]];
const LAYERS: usize = 3;
const STEPS: usize = 6;

/// Distinct pseudorandom numbers in [-1, 1), the same every time.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The initial values of a parameter of a shape, or its gradients at a step: each layer and step
/// has another magnitude, so that their statistics differ.
fn layers(shape: usize, step: usize) -> Layers {
    let count = SHAPES[shape].iter().product();
    let layer = |layer: usize| {
        let magnitude = [1.0, 0.03, 7.0][layer] / (1 + step % 3) as f32;
        let values = numbers(count, 1000 * step + 10 * shape + layer);
        values.into_iter().map(|value| value * magnitude).collect()
    };
    (0..LAYERS).map(layer).collect()
}

/// A run for parameters of given shapes, with selected layers.
fn training_run(shapes: &[usize], pick: impl Fn(usize, Layers) -> Layers) -> TrainingRun {
    let all = |step: usize| -> Vec<Layers> {
        let values = shapes.iter().enumerate();
        values.map(|(i, &shape)| pick(i, layers(shape, step))).collect()
    };
    TrainingRun {
        initial: all(0),
        gradients: (1..=STEPS).map(all).collect(),
        learning_rates: (0..STEPS).map(|step| 0.1 / (1 + step) as f64).collect(),
    }
}

/// Each layer of each shape trained separately on one device: `[shape][layer]`.
fn reference(optimizer: &dyn Optimizer) -> Vec<Vec<Trained>> {
    let mesh = Mesh::new(&[("fsdp", 1)]).unwrap();
    let shapes: Vec<usize> = (0..SHAPES.len()).flat_map(|shape| [shape; LAYERS]).collect();
    let parameters: Vec<Placed> =
        shapes.iter().map(|&shape| Placed::replicated(SHAPES[shape])).collect();
    let training_run = training_run(&shapes, |i, layers| vec![layers[i % LAYERS].clone()]);
    let mut trained = train(optimizer, &mesh, &parameters, &training_run).into_iter();
    (0..SHAPES.len()).map(|_| trained.by_ref().take(LAYERS).collect()).collect()
}

/// Every shape with every sharding, stacked and not.
fn every_placement(axes: &[&'static str], devices: usize) -> Vec<(usize, Placed)> {
    let mut placements = Vec::new();
    for (shape, dims) in SHAPES.iter().enumerate() {
        for stack in [None, Some(LAYERS)] {
            // Stacks have more padding than they need.
            let spare = if stack.is_some() { 3 } else { 0 };
            let slice = dims.iter().product::<usize>().div_ceil(devices) + spare;
            // Only the first dim can be padded.
            let divisible = (1..dims.len()).filter(|&dim| dims[dim].is_multiple_of(devices));
            let first = [Layout::Replicated, Layout::Dim(0), Layout::Flat];
            for layout in first.into_iter().chain(divisible.map(Layout::Dim)) {
                let (dims, axes) = (dims.to_vec(), axes.to_vec());
                placements.push((shape, Placed { dims, stack, layout, slice, axes }));
            }
        }
    }
    placements
}

#[track_caller]
fn assert_same(found: &[f32], expected: &[f32], scale: f32, what: &str) {
    let worst = difference(found, expected, scale);
    assert!(worst < 1e-6, "{what}: differs by {worst:e}");
}

/// Compares a parameter and its state with those of its layers trained separately.
fn compare(placed: &Placed, found: &Trained, expected: &[Trained]) {
    let layers = placed.stack.unwrap_or(1);
    let check = |what: &str, found: Layers, pick: &dyn Fn(&Trained) -> HostTensor| {
        for (layer, (found, expected)) in found.iter().zip(expected).enumerate() {
            let expected: Vec<f32> = pick(expected).values().unwrap();
            let scale = if what.contains("sq") { 0.0 } else { rms(&expected) };
            assert_same(found, &expected, scale, &format!("{placed:?}, layer {layer}: {what}"));
        }
    };
    let (values, padding) = placed.layers(&found.parameter);
    assert!(padding.iter().all(|&number| number == 0.0), "{placed:?}: padding {padding:?}");
    check("parameter", values, &|expected| expected.parameter.clone());
    for (i, (name, kind, slot)) in found.slots.iter().enumerate() {
        let values = match kind {
            SlotKind::Like => placed.layers(slot).0,
            SlotKind::Replicated(_) => {
                let values: Vec<f32> = slot.values().unwrap();
                values.chunks(values.len() / layers).map(<[f32]>::to_vec).collect()
            }
        };
        assert_eq!(*name, expected[0].slots[i].0);
        check(name, values, &|expected| expected.slots[i].2.clone());
    }
}

/// Trains every placement on a number of devices and compares with one device.
fn check(optimizer: &dyn Optimizer, reference: &[Vec<Trained>], devices: usize) {
    let mesh = Mesh::new(&[("fsdp", devices)]).unwrap();
    let (shapes, parameters): (Vec<usize>, Vec<Placed>) =
        every_placement(&["fsdp"], devices).into_iter().unzip();
    let trained = train(optimizer, &mesh, &parameters, &training_run(&shapes, |_, layers| layers));
    for ((shape, placed), found) in shapes.iter().zip(&parameters).zip(&trained) {
        compare(placed, found, &reference[*shape]);
    }
}

/// A test per optimizer and number of devices.
macro_rules! optimizers {
    ($($name:ident: $optimizer:expr;)*) => {$(
        mod $name {
            use super::*;

            static REFERENCE: LazyLock<Vec<Vec<Trained>>> =
                LazyLock::new(|| reference(&$optimizer));

            #[test]
            fn one_device() {
                check(&$optimizer, &REFERENCE, 1);
            }

            #[test]
            fn two_devices() {
                check(&$optimizer, &REFERENCE, 2);
            }

            #[test]
            fn four_devices() {
                check(&$optimizer, &REFERENCE, 4);
            }

            #[test]
            fn eight_devices() {
                check(&$optimizer, &REFERENCE, 8);
            }
        }
    )*};
}

optimizers! {
    adamw: AdamW { weight_decay: 0.1, ..AdamW::default() };
    sgd: Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.1, dampening: 0.0 };
    adafactor_trainer: Adafactor { weight_decay: 0.1, ..Adafactor::trainer() };
    adafactor_paper_with_momentum:
        Adafactor { beta1: Some(0.9), weight_decay: 0.1, ..Adafactor::paper() };
}

/// Some are sharded over one axis and some over two: sums are over the devices of each sharding.
#[test]
fn parameters_sharded_over_different_axes() {
    let adafactor = Adafactor::paper();
    let reference = reference(&adafactor);
    let mesh = Mesh::new(&[("replica", 2), ("fsdp", 4)]).unwrap();
    let mut placements = every_placement(&["fsdp"], 4);
    placements.extend(every_placement(&["replica", "fsdp"], 8));
    let (shapes, parameters): (Vec<usize>, Vec<Placed>) = placements.into_iter().unzip();
    let trained = train(&adafactor, &mesh, &parameters, &training_run(&shapes, |_, layers| layers));
    for ((shape, placed), found) in shapes.iter().zip(&parameters).zip(&trained) {
        compare(placed, found, &reference[*shape]);
    }
    let some: Vec<Placed> = parameters.into_iter().step_by(7).collect();
    assert_eq!(all_reduces(&adafactor, &mesh, &some), 4, "two per group");
}

/// All-reduces in the compiled program of a step.
fn all_reduces(optimizer: &dyn Optimizer, mesh: &Mesh, parameters: &[Placed]) -> u64 {
    let program = step_program(optimizer, mesh, parameters).unwrap();
    let traced = program.to_text().matches("stablehlo.all_reduce").count() as u64;
    let module = compile(&program).executable().optimized_program().unwrap().module().unwrap();
    let rows = collectives(&module);
    let others = rows.iter().filter(|row| row.kind != CollectiveKind::AllReduce).count();
    assert_eq!(others, 0, "other collectives");
    let compiled = rows.iter().map(|row| row.count).sum();
    assert_eq!(traced, compiled, "the compiler merged some");
    compiled
}

#[test]
fn a_step_takes_at_most_two_all_reduces() {
    let mesh = Mesh::new(&[("fsdp", 4)]).unwrap();
    let all: Vec<Placed> = every_placement(&["fsdp"], 4).into_iter().map(|(_, one)| one).collect();
    let replicated: Vec<Placed> =
        all.iter().filter(|one| one.layout == Layout::Replicated).cloned().collect();
    let sharded: Vec<Placed> =
        all.iter().filter(|one| one.layout != Layout::Replicated).cloned().collect();
    for adafactor in [Adafactor::trainer(), Adafactor::paper()] {
        assert_eq!(all_reduces(&adafactor, &mesh, &replicated[..3]), 0);
        assert_eq!(all_reduces(&adafactor, &mesh, &sharded[..1]), 2);
        assert_eq!(all_reduces(&adafactor, &mesh, &sharded), 2);
    }
    assert_eq!(all_reduces(&AdamW::default(), &mesh, &sharded[..3]), 0);
    assert_eq!(all_reduces(&Sgd::default(), &mesh, &sharded[..3]), 0);
}

#[test]
fn global_norm_takes_one_all_reduce() {
    for devices in [2, 8] {
        let mesh = Mesh::new(&[("fsdp", devices)]).unwrap();
        let placements = every_placement(&["fsdp"], devices);
        let values = placements.iter().flat_map(|(shape, placed)| {
            layers(*shape, 1).into_iter().take(placed.stack.unwrap_or(1)).flatten()
        });
        let squares = values.map(|number| f64::from(number).powi(2));
        let expected = squares.sum::<f64>().sqrt();
        let parameter = |(_, placed): &(usize, Placed)| {
            let ty = TensorType::new(DType::F32, &placed.logical_dims(&mesh));
            Argument::new(ty).sharded(&placed.sharding(&mesh))
        };
        let arguments: Vec<Argument> = placements.iter().map(parameter).collect();
        let program = Program::trace("norm", &arguments, |gradients| {
            let inputs: Vec<_> = gradients
                .iter()
                .zip(&placements)
                .map(|(gradient, (_, placed))| (gradient, placed.sharding(&mesh)))
                .collect();
            let outputs = [mesh.replicated(0), mesh.replicated(0), mesh.replicated(0)];
            mesh.manual(&["fsdp"], &inputs, &outputs, |locals| {
                let shards: Vec<_> =
                    placements.iter().map(|(_, placed)| placed.shard(&mesh)).collect();
                let gradients: Vec<(&Tensor, _)> = locals.iter().zip(&shards).collect();
                let norm = global_norm(&gradients)?;
                let factors = [clip_factor(&norm, 1.0)?, clip_factor(&norm, 1e6)?];
                Ok([norm].into_iter().chain(factors).collect())
            })
        });
        let loaded = compile(&program.unwrap());
        let module = loaded.executable().optimized_program().unwrap().module().unwrap();
        let count: u64 = collectives(&module).iter().map(|row| row.count).sum();
        assert_eq!(count, 1);
        let gradient =
            |(shape, placed): &(usize, Placed)| placed.to_logical(&mesh, &layers(*shape, 1));
        let results = call(&loaded, &placements.iter().map(gradient).collect::<Vec<_>>());
        let results: Vec<f32> =
            results.iter().flat_map(|result| result.values::<f32>().unwrap()).collect();
        let expected = [expected, 1.0 / (expected + 1e-6), 1.0].map(|number| number as f32);
        assert_same(&results, &expected, 0.0, "norm and factors");
    }
}
