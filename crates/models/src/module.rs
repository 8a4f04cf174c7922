//! Module trees: the modules and parameters of a model, before any tensor exists. They come from
//! tracing the model; see [`declare`](crate::declare).

use crate::layers::dim_names::DimName;

/// A module with Hugging Face's class name, its own parameters and its children.
#[derive(Debug, Clone, PartialEq)]
pub struct Module {
    /// The class, such as `GPT2Block`.
    pub class: &'static str,
    /// The parameters of the module itself, without those of its children.
    pub parameters: Vec<Parameter>,
    /// Its children by name, in order.
    pub children: Vec<(String, Module)>,
}

/// The declaration of a parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Its name in its module, such as `weight`.
    pub name: &'static str,
    /// Its dimensions, as Hugging Face stores it.
    pub dims: Vec<usize>,
    /// The logical names of its dimensions, such as `vocab` and `embed`, which sharding rules
    /// refer to; none if they have no names.
    pub dim_names: Vec<DimName>,
    /// How it is initialized.
    pub initializer: Initializer,
    /// A row, along dimension 0, that is initialized to zero whatever the initializer.
    pub zero_row: Option<usize>,
    /// The full name of the parameter that this one is tied to, if any.
    pub tied_to: Option<String>,
}

/// How a parameter is initialized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initializer {
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
    /// Normally distributed with mean zero.
    Normal {
        /// The standard deviation.
        std: f64,
    },
}

impl Initializer {
    /// Normally distributed with mean zero and a standard deviation.
    pub fn normal(std: f64) -> Initializer {
        Initializer::Normal { std }
    }
}

impl Module {
    /// An empty module.
    pub fn new(class: &'static str) -> Module {
        Module { class, parameters: Vec::new(), children: Vec::new() }
    }

    /// A list of modules, named by their index.
    pub fn list(modules: impl IntoIterator<Item = Module>) -> Module {
        let children = modules.into_iter().enumerate().map(|(i, module)| (i.to_string(), module));
        Module { children: children.collect(), ..Module::new("ModuleList") }
    }

    /// Adds a parameter.
    pub fn parameter(
        mut self,
        name: &'static str,
        dims: &[usize],
        initializer: Initializer,
    ) -> Self {
        self.parameters.push(Parameter::new(name, dims, initializer));
        self
    }

    /// Adds a parameter that is tied to another.
    pub fn tied(mut self, name: &'static str, dims: &[usize], other: &str) -> Self {
        self.parameters.push(Parameter::tied(name, dims, other));
        self
    }

    /// Adds a child.
    pub fn child(mut self, name: &str, module: Module) -> Self {
        self.children.push((name.to_owned(), module));
        self
    }

    /// Visits every module, parents first, with its path (empty at the root).
    pub fn visit<'a>(&'a self, visit: &mut dyn FnMut(&str, &'a Module)) {
        self.visit_from("", visit);
    }

    fn visit_from<'a>(&'a self, path: &str, visit: &mut dyn FnMut(&str, &'a Module)) {
        visit(path, self);
        for (name, child) in &self.children {
            child.visit_from(&join(path, name), visit);
        }
    }

    /// Every parameter with its full name, in the order of the tree; tied ones included.
    pub fn named_parameters(&self) -> Vec<(String, &Parameter)> {
        let mut named = Vec::new();
        self.visit(&mut |path, module| {
            named.extend(module.parameters.iter().map(|p| (join(path, p.name), p)));
        });
        named
    }

    /// The number of elements of all parameters; tied ones count once.
    pub fn elements(&self) -> usize {
        let own = self.named_parameters();
        own.iter().filter(|(_, p)| p.tied_to.is_none()).map(|(_, p)| p.elements()).sum()
    }
}

impl Parameter {
    /// An untied parameter.
    pub fn new(name: &'static str, dims: &[usize], initializer: Initializer) -> Parameter {
        Parameter {
            name,
            dims: dims.to_vec(),
            dim_names: Vec::new(),
            initializer,
            zero_row: None,
            tied_to: None,
        }
    }

    /// With logical names for its dimensions.
    pub fn with_dim_names(self, dim_names: &[DimName]) -> Parameter {
        Parameter { dim_names: dim_names.to_vec(), ..self }
    }

    /// A parameter that is tied to another, given by its full name.
    pub fn tied(name: &'static str, dims: &[usize], other: &str) -> Parameter {
        let own = Parameter::new(name, dims, Initializer::Zeros);
        Parameter { tied_to: Some(other.to_owned()), ..own }
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// The path of a name in the module at a path.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
