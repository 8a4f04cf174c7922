//! Invalid operands: an error at the call that names the op and the types, never a panic.

use fullshard_graph::{
    Argument, Comparison, Convolution, DType, Error, Program, Result, Tensor, TensorType,
    concatenate, constant, einsum, iota, select, value_and_grad,
};

/// The arguments of every invalid program.
const TYPES: [(DType, &[usize]); 8] = [
    (DType::F32, &[2, 3]),
    (DType::F32, &[4, 5]),
    (DType::F64, &[2, 3]),
    (DType::I32, &[2, 3]),
    (DType::Bool, &[2, 3]),
    (DType::F32, &[]),
    (DType::F32, &[1, 4, 4, 3]),
    (DType::F32, &[3, 3, 2, 5]),
];

/// Traces a program that must be rejected.
fn trace_error(name: &str, function: impl FnOnce(&[Tensor]) -> Result<Tensor>) -> Error {
    let arguments = TYPES.map(|(dtype, dims)| Argument::new(TensorType::new(dtype, dims)));
    match Program::trace("invalid", &arguments, |x| Ok(vec![function(&x)?])) {
        Ok(program) => panic!("{name} was accepted:\n{}", program.to_text()),
        Err(error) => error,
    }
}

/// A table of invalid calls: the op in the error, what else the error must contain, and the call.
macro_rules! rejected {
    ($($test:ident { $($op:literal, [$($part:literal),+], |$x:ident| $call:expr;)* })*) => {$(
        #[test]
        fn $test() {
            $(
                let error = trace_error(stringify!($call), |$x| $call);
                assert_eq!(error.op, $op, "{}: {error}", stringify!($call));
                $(assert!(error.to_string().contains($part), "{}: {error}", stringify!($call));)+
            )*
        }
    )*};
}

rejected! {
    elementwise {
        "add", ["f32[2,3]", "f32[4,5]"], |x| &x[0] + &x[1];
        "subtract", ["f32[2,3]", "f64[2,3]"], |x| &x[0] - &x[2];
        "multiply", ["s32[2,3]", "f32[2,3]"], |x| &x[3] * &x[0];
        "divide", ["pred[2,3]"], |x| &x[4] / &x[4];
        "maximum", ["f32[2,3]", "f32[4,5]"], |x| x[0].maximum(&x[1]);
        "minimum", ["f32[2,3]", "s32[2,3]"], |x| x[0].minimum(&x[3]);
        "remainder", ["f32[2,3]", "s32[2,3]"], |x| x[0].remainder(&x[3]);
        "multiply", ["s32[2,3]", "0.5"], |x| &x[3] * 0.5;
        "subtract", ["s32[2,3]", "0.5"], |x| 0.5 - &x[3];
        "power", ["pred[2,3]"], |x| x[4].pow(2.0);
        "and", ["f32[2,3]"], |x| x[0].and(&x[0]);
        "xor", ["s32[2,3]", "pred[2,3]"], |x| x[3].xor(&x[4]);
        "shift_left", ["pred[2,3]"], |x| x[4].shift_left(&x[4]);
        "compare", ["f32[2,3]", "f64[2,3]"],
            |x| x[0].compare(Comparison::Less, &x[2]);
        "exponential", ["s32[2,3]"], |x| x[3].exp();
        "negate", ["pred[2,3]"], |x| -&x[4];
        "not", ["f32[2,3]"], |x| x[0].not();
        "is_finite", ["s32[2,3]"], |x| x[3].is_finite();
        "erf", ["s32[2,3]"], |x| x[3].erf();
        "bitcast", ["f32[2,3]", "f64"], |x| x[0].bitcast(DType::F64);
        "bitcast", ["pred[2,3]", "s8"], |x| x[4].bitcast(DType::I8);
        "select", ["f32[2,3]", "f32[4,5]"], |x| select(&x[4], &x[0], &x[1]);
        "select", ["s32[2,3]", "f32[2,3]"], |x| select(&x[3], &x[0], &x[0]);
        "select", ["pred[2,3]", "f32[4,5]"], |x| select(&x[4], &x[1], &x[1]);
    }
    shapes {
        "reshape", ["f32[2,3]", "f32[7]"], |x| x[0].reshape(&[7]);
        "broadcast", ["f32[2,3]", "f32[2,4]"], |x| x[0].broadcast_to(&[2, 4]);
        "broadcast", ["f32[2,3]", "f32[3]"], |x| x[0].broadcast_to(&[3]);
        "transpose", ["f32[2,3]", "[0, 0]"], |x| x[0].transpose(&[0, 0]);
        "transpose", ["f32[2,3]", "[0]"], |x| x[0].transpose(&[0]);
        "t", ["f32[]"], |x| x[5].t();
        "expand", ["f32[2,3]", "3"], |x| x[0].expand(3);
        "slice", ["f32[2,3]", "[0, 4]"], |x| x[0].slice(&[0, 0], &[0, 4]);
        "slice", ["f32[2,3]", "[2, 0]"], |x| x[0].slice(&[2, 0], &[1, 3]);
        "slice", ["f32[2,3]", "[0]"], |x| x[0].slice(&[0], &[1]);
        "slice", ["f32[2,3]", "[1, 0]"], |x| x[0].slice_strided(&[0, 0], &[2, 3], &[1, 0]);
        "narrow", ["f32[2,3]", "2"], |x| x[0].narrow(2, 0, 1);
        "split", ["f32[2,3]", "2"], |x| Ok(x[0].split(1, 2)?.remove(0));
        "split", ["f32[2,3]", "0"], |x| Ok(x[0].split(1, 0)?.remove(0));
        "pad", ["f32[2,3]", "[-3, 0]"], |x| x[0].pad(0.0, &[-3, 0], &[0, 0], &[0, 0]);
        "pad", ["f32[2,3]", "[0]"], |x| x[0].pad(0.0, &[0], &[0], &[0]);
        "reverse", ["f32[2,3]", "2"], |x| x[0].reverse(&[2]);
        "reverse", ["f32[2,3]", "1"], |x| x[0].reverse(&[1, 1]);
        "concatenate", ["f32[2,3]", "f32[4,5]"],
            |x| concatenate(&[&x[0], &x[1]], 0);
        "concatenate", ["f32[2,3]", "s32[2,3]"],
            |x| concatenate(&[&x[0], &x[3]], 0);
        "concatenate", ["f32[2,3]", "f32[]"], |x| concatenate(&[&x[0], &x[5]], 1);
        "concatenate", ["nothing"], |_x| concatenate(&[], 0);
    }
    reductions {
        "reduce", ["f32[2,3]", "2"], |x| x[0].sum(&[2]);
        "mean", ["s32[2,3]", "convert"], |x| x[3].mean(&[0]);
        "softmax", ["f32[2,3]", "2"], |x| x[0].softmax(2);
        "log_softmax", ["f32[2,3]", "2"], |x| x[0].log_softmax(2);
        "logsumexp", ["f32[]", "0"], |x| x[5].logsumexp(0);
        "moments", ["f32[]", "0"], |x| x[5].normalize(1e-5);
        "reduce", ["f32[]", "0"], |x| x[5].rms_normalize(1e-5);
    }
    contractions {
        "matmul", ["f32[2,3]", "f32[4,5]"], |x| x[0].matmul(&x[1]);
        "matmul", ["f32[3,2]", "f64[2,3]"], |x| x[0].t()?.matmul(&x[2]);
        "matmul", ["s32[3,2]", "s32[2,3]"], |x| x[3].t()?.matmul(&x[3]);
        "matmul", ["f32[]", "f32[2,3]"], |x| x[5].matmul(&x[0]);
        "linear", ["f32[2,3]", "f32[4,5]"], |x| x[0].linear(&x[1]);
        "linear", ["f32[2,3]", "f64[3,2]"], |x| x[0].linear(&x[2].t()?);
        "linear", ["f32[]", "f32[2,3]"], |x| x[5].linear(&x[0]);
        "einsum", ["f32[2,3]", "f32[4,5]", "`j`"],
            |x| einsum("ij,jk->ik", &x[0], &x[1]);
        "einsum", ["f32[2,3]", "f64[2,3]"], |x| einsum("ij,ij->i", &x[0], &x[2]);
        "einsum", ["f32[2,3]", "ijk"], |x| einsum("ijk,ij->k", &x[0], &x[0]);
        "einsum", ["f32[2,3]", "twice"], |x| einsum("ii,ij->j", &x[0], &x[0]);
        "einsum", ["f32[2,3]", "result"], |x| einsum("ij,ik->j", &x[0], &x[0]);
        "einsum", ["f32[2,3]", "->"], |x| einsum("ij,ij", &x[0], &x[0]);
    }
    indices {
        "take", ["f32[2,3]", "f32[4,5]"], |x| x[0].take(&x[1]);
        "take", ["f32[]", "s32[2,3]"], |x| x[5].take(&x[3]);
        "take_along", ["f32[4,5]", "s32[2,3]"], |x| x[1].take_along(&x[3], 0);
        "take_along", ["f32[2,3]", "s32[2,3]"], |x| x[0].take_along(&x[3], 2);
        "add_along", ["f32[2,3]", "f32[4,5]", "s32[2,3]"],
            |x| x[0].add_along(&x[3], 0, &x[1]);
        "add_rows", ["f32[2,3]", "f32[4,5]", "s32[2,3]"],
            |x| x[0].add_rows(&x[3], &x[1]);
        "add_rows", ["f32[2,3]", "f32[2]"],
            |x| x[0].add_rows(&constant(&[2], &[0.0_f32, 1.0])?, &x[0]);
        "dynamic_slice", ["f32[2,3]", "[1, 4]"], |x| {
            let zero = constant(&[], &[0])?;
            x[0].dynamic_slice(&[&zero, &zero], &[1, 4])
        };
        "dynamic_slice", ["f32[2,3]", "[f32[], f32[]]"],
            |x| x[0].dynamic_slice(&[&x[5], &x[5]], &[1, 1]);
        "dynamic_slice", ["f32[2,3]", "[s32[], s64[]]"],
            |x| x[0].dynamic_slice(&[&constant(&[], &[0])?, &constant(&[], &[0_i64])?], &[1, 1]);
        "dynamic_update_slice", ["f32[2,3]", "f64[2,3]"], |x| {
            let zero = constant(&[], &[0])?;
            x[0].dynamic_update_slice(&x[2], &[&zero, &zero])
        };
        "dynamic_update_slice", ["f32[2,3]", "[4, 5]"], |x| {
            let zero = constant(&[], &[0])?;
            x[0].dynamic_update_slice(&x[1], &[&zero, &zero])
        };
        "at", ["f32[2,3]", "2"], |x| x[0].at(2, &constant(&[], &[0])?);
        "argsort", ["f32[2,3]", "2"], |x| x[0].argsort(2, false);
        "sort", ["f32[2,3]", "2"], |x| x[0].sort(2, false);
        "top_k", ["f32[2,3]", "4"], |x| Ok(x[0].top_k(4)?.0);
        "top_k", ["f32[]", "1"], |x| Ok(x[5].top_k(1)?.0);
    }
    windows {
        "convolution", ["f32[1,4,4,3]", "f32[3,3,2,5]"],
            |x| Convolution::new(2).apply(&x[6], &x[7]);
        "convolution", ["f32[2,3]", "f32[3,3,2,5]"],
            |x| Convolution::new(2).apply(&x[0], &x[7]);
        "convolution", ["f32[1,4,4,3]", "f32[5,3,3,2]"],
            |x| Convolution::new(2).apply(&x[6], &x[7].transpose(&[3, 0, 1, 2])?);
        "convolution", ["f32[1,4,4,3]", "f32[3,3,3,2]", "stride: [0, 1]"],
            |x| Convolution::new(2).stride(&[0, 1]).apply(
                &x[6], &concatenate(&[&x[7], &x[7]], 2)?.slice(&[0; 4], &[3, 3, 3, 2])?);
        "max_pool", ["f32[2,3]"], |x| x[0].max_pool(&[2], &[1], &[(0, 0)]);
        "max_pool", ["f32[1,4,4,3]"], |x| x[6].max_pool(&[5, 5], &[1, 1], &[(0, 0); 2]);
        "sum_pool", ["f32[1,4,4,3]"], |x| x[6].sum_pool(&[5, 5], &[1, 1], &[(0, 0); 2]);
        "mean_pool", ["f32[1,4,4,3]"], |x| x[6].mean_pool(&[2, 2], &[0, 1], &[(0, 0); 2]);
    }
    constants {
        "constant", ["f32[2,2]", "3"], |_x| constant(&[2, 2], &[1.0_f32, 2.0, 3.0]);
        "iota", ["f32[2]", "1"], |_x| iota(DType::F32, &[2], 1);
        "iota", ["pred[2]"], |_x| iota(DType::Bool, &[2], 0);
    }
    gradients {
        "grad", ["f32[2,3]"], |x| Ok(value_and_grad(&[&x[0]], |x| x[0].exp())?.0);
        "grad", ["s32[]"], |x| {
            Ok(value_and_grad(&[&x[0]], |x| x[0].argsort(0, false)?.sum_all())?.0)
        };
        "grad", ["divisor"], |x| {
            Ok(value_and_grad(&[&x[0]], |x| (&x[0] * 2.0)?.remainder(&x[0])?.sum_all())?.0)
        };
        "grad", ["product"], |x| {
            let product = fullshard_graph::Reduction::Product;
            Ok(value_and_grad(&[&x[0]], |x| x[0].reduce(product, &[0, 1]))?.0)
        };
    }
}
