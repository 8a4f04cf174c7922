//! Convolutions and pooling.

use crate::check::{Input, check, config, indices};
use crate::random::Random;
use fullshard_graph::{Convolution, Result, Tensor};
use proptest::prelude::*;

/// A window over one dimension.
#[derive(Debug, Clone)]
struct Window {
    size: usize,
    stride: usize,
    padding: (usize, usize),
    dilation: usize,
}

impl Window {
    /// A window with padding smaller than its size.
    fn random(random: &mut Random, dilated: bool) -> Window {
        let size = 1 + random.below(3);
        let dilation = if dilated { 1 + random.below(2) } else { 1 };
        Window {
            size,
            stride: 1 + random.below(3),
            padding: (random.below(size), random.below(size)),
            dilation,
        }
    }

    /// An image size at least as large as the window.
    fn image(&self, random: &mut Random) -> usize {
        (self.size - 1) * self.dilation + 1 + random.below(3)
    }
}

/// The image position of an element of a window, unless it is padding.
fn source(x: &Input, windows: &[Window], index: &[usize], within: &[usize]) -> Option<Vec<usize>> {
    let position = |(i, window): (usize, &Window)| {
        let position = index[i] * window.stride + within[i] * window.dilation;
        position.checked_sub(window.padding.0).filter(|&position| position < x.dims[i + 1])
    };
    windows.iter().enumerate().map(position).collect()
}

fn check_convolution(spatial: usize, seed: u64, configured: bool) {
    let mut random = Random::new(seed);
    let groups = if configured { 1 + random.below(3) } else { 1 };
    let (inputs, outputs) = (1 + random.below(2), groups * (1 + random.below(2)));
    let windows: Vec<Window> =
        (0..spatial).map(|_| Window::random(&mut random, configured)).collect();
    let sizes: Vec<usize> = windows.iter().map(|window| window.size).collect();
    let image: Vec<usize> = windows.iter().map(|window| window.image(&mut random)).collect();
    let batch = 1 + random.below(2);
    let x = random.around_zero(&[&[batch], &image[..], &[inputs * groups]].concat());
    let kernel = random.around_zero(&[&sizes[..], &[inputs, outputs]].concat());
    let convolution = Convolution::new(spatial)
        .stride(&windows.iter().map(|window| window.stride).collect::<Vec<_>>())
        .padding(&windows.iter().map(|window| window.padding).collect::<Vec<_>>())
        .dilation(&windows.iter().map(|window| window.dilation).collect::<Vec<_>>())
        .groups(groups);
    check(
        &[&x, &kernel],
        |x| convolution.apply(&x[0], &x[1]),
        |index| {
            let output = index[spatial + 1];
            let group = output / (outputs / groups);
            let term = |within: Vec<usize>| {
                let Some(position) = source(&x, &windows, &index[1..=spatial], &within) else {
                    return 0.0;
                };
                let product = |i: usize| {
                    x.at(&[&[index[0]], &position[..], &[group * inputs + i]].concat())
                        * kernel.at(&[&within[..], &[i, output]].concat())
                };
                (0..inputs).map(product).sum()
            };
            indices(&sizes).into_iter().map(term).sum()
        },
    );
}

type Pool = fn(&Tensor, &[usize], &[usize], &[(usize, usize)]) -> Result<Tensor>;

/// Checks a pooling op against a function of the elements in a window and the window's size.
fn check_pool(spatial: usize, seed: u64, pool: Pool, value: impl Fn(&[f64], usize) -> f64) {
    let mut random = Random::new(seed);
    let windows: Vec<Window> = (0..spatial).map(|_| Window::random(&mut random, false)).collect();
    let sizes: Vec<usize> = windows.iter().map(|window| window.size).collect();
    let strides: Vec<usize> = windows.iter().map(|window| window.stride).collect();
    let padding: Vec<(usize, usize)> = windows.iter().map(|window| window.padding).collect();
    let image: Vec<usize> = windows.iter().map(|window| window.image(&mut random)).collect();
    let x = random.spaced(&[&[2], &image[..], &[2]].concat());
    check(
        &[&x],
        |x| pool(&x[0], &sizes, &strides, &padding),
        |index| {
            let at = |within: Vec<usize>| {
                let position = source(&x, &windows, &index[1..=spatial], &within)?;
                Some(x.at(&[&[index[0]], &position[..], &[index[spatial + 1]]].concat()))
            };
            let values: Vec<f64> = indices(&sizes).into_iter().filter_map(at).collect();
            value(&values, sizes.iter().product())
        },
    );
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn plain_convolution(spatial in 1..=2_usize, seed: u64) {
        check_convolution(spatial, seed, false);
    }

    #[test]
    fn convolution_with_groups_and_dilation(spatial in 1..=2_usize, seed: u64) {
        check_convolution(spatial, seed, true);
    }

    #[test]
    fn max_pool(spatial in 1..=2_usize, seed: u64) {
        check_pool(spatial, seed, Tensor::max_pool, |values, _| {
            values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
        });
    }

    #[test]
    fn sum_pool(spatial in 1..=2_usize, seed: u64) {
        check_pool(spatial, seed, Tensor::sum_pool, |values, _| values.iter().sum());
    }

    #[test]
    fn mean_pool(spatial in 1..=2_usize, seed: u64) {
        check_pool(spatial, seed, Tensor::mean_pool, |values, size| {
            values.iter().sum::<f64>() / size as f64
        });
    }
}
