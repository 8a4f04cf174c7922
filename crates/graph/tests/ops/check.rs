//! Checks ops against finite differences and reference values.

use crate::common::{CLIENT, assert_close, call, compile};
use crate::random::Random;
use fullshard_graph::{
    Argument, DType, Program, Result, Tensor, TensorType, constant, value_aux_and_grad,
};
use fullshard_pjrt::{CompileOptions, HostTensor, LoadedExecutable};
use proptest::prelude::*;
use std::borrow::Borrow;

/// Half the distance between the two points of a finite difference. Truncation error is of the
/// order of its square, and rounding of the order of 1e-16 divided by it: 1e-10 both.
const STEP: f64 = 1e-5;

/// Tolerance of a finite difference: well above both errors, far below a wrong gradient.
const TOLERANCE: f64 = 1e-6;

/// Tolerance of a value against the reference, due to the order of summation.
const VALUE_TOLERANCE: f64 = 1e-12;

/// Number of directional derivatives.
const DIRECTIONS: usize = 3;

/// Few cases, since each compiles two programs; `PROPTEST_CASES` overrides.
pub fn config() -> ProptestConfig {
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let overridden = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig { cases: if overridden { default.cases } else { 4 }, ..default }
}

/// Dimensions of small tensors.
pub fn dims() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(1..=4_usize, 1..=4)
}

/// An input of a function under test.
#[derive(Debug, Clone)]
pub struct Input {
    pub dims: Vec<usize>,
    pub values: Vec<f64>,
}

impl Input {
    /// The element at an index.
    pub fn at(&self, index: &[usize]) -> f64 {
        assert_eq!(index.len(), self.dims.len());
        self.values[flat(&self.dims, index)]
    }

    /// The element at an index of the broadcast tensor.
    pub fn broadcast_at(&self, index: &[usize]) -> f64 {
        let own = &index[index.len() - self.dims.len()..];
        let own: Vec<usize> =
            own.iter().zip(&self.dims).map(|(&i, &dim)| if dim == 1 { 0 } else { i }).collect();
        self.at(&own)
    }

    fn host(&self) -> HostTensor {
        HostTensor::from_values(&self.dims, &self.values).unwrap()
    }

    fn moved(&self, direction: &[f64], by: f64) -> HostTensor {
        let values: Vec<f64> = self.values.iter().zip(direction).map(|(x, d)| x + d * by).collect();
        HostTensor::from_values(&self.dims, &values).unwrap()
    }
}

/// The row-major offset of an index.
pub fn flat(dims: &[usize], index: &[usize]) -> usize {
    dims.iter().zip(index).fold(0, |offset, (dim, i)| offset * dim + i)
}

/// All indices of a tensor, in row-major order.
pub fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    dims.iter().fold(vec![vec![]], |all, &dim| {
        let longer = |index: &Vec<usize>| {
            let index = index.clone();
            (0..dim).map(move |i| [index.as_slice(), &[i]].concat())
        };
        all.iter().flat_map(longer).collect()
    })
}

/// Checks the gradient of a function, and that its value at each index is the expected one.
pub fn check(
    inputs: &[impl Borrow<Input>],
    function: impl Fn(&[Tensor]) -> Result<Tensor>,
    expected: impl Fn(&[usize]) -> f64,
) {
    let (dims, output) = check_gradient(inputs, STEP, TOLERANCE, function);
    let expected: Vec<f64> = indices(&dims).iter().map(|index| expected(index)).collect();
    assert_close(&output, &expected, VALUE_TOLERANCE);
}

/// Checks the gradient of a function; returns its output's dimensions and values.
pub fn check_gradient(
    inputs: &[impl Borrow<Input>],
    step: f64,
    tolerance: f64,
    function: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> (Vec<usize>, Vec<f64>) {
    let inputs: Vec<&Input> = inputs.iter().map(Borrow::borrow).collect();
    let (value, gradient) = programs(&inputs, function);
    let hosts: Vec<HostTensor> = inputs.iter().map(|input| input.host()).collect();
    let mut results = call(&gradient, &hosts).into_iter();
    let (total, output) = (results.next().unwrap(), results.next().unwrap());
    let gradients: Vec<Vec<f64>> = results.map(|tensor| tensor.to_f64().unwrap()).collect();
    let total = total.to_f64().unwrap();
    assert_close(&total, &call(&value, &hosts)[0].to_f64().unwrap(), VALUE_TOLERANCE);

    let mut random = Random::new(7);
    for _ in 0..DIRECTIONS {
        let directions: Vec<Vec<f64>> =
            inputs.iter().map(|input| random.numbers(input.values.len())).collect();
        let along = |by: f64| {
            let moved = inputs.iter().zip(&directions);
            let moved: Vec<HostTensor> =
                moved.map(|(x, direction)| x.moved(direction, by)).collect();
            call(&value, &moved)[0].to_f64().unwrap()[0]
        };
        let difference = (along(step) - along(-step)) / (2.0 * step);
        let pairs = gradients.iter().flatten().zip(directions.iter().flatten());
        assert_close(&[pairs.map(|(g, d)| g * d).sum()], &[difference], tolerance);
    }
    (output.dims().to_vec(), output.to_f64().unwrap())
}

/// Programs of the weighted sum of a function's output, alone and with the output and gradients.
fn programs(
    inputs: &[&Input],
    function: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> (LoadedExecutable, LoadedExecutable) {
    let arguments: Vec<Argument> = inputs
        .iter()
        .map(|input| Argument::new(TensorType::new(DType::F64, &input.dims)))
        .collect();
    let weighted = |inputs: &[Tensor]| {
        let output = function(inputs)?;
        let weights = Random::new(11).numbers(output.ty().elements());
        Ok(((constant(output.dims(), &weights)? * &output)?.sum_all()?, output))
    };
    let value = Program::trace("value", &arguments, |inputs| Ok(vec![weighted(&inputs)?.0]));
    let gradient = Program::trace("gradient", &arguments, |inputs| {
        let (value, output, gradients) =
            value_aux_and_grad(&inputs.iter().collect::<Vec<_>>(), |inputs| {
                let (value, output) = weighted(&inputs)?;
                Ok((value, vec![output]))
            })?;
        Ok([value].into_iter().chain(output).chain(gradients).collect())
    });
    // The gradient program contains the value's, so other compilers need only see that one.
    let value = CLIENT.compile(&value.unwrap().to_text(), &CompileOptions::new(1)).unwrap();
    (value, compile(&gradient.unwrap()))
}
