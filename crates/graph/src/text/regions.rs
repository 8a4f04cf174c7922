//! Calls, branches, loops and manual regions.

use super::types::{mlir, types_of};
use super::{Context, Writer};
use crate::graph::Graph;
use crate::op::{Constraint, Manual, Scan};
use crate::program::process_part;
use fullshard_core::{DType, Sharding, TensorType};
use std::rc::Rc;

impl Writer {
    pub(super) fn call(&mut self, function: &Rc<Graph>, context: &Context<'_>) -> Vec<Rc<str>> {
        let name = self.function_name(function);
        let text = format!("func.call @{name}({})", context.operands());
        self.op(&text, &context.function_type(), context.output_types.len(), context.path)
    }

    /// Branches capture outer values, so only the index is an operand.
    pub(super) fn branches(
        &mut self,
        branches: &[Rc<Graph>],
        context: &Context<'_>,
    ) -> Vec<Rc<str>> {
        let margin = self.margin();
        let types = types_of(&context.output_types);
        let regions: Vec<String> = branches
            .iter()
            .map(|branch| {
                let body = self.nested(|writer| {
                    let results = writer.graph(branch, &context.inputs[1..]);
                    writer
                        .line(&format!("stablehlo.return{}", super::typed_list(&results, &types)));
                });
                format!("{{\n{body}{margin}}}")
            })
            .collect();
        let text = format!("\"stablehlo.case\"({}) ({})", context.inputs[0], regions.join(", "));
        let results =
            if types.len() == 1 { types[0].clone() } else { format!("({})", types.join(", ")) };
        self.op(&text, &format!("(tensor<i32>) -> {results}"), types.len(), context.path)
    }

    pub(super) fn while_loop(
        &mut self,
        condition: &Graph,
        body: &Graph,
        context: &Context<'_>,
    ) -> Vec<Rc<str>> {
        let count = context.output_types.len();
        let (state, around) = context.inputs.split_at(count);
        self.loop_op(
            state,
            &context.output_types,
            context.path,
            |writer, state| {
                let parameters: Vec<Rc<str>> = state.iter().chain(around).cloned().collect();
                writer.graph(condition, &parameters).swap_remove(0)
            },
            |writer, state| {
                let parameters: Vec<Rc<str>> = state.iter().chain(around).cloned().collect();
                writer.graph(body, &parameters)
            },
        )
    }

    /// Writes a while loop over a state.
    fn loop_op(
        &mut self,
        state: &[Rc<str>],
        types: &[Rc<TensorType>],
        path: &Rc<str>,
        condition: impl FnOnce(&mut Writer, &[Rc<str>]) -> Rc<str>,
        body: impl FnOnce(&mut Writer, &[Rc<str>]) -> Vec<Rc<str>>,
    ) -> Vec<Rc<str>> {
        let names: Vec<Rc<str>> = state.iter().map(|_| self.fresh()).collect();
        let start: Vec<String> =
            names.iter().zip(state).map(|(name, start)| format!("{name} = {start}")).collect();
        let types = types_of(types);
        let margin = self.margin();
        let condition = self.nested(|writer| {
            let result = condition(writer, &names);
            writer.line(&format!("stablehlo.return {result} : tensor<i1>"));
        });
        let body = self.nested(|writer| {
            let next = body(writer, &names);
            writer.line(&format!("stablehlo.return{}", super::typed_list(&next, &types)));
        });
        // The types of a loop come before its regions, and its location after them.
        let name = self.fresh();
        let location = self.location(path);
        let (left, results) = match types.len() {
            1 => (name.to_string(), vec![name]),
            count => {
                let results = (0..count).map(|i| Rc::from(format!("{name}#{i}"))).collect();
                (format!("{name}:{count}"), results)
            }
        };
        self.line(&format!(
            "{left} = stablehlo.while({}) : {}",
            start.join(", "),
            types.join(", ")
        ));
        self.body.push_str(&format!(
            "{margin}cond {{\n{condition}{margin}}} do {{\n{body}{margin}}}{location}\n"
        ));
        results
    }

    /// A scan as a while loop. Its state is a counter, the carries, the prepared values of this
    /// step and the results stacked so far.
    pub(super) fn scan(&mut self, scan: &Scan, context: &Context<'_>) -> Vec<Rc<str>> {
        let path = context.path;
        let (constants, rest) = context.inputs.split_at(scan.constants);
        let (carries, inputs) = rest.split_at(scan.carries);
        let input_types = &context.input_types[scan.constants + scan.carries..];
        let counter = TensorType::scalar(DType::I32);
        let zero = self.number(&counter, "0", path);

        let first = if scan.reverse { scan.length - 1 } else { 0 };
        let first = self.number(&counter, &first.to_string(), path);
        let prepared = self.prepare(scan, constants, inputs, input_types, &first, path);
        let prepared_types = scan.prepare.as_ref().map_or(Vec::new(), |graph| graph.result_types());
        let mut stacks = Vec::new();
        for ty in &context.output_types[scan.carries..] {
            stacks.push(self.number(ty, &super::constants::number(ty.dtype, 0.0), path));
        }
        let state: Vec<Rc<str>> =
            [&zero].into_iter().chain(carries).chain(&prepared).chain(&stacks).cloned().collect();
        let mut types = vec![Rc::new(counter.clone())];
        types.extend_from_slice(&context.output_types[..scan.carries]);
        types.extend(prepared_types);
        types.extend_from_slice(&context.output_types[scan.carries..]);

        let (carry_count, prepared_count) = (scan.carries, prepared.len());
        let results = self.loop_op(
            &state,
            &types,
            path,
            |writer, state| {
                let length = writer.number(&counter, &scan.length.to_string(), path);
                let text = format!("stablehlo.compare LT, {}, {length}, SIGNED", state[0]);
                writer.op_one(&text, "(tensor<i32>, tensor<i32>) -> tensor<i1>", path)
            },
            |writer, state| {
                let (step, rest) = (&state[0], &state[1..]);
                let (carries, rest) = rest.split_at(carry_count);
                let (prepared, stacks) = rest.split_at(prepared_count);
                let index = writer.step_index(scan, step, path);
                let used = scan.body.used_parameters();
                let used = &used[used.len() - inputs.len()..];
                let slices = writer.slices(inputs, input_types, used, &index, path);
                let parameters: Vec<Rc<str>> = constants
                    .iter()
                    .chain(carries)
                    .chain(prepared)
                    .chain(&slices)
                    .cloned()
                    .collect();
                let results = writer.graph(&scan.body, &parameters);
                let one = writer.number(&counter, "1", path);
                let next =
                    writer.op_one(&format!("stablehlo.add {step}, {one}"), "tensor<i32>", path);
                let mut state = vec![next.clone()];
                state.extend_from_slice(&results[..carry_count]);
                if scan.prepare.is_some() {
                    // After the last step there is nothing to prepare; it repeats the last.
                    let last = writer.number(&counter, &(scan.length - 1).to_string(), path);
                    let text = format!("stablehlo.minimum {next}, {last}");
                    let next = writer.op_one(&text, "tensor<i32>", path);
                    let index = writer.step_index(scan, &next, path);
                    state.extend(writer.prepare(
                        scan,
                        constants,
                        inputs,
                        input_types,
                        &index,
                        path,
                    ));
                }
                let result_types = scan.body.result_types();
                for (i, stack) in stacks.iter().enumerate() {
                    let (result, ty) = (&results[carry_count + i], &result_types[carry_count + i]);
                    state.push(writer.stack(stack, result, ty, scan.length, &index, path));
                }
                state
            },
        );
        let carries = &results[1..1 + carry_count];
        carries.iter().chain(&results[1 + carry_count + prepared_count..]).cloned().collect()
    }

    /// The slice index of a step.
    fn step_index(&mut self, scan: &Scan, step: &Rc<str>, path: &Rc<str>) -> Rc<str> {
        if !scan.reverse {
            return step.clone();
        }
        let last =
            self.number(&TensorType::scalar(DType::I32), &(scan.length - 1).to_string(), path);
        self.op_one(&format!("stablehlo.subtract {last}, {step}"), "tensor<i32>", path)
    }

    fn prepare(
        &mut self,
        scan: &Scan,
        constants: &[Rc<str>],
        inputs: &[Rc<str>],
        types: &[Rc<TensorType>],
        index: &Rc<str>,
        path: &Rc<str>,
    ) -> Vec<Rc<str>> {
        let Some(prepare) = &scan.prepare else { return Vec::new() };
        let used = prepare.used_parameters();
        let slices = self.slices(inputs, types, &used[constants.len()..], index, path);
        let parameters: Vec<Rc<str>> = constants.iter().chain(&slices).cloned().collect();
        self.graph(prepare, &parameters)
    }

    /// The slices of one step; unused ones are not written, and keep the input's name.
    fn slices(
        &mut self,
        inputs: &[Rc<str>],
        types: &[Rc<TensorType>],
        used: &[bool],
        index: &Rc<str>,
        path: &Rc<str>,
    ) -> Vec<Rc<str>> {
        if !used.contains(&true) {
            return inputs.to_vec();
        }
        let zero = self.number(&TensorType::scalar(DType::I32), "0", path);
        let slice = |((input, ty), used): ((&Rc<str>, &Rc<TensorType>), &bool)| {
            if !used {
                return input.clone();
            }
            let mut slice = (**ty).clone();
            slice.dims[0] = 1;
            let starts = starts(index, &zero, ty.rank());
            let sizes = super::list(&slice.dims);
            let text = format!("stablehlo.dynamic_slice {input}, {starts}, sizes = {sizes}");
            let indices = vec!["tensor<i32>"; ty.rank()].join(", ");
            let sliced =
                self.op_one(&text, &format!("({}, {indices}) -> {}", mlir(ty), mlir(&slice)), path);
            let flat = crate::control::slice_type(ty);
            self.op_one(
                &format!("stablehlo.reshape {sliced}"),
                &format!("({}) -> {}", mlir(&slice), mlir(&flat)),
                path,
            )
        };
        inputs.iter().zip(types).zip(used).map(slice).collect()
    }

    fn stack(
        &mut self,
        stack: &Rc<str>,
        result: &Rc<str>,
        ty: &TensorType,
        length: usize,
        index: &Rc<str>,
        path: &Rc<str>,
    ) -> Rc<str> {
        let mut row = ty.clone();
        row.dims.insert(0, 1);
        let mut all = row.clone();
        all.dims[0] = length;
        let zero = self.number(&TensorType::scalar(DType::I32), "0", path);
        let starts = starts(index, &zero, all.rank());
        let indices = vec!["tensor<i32>"; all.rank()].join(", ");
        let (ty, row, all) = (mlir(ty), mlir(&row), mlir(&all));
        let result =
            self.op_one(&format!("stablehlo.reshape {result}"), &format!("({ty}) -> {row}"), path);
        let text = format!("stablehlo.dynamic_update_slice {stack}, {result}, {starts}");
        self.op_one(&text, &format!("({all}, {row}, {indices}) -> {all}"), path)
    }

    pub(super) fn manual(&mut self, manual: &Manual, context: &Context<'_>) -> Vec<Rc<str>> {
        let parameters = manual.body.parameter_types();
        let names: Vec<Rc<str>> = parameters.iter().map(|_| self.fresh()).collect();
        let declared: Vec<String> = names
            .iter()
            .zip(&parameters)
            .map(|(name, ty)| format!("{name}: {}", mlir(ty)))
            .collect();
        let outer = self.manual_axes.clone();
        self.manual_axes.extend(&manual.axes);
        let all_manual = self.is_local();
        let shardings = |shardings: &[Sharding]| {
            let text = |sharding: &Sharding| match all_manual {
                true => sharding.in_process().to_string(),
                false => open(&sharding.in_process()),
            };
            let shardings: Vec<String> =
                shardings.iter().map(|sharding| format!("<@mesh, {}>", text(sharding))).collect();
            format!("[{}]", shardings.join(", "))
        };
        let in_process = manual.axes.iter().filter(|&&axis| !manual.mesh.is_across(axis));
        let axes: Vec<String> =
            in_process.map(|&axis| format!("\"{}\"", manual.mesh.axis_name(axis))).collect();
        let margin = self.margin();
        let body = self.nested(|writer| {
            let results = writer.graph(&manual.body, &names);
            let types = types_of(&manual.body.result_types());
            writer.line(&format!("sdy.return{}", super::typed_list(&results, &types)));
        });
        self.manual_axes = outer;
        let text = format!(
            "sdy.manual_computation({}) in_shardings={} out_shardings={} manual_axes={{{}}} ({}) \
             {{\n{body}{margin}}}",
            context.operands(),
            shardings(&manual.inputs),
            shardings(&manual.outputs),
            axes.join(", "),
            declared.join(", ")
        );
        let of_process = |types: &[Rc<TensorType>], shardings: &[Sharding]| {
            let types = types.iter().zip(shardings);
            types.map(|(ty, sharding)| Rc::new(process_part(ty, Some(sharding)))).collect()
        };
        let context = Context {
            input_types: of_process(&context.input_types, &manual.inputs),
            output_types: of_process(&context.output_types, &manual.outputs),
            ..*context
        };
        let types = context.function_type();
        self.op(&text, &types, context.output_types.len(), context.path)
    }
}

fn starts(index: &Rc<str>, zero: &Rc<str>, rank: usize) -> String {
    let rest = std::iter::repeat_n(zero, rank.saturating_sub(1));
    let starts: Vec<&str> = [index].into_iter().chain(rest).map(|name| &**name).collect();
    starts.join(", ")
}

/// The sharding of a constraint, in which open dimensions are those that it does not name.
pub(super) fn constraint(constraint: &Constraint) -> String {
    match constraint.open {
        true => constraint.sharding.in_process().to_string().replace("{}", "{?}"),
        false => constraint.sharding.in_process().to_string(),
    }
}

/// A sharding in which the automatic axes may also shard every dimension.
fn open(sharding: &Sharding) -> String {
    let dim = |axes: &Vec<usize>| {
        let names = axes.iter().map(|&axis| format!("\"{}\", ", sharding.mesh().axis_name(axis)));
        format!("{{{}?}}", names.collect::<String>())
    };
    format!("[{}]", sharding.dims().iter().map(dim).collect::<Vec<_>>().join(", "))
}
