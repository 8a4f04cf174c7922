//! Convolutions and pooling.

use super::types::{mlir, scalar};
use super::{Context, Writer, array, list};
use crate::op::{ConvolutionDims, Reduction, Window};
use std::rc::Rc;

pub(super) fn convolution(dims: &ConvolutionDims, operands: &str) -> String {
    let numbers = |positions: (usize, usize), names: (&str, &str)| {
        let mut spatial = 0;
        let dims: Vec<String> = (0..dims.stride.len() + 2)
            .map(|dim| {
                if dim == positions.0 {
                    return names.0.to_owned();
                }
                if dim == positions.1 {
                    return names.1.to_owned();
                }
                spatial += 1;
                (spatial - 1).to_string()
            })
            .collect();
        format!("[{}]", dims.join(", "))
    };
    let padding: Vec<String> =
        dims.padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
    format!(
        "stablehlo.convolution({operands}) dim_numbers = {}x{}->{}, window = {{stride = {}, pad = \
         [{}], lhs_dilate = {}, rhs_dilate = {}, reverse = {}}} {{batch_group_count = {} : i64, \
         feature_group_count = {} : i64}}",
        numbers(dims.lhs, ("b", "f")),
        numbers(dims.rhs, ("i", "o")),
        numbers(dims.out, ("b", "f")),
        list(&dims.stride),
        padding.join(", "),
        list(&dims.lhs_dilation),
        list(&dims.rhs_dilation),
        list(&dims.reverse),
        dims.batch_groups,
        dims.feature_groups
    )
}

fn window_attributes(window: &Window) -> String {
    let padding: Vec<String> =
        window.padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
    format!(
        "<{{padding = dense<[{}]> : tensor<{}x2xi64>, window_dimensions = {}, window_strides = {}}}>",
        padding.join(", "),
        padding.len(),
        array(&window.size),
        array(&window.stride)
    )
}

impl Writer {
    pub(super) fn reduce_window(
        &mut self,
        kind: Reduction,
        window: &Window,
        context: &Context<'_>,
    ) -> Rc<str> {
        let dtype = context.output_types[0].dtype;
        let start = self.start(kind, dtype, context.path);
        let region = self.reducer(kind, dtype);
        let operand = &context.inputs[0];
        let text = format!(
            "\"stablehlo.reduce_window\"({operand}, {start}) {} {region}",
            window_attributes(window)
        );
        let types = context.reduction_type(dtype);
        self.op_one(&text, &types, context.path)
    }

    pub(super) fn select_and_scatter(&mut self, window: &Window, context: &Context<'_>) -> Rc<str> {
        let dtype = context.output_types[0].dtype;
        let start = self.start(Reduction::Sum, dtype, context.path);
        let [a, b, c] = [self.fresh(), self.fresh(), self.fresh()];
        let scalar = scalar(dtype);
        let margin = self.margin();
        let how = super::plain::comparison_type(dtype);
        let scatter = self.reducer(Reduction::Sum, dtype);
        let scatter = scatter.strip_prefix('(').unwrap_or(&scatter);
        let text = format!(
            "\"stablehlo.select_and_scatter\"({}, {start}) {} ({{\n{margin}  ^bb0({a}: {scalar}, {b}: \
             {scalar}):\n{margin}    {c} = stablehlo.compare GE, {a}, {b}, {how} : ({scalar}, \
             {scalar}) -> tensor<i1>\n{margin}    stablehlo.return {c} : tensor<i1>\n{margin}}}, {scatter}",
            context.operands(),
            window_attributes(window)
        );
        let types = format!(
            "({}, {}, {scalar}) -> {}",
            mlir(&context.input_types[0]),
            mlir(&context.input_types[1]),
            mlir(&context.output_types[0])
        );
        self.op_one(&text, &types, context.path)
    }
}
