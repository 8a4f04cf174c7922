//! The placement of every parameter as a table: which dim is sharded over which axes, and why.

use crate::layout::ShardedParam;
use crate::placement::Placement;
use crate::wrap::aligned;
use fullshard_core::Layout;

impl Placement {
    /// A row per parameter, layers that are alike in one, and the mesh above.
    pub fn table(&self) -> String {
        let mut rows: Vec<Vec<String>> =
            vec![["parameter", "sharded", "layers", "shape", "shard"].map(str::to_owned).to_vec()];
        let mut reasons = vec!["why".to_owned()];
        let mut seen: Vec<&str> = Vec::new();
        for param in &self.parameters {
            if seen.contains(&param.template.as_str()) {
                continue;
            }
            seen.push(&param.template);
            let layers = self.parameters.iter().filter(|other| other.template == param.template);
            let layers = param.stack.unwrap_or(layers.count());
            let count = if param.stack.or(param.layer).is_some() { layers } else { 1 };
            rows.push(vec![
                param.template.clone(),
                self.sharded_over(param),
                format!("×{count}"),
                dims(&param.dims),
                dims(&param.shard_dims()),
            ]);
            reasons.push(param.reason.clone());
        }
        let lines =
            aligned(&rows).into_iter().zip(reasons).map(|(row, why)| format!("{row}  {why}"));
        let lines: Vec<String> = [self.mesh_line()].into_iter().chain(lines).collect();
        lines.join("\n")
    }

    /// The mesh in one line: its axes, and what they shard.
    fn mesh_line(&self) -> String {
        let axes = self.mesh.whole_axes();
        let axes: Vec<String> = axes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        let over = |what: &str, axes: &[usize]| {
            let names = self.mesh.whole_names(axes);
            (!names.is_empty()).then(|| format!("{what} over {}", names.join(", ")))
        };
        let tensor = self.tensor.as_ref().and_then(|tensor| over("layers sliced", &tensor.axes));
        let sharded = [
            over("batch sharded", &self.sample_axes),
            over("sequences sharded", &self.context_axes),
            tensor,
        ];
        let sharded: Vec<String> = sharded.into_iter().flatten().collect();
        let sharded =
            if sharded.is_empty() { "nothing sharded".into() } else { sharded.join(", ") };
        format!("mesh {}, {sharded}", axes.join(","))
    }

    /// Which dim of a parameter is sharded over which axes.
    fn sharded_over(&self, param: &ShardedParam) -> String {
        let over = |axes: &[usize]| self.mesh.whole_names(axes).join(", ");
        let slice = param.slice.as_ref();
        let sliced = slice.map(|slice| format!("dim {} over {}", slice.dim, over(&slice.axes)));
        let axes = over(&param.axes);
        let stored = match param.layout {
            Layout::Replicated if sliced.is_some() => None,
            Layout::Replicated => Some("replicated".to_owned()),
            Layout::Flat => Some(format!("flat over {axes}")),
            Layout::Dim(dim) => Some(format!("dim {dim} over {axes}")),
        };
        sliced.into_iter().chain(stored).collect::<Vec<_>>().join(", ")
    }
}

fn dims(dims: &[usize]) -> String {
    format!("[{}]", dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
}
