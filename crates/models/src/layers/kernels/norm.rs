//! Norms as kernels for NVIDIA GPUs, which read a row once: the forward pass, and the backward pass,
//! which also adds the gradient that the residual stream has besides, and sums the gradients of
//! weight and bias over the rows that it has in registers anyway.

use crate::layers::checkpoint;
use crate::scope::Scope;
use fullshard_graph::triton::{Address, Builder, Grid, Pointer, Value, kernel, split_rows};
use fullshard_graph::{DType, Error, Result, Tensor, TensorType, custom_vjp, zeros};

/// The elements of a row that a thread has.
const PER_THREAD: usize = 32;

/// About the number of programs of the backward pass, each of which writes sums over its rows: four
/// for each multiprocessor of the GPUs of today.
const PROGRAMS: usize = 512;

/// The widest row that fits the registers of one program.
const WIDEST: usize = 16384;

/// A norm of rows `[..., width]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Whether rows are centered and a bias is added, as layer norm does, or neither.
    pub centered: bool,
    /// What is added to the variance.
    pub epsilon: f64,
}

/// The gradients of what a norm reads.
struct Gradients {
    x: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
}

/// Why kernels do not compute the norm of rows, if so.
pub fn unsupported_reason(x: &TensorType) -> Option<String> {
    let width = x.dims.last().copied().unwrap_or_default();
    let wide = format!("rows have {width} elements, and {WIDEST} at most fit");
    super::unsupported_reason(x).or((width > WIDEST).then_some(wide))
}

/// Whether norms of `x` are kernels here.
pub(in crate::layers) fn is_used(nn: &Scope<'_>, x: &Tensor) -> bool {
    super::are_used(nn, x) && unsupported_reason(x.ty()).is_none()
}

impl Norm {
    /// The norm of rows `[..., width]`, given its weight and, if centered, its bias.
    pub fn apply(self, x: &Tensor, parameters: &[&Tensor]) -> Result<Tensor> {
        let [_, normalized] = self.differentiable(x, parameters, false)?;
        Ok(normalized)
    }

    /// The same with the rows, whose gradient the kernel then adds to.
    pub fn apply_residual(self, x: &Tensor, parameters: &[&Tensor]) -> Result<[Tensor; 2]> {
        self.differentiable(x, parameters, true)
    }

    /// The outputs of the kernel are inputs of the function that is differentiated, and so ordinary
    /// values, which a rematerialization policy can save.
    fn differentiable(
        self,
        x: &Tensor,
        parameters: &[&Tensor],
        is_residual: bool,
    ) -> Result<[Tensor; 2]> {
        let constants: Vec<Tensor> =
            parameters.iter().map(|it| it.stop_gradient()).collect::<Result<_>>()?;
        let constants: Vec<&Tensor> = constants.iter().collect();
        let (normalized, statistics) = self.forward(&x.stop_gradient()?, &constants)?;
        let statistics: Vec<Tensor> =
            statistics.iter().map(|it| it.named(checkpoint::NORM_STATS)).collect::<Result<_>>()?;
        let inputs: Vec<&Tensor> = [x]
            .into_iter()
            .chain(parameters.iter().copied())
            .chain(&statistics)
            .chain([&normalized])
            .collect();
        let count = parameters.len();
        let outputs = |inputs: &[Tensor]| vec![inputs[0].clone(), inputs[inputs.len() - 1].clone()];
        let results = custom_vjp(
            &inputs,
            |inputs| Ok(outputs(&inputs)),
            |inputs| {
                // What the backward pass needs: neither the bias nor the result.
                let statistics = &inputs[1 + count..inputs.len() - 1];
                let saved = [&inputs[..2], statistics].concat();
                Ok((outputs(&inputs), saved))
            },
            |saved, gradients| {
                let statistics: Vec<&Tensor> = saved[2..].iter().collect();
                let residual = is_residual.then_some(&gradients[0]);
                let own =
                    self.backward(&saved[0], &saved[1], &statistics, &gradients[1], residual)?;
                let unused = statistics.iter().copied().chain([&gradients[1]]);
                let unused = unused.map(|it| zeros(it.dtype(), it.dims()));
                let unused = unused.collect::<Result<Vec<_>>>()?;
                Ok([own.x, own.weight].into_iter().chain(own.bias).chain(unused).collect())
            },
        )?;
        results.try_into().map_err(|_| missing("result"))
    }

    /// The normalized rows and their statistics `[..., 1]`: the mean, if centered, and the factor.
    fn forward(self, x: &Tensor, parameters: &[&Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
        let rows = Rows::of(x)?;
        let mut dims = x.dims().to_vec();
        dims[x.rank() - 1] = 1;
        let statistic = TensorType::new(DType::F32, &dims);
        let count = self.statistics();
        let results = [vec![x.ty().clone()], vec![statistic; count]].concat();
        let operands: Vec<&Tensor> = [x].into_iter().chain(parameters.iter().copied()).collect();
        let grid = Grid { programs: rows.count, warps: rows.warps() };
        let results =
            kernel(self.name("forward"), grid, &operands, &results, |k, inputs, outputs| {
                let row = Row::new(k, rows, &k.program());
                let x = row.load(&inputs[0]);
                let mean = self.centered.then(|| x.sum(0) / rows.width as f64);
                let centered =
                    mean.as_ref().map_or(x.clone(), |mean| (&x - mean).or_zero(row.mask.as_ref()));
                let variance = (&centered * &centered).sum(0) / rows.width as f64;
                let factor = (variance + self.epsilon).rsqrt();
                let normalized = centered * &factor;
                row.at(&outputs[0]).store(&self.scaled(&row, normalized, &inputs[1..], rows.dtype));
                for (output, statistic) in outputs[1..].iter().zip(mean.iter().chain([&factor])) {
                    output.at(&k.program()).store(statistic);
                }
            })?;
        let mut results = results.into_iter();
        let normalized = results.next().ok_or_else(|| missing("result"))?;
        Ok((normalized, results.collect()))
    }

    /// The gradients, given what [`Norm::forward`] was given, its statistics, the gradient of its
    /// result, and what to add to the gradient of `x`.
    fn backward(
        self,
        x: &Tensor,
        weight: &Tensor,
        statistics: &[&Tensor],
        gradient: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Gradients> {
        let rows = Rows::of(x)?;
        let (each, programs) = split_rows(rows.count, PROGRAMS);
        let sums = TensorType::new(DType::F32, &[programs, rows.width]);
        let results = [vec![x.ty().clone()], vec![sums; self.statistics()]].concat();
        let operands = [x, weight, gradient].into_iter().chain(statistics.iter().copied());
        let operands: Vec<&Tensor> = operands.chain(residual).collect();
        let grid = Grid { programs, warps: rows.warps() };
        let name = self.name(if residual.is_some() { "residual_backward" } else { "backward" });
        let results = kernel(name, grid, &operands, &results, |k, inputs, outputs| {
            let (statistics, residual) = inputs[3..].split_at(self.statistics());
            let rows_read = [&inputs[0], &inputs[2]].into_iter().chain(residual);
            let load = |index: &Value| -> Vec<Value> {
                let row = Row::new(k, rows, index);
                rows_read.clone().map(|pointer| row.at(pointer).load()).collect()
            };
            let weight = Row::new(k, rows, &k.int(0)).load(&inputs[1]);
            let first = k.program() * each;
            let last = k.int(rows.count as i64 - 1);
            let end = (&first + each).min(&(&last + 1));
            let sums = vec![k.zeros(&[rows.block()]); self.statistics()];
            // The next row is loaded while this one is computed.
            let carried = [sums, load(&first)].concat();
            let sums = k.for_each(&first, &end, &carried, |index, carried| {
                let next = load(&(index + 1).min(&last));
                let (sums, current) = carried.split_at(self.statistics());
                let row = Row::new(k, rows, index);
                let statistics = statistics.iter().map(|it| it.at(index).load());
                let (x_grad, terms) =
                    self.row_gradients(&row, &weight, &statistics.collect::<Vec<_>>(), current);
                row.at(&outputs[0]).store(&x_grad);
                let sums = sums.iter().zip(terms).map(|(sum, term)| sum + term);
                sums.chain(next).collect()
            });
            let own = Row::new(k, rows, &k.program());
            for (output, sum) in outputs[1..].iter().zip(&sums) {
                own.at(output).store(sum);
            }
        })?;
        let summed = |sums: &Tensor| sums.sum(&[0])?.convert(weight.dtype());
        Ok(Gradients {
            x: results[0].clone(),
            weight: summed(&results[1])?,
            bias: results.get(2).map(summed).transpose()?,
        })
    }

    /// The gradient of a row, and its terms of the gradients of weight and bias. `values` are the
    /// row, the gradient of the result, and what to add, if anything. With `n` the normalized row and
    /// `g` its gradient, the gradient of the row is `g - n mean(g n)`, less `mean(g)` if centered,
    /// times the factor.
    fn row_gradients(
        self,
        row: &Row<'_>,
        weight: &Value,
        statistics: &[Value],
        values: &[Value],
    ) -> (Value, Vec<Value>) {
        let (x, gradient) = (values[0].float(), values[1].float());
        let factor = &statistics[statistics.len() - 1];
        let normalized = match self.centered {
            true => (x - &statistics[0]).or_zero(row.mask.as_ref()) * factor,
            false => x * factor,
        };
        let mean = |x: &Value| x.sum(0) / row.rows.width as f64;
        let scaled = &gradient * weight;
        let projected = &scaled - &normalized * mean(&(&scaled * &normalized));
        let centered = if self.centered { projected - mean(&scaled) } else { projected };
        let x_grad = centered * factor;
        let x_grad = values[2..].iter().fold(x_grad, |sum, residual| sum + residual.float());
        let terms = match self.centered {
            true => vec![&gradient * normalized, gradient],
            // The weight multiplies the rounded row.
            false => vec![gradient * normalized.rounded(row.rows.dtype)],
        };
        (x_grad, terms)
    }

    /// With weight and bias, as the layers round.
    fn scaled(
        self,
        row: &Row<'_>,
        normalized: Value,
        parameters: &[Pointer],
        dtype: DType,
    ) -> Value {
        let first = Row::new(row.builder, row.rows, &row.builder.int(0));
        let parameters: Vec<Value> = parameters.iter().map(|it| first.load(it)).collect();
        match &parameters[..] {
            [weight, bias] => normalized * weight + bias,
            _ => normalized.rounded(dtype) * &parameters[0],
        }
    }

    fn statistics(self) -> usize {
        if self.centered { 2 } else { 1 }
    }

    fn name(self, direction: &str) -> &'static str {
        match (self.centered, direction) {
            (true, "forward") => "layer_norm_forward",
            (true, "backward") => "layer_norm_backward",
            (true, _) => "layer_norm_residual_backward",
            (false, "forward") => "rms_norm_forward",
            (false, "backward") => "rms_norm_backward",
            (false, _) => "rms_norm_residual_backward",
        }
    }
}

/// The rows of a tensor.
#[derive(Debug, Clone, Copy)]
struct Rows {
    count: usize,
    width: usize,
    dtype: DType,
}

impl Rows {
    fn of(x: &Tensor) -> Result<Rows> {
        if let Some(reason) = unsupported_reason(x.ty()) {
            return Err(Error::new("norm", format!("kernels cannot be used: {reason}")));
        }
        let width = x.dims()[x.rank() - 1];
        Ok(Rows { count: x.ty().elements() / width, width, dtype: x.dtype() })
    }

    /// The block that a row fits in.
    fn block(self) -> usize {
        self.width.next_power_of_two()
    }

    fn warps(self) -> usize {
        (self.block() / PER_THREAD / 32).clamp(1, 32)
    }
}

/// One row, in a block.
struct Row<'a> {
    builder: &'a Builder,
    rows: Rows,
    positions: Value,
    mask: Option<Value>,
}

impl<'a> Row<'a> {
    fn new(builder: &'a Builder, rows: Rows, index: &Value) -> Row<'a> {
        let columns = builder.range(rows.block());
        let mask = (rows.width < rows.block()).then(|| columns.less_than(rows.width));
        Row { builder, rows, positions: index * rows.width + columns, mask }
    }

    fn at(&self, pointer: &Pointer) -> Address {
        pointer.at(&self.positions).only_if(self.mask.as_ref())
    }

    fn load(&self, pointer: &Pointer) -> Value {
        self.at(pointer).load().convert(DType::F32)
    }
}

fn missing(what: &str) -> Error {
    Error::new("norm", format!("a {what} is missing"))
}
