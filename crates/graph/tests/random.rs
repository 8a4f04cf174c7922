//! Random numbers: the published vectors, statistics, and the same values however they are made.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, compile, run};
use fullshard_graph::{
    Argument, DType, Draw, Key, Mesh, Policy, Program, Result, Tensor, TensorType, constant, full,
    iota, ones, remat, scan, threefry, value_and_grad, value_aux_and_grad, zeros,
};
use fullshard_pjrt::HostTensor;

const COUNT: usize = 1 << 18;

/// Runs a program of no arguments.
fn results(trace: impl FnOnce() -> Result<Vec<Tensor>>) -> Vec<HostTensor> {
    run(&Program::trace("random", &[], |_| trace()).unwrap(), &[])
}

/// What is drawn with one key.
fn sample(dims: &[usize], draw: impl FnOnce(&Draw) -> Result<Tensor>) -> Vec<f64> {
    let found = results(|| Ok(vec![draw(&Key::constant(7)?.named("sample")?.draw(dims))?]));
    found[0].to_f64().unwrap()
}

/// The mean of a function of each value.
fn mean(values: &[f64], function: impl Fn(f64) -> f64) -> f64 {
    values.iter().map(|&value| function(value)).sum::<f64>() / values.len() as f64
}

/// Mean, variance, skewness and kurtosis.
fn moments(values: &[f64]) -> [f64; 4] {
    let centre = mean(values, |x| x);
    let variance = mean(values, |x| (x - centre).powi(2));
    let standard = |power| mean(values, |x| ((x - centre) / variance.sqrt()).powi(power));
    [centre, variance, standard(3), standard(4)]
}

/// Checks a statistic that is normal with a given deviation: five deviations are one in a million.
#[track_caller]
fn assert_near(what: &str, found: f64, expected: f64, deviation: f64) {
    println!("{what}: {found:.6} for {expected:.6}, {:.2} σ", (found - expected) / deviation);
    assert!((found - expected).abs() < 5.0 * deviation, "{what}: {found} for {expected}");
}

#[test]
fn the_published_vectors() {
    let (zeros, ones) = ([0, 0], [!0, !0]);
    let (key, counter) = ([0x1319_8A2E, 0x0370_7344], [0x243F_6A88, 0x85A3_08D3]);
    let vectors: [(usize, [[u32; 2]; 3]); 6] = [
        (20, [zeros, zeros, [0x6B20_0159, 0x99BA_4EFE]]),
        (20, [ones, ones, [0x1CB9_96FC, 0xBB00_2BE7]]),
        (20, [key, counter, [0xC492_3A9C, 0x483D_F7A0]]),
        (13, [zeros, zeros, [0x9D1C_5EC6, 0x8BD5_0731]]),
        (13, [ones, ones, [0xFD36_D048, 0x2D17_272C]]),
        (13, [key, counter, [0xBA3E_4725, 0xF27D_669E]]),
    ];
    let words = Argument::new(TensorType::new(DType::U32, &[1]));
    for (rounds, [key, counter, expected]) in vectors {
        // Arguments, so that the compiled program computes it rather than the compiler.
        let program = Program::trace("vector", &vec![words.clone(); 4], |words| {
            let [a, b, c, d] = words.as_slice() else { unreachable!() };
            Ok(threefry(rounds, [a, b], [c, d])?.into())
        });
        let inputs = [key[0], key[1], counter[0], counter[1]];
        let inputs = inputs.map(|word| HostTensor::from_values(&[1], &[word]).unwrap());
        let found = run(&program.unwrap(), &inputs);
        let found = [0, 1].map(|i| found[i].values::<u32>().unwrap()[0]);
        assert_eq!(found, expected, "{rounds} rounds");
    }
}

#[test]
fn keys_give_the_same_numbers_again_and_others_to_others() {
    let found = results(|| {
        let key = Key::constant(1)?;
        let step = |step: i32| constant(&[], &[step]);
        let long = |step: i64| constant(&[], &[step]);
        let keys = [
            key.named("a")?,
            key.named("a")?,
            key.named("b")?,
            key.named("")?,
            Key::constant(2)?.named("a")?,
            Key::constant(1 << 32)?.named("a")?,
            key.clone(),
            key.fold(&step(0)?)?,
            key.fold(&step(1)?)?,
            key.fold(&step(-1)?)?,
            key.fold(&long(1 << 32)?)?,
            key.named("a")?.fold(&step(1)?)?,
            key.fold(&step(1)?)?.named("a")?,
        ];
        keys.iter().map(|key| key.draw(&[64]).bits()).collect()
    });
    let found: Vec<Vec<u32>> = found.iter().map(|bits| bits.values().unwrap()).collect();
    assert_eq!(found[0], found[1]);
    for (i, a) in found.iter().enumerate().skip(1) {
        for b in &found[i + 1..] {
            let same = a.iter().zip(b).filter(|(a, b)| a == b).count();
            assert_eq!(same, 0);
        }
    }
}

#[test]
fn a_seed_is_an_argument_or_stands_in_the_program() {
    let seed = Argument::new(TensorType::new(DType::U32, &[2]));
    let program = Program::trace("seed", &[seed], |seed| {
        Ok(vec![Key::new(&seed[0])?.named("x")?.draw(&[16]).bits()?])
    });
    let program = program.unwrap();
    let expected =
        results(|| Ok(vec![Key::constant((5 << 32) | 6)?.named("x")?.draw(&[16]).bits()?]));
    let with = |seed: [u32; 2]| run(&program, &[HostTensor::from_values(&[2], &seed).unwrap()]);
    assert_eq!(with([5, 6]), expected);
    assert_ne!(with([6, 5]), expected);
}

#[test]
fn a_name_is_an_argument_or_stands_in_the_program() {
    let hash = Argument::new(TensorType::new(DType::U32, &[2]));
    let program = Program::trace("name", &[hash], |hash| {
        Ok(vec![Key::constant(5)?.named_by(&hash[0])?.draw(&[16]).bits()?])
    });
    let program = program.unwrap();
    let with = |name| run(&program, &[HostTensor::from_values(&[2], &Key::hash(name)).unwrap()]);
    for name in ["x", "h.*.attn.weight"] {
        let expected = results(|| Ok(vec![Key::constant(5)?.named(name)?.draw(&[16]).bits()?]));
        assert_eq!(with(name), expected, "{name}");
    }
}

#[test]
fn a_layer_of_a_scan_has_the_numbers_of_its_index() {
    let found = results(|| {
        let key = Key::constant(3)?;
        let start = full(DType::F32, &[], 0.0)?;
        let scanned = scan(&[&start], &[&iota(DType::I32, &[3], 0)?]).run(|carries, slices| {
            let noise = key.fold(&slices[0])?.draw(&[8]).normal(DType::F32)?;
            Ok((carries, vec![noise]))
        })?;
        let apart = key.fold(&constant(&[], &[2_i32])?)?.draw(&[8]).normal(DType::F32)?;
        Ok(vec![scanned.stacked[0].narrow(0, 2, 3)?.reshape(&[8])?, apart])
    });
    assert_eq!(found[0], found[1]);
}

#[test]
fn uniform_numbers_are_uniform() {
    let values = sample(&[COUNT], |draw| draw.uniform(DType::F32));
    let n = COUNT as f64;
    assert!(values.iter().all(|x| (0.0..1.0).contains(x)));
    let [centre, variance, ..] = moments(&values);
    assert_near("mean", centre, 0.5, (1.0 / 12.0 / n).sqrt());
    assert_near("variance", variance, 1.0 / 12.0, (1.0 / 180.0 / n).sqrt());
    let bins = 64;
    let mut counts = vec![0.0; bins];
    values.iter().for_each(|x| counts[(x * bins as f64) as usize] += 1.0);
    let expected = n / bins as f64;
    let chi_square: f64 = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
    let freedom = bins as f64 - 1.0;
    assert_near("chi-square", chi_square, freedom, (2.0 * freedom).sqrt());
    let product: f64 = values.windows(2).map(|pair| (pair[0] - 0.5) * (pair[1] - 0.5)).sum();
    assert_near("lag-1 correlation", product / n * 12.0, 0.0, 1.0 / n.sqrt());
}

#[test]
fn every_bit_is_fair() {
    let found = results(|| Ok(vec![Key::constant(0)?.draw(&[COUNT]).bits()?]));
    let bits: Vec<u32> = found[0].values().unwrap();
    for bit in 0..32 {
        let set = bits.iter().filter(|word| *word >> bit & 1 == 1).count();
        let deviation = (0.25 * COUNT as f64).sqrt();
        assert_near(&format!("bit {bit}"), set as f64, COUNT as f64 / 2.0, deviation);
    }
}

#[test]
fn small_types_are_uniform_below_one() {
    for dtype in [DType::F64, DType::Bf16, DType::F16] {
        let values = sample(&[1 << 16], |draw| draw.uniform(dtype));
        assert!(values.iter().all(|x| (0.0..1.0).contains(x)), "{dtype}");
        // The steps of bf16 are of 1/256, of which half is missing above the last.
        let expected = if dtype == DType::Bf16 { 0.5 - 0.5 / 256.0 } else { 0.5 };
        assert_near(dtype.name(), mean(&values, |x| x), expected, 0.0015);
    }
}

/// The standard normal distribution function, by Simpson's rule.
fn normal_cdf(x: f64) -> f64 {
    let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let steps = 64;
    let h = x / f64::from(steps);
    let weight = |i| if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
    let sum: f64 = (0..=steps).map(|i| weight(i) * density(f64::from(i) * h)).sum();
    0.5 + sum * h / 3.0
}

/// The largest distance from a distribution function, times the root of the count.
fn kolmogorov_smirnov(values: &[f64], cdf: impl Fn(f64) -> f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let distance = |(i, &x): (usize, &f64)| {
        let level = cdf(x);
        (level - i as f64 / n).abs().max(((i + 1) as f64 / n - level).abs())
    };
    sorted.iter().enumerate().map(distance).fold(0.0, f64::max) * n.sqrt()
}

#[test]
fn normal_numbers_are_normal() {
    let values = sample(&[COUNT], |draw| draw.normal(DType::F32));
    let n = COUNT as f64;
    let [centre, variance, skewness, kurtosis] = moments(&values);
    assert_near("mean", centre, 0.0, (1.0 / n).sqrt());
    assert_near("variance", variance, 1.0, (2.0 / n).sqrt());
    assert_near("skewness", skewness, 0.0, (6.0 / n).sqrt());
    assert_near("kurtosis", kurtosis, 3.0, (24.0 / n).sqrt());
    let product: f64 = values.windows(2).map(|pair| pair[0] * pair[1]).sum();
    assert_near("lag-1 correlation", product / n, 0.0, 1.0 / n.sqrt());
    let distance = kolmogorov_smirnov(&values[..1 << 16], normal_cdf);
    println!("Kolmogorov-Smirnov: {distance:.3}");
    // 1.95 is exceeded once in a thousand times.
    assert!(distance < 1.95, "{distance}");
}

#[test]
fn truncated_normal_numbers_stay_inside() {
    for (low, high) in [(-2.0, 2.0), (0.5, 3.0), (-1.0, 8.0), (2.5, 2.75), (-9.0, 9.0)] {
        let values = sample(&[COUNT], |draw| draw.truncated_normal(DType::F32, low, high));
        assert!(values.iter().all(|x| (low..=high).contains(x)));
        let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let (below, mass) = (normal_cdf(low), normal_cdf(high) - normal_cdf(low));
        let shift = (density(low) - density(high)) / mass;
        let spread = 1.0 + (low * density(low) - high * density(high)) / mass - shift * shift;
        let [centre, variance, _, kurtosis] = moments(&values);
        let n = COUNT as f64;
        let what = format!("({low}, {high})");
        assert_near(&format!("{what} mean"), centre, shift, (spread / n).sqrt());
        let deviation = spread * ((kurtosis - 1.0) / n).sqrt();
        assert_near(&format!("{what} variance"), variance, spread, deviation);
        let cdf = |x| (normal_cdf(x) - below) / mass;
        let distance = kolmogorov_smirnov(&values[..1 << 14], cdf);
        println!("{what} Kolmogorov-Smirnov: {distance:.3}");
        assert!(distance < 1.95, "{what}: {distance}");
    }
}

#[test]
fn truth_has_its_probability() {
    for p in [0.0, 1e-3, 0.1, 0.5, 0.9, 1.0] {
        let values = sample(&[COUNT], |draw| draw.bernoulli(p));
        let deviation = (p * (1.0 - p) / COUNT as f64).sqrt() + 1e-12;
        assert_near(&format!("p = {p}"), mean(&values, |x| x), p, deviation);
    }
}

const ROWS: usize = 24;
const COLUMNS: usize = 40;

/// How a tensor of rows and columns is cut: the sizes of a mesh, and the axes of each dimension.
type Cut = (&'static [(&'static str, usize)], [&'static [&'static str]; 2]);

const CUTS: [Cut; 9] = [
    (&[("x", 2)], [&["x"], &[]]),
    (&[("x", 2)], [&[], &["x"]]),
    (&[("x", 4)], [&["x"], &[]]),
    (&[("x", 4)], [&[], &["x"]]),
    (&[("x", 8)], [&["x"], &[]]),
    (&[("x", 8)], [&[], &["x"]]),
    (&[("x", 2), ("y", 2), ("z", 2)], [&["x"], &["y"]]),
    (&[("x", 2), ("y", 2), ("z", 2)], [&["z", "x"], &["y"]]),
    (&[("x", 2), ("y", 2), ("z", 2)], [&["y"], &["x", "z"]]),
];

/// A draw of rows and columns, cut as the tensor is.
fn cut_draw(key: &Key, mesh: &Mesh, dims: [&[&str]; 2]) -> Result<Draw> {
    let mut draw = key.draw(&[ROWS, COLUMNS]);
    for (dim, axes) in dims.into_iter().enumerate().filter(|(_, axes)| !axes.is_empty()) {
        draw = draw.cut(dim, &mesh.over(axes)?)?;
    }
    Ok(draw)
}

fn kinds(draw: &Draw) -> Result<Vec<Tensor>> {
    Ok(vec![
        draw.bits()?,
        draw.uniform(DType::F32)?,
        draw.normal(DType::F32)?,
        draw.truncated_normal(DType::F32, -2.0, 2.0)?,
        draw.bernoulli(0.3)?,
    ])
}

#[test]
fn every_mesh_has_the_same_numbers() {
    let whole = results(|| kinds(&Key::constant(11)?.named("w")?.draw(&[ROWS, COLUMNS])));
    for (axes, dims) in CUTS {
        let mesh = Mesh::new(axes).unwrap();
        let sharding = mesh.sharding(&dims).unwrap();
        let names: Vec<&str> = mesh.axes().map(|(name, _)| name).collect();
        let program = Program::trace("cut", &[], |_| {
            let key = Key::constant(11)?.named("w")?;
            mesh.manual(&names, &[], &vec![sharding.clone(); whole.len()], |_| {
                kinds(&cut_draw(&key, &mesh, dims)?)
            })
        });
        let program = program.unwrap().on_mesh(&mesh).unwrap();
        let program = program.sharded_results(&vec![sharding.clone(); whole.len()]).unwrap();
        for (i, (found, whole)) in run(&program, &[]).iter().zip(&whole).enumerate() {
            assert!(found == whole, "kind {i} cut {dims:?} over {axes:?}");
        }
    }
}

#[test]
fn the_compiler_may_cut_too() {
    let whole = results(|| kinds(&Key::constant(11)?.draw(&[ROWS, COLUMNS])));
    let mesh = Mesh::new(&[("x", 4), ("y", 2)]).unwrap();
    let sharding = mesh.sharding(&[&["x"], &["y"]]).unwrap();
    let program = Program::trace("automatic", &[], |_| {
        let kinds = kinds(&Key::constant(11)?.draw(&[ROWS, COLUMNS]))?;
        kinds.iter().map(|kind| kind.constrain(&sharding)).collect()
    });
    let program = program.unwrap().on_mesh(&mesh).unwrap();
    let program = program.sharded_results(&vec![sharding; whole.len()]).unwrap();
    assert!(run(&program, &[]) == whole);
}

#[test]
fn a_region_may_be_manual_over_some_axes_only() {
    let whole = results(|| kinds(&Key::constant(11)?.draw(&[ROWS, COLUMNS])));
    let mesh = Mesh::new(&[("x", 4), ("y", 2)]).unwrap();
    for dims in [[&["x"][..], &[]], [&[], &["x"]]] {
        let shardings = vec![mesh.sharding(&dims).unwrap(); whole.len()];
        let program = Program::trace("partly", &[], |_| {
            let key = Key::constant(11)?;
            mesh.manual(&["x"], &[], &shardings, |_| kinds(&cut_draw(&key, &mesh, dims)?))
        });
        let program = program.unwrap().on_mesh(&mesh).unwrap().sharded_results(&shardings).unwrap();
        assert!(run(&program, &[]) == whole, "{dims:?}");
    }
}

#[test]
fn more_elements_than_a_word_counts() {
    let program = Program::trace("many", &[], |_| {
        let bits = Key::constant(0)?.draw(&[4, 1 << 30, 4]).bits()?;
        let words = [constant(&[], &[2_u32])?, (iota(DType::U32, &[8], 0)? + 20.0)?];
        let zero = zeros(DType::U32, &[])?;
        let [expected, _] = threefry(13, [&zero, &zero], [&words[0], &words[1]])?;
        Ok(vec![bits.slice(&[2, 5, 0], &[3, 7, 4])?.reshape(&[8])?, expected])
    });
    let program = program.unwrap();
    // The compiler makes only what is asked for, or this would take 64 GiB.
    assert!(compile(&program).executable().memory().unwrap().total() < 1 << 20);
    let found = run(&program, &[]);
    assert_eq!(found[0], found[1]);
}

#[test]
fn dropout_keeps_the_mean_and_its_gradient_is_its_mask() {
    let found = results(|| {
        let x = ones(DType::F32, &[COUNT])?;
        let key = Key::constant(4)?;
        let (_, dropped, gradients) = value_aux_and_grad(&[&x], |x| {
            let dropped = key.draw(&[COUNT]).dropout(&x[0], 0.25)?;
            Ok((dropped.sum_all()?, vec![dropped]))
        })?;
        Ok(vec![dropped[0].clone(), gradients[0].clone()])
    });
    assert_eq!(found[0], found[1]);
    let values = found[0].to_f64().unwrap();
    let deviation = (0.25 / 0.75 / COUNT as f64).sqrt();
    assert_near("dropout", mean(&values, |x| x), 1.0, deviation);
    let kept = f64::from(1.0_f32 / 0.75);
    assert!(values.iter().all(|&x| x == 0.0 || x == kept));
}

/// Two layers with dropout: the value, the first layer's mask, and the gradients.
fn layers(
    x: &Tensor,
    weights: &Tensor,
    draws: &[Draw; 2],
    policy: Option<Policy>,
) -> Result<Vec<Tensor>> {
    let layer = |inputs: &[Tensor]| {
        let hidden = draws[0].dropout(&inputs[0].linear(&inputs[1])?.tanh()?, 0.3)?;
        draws[1].dropout(&(hidden * &inputs[0])?, 0.1)
    };
    let (value, gradients) = value_and_grad(&[x, weights], |inputs| {
        let out = match &policy {
            None => layer(&inputs)?,
            Some(policy) => {
                let inputs = [&inputs[0], &inputs[1]];
                remat(policy.clone(), &inputs, |inputs| Ok(vec![layer(&inputs)?]))?.remove(0)
            }
        };
        out.square()?.sum_all()
    })?;
    let mask = draws[0].dropout(&ones(x.dtype(), x.dims())?, 0.3)?;
    Ok([value, mask].into_iter().chain(gradients).collect())
}

/// Traces `layers` with inputs that are themselves random.
fn trace_layers(policy: Option<Policy>) -> Vec<HostTensor> {
    let seed = Argument::new(TensorType::new(DType::U32, &[2]));
    let program = Program::trace("layers", &[seed], |seed| {
        let key = Key::new(&seed[0])?;
        let x = key.named("x")?.draw(&[ROWS, COLUMNS]).normal(DType::F32)?;
        let weights = key.named("w")?.draw(&[COLUMNS, COLUMNS]).normal(DType::F32)?;
        let draw = |name| Ok(key.named(name)?.draw(&[ROWS, COLUMNS]));
        layers(&x, &weights, &[draw("a")?, draw("b")?], policy)
    });
    run(&program.unwrap(), &[HostTensor::from_values(&[2], &[8_u32, 9]).unwrap()])
}

#[test]
fn a_mask_computed_again_is_the_same() {
    let plain = trace_layers(None);
    for policy in [Policy::Nothing, Policy::Dots, Policy::Everything] {
        assert!(trace_layers(Some(policy.clone())) == plain, "{policy:?}");
    }
    // What the forward pass dropped has no gradient in the backward pass, and nothing else.
    let gradient = results(|| {
        let key = Key::constant(6)?;
        let x = key.named("x")?.draw(&[COUNT]).normal(DType::F32)?;
        let draw = key.named("mask")?.draw(&[COUNT]);
        let (_, forward, gradients) = value_aux_and_grad(&[&x], |x| {
            let dropped =
                remat(Policy::Nothing, &[&x[0]], |x| Ok(vec![draw.dropout(&x[0].tanh()?, 0.5)?]))?;
            Ok((dropped[0].sum_all()?, dropped))
        })?;
        Ok(vec![forward[0].clone(), gradients[0].clone()])
    });
    let [forward, backward] = [0, 1].map(|i| gradient[i].to_f64().unwrap());
    let differ = forward.iter().zip(&backward).filter(|(f, b)| (**f == 0.0) != (**b == 0.0));
    assert_eq!(differ.count(), 0);
}

#[test]
fn dropout_is_the_same_on_one_two_and_eight_devices() {
    let plain = trace_layers(None);
    for (axes, dims) in [CUTS[0], CUTS[4]] {
        let mesh = Mesh::new(axes).unwrap();
        let cut = mesh.sharding(&dims).unwrap();
        let whole = mesh.replicated(2);
        let shardings = [mesh.replicated(0), cut.clone(), cut.clone(), whole.clone()];
        let seed = Argument::new(TensorType::new(DType::U32, &[2]));
        let program = Program::trace("layers", &[seed], |seed| {
            let key = Key::new(&seed[0])?;
            mesh.manual(&["x"], &[], &shardings, |_| {
                let x = cut_draw(&key.named("x")?, &mesh, dims)?.normal(DType::F32)?;
                let weights = key.named("w")?.draw(&[COLUMNS, COLUMNS]).normal(DType::F32)?;
                let draw = |name| cut_draw(&key.named(name)?, &mesh, dims);
                let draws = [draw("a")?, draw("b")?];
                let mut results = layers(&x, &weights, &draws, Some(Policy::Nothing))?;
                let data = mesh.over(&["x"])?;
                results[0] = data.sum(&results[0])?;
                results[3] = data.sum(&results[3])?;
                Ok(results)
            })
        });
        let program = program.unwrap().on_mesh(&mesh).unwrap().sharded_results(&shardings).unwrap();
        let found = run(&program, &[HostTensor::from_values(&[2], &[8_u32, 9]).unwrap()]);
        assert!(found[1] == plain[1], "the mask over {axes:?}");
        for (found, plain) in found.iter().zip(&plain) {
            assert_close(&found.to_f64().unwrap(), &plain.to_f64().unwrap(), 2e-5);
        }
    }
}

#[test]
fn mistakes_are_named() {
    let error = |trace: &dyn Fn(&Key, &Mesh) -> Result<Tensor>| {
        let mesh = Mesh::new(&[("x", 2)]).unwrap();
        let program = Program::trace("wrong", &[], |_| Ok(vec![trace(&Key::constant(0)?, &mesh)?]));
        program.unwrap_err().to_string()
    };
    let long = |_: &Key, _: &Mesh| Key::new(&ones(DType::U32, &[3])?)?.draw(&[]).bits();
    assert_eq!(error(&long), "key: a seed is tensor<2xui32>, not tensor<3xui32>");
    let fold = |key: &Key, _: &Mesh| key.fold(&ones(DType::F32, &[])?)?.draw(&[]).bits();
    assert_eq!(error(&fold), "fold: tensor<f32> is no integer");
    let odd = |key: &Key, mesh: &Mesh| key.draw(&[3, 2]).cut(0, &mesh.over(&["x"])?)?.bits();
    assert_eq!(error(&odd), "draw: dimension 0 of [3, 2] in 2 parts");
    let twice = |key: &Key, mesh: &Mesh| {
        let group = mesh.over(&["x"])?;
        key.draw(&[4, 2]).cut(0, &group)?.cut(1, &group)?.bits()
    };
    assert!(
        error(&twice).ends_with("dimension 1 of [4, 2] in 2 parts by an axis that cuts it already")
    );
    let whole = |key: &Key, _: &Mesh| key.draw(&[2]).uniform(DType::I32);
    assert_eq!(error(&whole), "uniform: i32 is no floating-point type");
    let limits = |key: &Key, _: &Mesh| key.draw(&[2]).truncated_normal(DType::F32, 2.0, -2.0);
    assert_eq!(error(&limits), "truncated_normal: no normal numbers from 2 to -2");
    let chance = |key: &Key, _: &Mesh| key.draw(&[2]).bernoulli(1.5);
    assert_eq!(error(&chance), "bernoulli: 1.5 is no probability");
    let mask = |key: &Key, _: &Mesh| key.draw(&[2]).dropout(&ones(DType::F32, &[3])?, 0.1);
    assert_eq!(error(&mask), "dropout: 0.1 of tensor<3xf32> with a mask of [2]");
}
