//! Module trees: what a model is made of, before a tensor exists. That of a model comes from
//! tracing it; see [`declare`](crate::declare).

/// A module with Hugging Face's class name, its own parameters and the modules inside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Module {
    /// The class, such as `GPT2Block`.
    pub class: &'static str,
    /// The parameters of the module itself, not of those inside it.
    pub parameters: Vec<Parameter>,
    /// The modules inside it, by name and in order.
    pub children: Vec<(String, Module)>,
}

/// A parameter that is still to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Its name in its module, such as `weight`.
    pub name: &'static str,
    /// Its dimensions, as Hugging Face stores it.
    pub dims: Vec<usize>,
    /// How it begins.
    pub initializer: Initializer,
    /// A row, along dimension 0, that begins at zero whatever the initializer says.
    pub zero_row: Option<usize>,
    /// The full name of the parameter that this one is the same tensor as, if it is tied.
    pub tied_to: Option<String>,
}

/// How a parameter begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initializer {
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
    /// Normal numbers of mean zero.
    Normal {
        /// Their standard deviation.
        deviation: f64,
    },
}

impl Initializer {
    /// Normal numbers of mean zero with a standard deviation.
    pub fn normal(std: f64) -> Initializer {
        Initializer::Normal { deviation: std }
    }
}

impl Module {
    /// A module with nothing in it yet.
    pub fn new(class: &'static str) -> Module {
        Module { class, parameters: Vec::new(), children: Vec::new() }
    }

    /// A list of modules, named by their position.
    pub fn list(modules: impl IntoIterator<Item = Module>) -> Module {
        let children = modules.into_iter().enumerate().map(|(i, module)| (i.to_string(), module));
        Module { children: children.collect(), ..Module::new("ModuleList") }
    }

    /// With a parameter of its own.
    pub fn parameter(
        mut self,
        name: &'static str,
        dims: &[usize],
        initializer: Initializer,
    ) -> Self {
        self.parameters.push(Parameter::new(name, dims, initializer));
        self
    }

    /// With a parameter that is the same tensor as another.
    pub fn tied(mut self, name: &'static str, dims: &[usize], other: &str) -> Self {
        self.parameters.push(Parameter::tied(name, dims, other));
        self
    }

    /// With a module inside.
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
    /// A parameter of its own, which begins as its initializer says.
    pub fn new(name: &'static str, dims: &[usize], initializer: Initializer) -> Parameter {
        Parameter { name, dims: dims.to_vec(), initializer, zero_row: None, tied_to: None }
    }

    /// A parameter that is the same tensor as another, which is given by its full name.
    pub fn tied(name: &'static str, dims: &[usize], other: &str) -> Parameter {
        let own = Parameter::new(name, dims, Initializer::Zeros);
        Parameter { tied_to: Some(other.to_owned()), ..own }
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// The path of something in the module at a path.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
