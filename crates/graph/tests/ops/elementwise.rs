//! Elementwise ops, with broadcasting.

use crate::check::{Input, check, check_gradient, config, dims};
use crate::random::Random;
use fullshard_graph::{Comparison, DType, Result, Tensor, barrier, full, select};
use proptest::prelude::*;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

/// The error function near zero, by its series.
fn erf(x: f64) -> f64 {
    let mut power = x;
    let mut sum = x;
    for n in 1..60 {
        power *= -x * x / f64::from(n);
        sum += power / f64::from(2 * n + 1);
    }
    sum * FRAC_2_SQRT_PI
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

fn check_unary(input: Input, op: impl Fn(&Tensor) -> Result<Tensor>, value: impl Fn(f64) -> f64) {
    check(&[&input], |x| op(&x[0]), |index| value(input.at(index)));
}

/// A property for each unary op: its name, the inputs, the op and the reference function.
macro_rules! unary {
    ($($name:ident, $inputs:ident, $op:expr, $value:expr;)*) => {
        proptest! {
            #![proptest_config(config())]
            $(#[test]
            fn $name(dims in dims(), seed: u64) {
                check_unary(Random::new(seed).$inputs(&dims), $op, $value);
            })*
        }
    };
}

unary! {
    negate, around_zero, |x: &Tensor| -x, |x| -x;
    exp, around_zero, Tensor::exp, f64::exp;
    expm1, around_zero, Tensor::expm1, f64::exp_m1;
    log, positive, Tensor::log, f64::ln;
    log1p, positive, Tensor::log1p, f64::ln_1p;
    logistic, around_zero, Tensor::sigmoid, sigmoid;
    tanh, around_zero, Tensor::tanh, f64::tanh;
    sin, around_zero, Tensor::sin, f64::sin;
    cos, around_zero, Tensor::cos, f64::cos;
    sqrt, positive, Tensor::sqrt, f64::sqrt;
    rsqrt, positive, Tensor::rsqrt, |x| 1.0 / x.sqrt();
    abs, spaced, Tensor::abs, f64::abs;
    error_function, around_zero, Tensor::erf, erf;
    sign, spaced, Tensor::sign, f64::signum;
    floor, spaced, Tensor::floor, f64::floor;
    round, spaced, Tensor::round, f64::round_ties_even;
    square, around_zero, Tensor::square, |x| x * x;
    clamp, spaced, |x: &Tensor| x.clamp(-0.3, 0.7), |x| x.clamp(-0.3, 0.7);
    pow_of_positive, positive, |x: &Tensor| x.pow(-1.7), |x| x.powf(-1.7);
    pow_of_any, around_zero, |x: &Tensor| x.pow(3.0), |x| x.powi(3);
    relu, spaced, Tensor::relu, |x| x.max(0.0);
    silu, around_zero, Tensor::silu, |x| x * sigmoid(x);
    gelu, around_zero, Tensor::gelu, |x| 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2));
    gelu_by_tanh, around_zero, Tensor::gelu_tanh, gelu_tanh;
    gelu_by_sigmoid, around_zero, Tensor::gelu_sigmoid, |x| x * sigmoid(1.702 * x);
    remainder, spaced, |x: &Tensor| x.remainder(&full(DType::F64, &[], 0.7)?), |x| x % 0.7;
    numbers_to_the_right, around_zero,
        |x: &Tensor| (((x + 2.0)? * 3.0)? - 1.0)? / 4.0, |x| ((x + 2.0) * 3.0 - 1.0) / 4.0;
    numbers_to_the_left, positive,
        |x: &Tensor| 2.0 - &(1.5 / &(0.5 + &(1.2 * x)?)?)?, |x| 2.0 - 1.5 / (0.5 + 1.2 * x);
    named, around_zero, |x: &Tensor| x.sin()?.named("sine")?.square(), |x| x.sin().powi(2);
    barriers, around_zero, barrier_of_two, |x| x.sin() + x.exp();
    barrier_with_an_unused_result, around_zero,
        |x: &Tensor| barrier(&[&x.sin()?, x])?[0].square(), |x| x.sin().powi(2);
}

fn barrier_of_two(x: &Tensor) -> Result<Tensor> {
    let both = barrier(&[&x.sin()?, &x.exp()?])?;
    &both[0] + &both[1]
}

/// A property for each binary op of two tensors that broadcast.
macro_rules! binary {
    ($($name:ident, $inputs:ident, $op:expr, $value:expr;)*) => {
        proptest! {
            #![proptest_config(config())]
            $(#[test]
            fn $name(dims in dims(), seed: u64) {
                let inputs = $inputs(&mut Random::new(seed), &dims);
                let value = |index: &[usize]| {
                    let value: fn(f64, f64) -> f64 = $value;
                    value(inputs[0].broadcast_at(index), inputs[1].broadcast_at(index))
                };
                let op: fn(&Tensor, &Tensor) -> Result<Tensor> = $op;
                check(&inputs, |x| op(&x[0], &x[1]), value);
            })*
        }
    };
}

fn positive_pair(random: &mut Random, dims: &[usize]) -> Vec<Input> {
    let dims = [random.broadcastable(dims), random.broadcastable(dims)];
    dims.iter().map(|dims| random.positive(dims)).collect()
}

fn spaced_pair(random: &mut Random, dims: &[usize]) -> Vec<Input> {
    let (a, b) = (random.broadcastable(dims), random.broadcastable(dims));
    random.spaced_all(&[&a, &b])
}

binary! {
    add, spaced_pair, |a, b| a + b, |a, b| a + b;
    subtract, spaced_pair, |a, b| a - b, |a, b| a - b;
    multiply, spaced_pair, |a, b| a * b, |a, b| a * b;
    divide, positive_pair, |a, b| a / b, |a, b| a / b;
    maximum, spaced_pair, |a, b| a.maximum(b), f64::max;
    minimum, spaced_pair, |a, b| a.minimum(b), f64::min;
    select_by_comparison, spaced_pair,
        |a, b| select(&a.compare(Comparison::Less, b)?, &a.sin()?, &b.cos()?),
        |a, b| if a < b { a.sin() } else { b.cos() };
    operators_of_owned_tensors, positive_pair,
        |a, b| {
            let sum = (a.exp()? + b.exp()?)?;
            let product = (sum.clone() * b)?;
            let difference = (a - product)?;
            difference / sum
        },
        |a, b| (a - (a.exp() + b.exp()) * b) / (a.exp() + b.exp());
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn select_by_a_broadcast_condition(dims in dims(), seed: u64) {
        let mut random = Random::new(seed);
        let (own, condition) = (random.broadcastable(&dims), random.broadcastable(&dims));
        let inputs = random.spaced_all(&[&dims, &own, &condition]);
        check(
            &inputs,
            |x| {
                let zero = full(DType::F64, &[], 0.0)?;
                select(&x[2].compare(Comparison::GreaterEqual, &zero)?, &x[0], &x[1])
            },
            |index| {
                let chosen = usize::from(inputs[2].broadcast_at(index) < 0.0);
                inputs[chosen].broadcast_at(index)
            },
        );
    }

    #[test]
    fn convert(dims in dims(), seed: u64) {
        // Single precision has a relative rounding error of 6e-8: divided by the step and summed
        // over the elements, that stays below 1e-4. The function is linear, so the step may be
        // large.
        let input = Random::new(seed).around_zero(&dims);
        let (_, output) = check_gradient(&[&input], 0.05, 1e-4, |x| {
            // Behind a barrier, since XLA for GPUs drops a conversion and its inverse.
            barrier(&[&x[0].convert(DType::F32)?])?.remove(0).convert(DType::F64)
        });
        let expected: Vec<f64> = input.values.iter().map(|&x| f64::from(x as f32)).collect();
        prop_assert_eq!(output, expected);
    }
}
