//! Functions differentiated once for all their calls.

use super::partition::Parts;
use crate::error::Result;
use crate::graph::Graph;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// A differentiated function, shared by all its calls.
pub(super) struct SharedParts {
    pub forward: Rc<Graph>,
    pub backward: Rc<Graph>,
    pub parameters: Vec<usize>,
    pub has_gradient: Vec<bool>,
    /// Keeps the function, by whose address the parts are found, where it is.
    _function: Rc<Graph>,
}

type Key = (*const Graph, Vec<bool>, Vec<bool>);

thread_local! {
    static DIFFERENTIATED: RefCell<HashMap<Key, Rc<SharedParts>>> = RefCell::default();
}

/// Differentiates a function the first time, and gives the same parts from then on, so that all
/// its calls share one forward and one backward function.
pub(super) fn differentiate_once(
    function: &Rc<Graph>,
    wanted: &[bool],
    reached: &[bool],
    differentiate: impl FnOnce(&Rc<Graph>, &[bool], &[bool]) -> Result<Parts>,
) -> Result<Rc<SharedParts>> {
    let key = (Rc::as_ptr(function), wanted.to_vec(), reached.to_vec());
    if let Some(parts) = DIFFERENTIATED.with(|known| known.borrow().get(&key).cloned()) {
        return Ok(parts);
    }
    let parts = differentiate(function, wanted, reached)?;
    let shared = Rc::new(SharedParts {
        forward: Rc::new(Graph { name: format!("{}_forward", function.name), ..parts.forward }),
        backward: Rc::new(parts.backward),
        parameters: parts.parameters,
        has_gradient: parts.has_gradient,
        _function: function.clone(),
    });
    DIFFERENTIATED.with(|known| known.borrow_mut().insert(key, shared.clone()));
    Ok(shared)
}

/// Forgets the functions differentiated so far; their program is done.
pub(crate) fn forget_functions() {
    DIFFERENTIATED.with(|known| known.borrow_mut().clear());
}
