//! Functions.

use std::cmp::Ordering;

use super::super::language::{Call, Each, Function, Node};
use super::super::mistake::Mistake;
use super::super::ops::{self, Made, list_text, shape_text};
use super::super::tensor::Derived;
use super::number::{self, Number};
use super::{Evaluator, MAX_RANGE, Scope, Value, shown};
use crate::dtype::numel;

/// A scope within `for`.
struct Repeated<'a> {
    scope: &'a dyn Scope,
    variable: &'a str,
    number: i64,
}

impl Scope for Repeated<'_> {
    fn name(&self, name: &str) -> Option<Value> {
        match name == self.variable {
            true => Some(Value::Integer(self.number)),
            false => self.scope.name(name),
        }
    }
    fn names(&self) -> Vec<String> {
        let mut names = self.scope.names();
        names.push(self.variable.into());
        names
    }
    fn it(&self, model: Option<&str>) -> Result<Derived, String> {
        self.scope.it(model)
    }
    fn tensor(&self, model: Option<&str>, name: &str) -> Result<Derived, String> {
        self.scope.tensor(model, name)
    }
    fn config(&self, keys: &[Box<str>]) -> Result<Value, String> {
        self.scope.config(keys)
    }
    fn gathered(&self, name: &str) -> Option<u64> {
        self.scope.gathered(name)
    }
    fn step(&self) -> Result<(), String> {
        self.scope.step()
    }
}

/// A call with its arguments' values.
struct Called<'a> {
    function: Function,
    node: &'a Node,
    arguments: Vec<(Value, &'a Node)>,
    axis: Option<(i64, &'a Node)>,
}

impl Evaluator<'_> {
    pub(super) fn call(self, node: &Node, call: &Call) -> Result<Value, Mistake> {
        let arguments = match &call.each {
            Some(each) => self.repeated(call, each)?,
            None => {
                let all = call.arguments.iter();
                let all = all.map(|argument| Ok((self.value(argument)?, argument)));
                all.collect::<Result<_, Mistake>>()?
            }
        };
        let axis = match &call.axis {
            Some(axis) => Some((number::whole(&self.value(axis)?, axis)?, axis)),
            None => None,
        };
        let called = Called {
            function: call.function,
            node,
            arguments,
            axis,
        };
        called.value()
    }

    /// The one argument, for each number.
    fn repeated<'n>(self, call: &'n Call, each: &Each) -> Result<Vec<(Value, &'n Node)>, Mistake> {
        // The parser lets no more through.
        let Some(argument) = call.arguments.first() else {
            return Ok(Vec::new());
        };
        let numbers = self.numbers(each)?;
        let mut all = Vec::new();
        for number in numbers {
            let scope = Repeated {
                scope: self.scope,
                variable: &each.variable,
                number,
            };
            let within = Evaluator {
                scope: &scope,
                in_condition: self.in_condition,
                depth: self.depth,
            };
            all.push((within.value(argument)?, argument));
        }
        Ok(all)
    }

    /// The numbers that the variable of a `for` is.
    pub(super) fn numbers(self, each: &Each) -> Result<std::ops::Range<i64>, Mistake> {
        let numbers = match &each.range {
            Some(range) => {
                let [first, end] = &**range;
                let bound = |node: &Node| number::whole(&self.value(node)?, node);
                bound(first)?..bound(end)?
            }
            None => {
                let variable = &each.variable;
                let count = self.scope.gathered(variable);
                let unknown = || {
                    format!(
                        "'for {variable}' needs a range ({variable} in 0..n), or a hole {{{variable}#}} in the pattern"
                    )
                };
                let count = count.ok_or_else(|| Mistake::at(each.at, unknown()))?;
                0..i64::try_from(count).unwrap_or(i64::MAX)
            }
        };
        let std::ops::Range { start, end } = numbers;
        let count = end.saturating_sub(start).max(0).unsigned_abs();
        if count > MAX_RANGE {
            let what =
                format!("{start}..{end} is {count} numbers, at most {MAX_RANGE} are possible");
            return Err(Mistake::at(each.at, what));
        }
        Ok(numbers)
    }
}

impl Called<'_> {
    fn value(&self) -> Result<Value, Mistake> {
        match self.function {
            Function::Dim => {
                let x = self.tensor(0)?;
                let axis = self.whole(1)?;
                let axis = self.axis_of(x, axis, x.shape.len(), self.node_of(1))?;
                let size = x.shape.get(axis).copied().unwrap_or(0);
                // A shape of more is refused by any container.
                Ok(Value::Integer(i64::try_from(size).unwrap_or(i64::MAX)))
            }
            Function::Up => self.up().map(Value::Integer),
            Function::Min => self.extreme(Ordering::Less),
            Function::Max => self.extreme(Ordering::Greater),
            _ => {
                let made = self.made()?;
                let made = made.map_err(|why| self.mistake(&why));
                made.map(Value::Tensor)
            }
        }
    }

    /// A tensor, or what is wrong with the shapes.
    fn made(&self) -> Result<Made, Mistake> {
        Ok(match self.function {
            Function::Part => {
                let x = self.tensor(0)?;
                let (index, count) = (self.whole(1)?, self.whole(2)?);
                ops::part(x, index, count, self.axis(x, 0)?)
            }
            Function::Concat | Function::Stack => self.join()?,
            Function::Pad => {
                let (x, size) = (self.tensor(0)?, self.whole(1)?);
                match u64::try_from(size) {
                    Ok(size) => ops::pad(x, size, self.axis(x, 0)?),
                    Err(_) => Err(format!("{size} is not a size")),
                }
            }
            Function::Reshape => {
                let x = self.tensor(0)?;
                self.new_shape(x)?.and_then(|shape| ops::reshape(x, &shape))
            }
            Function::Permute => {
                let x = self.tensor(0)?;
                let axis = |i| self.axis_of(x, self.whole(i)?, x.shape.len(), self.node_of(i));
                let axes = (1..self.arguments.len()).map(axis);
                let axes: Vec<usize> = axes.collect::<Result<_, _>>()?;
                ops::permute(x, &axes)
            }
            Function::T => ops::transpose(self.tensor(0)?),
            Function::Cast(dtype) => ops::cast(self.tensor(0)?, dtype),
            Function::Dim | Function::Up | Function::Min | Function::Max => {
                Err("is not a tensor".into())
            }
        })
    }

    fn join(&self) -> Result<Made, Mistake> {
        let parts = (0..self.arguments.len()).map(|i| self.tensor(i).cloned());
        let parts: Vec<Derived> = parts.collect::<Result<_, _>>()?;
        let Some(first) = parts.first() else {
            return Ok(Err("nothing to join".into()));
        };
        Ok(match self.function {
            Function::Stack => ops::stack(&parts, self.axis(first, 1)?),
            // Of which there is none to be named.
            _ if first.shape.is_empty() => ops::concat(&parts, 0),
            _ => ops::concat(&parts, self.axis(first, 0)?),
        })
    }

    /// The shape of `reshape`, or what is wrong with it.
    fn new_shape(&self, x: &Derived) -> Result<Result<Vec<u64>, String>, Mistake> {
        let sizes = (1..self.arguments.len()).map(|i| self.whole(i));
        let sizes: Vec<i64> = sizes.collect::<Result<_, _>>()?;
        let known: Vec<u64> = sizes
            .iter()
            .filter_map(|&n| u64::try_from(n).ok())
            .collect();
        let missing = sizes.iter().filter(|&&n| n == -1).count();
        if known.len() + missing < sizes.len() {
            return Ok(Err(format!("{} has a negative size", list_text(&sizes))));
        }
        if missing == 0 {
            return Ok(Ok(known));
        }
        if missing > 1 {
            return Ok(Err(format!(
                "{}: only one size may be -1",
                list_text(&sizes)
            )));
        }
        let (all, known) = (x.numel(), numel(&known));
        let rest = known.filter(|&n| n > 0 && all.is_multiple_of(n));
        let Some(rest) = rest.and_then(|n| all.checked_div(n)) else {
            return Ok(Err(format!(
                "{} ({}) has {all} elements, which {} cannot hold",
                shape_text(&x.shape),
                x.label,
                list_text(&sizes)
            )));
        };
        let size = |&n: &i64| u64::try_from(n).unwrap_or(rest);
        Ok(Ok(sizes.iter().map(size).collect()))
    }

    fn up(&self) -> Result<i64, Mistake> {
        let (n, m) = (self.whole(0)?, self.whole(1)?);
        if m <= 0 {
            return Err(self.mistake(&format!("a multiple of {m}: it must be at least 1")));
        }
        let above = (i128::from(n) + i128::from(m) - 1).div_euclid(m.into()) * i128::from(m);
        let overflow = |_| self.mistake(&format!("of {n} and {m} does not fit in 64 bits"));
        i64::try_from(above).map_err(overflow)
    }

    /// The least or the greatest.
    fn extreme(&self, wanted: Ordering) -> Result<Value, Mistake> {
        let mut best: Option<Number> = None;
        for (value, node) in &self.arguments {
            let number = number::needed(value, node)?;
            match best {
                Some(known) if number.compare(known) != Some(wanted) => {}
                _ => best = Some(number),
            }
        }
        let best = best.ok_or_else(|| self.mistake("of no numbers"))?;
        Ok(best.into())
    }

    fn mistake(&self, why: &str) -> Mistake {
        Mistake::at(self.node.at, format!("{}: {why}", self.function.name()))
    }

    fn node_of(&self, argument: usize) -> &Node {
        self.arguments
            .get(argument)
            .map_or(self.node, |(_, node)| node)
    }

    fn tensor(&self, argument: usize) -> Result<&Derived, Mistake> {
        match self.arguments.get(argument) {
            Some((Value::Tensor(x), _)) => Ok(x),
            Some((other, node)) => {
                let name = self.function.name();
                let what = format!("{name}: {} where a tensor is needed", shown(other));
                Err(Mistake::at(node.at, what))
            }
            None => Err(self.mistake("a tensor is missing")),
        }
    }

    fn whole(&self, argument: usize) -> Result<i64, Mistake> {
        match self.arguments.get(argument) {
            Some((value, node)) => number::whole(value, node),
            None => Err(self.mistake("a number is missing")),
        }
    }

    /// `axis=`, of a tensor that has so many more.
    fn axis(&self, x: &Derived, more: usize) -> Result<usize, Mistake> {
        let (axis, node) = self.axis.unwrap_or((0, self.node));
        self.axis_of(x, axis, x.shape.len() + more, node)
    }

    /// An axis of `count`, from the end where it is negative.
    fn axis_of(&self, x: &Derived, axis: i64, count: usize, node: &Node) -> Result<usize, Mistake> {
        let at = usize::try_from(axis.unsigned_abs()).ok();
        let from_start = match axis {
            0.. => at,
            _ => at.and_then(|at| count.checked_sub(at)),
        };
        from_start.filter(|&at| at < count).ok_or_else(|| {
            let what = format!(
                "{}: there is no axis {axis} of {} ({})",
                self.function.name(),
                x.label,
                shape_text(&x.shape)
            );
            Mistake::at(node.at, what)
        })
    }
}
