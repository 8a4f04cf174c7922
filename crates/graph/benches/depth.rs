//! Compile time over depth with scanned layers: the gradient step of 12 and of 96 blocks, compiled
//! alternately on CPU.
//!
//!     cargo bench -p fullshard-graph --bench depth
#![allow(clippy::unwrap_used)]

use fullshard_graph::{Argument, DType, Policy, Program, TensorType, remat, scan, value_and_grad};
use fullshard_pjrt::plugins::{Platform, Store, find_or_install};
use fullshard_pjrt::{Client, ClientOptions, CompileOptions, Plugin};
use std::time::Instant;

const ROUNDS: usize = 9;
const WIDTH: usize = 64;

fn main() {
    let store = Store::default_location().unwrap();
    let located = find_or_install(Platform::Cpu, None, &store).unwrap();
    let plugin = Plugin::load(&located.path).unwrap();
    let client = Client::new(plugin, &ClientOptions::new().cpu_device_count(1)).unwrap();
    let texts = [12, 96].map(|layers| stack(layers).to_text());
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..=ROUNDS {
        for (text, seconds) in texts.iter().zip(&mut seconds) {
            let start = Instant::now();
            client.compile(text, &CompileOptions::new(1)).unwrap();
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    let [few, many] = seconds.map(|mut seconds| {
        seconds.remove(0);
        seconds.sort_by(f64::total_cmp);
        seconds[ROUNDS / 2]
    });
    println!(
        "12 layers {:.1} ms, 96 layers {:.1} ms: {:.3} times; text {:.3} times",
        few * 1e3,
        many * 1e3,
        many / few,
        texts[1].len() as f64 / texts[0].len() as f64
    );
}

fn stack(layers: usize) -> Program {
    let argument = |dims: &[usize]| Argument::new(TensorType::new(DType::F32, dims));
    let arguments = [
        argument(&[128, WIDTH]),
        argument(&[layers, WIDTH, 4 * WIDTH]),
        argument(&[layers, 4 * WIDTH, WIDTH]),
    ];
    Program::trace("stack", &arguments, |inputs| {
        let (loss, gradients) = value_and_grad(&[&inputs[1], &inputs[2]], |weights| {
            let results =
                scan(&[&inputs[0]], &[&weights[0], &weights[1]]).run(|carries, slices| {
                    let block = [&carries[0], &slices[0], &slices[1]];
                    let next = remat(Policy::Nothing, &block, |x| {
                        let hidden = x[0].normalize(1e-5)?.linear(&x[1])?.gelu_tanh()?;
                        Ok(vec![(&x[0] + hidden.linear(&x[2])?)?])
                    })?;
                    Ok((next, vec![]))
                })?;
            results.carries[0].square()?.mean_all()
        })?;
        Ok([loss].into_iter().chain(gradients).collect())
    })
    .unwrap()
}
