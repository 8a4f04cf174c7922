//! CPU custom calls: results, and rejection of out-of-bounds access.
#![allow(clippy::unwrap_used)]

mod common;

use common::{cpu, upload, values};
use fullshard_pjrt::{CompileOptions, LOSS, MATMUL, MPI_ALL_REDUCE};

/// A matmul of `f32[2, 3]` and `f32[3, 2]` with the given attributes.
fn program(attributes: &str) -> String {
    format!(
        "module @matmul {{
  func.func public @main(%a: tensor<2x3xf32>, %b: tensor<3x2xf32>) -> tensor<2x2xf32> {{
    %c = stablehlo.custom_call @{MATMUL}(%a, %b) {{api_version = 4 : i32,
        backend_config = {{{attributes}}}}} : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
    return %c : tensor<2x2xf32>
  }}
}}"
    )
}

fn attributes(sizes: [i64; 5], lhs: [i64; 4], rhs: [i64; 4]) -> String {
    attributes_from(sizes, [0, 0], lhs, rhs)
}

fn attributes_from(sizes: [i64; 5], offsets: [i64; 2], lhs: [i64; 4], rhs: [i64; 4]) -> String {
    format!(
        "offsets = dense<{offsets:?}> : tensor<2xi64>, lhs = dense<{lhs:?}> : tensor<4xi64>, rhs = dense<{rhs:?}> : tensor<4xi64>, \
         sizes = dense<{sizes:?}> : tensor<5xi64>"
    )
}

fn run(attributes: &str) -> Result<Vec<f32>, String> {
    let client = cpu(1);
    let matmul = client.compile(&program(attributes), &CompileOptions::new(1)).unwrap();
    let a = upload(&client, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0);
    let b = upload(&client, &[3, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], 0);
    let results = matmul.execute(&[[&a, &b]]).map_err(|error| error.to_string())?;
    let result = results[0][0].to_host().map_err(|error| error.to_string())?;
    Ok(result.values().unwrap())
}

#[test]
fn computes_a_matmul() {
    let found = run(&attributes([1, 1, 2, 2, 3], [0, 0, 3, 1], [0, 0, 2, 1]));
    assert_eq!(found.unwrap(), [4.0, 5.0, 10.0, 11.0]);
}

#[test]
fn rejects_out_of_bounds_access() {
    for (sizes, lhs, rhs, expected) in [
        ([1, 1, 2, 2, 4], [0, 0, 3, 1], [0, 0, 2, 1], "beyond a tensor of 6"),
        ([1, 1, 2, 2, 3], [0, 0, 4, 1], [0, 0, 2, 1], "beyond a tensor of 6"),
        ([1, 2, 2, 2, 3], [0, 0, 3, 1], [0, 0, 2, 1], "beyond a tensor of 4"),
        ([1, 1, 2, 2, -3], [0, 0, 3, 1], [0, 0, 2, 1], "negative"),
        ([1, 1, 2, 0, 3], [0, 0, 3, 1], [0, 0, 2, 1], "size 0"),
    ] {
        let error = run(&attributes(sizes, lhs, rhs)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    for offset in [-1, 6] {
        let from = attributes_from([1, 1, 2, 2, 3], [offset, 0], [0, 0, 3, 1], [0, 0, 2, 1]);
        let error = run(&from).unwrap_err();
        assert!(error.contains(&format!("offset {offset} is beyond a tensor of 6")), "{error}");
    }
    let error = run("lhs = dense<[0, 0, 3, 1]> : tensor<4xi64>").unwrap_err();
    assert!(error.contains("no attribute `sizes` of 5 integers"), "{error}");
}

#[test]
fn clients_share_handlers() {
    let (one, two) = (cpu(1), cpu(2));
    let text = program(&attributes([1, 1, 2, 2, 3], [0, 0, 3, 1], [0, 0, 2, 1]));
    for client in [one, two] {
        let matmul = client.compile(&text, &CompileOptions::new(1)).unwrap();
        let a = upload(&client, &[2, 3], &[1.0; 6], 0);
        let b = upload(&client, &[3, 2], &[2.0; 6], 0);
        assert_eq!(values(&matmul.execute(&[[&a, &b]]).unwrap()[0][0]), [6.0; 4]);
    }
}

/// The loss of two tokens of width 1 with a head of three rows, and the given exponentials shape.
fn loss(labels: &str, exponentials: &str) -> Result<Vec<f32>, String> {
    let text = format!(
        "module @loss {{
  func.func public @main(%x: tensor<2x1xf32>, %w: tensor<3x1xf32>) -> tensor<2xf32> {{
    %l = stablehlo.constant dense<{labels}> : tensor<2xi32>
    %r:4 = stablehlo.custom_call @{LOSS}(%x, %w, %l) {{api_version = 4 : i32}} :
        (tensor<2x1xf32>, tensor<3x1xf32>, tensor<2xi32>)
        -> (tensor<2xf32>, tensor<2x1xf32>, tensor<3x1xf32>, tensor<{exponentials}xf32>)
    return %r#0 : tensor<2xf32>
  }}
}}"
    );
    let client = cpu(1);
    let loss = client.compile(&text, &CompileOptions::new(1)).unwrap();
    let x = upload(&client, &[2, 1], &[0.0, 1.0], 0);
    let w = upload(&client, &[3, 1], &[1.0, 2.0, 3.0], 0);
    let results = loss.execute(&[[&x, &w]]).map_err(|error| error.to_string())?;
    let result = results[0][0].to_host().map_err(|error| error.to_string())?;
    Ok(result.values().unwrap())
}

#[test]
fn computes_the_loss_in_chunks() {
    let expected = [3_f32.ln(), (1_f32.exp() + 2_f32.exp() + 3_f32.exp()).ln() - 3.0];
    for exponentials in ["1x3", "2x3", "5x3"] {
        for (found, expected) in loss("[0, 2]", exponentials).unwrap().iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
    }
    assert_eq!(loss("[3, -1]", "2x3").unwrap(), [0.0, 0.0]);
}

#[test]
fn rejects_mismatched_loss_sizes() {
    for exponentials in ["2x2", "0x3"] {
        let error = loss("[0, 2]", exponentials).unwrap_err();
        assert!(error.contains("do not match"), "{error}");
    }
}

#[test]
fn collectives_between_processes_need_mpi() {
    let text = format!(
        "module @sum {{
  func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
    %y = stablehlo.custom_call @{MPI_ALL_REDUCE}(%x) {{api_version = 4 : i32}} :
        (tensor<2xf32>) -> tensor<2xf32>
    return %y : tensor<2xf32>
  }}
}}"
    );
    let client = cpu(1);
    let sum = client.compile(&text, &CompileOptions::new(1)).unwrap();
    let x = upload(&client, &[2], &[0.0; 2], 0);
    let results = sum.execute(&[[&x]]).and_then(|results| results[0][0].to_host());
    let error = results.unwrap_err().to_string();
    assert!(error.contains("MPI was not started"), "{error}");
}
