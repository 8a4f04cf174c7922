// One large matmul: the peak throughput of a device.
//   fullshard exec examples/programs/matmul.mlir --device cuda --repeat 50
module @matmul {
  func.func public @main(%a: tensor<8192x8192xbf16>, %b: tensor<8192x8192xbf16>)
      -> tensor<8192x8192xbf16> {
    %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<8192x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<8192x8192xbf16>
    return %c : tensor<8192x8192xbf16>
  }
}
