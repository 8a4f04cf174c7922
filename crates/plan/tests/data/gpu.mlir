// A large product, a thin one, a sum and an update.
// Compiled for one H200 as gpu_h200.pb:
//   fullshard compile gpu.mlir --topology h200:1 --hlo gpu_h200.pb
func.func @main(
    %a: tensor<8192x8192xbf16>, %b: tensor<8192x8192xbf16>,
    %q: tensor<384x256x128xbf16>, %k: tensor<384x1024x128xbf16>,
    %x: tensor<1024x16384xf32>, %w: tensor<16384x16384xf32>, %g: tensor<16384x16384xf32>
) -> (tensor<8192x8192xbf16>, tensor<384x256x1024xbf16>, tensor<1024xf32>, tensor<16384x16384xf32>) {
  %large = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<8192x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<8192x8192xbf16>
  %thin = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2]
      : (tensor<384x256x128xbf16>, tensor<384x1024x128xbf16>) -> tensor<384x256x1024xbf16>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<1024x16384xf32>, tensor<f32>) -> tensor<1024xf32>
  %rate = stablehlo.constant dense<1.0e-3> : tensor<16384x16384xf32>
  %change = stablehlo.multiply %g, %rate : tensor<16384x16384xf32>
  %new = stablehlo.subtract %w, %change : tensor<16384x16384xf32>
  return %large, %thin, %sum, %new
      : tensor<8192x8192xbf16>, tensor<384x256x1024xbf16>, tensor<1024xf32>, tensor<16384x16384xf32>
}
