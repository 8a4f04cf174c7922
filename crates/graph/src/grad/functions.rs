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
    /// Keeps the function alive: its address is the cache key.
    _function: Rc<Graph>,
}

type Key = (*const Graph, Vec<bool>, Vec<bool>);

thread_local! {
    static DIFFERENTIATED: RefCell<HashMap<Key, Rc<SharedParts>>> = RefCell::default();
}

/// Differentiates a function the first time and returns the cached parts afterwards, so that all
/// its calls share one forward and one backward function.
pub(super) fn differentiate_once(
    function: &Rc<Graph>,
    needs_grad: &[bool],
    reached: &[bool],
    differentiate: impl FnOnce(&Rc<Graph>, &[bool], &[bool]) -> Result<Parts>,
) -> Result<Rc<SharedParts>> {
    let key = (Rc::as_ptr(function), needs_grad.to_vec(), reached.to_vec());
    if let Some(parts) = DIFFERENTIATED.with(|cache| cache.borrow().get(&key).cloned()) {
        return Ok(parts);
    }
    let parts = differentiate(function, needs_grad, reached)?;
    let shared = Rc::new(SharedParts {
        forward: Rc::new(Graph { name: format!("{}_forward", function.name), ..parts.forward }),
        backward: Rc::new(parts.backward),
        parameters: parts.parameters,
        has_gradient: parts.has_gradient,
        _function: function.clone(),
    });
    DIFFERENTIATED.with(|cache| cache.borrow_mut().insert(key, shared.clone()));
    Ok(shared)
}

/// Clears the cache of differentiated functions, when their program is done.
pub(crate) fn clear_functions() {
    DIFFERENTIATED.with(|cache| cache.borrow_mut().clear());
}
