//! Module trees from tracing: a model is traced once, without values, and the trace is discarded.
//! What it declares is its tree.
//!
//! Only one of a stack of identical layers is traced; the tree repeats its module for each layer.

use crate::layers::attention::Form;
use crate::layers::checkpoint::Checkpoint;
use crate::module::{Module, Parameter, join};
use crate::scope::Scope;
use crate::task::InputSpec;
use crate::tracer::{Activations, Body, Declaration, Layer, LayerBody, Place, Tracer};
use fullshard_graph::{Argument, DType, Error, Program, Result, Tensor, zeros};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// What a model declares while it is traced.
#[derive(Debug, Clone, PartialEq)]
pub struct Declared {
    /// Its module tree.
    pub tree: Module,
    /// What a form of attention must support for all of its attention. The default if there is
    /// none.
    pub attention: Form,
    /// Whether it has buffers: tables that are not parameters.
    pub has_buffers: bool,
    /// Whether it has a residual stream whose tokens can be sharded.
    pub has_residual_stream: bool,
    /// What its layers name for remat policies.
    pub checkpoints: Vec<Checkpoint>,
}

/// What a model of a class declares when it is traced on inputs of one sequence of `tokens`.
pub fn declare(
    class: &'static str,
    inputs: &[InputSpec],
    tokens: usize,
    model: impl FnOnce(&Scope<'_>, Vec<Tensor>) -> Result<Tensor>,
) -> Result<Declared> {
    let tracer = DeclareTracer::new(class);
    let arguments: Vec<Argument> =
        inputs.iter().map(|input| Argument::new(input.batched(&[1]))).collect();
    let program = Program::trace("declare", &arguments, |inputs| {
        Scope::root(&tracer, |scope| Ok(vec![model(scope, inputs)?]))
    })?;
    let modules = tracer.modules.borrow();
    modules.iter().try_for_each(ModuleInfo::check_order)?;
    Ok(Declared {
        tree: tree(&modules, ROOT),
        attention: tracer.attention.get(),
        has_buffers: tracer.has_buffers.get(),
        has_residual_stream: tracer.has_residual_stream.get(),
        checkpoints: Checkpoint::of_program(&program, tokens),
    })
}

/// The class of lists of modules.
const LIST: &str = "ModuleList";

/// The index of the root among the modules.
const ROOT: usize = 0;

/// A tracer that records declarations and returns zeros as parameters.
struct DeclareTracer {
    modules: RefCell<Vec<ModuleInfo>>,
    /// The index of each module by its path, with a `*` for the layer.
    positions: RefCell<HashMap<String, usize>>,
    attention: Cell<Form>,
    has_buffers: Cell<bool>,
    has_residual_stream: Cell<bool>,
}

/// A module as declared so far.
struct ModuleInfo {
    class: &'static str,
    parameters: Vec<Parameter>,
    /// Names and indices, in the order of use.
    children: Vec<(String, usize)>,
    /// The names of children that come first.
    order: Vec<String>,
    /// The number of layers, if it is a list of layers.
    layers: Option<usize>,
}

impl ModuleInfo {
    fn new(class: &'static str, layers: Option<usize>) -> ModuleInfo {
        let (parameters, children, order) = (Vec::new(), Vec::new(), Vec::new());
        ModuleInfo { class, parameters, children, order, layers }
    }

    /// Rejects an order with unknown modules.
    fn check_order(&self) -> Result<()> {
        let is_known = |name: &&String| self.children.iter().any(|(known, _)| known == *name);
        match self.order.iter().find(|name| !is_known(name)) {
            Some(name) => {
                let reason =
                    format!("the order of {} has `{name}`, which is not a child", self.class);
                Err(Error::new("children", reason))
            }
            None => Ok(()),
        }
    }
}

impl DeclareTracer {
    fn new(class: &'static str) -> DeclareTracer {
        DeclareTracer {
            modules: RefCell::new(vec![ModuleInfo::new(class, None)]),
            positions: RefCell::new(HashMap::from([(String::new(), ROOT)])),
            attention: Cell::default(),
            has_buffers: Cell::default(),
            has_residual_stream: Cell::default(),
        }
    }

    fn position(&self, path: &str) -> Result<usize> {
        let undeclared = || Error::new("module", format!("`{path}` is not declared"));
        self.positions.borrow().get(path).copied().ok_or_else(undeclared)
    }

    /// Records a child of the module at a path. A module may be used more than once.
    fn add(&self, path: &str, name: &str, module: ModuleInfo) -> Result<()> {
        let parent = self.position(path)?;
        let path = join(path, name);
        let mut modules = self.modules.borrow_mut();
        if let Some(&known) = self.positions.borrow().get(&path) {
            let known = &modules[known];
            if (known.class, known.layers) == (module.class, module.layers) {
                return Ok(());
            }
            let reason = format!("`{path}` is both a {} and a {}", known.class, module.class);
            return Err(Error::new("module", reason));
        }
        let position = modules.len();
        modules.push(module);
        modules[parent].children.push((name.to_owned(), position));
        self.positions.borrow_mut().insert(path, position);
        Ok(())
    }
}

impl Tracer for DeclareTracer {
    fn module(&self, _: &Place, body: Body<'_>) -> Result<Vec<Tensor>> {
        body()
    }

    fn layers(
        &self,
        place: &Place,
        count: usize,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>> {
        match count {
            0 => Ok(carries),
            _ => body(&place.layer(Layer::Known(0)), carries),
        }
    }

    fn parameter(&self, place: &Place, parameter: &Parameter) -> Result<Tensor> {
        let position = self.position(&place.path)?;
        let parameters = &mut self.modules.borrow_mut()[position].parameters;
        match parameters.iter().find(|known| known.name == parameter.name) {
            Some(known) if known != parameter => {
                let name = place.name(parameter.name);
                let reason = format!("`{name}` is declared as {known:?} and as {parameter:?}");
                return Err(Error::new("parameter", reason));
            }
            Some(_) => {}
            None => parameters.push(parameter.clone()),
        }
        zeros(self.compute_dtype(), &parameter.dims)
    }

    fn dropout(&self, _: &Place, _: &str, x: &Tensor, _: Activations, _: f64) -> Result<Tensor> {
        Ok(x.clone())
    }

    fn is_training(&self) -> bool {
        false
    }

    fn compute_dtype(&self) -> DType {
        DType::F32
    }

    fn buffer_dtype(&self) -> DType {
        self.has_buffers.set(true);
        self.compute_dtype()
    }

    fn declare(&self, place: &Place, declaration: Declaration<'_>) -> Result<()> {
        match declaration {
            Declaration::Module { name, class } => {
                self.add(&place.path, name, ModuleInfo::new(class, None))
            }
            Declaration::Layers { name, class, count } => {
                self.add(&place.path, name, ModuleInfo::new(LIST, Some(count)))?;
                self.add(&join(&place.path, name), "*", ModuleInfo::new(class, None))
            }
            Declaration::Order(names) => {
                let position = self.position(&place.path)?;
                let order = names.iter().map(|&name| name.to_owned()).collect();
                self.modules.borrow_mut()[position].order = order;
                Ok(())
            }
            Declaration::Attention(form) => {
                self.attention.set(self.attention.get().and(form));
                Ok(())
            }
            Declaration::ResidualStream => {
                self.has_residual_stream.set(true);
                Ok(())
            }
        }
    }
}

/// The tree below a module.
fn tree(modules: &[ModuleInfo], position: usize) -> Module {
    let info = &modules[position];
    let place = |name: &String| info.order.iter().position(|first| first == name);
    let mut children: Vec<&(String, usize)> = info.children.iter().collect();
    children.sort_by_key(|(name, _)| place(name).unwrap_or(usize::MAX));
    let mut children = children.into_iter().map(|(name, child)| (name, tree(modules, *child)));
    if let Some(count) = info.layers {
        let layer = children.next().map(|(_, layer)| layer);
        return Module::list(layer.into_iter().flat_map(|layer| vec![layer; count]));
    }
    let children = children.map(|(name, module)| (name.clone(), module)).collect();
    Module { class: info.class, parameters: info.parameters.clone(), children }
}
