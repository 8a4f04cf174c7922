//! Trip counts of `while` loops, derived from the loop itself.
//!
//! Some backends annotate the count, others only leave a counter: the condition compares an element
//! of the loop's state with a constant, the body adds a constant to it, and it starts from a
//! constant. Compilers wrap each of the three in copies and fusions, so values are followed through
//! those. Other loops have an unknown count; none is guessed.

use std::cell::Cell;

use super::element::ElementType;
use super::instruction::{Instruction, json_integer};
use super::module::{Computation, Module};

/// More steps than any real counter needs; malformed modules may loop forever.
const MAX_STEPS: u32 = 400;

/// The trip count of a `while` each time it is reached; `None` if unknown.
pub fn trip_count(module: &Module, instruction: &Instruction) -> Option<u64> {
    if instruction.opcode != "while" {
        return None;
    }
    annotated_count(instruction).or_else(|| Loop::new(module, instruction)?.count())
}

/// The condition and the body of a `while`.
pub fn condition_and_body<'a>(
    module: &'a Module,
    instruction: &Instruction,
) -> Option<(&'a Computation, &'a Computation)> {
    let [first, second] = instruction.called.as_slice() else {
        return None;
    };
    let (first, second) = (module.computation(*first)?, module.computation(*second)?);
    match (is_pred(first), is_pred(second)) {
        (true, false) => Some((first, second)),
        (false, true) => Some((second, first)),
        _ => None,
    }
}

fn is_pred(computation: &Computation) -> bool {
    element_type(computation.root()) == Some(ElementType::Pred)
}

fn annotated_count(instruction: &Instruction) -> Option<u64> {
    let config = instruction.backend_config_json()?;
    json_integer(config.get("known_trip_count")?.get("n")?)
}

/// An element of the loop's state plus a constant, or just the constant.
#[derive(Clone, Copy)]
struct Linear {
    element: Option<usize>,
    offset: i128,
}

/// A computation and its caller; without a caller its parameter is the loop's state.
struct Scope<'a> {
    computation: &'a Computation,
    caller: Option<(&'a Scope<'a>, &'a Instruction)>,
}

struct Loop<'a> {
    module: &'a Module,
    parent: &'a Computation,
    condition: &'a Computation,
    body: &'a Computation,
    initial: &'a Instruction,
    steps_left: Cell<u32>,
}

impl<'a> Loop<'a> {
    fn new(module: &'a Module, instruction: &Instruction) -> Option<Self> {
        let (condition, body) = condition_and_body(module, instruction)?;
        let parent = module.computation(instruction.computation)?;
        let initial = parent.instruction(*instruction.operands.first()?)?;
        Some(Self { module, parent, condition, body, initial, steps_left: Cell::new(MAX_STEPS) })
    }

    fn count(&self) -> Option<u64> {
        let scope = Scope { computation: self.condition, caller: None };
        let test = self.test(&scope, self.condition.root())?;
        let (left, right) = (self.resolved(test.left), self.resolved(test.right));
        let (counter, bound, direction) = match (left.element, right.element) {
            (_, None) => (left, right.offset, test.direction),
            (None, Some(_)) => (right, left.offset, test.direction.flipped()),
            _ => return None,
        };
        let (start, step) = match counter.element {
            Some(element) => (self.start(element)?, self.step(element)?),
            None => (0, 0),
        };
        let start = start.checked_add(counter.offset)?;
        let count = direction.count(start, step, bound)?;
        let (least, greatest) = test.element.integer_range()?;
        let last = count.checked_mul(step)?.checked_add(start)?;
        (least..=greatest).contains(&last).then(|| u64::try_from(count).ok()).flatten()
    }

    /// A value that the body does not change is constant.
    fn resolved(&self, value: Linear) -> Linear {
        let constant = || {
            let element = value.element.filter(|&element| self.step(element) == Some(0))?;
            let offset = self.start(element)?.checked_add(value.offset)?;
            Some(Linear { element: None, offset })
        };
        constant().unwrap_or(value)
    }

    fn start(&self, element: usize) -> Option<i128> {
        let scope = Scope { computation: self.parent, caller: None };
        let value = self.element(&scope, self.initial, element)?;
        value.element.is_none().then_some(value.offset)
    }

    fn step(&self, element: usize) -> Option<i128> {
        let scope = Scope { computation: self.body, caller: None };
        let value = self.element(&scope, self.body.root(), element)?;
        (value.element == Some(element)).then_some(value.offset)
    }

    /// The comparison behind a condition.
    fn test(&self, scope: &Scope<'_>, instruction: &Instruction) -> Option<Test> {
        self.spend()?;
        match instruction.opcode.as_str() {
            "compare" => Some(Test {
                left: self.value(scope, scope.operand(instruction, 0)?)?,
                right: self.value(scope, scope.operand(instruction, 1)?)?,
                direction: Direction::new(instruction.comparison.as_deref()?)?,
                element: element_type(scope.operand(instruction, 0)?)?,
            }),
            "copy" | "bitcast" => self.test(scope, scope.operand(instruction, 0)?),
            "fusion" | "call" => {
                let inner = self.enter(scope, instruction)?;
                self.test(&inner, inner.computation.root())
            }
            _ => None,
        }
    }

    /// The value of a scalar instruction.
    fn value(&self, scope: &Scope<'_>, instruction: &Instruction) -> Option<Linear> {
        self.spend()?;
        let operand = |index| self.value(scope, scope.operand(instruction, index)?);
        match instruction.opcode.as_str() {
            "constant" => Some(Linear { element: None, offset: instruction.constant? }),
            "copy" | "copy-start" | "copy-done" | "bitcast" | "reshape" | "convert" => {
                let from = scope.operand(instruction, 0)?;
                preserves_value(from, instruction).then(|| operand(0)).flatten()
            }
            "add" => operand(0)?.plus(operand(1)?),
            "subtract" => operand(0)?.plus(operand(1)?.negated()?),
            "parameter" => {
                let (outer, argument) = scope.argument(instruction)?;
                self.value(outer, argument)
            }
            "get-tuple-element" => {
                self.element(scope, scope.operand(instruction, 0)?, instruction.tuple_index?)
            }
            "fusion" | "call" => {
                let inner = self.enter(scope, instruction)?;
                self.value(&inner, inner.computation.root())
            }
            _ => None,
        }
    }

    /// The value of one element of an instruction that returns a tuple.
    fn element(&self, scope: &Scope<'_>, tuple: &Instruction, index: usize) -> Option<Linear> {
        self.spend()?;
        match tuple.opcode.as_str() {
            "tuple" => self.value(scope, scope.operand(tuple, index)?),
            "copy" | "opt-barrier" => self.element(scope, scope.operand(tuple, 0)?, index),
            "parameter" if scope.caller.is_none() => {
                Some(Linear { element: Some(index), offset: 0 })
            }
            "parameter" => {
                let (outer, argument) = scope.argument(tuple)?;
                self.element(outer, argument, index)
            }
            "fusion" | "call" => {
                let inner = self.enter(scope, tuple)?;
                self.element(&inner, inner.computation.root(), index)
            }
            _ => None,
        }
    }

    fn enter<'s>(&'s self, scope: &'s Scope<'s>, call: &'s Instruction) -> Option<Scope<'s>> {
        let [called] = call.called.as_slice() else {
            return None;
        };
        Some(Scope { computation: self.module.computation(*called)?, caller: Some((scope, call)) })
    }

    fn spend(&self) -> Option<()> {
        self.steps_left.set(self.steps_left.get().checked_sub(1)?);
        Some(())
    }
}

impl<'a> Scope<'a> {
    fn operand(&self, instruction: &Instruction, index: usize) -> Option<&'a Instruction> {
        self.computation.instruction(*instruction.operands.get(index)?)
    }

    /// The argument of a parameter, with its scope.
    fn argument(&self, parameter: &Instruction) -> Option<(&'a Scope<'a>, &'a Instruction)> {
        let (outer, call) = self.caller?;
        Some((outer, outer.operand(call, parameter.parameter_number?)?))
    }
}

impl Linear {
    fn plus(self, other: Self) -> Option<Self> {
        let element = match (self.element, other.element) {
            (Some(_), Some(_)) => return None,
            (element, None) | (None, element) => element,
        };
        Some(Self { element, offset: self.offset.checked_add(other.offset)? })
    }

    fn negated(self) -> Option<Self> {
        self.element.is_none().then(|| Some(Self { offset: self.offset.checked_neg()?, ..self }))?
    }
}

/// The condition of a loop.
struct Test {
    left: Linear,
    right: Linear,
    direction: Direction,
    element: ElementType,
}

#[derive(Clone, Copy)]
enum Direction {
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    NotEqual,
}

impl Direction {
    fn new(name: &str) -> Option<Self> {
        Some(match name {
            "LT" => Self::Less,
            "LE" => Self::LessEqual,
            "GT" => Self::Greater,
            "GE" => Self::GreaterEqual,
            "NE" => Self::NotEqual,
            _ => return None,
        })
    }

    fn flipped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessEqual => Self::GreaterEqual,
            Self::Greater => Self::Less,
            Self::GreaterEqual => Self::LessEqual,
            Self::NotEqual => Self::NotEqual,
        }
    }

    /// Number of iterations for which `counter <direction> bound` holds; `None` if unbounded.
    fn count(self, start: i128, step: i128, bound: i128) -> Option<i128> {
        let distance = bound.checked_sub(start)?;
        let (distance, step) = match self {
            Self::Less => (distance, step),
            Self::LessEqual => (distance.checked_add(1)?, step),
            Self::Greater => (distance.checked_neg()?, step.checked_neg()?),
            Self::GreaterEqual => (distance.checked_neg()?.checked_add(1)?, step.checked_neg()?),
            Self::NotEqual if distance < 0 => (distance.checked_neg()?, step.checked_neg()?),
            Self::NotEqual => (distance, step),
        };
        if distance <= 0 {
            return Some(0);
        }
        let misses = matches!(self, Self::NotEqual) && step > 0 && distance % step != 0;
        (step > 0 && !misses).then(|| (distance - 1) / step + 1)
    }
}

fn element_type(instruction: &Instruction) -> Option<ElementType> {
    instruction.shape.as_array().filter(|array| array.dims.is_empty()).map(|array| array.element)
}

/// Whether an instruction that only moves or converts a scalar preserves its value.
fn preserves_value(from: &Instruction, to: &Instruction) -> bool {
    match (element_type(from), element_type(to)) {
        (Some(from), Some(to)) if from != to => {
            let ranges = from.integer_range().zip(to.integer_range());
            ranges.is_some_and(|(from, to)| to.0 <= from.0 && from.1 <= to.1)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        use Direction::*;
        assert_eq!(Less.count(0, 1, 24), Some(24));
        assert_eq!(Less.count(0, 5, 24), Some(5));
        assert_eq!(LessEqual.count(0, 5, 25), Some(6));
        assert_eq!(Greater.count(23, -1, 0), Some(23));
        assert_eq!(GreaterEqual.count(23, -1, 0), Some(24));
        assert_eq!(NotEqual.count(0, 4, 24), Some(6));
        assert_eq!(NotEqual.count(24, -4, 0), Some(6));
        assert_eq!(NotEqual.count(0, 5, 24), None);
        assert_eq!(NotEqual.count(3, 0, 3), Some(0));
        assert_eq!(Less.count(0, 0, 24), None);
        assert_eq!(Less.count(0, -1, 24), None);
        assert_eq!(Less.count(30, 0, 24), Some(0));
    }
}
