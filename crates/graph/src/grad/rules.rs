//! The gradients of ops without regions.

use super::{Context, Cotangent, windows};
use crate::error::{Error, Result};
use crate::mesh::Group;
use crate::op::{Binary, Collective, Comparison, DotDims, Op, Reduction, Unary};
use crate::ops::{barrier, full, select, zeros};
use crate::tensor::Tensor;
use std::f64::consts::FRAC_2_SQRT_PI;
use std::ops::Range;

/// The gradients of a node's inputs for those of its outputs.
pub(super) fn backward(
    op: &Op,
    ctx: Context<'_>,
    cotangents: &[Cotangent],
) -> Result<Vec<Cotangent>> {
    if let Op::Barrier = op {
        return through_barrier(cotangents);
    }
    if let Op::CustomCall(_) | Op::SelectAndScatter { .. } | Op::Sort { .. } = op {
        return Err(no_gradient(op));
    }
    let Some(cotangent) = &cotangents[0] else {
        return Ok(vec![None; ctx.inputs.len()]);
    };
    let x = &ctx.inputs[0];
    let one = |gradient: Tensor| Ok(vec![Some(gradient)]);
    match op {
        Op::Unary(unary) => Ok(vec![through_unary(*unary, &ctx, cotangent)?]),
        Op::Binary(binary) => through_binary(*binary, &ctx, cotangent),
        Op::Select => through_select(&ctx, cotangent),
        Op::Convert => one(cotangent.convert(x.dtype())?),
        Op::Broadcast { dims } => one(unbroadcast(cotangent, dims, x.dims())?),
        Op::Reshape => one(cotangent.reshape(x.dims())?),
        Op::Transpose { permutation } => one(cotangent.transpose(&inverse(permutation))?),
        Op::Reduce { kind, dims } => one(through_reduce(*kind, dims, &ctx, cotangent)?),
        Op::Dot(dims) => through_dot(dims, &ctx, cotangent),
        Op::Slice { start, limit: _, stride } => one(unslice(cotangent, x, start, stride)?),
        Op::DynamicSlice { .. } => {
            let starts: Vec<&Tensor> = ctx.inputs[1..].iter().collect();
            let empty = zeros(x.dtype(), x.dims())?;
            first_of(&ctx, empty.dynamic_update_slice(cotangent, &starts)?)
        }
        Op::DynamicUpdateSlice => through_update(&ctx, cotangent),
        Op::Concatenate { dim } => through_concatenate(*dim, &ctx, cotangent),
        Op::Reverse { dims } => one(cotangent.reverse(dims)?),
        Op::Pad { low, high, interior } => through_pad(low, high, interior, &ctx, cotangent),
        Op::Gather(dims) => {
            let empty = zeros(x.dtype(), x.dims())?;
            first_of(&ctx, empty.scatter_add(&ctx.inputs[1], cotangent, dims.clone())?)
        }
        Op::ScatterAdd(dims) => {
            let updates = cotangent.gather(&ctx.inputs[1], dims.clone(), ctx.inputs[2].dims())?;
            Ok(vec![Some(cotangent.clone()), None, Some(updates)])
        }
        Op::Convolution(dims) => windows::through_convolution(dims, &ctx, cotangent),
        Op::ReduceWindow { kind, window } => {
            one(windows::through_window(*kind, window, x, cotangent)?)
        }
        Op::Name(_) | Op::Move(_) => one(cotangent.clone()),
        Op::StopGradient | Op::Bitcast => Ok(vec![None]),
        Op::Constrain(it) => one(cotangent.constrained(&it.sharding, it.open)?),
        Op::Collective(collective, axes) => {
            one(through_collective(collective, &Group::from_axes(axes), cotangent)?)
        }
        other => Err(no_gradient(other)),
    }
}

fn no_gradient(op: &Op) -> Error {
    let what = match op {
        Op::CustomCall(call) => format!("the custom call `{}`; wrap it in custom_vjp", call.target),
        Op::SelectAndScatter { .. } => "a gradient of max pooling".into(),
        other => format!("{other:?}"),
    };
    Error::new("grad", format!("no gradient of {what}"))
}

/// The gradient of the sum of the results of all devices.
fn through_collective(collective: &Collective, group: &Group, ct: &Tensor) -> Result<Tensor> {
    match collective {
        Collective::AllGather { dim } => group.reduce_scatter(ct, *dim),
        Collective::ReduceScatter { dim } => group.all_gather(ct, *dim),
        Collective::AllReduce { kind: Reduction::Sum } => group.sum(ct),
        Collective::AllReduce { kind } => {
            Err(Error::new("grad", format!("no gradient of an all-reduce by {kind:?}")))
        }
        Collective::AllToAll { split, concat } => group.all_to_all(ct, *concat, *split),
        Collective::Permute { pairs } => {
            let reversed: Vec<_> = pairs.iter().map(|&(from, to)| (to, from)).collect();
            group.permute(ct, &reversed)
        }
    }
}

/// A gradient for the first input only.
fn first_of(ctx: &Context<'_>, gradient: Tensor) -> Result<Vec<Cotangent>> {
    let mut gradients = vec![None; ctx.inputs.len()];
    gradients[0] = Some(gradient);
    Ok(gradients)
}

fn through_barrier(cotangents: &[Cotangent]) -> Result<Vec<Cotangent>> {
    let present: Vec<&Tensor> = cotangents.iter().flatten().collect();
    let mut behind = barrier(&present)?.into_iter();
    Ok(cotangents.iter().map(|c| c.as_ref().and_then(|_| behind.next())).collect())
}

fn through_unary(op: Unary, ctx: &Context<'_>, ct: &Tensor) -> Result<Cotangent> {
    let (x, y) = (&ctx.inputs[0], &ctx.outputs[0]);
    let gradient = match op {
        Unary::Negate => -ct,
        Unary::Exp => ct * y,
        Unary::Expm1 => ct * (y + 1.0)?,
        Unary::Log => ct / x,
        Unary::Log1p => ct / (x + 1.0)?,
        Unary::Logistic => (ct * y)? * (1.0 - y)?,
        Unary::Tanh => ct * (1.0 - &y.square()?)?,
        Unary::Sine => ct * x.cos()?,
        Unary::Cosine => -&(ct * x.sin()?)?,
        Unary::Sqrt => (ct / y)? * 0.5,
        Unary::Rsqrt => (ct * (y.square()? * y)?)? * -0.5,
        Unary::Abs => ct * x.sign()?,
        Unary::Erf => (ct * (-&x.square()?)?.exp()?)? * FRAC_2_SQRT_PI,
        Unary::Sign | Unary::Floor | Unary::Round | Unary::Not | Unary::IsFinite => {
            return Ok(None);
        }
    };
    gradient.map(Some)
}

fn through_binary(op: Binary, ctx: &Context<'_>, ct: &Tensor) -> Result<Vec<Cotangent>> {
    let (a, b, y) = (&ctx.inputs[0], &ctx.inputs[1], &ctx.outputs[0]);
    let first = |compute: &dyn Fn() -> Result<Tensor>| ctx.needs_grad[0].then(compute).transpose();
    let second = |compute: &dyn Fn() -> Result<Tensor>| ctx.needs_grad[1].then(compute).transpose();
    let (left, right) = match op {
        Binary::Add => (Some(ct.clone()), Some(ct.clone())),
        Binary::Subtract => (Some(ct.clone()), second(&|| -ct)?),
        Binary::Multiply => (first(&|| ct * b)?, second(&|| ct * a)?),
        Binary::Divide => (first(&|| ct / b)?, second(&|| -&((ct * y)? / b)?)?),
        Binary::Maximum | Binary::Minimum => {
            let comparison =
                if op == Binary::Maximum { Comparison::Greater } else { Comparison::Less };
            let share = |own: &Tensor, other: &Tensor| share(comparison, own, other, ct);
            (first(&|| share(a, b))?, second(&|| share(b, a))?)
        }
        Binary::Power => {
            // `x^0` is one everywhere, including at zero, where the rule is undefined.
            let slope = || {
                let slope = (b * a.binary(Binary::Power, &(b - 1.0)?)?)?;
                let zero = zeros(b.dtype(), b.dims())?;
                select(&b.compare(Comparison::Equal, &zero)?, &zero, &slope)
            };
            (first(&|| ct * slope()?)?, second(&|| (ct * y)? * a.log()?)?)
        }
        Binary::Remainder if !ctx.needs_grad[1] => (Some(ct.clone()), None),
        Binary::Remainder => {
            return Err(Error::new("grad", "no gradient of a remainder's divisor"));
        }
        _ => (None, None),
    };
    Ok(vec![left, right])
}

/// The share of a gradient for one of two operands: all if it was selected, half if equal.
fn share(better: Comparison, own: &Tensor, other: &Tensor, ct: &Tensor) -> Result<Tensor> {
    let number = |value: f64| full(ct.dtype(), ct.dims(), value);
    let equal = own.compare(Comparison::Equal, other)?;
    let tied = select(&equal, &number(0.5)?, &number(0.0)?)?;
    ct * select(&own.compare(better, other)?, &number(1.0)?, &tied)?
}

fn through_select(ctx: &Context<'_>, ct: &Tensor) -> Result<Vec<Cotangent>> {
    let condition = &ctx.inputs[0];
    let zero = zeros(ct.dtype(), ct.dims())?;
    let yes = ctx.needs_grad[1].then(|| select(condition, ct, &zero)).transpose()?;
    let no = ctx.needs_grad[2].then(|| select(condition, &zero, ct)).transpose()?;
    Ok(vec![None, yes, no])
}

/// The transpose of a broadcast: the sum over the repeated dimensions.
fn unbroadcast(ct: &Tensor, positions: &[usize], dims: &[usize]) -> Result<Tensor> {
    let kept = |dim: &usize| {
        positions.iter().position(|p| p == dim).is_some_and(|i| dims[i] == ct.dims()[*dim])
    };
    let summed: Vec<usize> = (0..ct.rank()).filter(|dim| !kept(dim)).collect();
    ct.sum(&summed)?.reshape(dims)
}

fn inverse(permutation: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; permutation.len()];
    for (to, &from) in permutation.iter().enumerate() {
        inverse[from] = to;
    }
    inverse
}

fn through_reduce(
    kind: Reduction,
    dims: &[usize],
    ctx: &Context<'_>,
    ct: &Tensor,
) -> Result<Tensor> {
    let (x, y) = (&ctx.inputs[0], &ctx.outputs[0]);
    match kind {
        Reduction::Sum => ct.broadcast_reduced(x.dims(), dims),
        Reduction::Max | Reduction::Min => {
            // Split evenly among the elements that attain the extreme.
            let selected = x.compare(Comparison::Equal, &y.broadcast_reduced(x.dims(), dims)?)?;
            let selected = selected.convert(x.dtype())?;
            let each = (ct / selected.sum(dims)?)?;
            selected * each.broadcast_reduced(x.dims(), dims)?
        }
        Reduction::Product => Err(Error::new("grad", "no gradient of a product over dimensions")),
    }
}

/// An operand of a matmul, with its dimensions by role.
struct Operand<'a> {
    tensor: &'a Tensor,
    batch: &'a [usize],
    contract: &'a [usize],
    free: Vec<usize>,
}

impl<'a> Operand<'a> {
    fn new(tensor: &'a Tensor, batch: &'a [usize], contract: &'a [usize]) -> Operand<'a> {
        let kept = |dim: &usize| !batch.contains(dim) && !contract.contains(dim);
        Operand { tensor, batch, contract, free: (0..tensor.rank()).filter(kept).collect() }
    }
}

fn through_dot(dims: &DotDims, ctx: &Context<'_>, ct: &Tensor) -> Result<Vec<Cotangent>> {
    let a = Operand::new(&ctx.inputs[0], &dims.lhs_batch, &dims.lhs_contract);
    let b = Operand::new(&ctx.inputs[1], &dims.rhs_batch, &dims.rhs_contract);
    let of_b = a.batch.len() + a.free.len();
    let ct = ct.convert(a.tensor.dtype())?;
    let precise = dims.precise;
    let left = ctx.needs_grad[0].then(|| through_operand(&a, &b, &ct, of_b..ct.rank(), precise));
    let right =
        ctx.needs_grad[1].then(|| through_operand(&b, &a, &ct, a.batch.len()..of_b, precise));
    Ok(vec![left.transpose()?, right.transpose()?])
}

/// The gradient of one operand of a matmul: the matmul's gradient contracted with the other operand
/// over the other's free dimensions, which in that gradient are `others`.
fn through_operand(
    own: &Operand<'_>,
    other: &Operand<'_>,
    ct: &Tensor,
    others: Range<usize>,
    precise: bool,
) -> Result<Tensor> {
    let ct_batch: Vec<usize> = (0..own.batch.len()).collect();
    let from_ct = (ct, ct_batch, others.collect::<Vec<_>>());
    let from_other = (other.tensor, other.batch.to_vec(), other.free.clone());
    // What comes first in the operand comes first in the matmul, so that it needs no transpose.
    let contracted_first = own.contract.first() < own.free.first();
    let (lhs, rhs) = if contracted_first { (from_other, from_ct) } else { (from_ct, from_other) };
    let dims = DotDims {
        lhs_batch: lhs.1,
        rhs_batch: rhs.1,
        lhs_contract: lhs.2,
        rhs_contract: rhs.2,
        precise,
    };
    let gradient = lhs.0.dot(rhs.0, dims)?;
    // The contracted dimensions are in the other's order.
    let mut order: Vec<usize> = (0..other.contract.len()).collect();
    order.sort_by_key(|&i| other.contract[i]);
    let contracted = order.into_iter().map(|i| own.contract[i]);
    let mut sources = own.batch.to_vec();
    match contracted_first {
        true => sources.extend(contracted.chain(own.free.iter().copied())),
        false => sources.extend(own.free.iter().copied().chain(contracted)),
    }
    gradient.transpose(&inverse(&sources))
}

/// The transpose of a slice: zeros around and between.
fn unslice(ct: &Tensor, x: &Tensor, start: &[usize], stride: &[usize]) -> Result<Tensor> {
    let low: Vec<i64> = start.iter().map(|&start| start as i64).collect();
    let interior: Vec<usize> = stride.iter().map(|&stride| stride - 1).collect();
    let high = (0..x.rank()).map(|i| {
        let inner = ct.dims()[i] + ct.dims()[i].saturating_sub(1) * interior[i];
        x.dims()[i] as i64 - low[i] - inner as i64
    });
    ct.pad(0.0, &low, &high.collect::<Vec<_>>(), &interior)
}

fn through_update(ctx: &Context<'_>, ct: &Tensor) -> Result<Vec<Cotangent>> {
    let update = &ctx.inputs[1];
    let starts: Vec<&Tensor> = ctx.inputs[2..].iter().collect();
    let empty = zeros(update.dtype(), update.dims())?;
    let mut gradients = vec![None; ctx.inputs.len()];
    gradients[0] = Some(ct.dynamic_update_slice(&empty, &starts)?);
    gradients[1] = Some(ct.dynamic_slice(&starts, update.dims())?);
    Ok(gradients)
}

fn through_concatenate(dim: usize, ctx: &Context<'_>, ct: &Tensor) -> Result<Vec<Cotangent>> {
    let mut start = 0;
    let part = |(input, &needs_grad): (&Tensor, &bool)| {
        let end = start + input.dims()[dim];
        let part = needs_grad.then(|| ct.narrow(dim, start, end)).transpose();
        start = end;
        part
    };
    ctx.inputs.iter().zip(ctx.needs_grad).map(part).collect()
}

fn through_pad(
    low: &[i64],
    high: &[i64],
    interior: &[usize],
    ctx: &Context<'_>,
    ct: &Tensor,
) -> Result<Vec<Cotangent>> {
    let negated = |padding: &[i64]| padding.iter().map(|&count| -count).collect::<Vec<_>>();
    let none = vec![0; interior.len()];
    let inner = ct.pad(0.0, &negated(low), &negated(high), &none)?;
    let stride: Vec<usize> = interior.iter().map(|&count| count + 1).collect();
    let inner = inner.slice_strided(&none, inner.dims(), &stride)?;
    let value = ctx.needs_grad[1].then(|| ct.sum_all()? - inner.sum_all()?).transpose()?;
    Ok(vec![Some(inner), value])
}
