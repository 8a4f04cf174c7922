//! Custom calls of the CPU: on every device, and refused where they would leave their tensors.
#![allow(clippy::unwrap_used)]

mod common;

use common::{cpu, upload, values};
use fullshard_pjrt::{CompileOptions, LOSS, PRODUCT};

/// A product of `f32[2, 3]` and `f32[3, 2]` with given attributes.
fn program(attributes: &str) -> String {
    format!(
        "module @product {{
  func.func public @main(%a: tensor<2x3xf32>, %b: tensor<3x2xf32>) -> tensor<2x2xf32> {{
    %c = stablehlo.custom_call @{PRODUCT}(%a, %b) {{api_version = 4 : i32,
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
    let product = client.compile(&program(attributes), &CompileOptions::new(1)).unwrap();
    let a = upload(&client, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0);
    let b = upload(&client, &[3, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], 0);
    let results = product.execute(&[[&a, &b]]).map_err(|error| error.to_string())?;
    let result = results[0][0].to_host().map_err(|error| error.to_string())?;
    Ok(result.values().unwrap())
}

#[test]
fn a_product_is_computed() {
    let found = run(&attributes([1, 1, 2, 2, 3], [0, 0, 3, 1], [0, 0, 2, 1]));
    assert_eq!(found.unwrap(), [4.0, 5.0, 10.0, 11.0]);
}

#[test]
fn what_leaves_its_tensors_is_refused() {
    for (sizes, lhs, rhs, said) in [
        ([1, 1, 2, 2, 4], [0, 0, 3, 1], [0, 0, 2, 1], "beyond a tensor of 6"),
        ([1, 1, 2, 2, 3], [0, 0, 4, 1], [0, 0, 2, 1], "beyond a tensor of 6"),
        ([1, 2, 2, 2, 3], [0, 0, 3, 1], [0, 0, 2, 1], "beyond a tensor of 4"),
        ([1, 1, 2, 2, -3], [0, 0, 3, 1], [0, 0, 2, 1], "negative"),
        ([1, 1, 2, 0, 3], [0, 0, 3, 1], [0, 0, 2, 1], "nothing"),
    ] {
        let error = run(&attributes(sizes, lhs, rhs)).unwrap_err();
        assert!(error.contains(said), "{error}");
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
fn clients_of_one_plugin_share_the_handlers() {
    let (one, two) = (cpu(1), cpu(2));
    let text = program(&attributes([1, 1, 2, 2, 3], [0, 0, 3, 1], [0, 0, 2, 1]));
    for client in [one, two] {
        let product = client.compile(&text, &CompileOptions::new(1)).unwrap();
        let a = upload(&client, &[2, 3], &[1.0; 6], 0);
        let b = upload(&client, &[3, 2], &[2.0; 6], 0);
        assert_eq!(values(&product.execute(&[[&a, &b]]).unwrap()[0][0]), [6.0; 4]);
    }
}

/// The loss of two tokens of width 1 under a head of three rows, with exponentials of a size.
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
fn a_loss_is_computed_some_tokens_at_a_time() {
    let expected = [3_f32.ln(), (1_f32.exp() + 2_f32.exp() + 3_f32.exp()).ln() - 3.0];
    for exponentials in ["1x3", "2x3", "5x3"] {
        for (found, expected) in loss("[0, 2]", exponentials).unwrap().iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
    }
    assert_eq!(loss("[3, -1]", "2x3").unwrap(), [0.0, 0.0]);
}

#[test]
fn a_loss_whose_sizes_do_not_fit_is_refused() {
    for exponentials in ["2x2", "0x3"] {
        let error = loss("[0, 2]", exponentials).unwrap_err();
        assert!(error.contains("do not fit together"), "{error}");
    }
}
