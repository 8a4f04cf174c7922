//! Module trees from tracing: a model is run once, without values, inside a trace that is thrown
//! away, and what it declares on the way is its tree.
//!
//! Of a stack of equal layers one is traced; the tree has its module as often as there are layers.

use crate::layers::attention::Form;
use crate::module::{Module, Parameter, join};
use crate::scope::Scope;
use crate::task::InputSpec;
use crate::tracer::{Body, Declaration, Layer, LayerBody, Place, Tracer};
use fullshard_graph::{Argument, DType, Error, Program, Result, Tensor, zeros};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// What a model declares while it is traced.
#[derive(Debug, Clone, PartialEq)]
pub struct Declared {
    /// Its module tree.
    pub tree: Module,
    /// What a form of attention must be able to do for all of its attention. By default, without
    /// any, nothing.
    pub attention: Form,
}

/// What a model of a class declares when it is traced on inputs of one example each.
pub fn declare(
    class: &'static str,
    inputs: &[InputSpec],
    model: impl FnOnce(&Scope<'_>, Vec<Tensor>) -> Result<Tensor>,
) -> Result<Declared> {
    let tracer = Declaring::new(class);
    let arguments: Vec<Argument> =
        inputs.iter().map(|input| Argument::new(input.batched(&[1]))).collect();
    Program::trace("declare", &arguments, |inputs| {
        Scope::root(&tracer, |scope| Ok(vec![model(scope, inputs)?]))
    })?;
    let modules = tracer.modules.borrow();
    modules.iter().try_for_each(Noted::check_order)?;
    Ok(Declared { tree: tree(&modules, ROOT), attention: tracer.attention.get() })
}

/// The class of lists of modules.
const LIST: &str = "ModuleList";

/// The position of the root among the modules.
const ROOT: usize = 0;

/// A tracer that takes note of what is declared, and hands out zeros.
struct Declaring {
    modules: RefCell<Vec<Noted>>,
    /// The position of each module by its path, with a `*` for the layer.
    positions: RefCell<HashMap<String, usize>>,
    attention: Cell<Form>,
}

/// A module as far as it is known.
struct Noted {
    class: &'static str,
    parameters: Vec<Parameter>,
    /// Names and positions, in the order of use.
    children: Vec<(String, usize)>,
    /// The names of children that come first.
    order: Vec<String>,
    /// How often its only child is repeated, if it is a list of layers.
    layers: Option<usize>,
}

impl Noted {
    fn new(class: &'static str, layers: Option<usize>) -> Noted {
        let (parameters, children, order) = (Vec::new(), Vec::new(), Vec::new());
        Noted { class, parameters, children, order, layers }
    }

    /// Refuses an order of modules that are not there.
    fn check_order(&self) -> Result<()> {
        let is_known = |name: &&String| self.children.iter().any(|(known, _)| known == *name);
        match self.order.iter().find(|name| !is_known(name)) {
            Some(name) => {
                let reason = format!("a {} orders `{name}`, which is not in it", self.class);
                Err(Error::new("children", reason))
            }
            None => Ok(()),
        }
    }
}

impl Declaring {
    fn new(class: &'static str) -> Declaring {
        Declaring {
            modules: RefCell::new(vec![Noted::new(class, None)]),
            positions: RefCell::new(HashMap::from([(String::new(), ROOT)])),
            attention: Cell::default(),
        }
    }

    fn position(&self, path: &str) -> Result<usize> {
        let lost = || Error::new("module", format!("`{path}` was never entered"));
        self.positions.borrow().get(path).copied().ok_or_else(lost)
    }

    /// Takes note of a module inside the one at a path. A module may be used more than once.
    fn add(&self, path: &str, name: &str, module: Noted) -> Result<()> {
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

impl Tracer for Declaring {
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

    fn dropout(&self, _: &Place, _: &str, x: &Tensor, _: f64) -> Result<Tensor> {
        Ok(x.clone())
    }

    fn is_training(&self) -> bool {
        false
    }

    fn compute_dtype(&self) -> DType {
        DType::F32
    }

    fn declare(&self, place: &Place, declaration: Declaration<'_>) -> Result<()> {
        match declaration {
            Declaration::Module { name, class } => {
                self.add(&place.path, name, Noted::new(class, None))
            }
            Declaration::Layers { name, class, count } => {
                self.add(&place.path, name, Noted::new(LIST, Some(count)))?;
                self.add(&join(&place.path, name), "*", Noted::new(class, None))
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
        }
    }
}

/// The tree below a module.
fn tree(modules: &[Noted], position: usize) -> Module {
    let noted = &modules[position];
    let place = |name: &String| noted.order.iter().position(|first| first == name);
    let mut children: Vec<&(String, usize)> = noted.children.iter().collect();
    children.sort_by_key(|(name, _)| place(name).unwrap_or(usize::MAX));
    let mut children = children.into_iter().map(|(name, child)| (name, tree(modules, *child)));
    if let Some(count) = noted.layers {
        let layer = children.next().map(|(_, layer)| layer);
        return Module::list(layer.into_iter().flat_map(|layer| vec![layer; count]));
    }
    let children = children.map(|(name, module)| (name.clone(), module)).collect();
    Module { class: noted.class, parameters: noted.parameters.clone(), children }
}
