//! Operands that do not fit: an error at the call that names the op and the types, never a panic.

use fullshard_graph::{
    Argument, Comparison, Convolution, DType, Error, Program, Result, Tensor, TensorType,
    concatenate, constant, einsum, iota, select, value_and_grad,
};

/// The arguments of every wrong program.
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

/// Traces a program that must be wrong.
fn wrong(name: &str, function: impl FnOnce(&[Tensor]) -> Result<Tensor>) -> Error {
    let arguments = TYPES.map(|(dtype, dims)| Argument::new(TensorType::new(dtype, dims)));
    match Program::trace("wrong", &arguments, |x| Ok(vec![function(&x)?])) {
        Ok(program) => panic!("{name} was accepted:\n{}", program.to_text()),
        Err(error) => error,
    }
}

/// A table of wrong calls: the op that is named, what else the error must say, and the call.
macro_rules! refused {
    ($($test:ident { $($op:literal, [$($said:literal),+], |$x:ident| $call:expr;)* })*) => {$(
        #[test]
        fn $test() {
            $(
                let error = wrong(stringify!($call), |$x| $call);
                assert_eq!(error.op, $op, "{}: {error}", stringify!($call));
                $(assert!(error.to_string().contains($said), "{}: {error}", stringify!($call));)+
            )*
        }
    )*};
}

refused! {
    elementwise {
        "add", ["tensor<2x3xf32>", "tensor<4x5xf32>"], |x| &x[0] + &x[1];
        "subtract", ["tensor<2x3xf32>", "tensor<2x3xf64>"], |x| &x[0] - &x[2];
        "multiply", ["tensor<2x3xi32>", "tensor<2x3xf32>"], |x| &x[3] * &x[0];
        "divide", ["tensor<2x3xi1>"], |x| &x[4] / &x[4];
        "maximum", ["tensor<2x3xf32>", "tensor<4x5xf32>"], |x| x[0].maximum(&x[1]);
        "minimum", ["tensor<2x3xf32>", "tensor<2x3xi32>"], |x| x[0].minimum(&x[3]);
        "remainder", ["tensor<2x3xf32>", "tensor<2x3xi32>"], |x| x[0].remainder(&x[3]);
        "multiply", ["tensor<2x3xi32>", "0.5"], |x| &x[3] * 0.5;
        "subtract", ["tensor<2x3xi32>", "0.5"], |x| 0.5 - &x[3];
        "power", ["tensor<2x3xi1>"], |x| x[4].pow(2.0);
        "and", ["tensor<2x3xf32>"], |x| x[0].and(&x[0]);
        "xor", ["tensor<2x3xi32>", "tensor<2x3xi1>"], |x| x[3].xor(&x[4]);
        "shift_left", ["tensor<2x3xi1>"], |x| x[4].shift_left(&x[4]);
        "compare", ["tensor<2x3xf32>", "tensor<2x3xf64>"],
            |x| x[0].compare(Comparison::Less, &x[2]);
        "exponential", ["tensor<2x3xi32>"], |x| x[3].exp();
        "negate", ["tensor<2x3xi1>"], |x| -&x[4];
        "not", ["tensor<2x3xf32>"], |x| x[0].not();
        "is_finite", ["tensor<2x3xi32>"], |x| x[3].is_finite();
        "erf", ["tensor<2x3xi32>"], |x| x[3].erf();
        "bitcast", ["tensor<2x3xf32>", "f64"], |x| x[0].bitcast(DType::F64);
        "bitcast", ["tensor<2x3xi1>", "i8"], |x| x[4].bitcast(DType::I8);
        "select", ["tensor<2x3xf32>", "tensor<4x5xf32>"], |x| select(&x[4], &x[0], &x[1]);
        "select", ["tensor<2x3xi32>", "tensor<2x3xf32>"], |x| select(&x[3], &x[0], &x[0]);
        "select", ["tensor<2x3xi1>", "tensor<4x5xf32>"], |x| select(&x[4], &x[1], &x[1]);
    }
    shapes {
        "reshape", ["tensor<2x3xf32>", "tensor<7xf32>"], |x| x[0].reshape(&[7]);
        "broadcast", ["tensor<2x3xf32>", "tensor<2x4xf32>"], |x| x[0].broadcast_to(&[2, 4]);
        "broadcast", ["tensor<2x3xf32>", "tensor<3xf32>"], |x| x[0].broadcast_to(&[3]);
        "transpose", ["tensor<2x3xf32>", "[0, 0]"], |x| x[0].transpose(&[0, 0]);
        "transpose", ["tensor<2x3xf32>", "[0]"], |x| x[0].transpose(&[0]);
        "t", ["tensor<f32>"], |x| x[5].t();
        "expand", ["tensor<2x3xf32>", "3"], |x| x[0].expand(3);
        "slice", ["tensor<2x3xf32>", "[0, 4]"], |x| x[0].slice(&[0, 0], &[0, 4]);
        "slice", ["tensor<2x3xf32>", "[2, 0]"], |x| x[0].slice(&[2, 0], &[1, 3]);
        "slice", ["tensor<2x3xf32>", "[0]"], |x| x[0].slice(&[0], &[1]);
        "slice", ["tensor<2x3xf32>", "[1, 0]"], |x| x[0].slice_strided(&[0, 0], &[2, 3], &[1, 0]);
        "narrow", ["tensor<2x3xf32>", "2"], |x| x[0].narrow(2, 0, 1);
        "split", ["tensor<2x3xf32>", "2"], |x| Ok(x[0].split(1, 2)?.remove(0));
        "split", ["tensor<2x3xf32>", "0"], |x| Ok(x[0].split(1, 0)?.remove(0));
        "pad", ["tensor<2x3xf32>", "[-3, 0]"], |x| x[0].pad(0.0, &[-3, 0], &[0, 0], &[0, 0]);
        "pad", ["tensor<2x3xf32>", "[0]"], |x| x[0].pad(0.0, &[0], &[0], &[0]);
        "reverse", ["tensor<2x3xf32>", "2"], |x| x[0].reverse(&[2]);
        "reverse", ["tensor<2x3xf32>", "1"], |x| x[0].reverse(&[1, 1]);
        "concatenate", ["tensor<2x3xf32>", "tensor<4x5xf32>"],
            |x| concatenate(&[&x[0], &x[1]], 0);
        "concatenate", ["tensor<2x3xf32>", "tensor<2x3xi32>"],
            |x| concatenate(&[&x[0], &x[3]], 0);
        "concatenate", ["tensor<2x3xf32>", "tensor<f32>"], |x| concatenate(&[&x[0], &x[5]], 1);
        "concatenate", ["nothing"], |_x| concatenate(&[], 0);
    }
    reductions {
        "reduce", ["tensor<2x3xf32>", "2"], |x| x[0].sum(&[2]);
        "mean", ["tensor<2x3xi32>", "convert"], |x| x[3].mean(&[0]);
        "softmax", ["tensor<2x3xf32>", "2"], |x| x[0].softmax(2);
        "log_softmax", ["tensor<2x3xf32>", "2"], |x| x[0].log_softmax(2);
        "logsumexp", ["tensor<f32>", "0"], |x| x[5].logsumexp(0);
        "moments", ["tensor<f32>", "0"], |x| x[5].normalize(1e-5);
        "reduce", ["tensor<f32>", "0"], |x| x[5].rms_normalize(1e-5);
    }
    contractions {
        "matmul", ["tensor<2x3xf32>", "tensor<4x5xf32>"], |x| x[0].matmul(&x[1]);
        "matmul", ["tensor<3x2xf32>", "tensor<2x3xf64>"], |x| x[0].t()?.matmul(&x[2]);
        "matmul", ["tensor<3x2xi32>", "tensor<2x3xi32>"], |x| x[3].t()?.matmul(&x[3]);
        "matmul", ["tensor<f32>", "tensor<2x3xf32>"], |x| x[5].matmul(&x[0]);
        "linear", ["tensor<2x3xf32>", "tensor<4x5xf32>"], |x| x[0].linear(&x[1]);
        "linear", ["tensor<2x3xf32>", "tensor<3x2xf64>"], |x| x[0].linear(&x[2].t()?);
        "linear", ["tensor<f32>", "tensor<2x3xf32>"], |x| x[5].linear(&x[0]);
        "einsum", ["tensor<2x3xf32>", "tensor<4x5xf32>", "`j`"],
            |x| einsum("ij,jk->ik", &x[0], &x[1]);
        "einsum", ["tensor<2x3xf32>", "tensor<2x3xf64>"], |x| einsum("ij,ij->i", &x[0], &x[2]);
        "einsum", ["tensor<2x3xf32>", "ijk"], |x| einsum("ijk,ij->k", &x[0], &x[0]);
        "einsum", ["tensor<2x3xf32>", "twice"], |x| einsum("ii,ij->j", &x[0], &x[0]);
        "einsum", ["tensor<2x3xf32>", "result"], |x| einsum("ij,ik->j", &x[0], &x[0]);
        "einsum", ["tensor<2x3xf32>", "->"], |x| einsum("ij,ij", &x[0], &x[0]);
    }
    indices {
        "take", ["tensor<2x3xf32>", "tensor<4x5xf32>"], |x| x[0].take(&x[1]);
        "take", ["tensor<f32>", "tensor<2x3xi32>"], |x| x[5].take(&x[3]);
        "take_along", ["tensor<4x5xf32>", "tensor<2x3xi32>"], |x| x[1].take_along(&x[3], 0);
        "take_along", ["tensor<2x3xf32>", "tensor<2x3xi32>"], |x| x[0].take_along(&x[3], 2);
        "add_along", ["tensor<2x3xf32>", "tensor<4x5xf32>", "tensor<2x3xi32>"],
            |x| x[0].add_along(&x[3], 0, &x[1]);
        "add_rows", ["tensor<2x3xf32>", "tensor<4x5xf32>", "tensor<2x3xi32>"],
            |x| x[0].add_rows(&x[3], &x[1]);
        "add_rows", ["tensor<2x3xf32>", "tensor<2xf32>"],
            |x| x[0].add_rows(&constant(&[2], &[0.0_f32, 1.0])?, &x[0]);
        "dynamic_slice", ["tensor<2x3xf32>", "[1, 4]"], |x| {
            let zero = constant(&[], &[0])?;
            x[0].dynamic_slice(&[&zero, &zero], &[1, 4])
        };
        "dynamic_slice", ["tensor<2x3xf32>", "[tensor<f32>, tensor<f32>]"],
            |x| x[0].dynamic_slice(&[&x[5], &x[5]], &[1, 1]);
        "dynamic_slice", ["tensor<2x3xf32>", "[tensor<i32>, tensor<i64>]"],
            |x| x[0].dynamic_slice(&[&constant(&[], &[0])?, &constant(&[], &[0_i64])?], &[1, 1]);
        "dynamic_update_slice", ["tensor<2x3xf32>", "tensor<2x3xf64>"], |x| {
            let zero = constant(&[], &[0])?;
            x[0].dynamic_update_slice(&x[2], &[&zero, &zero])
        };
        "dynamic_update_slice", ["tensor<2x3xf32>", "[4, 5]"], |x| {
            let zero = constant(&[], &[0])?;
            x[0].dynamic_update_slice(&x[1], &[&zero, &zero])
        };
        "at", ["tensor<2x3xf32>", "2"], |x| x[0].at(2, &constant(&[], &[0])?);
        "argsort", ["tensor<2x3xf32>", "2"], |x| x[0].argsort(2, false);
        "sort", ["tensor<2x3xf32>", "2"], |x| x[0].sort(2, false);
        "top_k", ["tensor<2x3xf32>", "4"], |x| Ok(x[0].top_k(4)?.0);
        "top_k", ["tensor<f32>", "1"], |x| Ok(x[5].top_k(1)?.0);
    }
    windows {
        "convolution", ["tensor<1x4x4x3xf32>", "tensor<3x3x2x5xf32>"],
            |x| Convolution::new(2).apply(&x[6], &x[7]);
        "convolution", ["tensor<2x3xf32>", "tensor<3x3x2x5xf32>"],
            |x| Convolution::new(2).apply(&x[0], &x[7]);
        "convolution", ["tensor<1x4x4x3xf32>", "tensor<5x3x3x2xf32>"],
            |x| Convolution::new(2).apply(&x[6], &x[7].transpose(&[3, 0, 1, 2])?);
        "convolution", ["tensor<1x4x4x3xf32>", "tensor<3x3x3x2xf32>", "stride: [0, 1]"],
            |x| Convolution::new(2).stride(&[0, 1]).apply(
                &x[6], &concatenate(&[&x[7], &x[7]], 2)?.slice(&[0; 4], &[3, 3, 3, 2])?);
        "max_pool", ["tensor<2x3xf32>"], |x| x[0].max_pool(&[2], &[1], &[(0, 0)]);
        "max_pool", ["tensor<1x4x4x3xf32>"], |x| x[6].max_pool(&[5, 5], &[1, 1], &[(0, 0); 2]);
        "sum_pool", ["tensor<1x4x4x3xf32>"], |x| x[6].sum_pool(&[5, 5], &[1, 1], &[(0, 0); 2]);
        "mean_pool", ["tensor<1x4x4x3xf32>"], |x| x[6].mean_pool(&[2, 2], &[0, 1], &[(0, 0); 2]);
    }
    constants {
        "constant", ["tensor<2x2xf32>", "3"], |_x| constant(&[2, 2], &[1.0_f32, 2.0, 3.0]);
        "iota", ["tensor<2xf32>", "1"], |_x| iota(DType::F32, &[2], 1);
        "iota", ["tensor<2xi1>"], |_x| iota(DType::Bool, &[2], 0);
    }
    gradients {
        "grad", ["tensor<2x3xf32>"], |x| Ok(value_and_grad(&[&x[0]], |x| x[0].exp())?.0);
        "grad", ["tensor<i32>"], |x| {
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
