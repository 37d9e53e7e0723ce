//! The functions, and calls of them.

use super::super::mistake::{Mistake, quoted};
use super::super::nearest;
use super::lexer::Token;
use super::parser::{Parser, Tree};
use super::{Call, Function, Kind, Node};
use crate::dtype::Dtype;

/// How a function is called. What evaluates a call counts on the parser having checked it.
pub struct Signature {
    /// Its name.
    pub name: &'static str,
    function: Function,
    /// How its arguments are written.
    usage: &'static str,
    /// How many arguments it has at least and at most.
    arguments: (usize, usize),
    /// `axis=` may follow.
    has_axis: bool,
    /// `for` may follow a single argument.
    repeats: bool,
}

const ANY: usize = usize::MAX;

/// The functions.
#[rustfmt::skip]
pub const FUNCTIONS: &[Signature] = &[
    function("part", Function::Part, "x, i, n, axis=0", (3, 3), true, false),
    function("concat", Function::Concat, "a, b, …, axis=0", (1, ANY), true, true),
    function("stack", Function::Stack, "a, b, …, axis=0", (1, ANY), true, true),
    function("pad", Function::Pad, "x, n, axis=0", (2, 2), true, false),
    function("reshape", Function::Reshape, "x, a, b, …", (2, ANY), false, false),
    function("permute", Function::Permute, "x, 1, 0, …", (2, ANY), false, false),
    function("t", Function::T, "x", (1, 1), false, false),
    function("dim", Function::Dim, "x, axis", (2, 2), false, false),
    function("up", Function::Up, "n, m", (2, 2), false, false),
    function("min", Function::Min, "a, b, …", (2, ANY), false, true),
    function("max", Function::Max, "a, b, …", (2, ANY), false, true),
    function("f32", Function::Cast(Dtype::F32), "x", (1, 1), false, false),
    function("f16", Function::Cast(Dtype::F16), "x", (1, 1), false, false),
    function("bf16", Function::Cast(Dtype::BF16), "x", (1, 1), false, false),
    function("f8_e4m3", Function::Cast(Dtype::F8_E4M3), "x", (1, 1), false, false),
    function("f8_e5m2", Function::Cast(Dtype::F8_E5M2), "x", (1, 1), false, false),
];

const fn function(
    name: &'static str,
    function: Function,
    usage: &'static str,
    arguments: (usize, usize),
    has_axis: bool,
    repeats: bool,
) -> Signature {
    #[rustfmt::skip]
    let signature = Signature { name, function, usage, arguments, has_axis, repeats };
    signature
}

impl Function {
    /// The function of that name.
    pub fn of(name: &str) -> Option<Function> {
        Some(signature(name)?.function)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let row = FUNCTIONS.iter().find(|f| f.function == self);
        row.map_or("", |row| row.name)
    }
}

fn signature(name: &str) -> Option<&'static Signature> {
    FUNCTIONS.iter().find(|f| f.name == name)
}

impl<'s> Parser<'s> {
    /// `name(`, whose parenthesis comes next.
    pub(super) fn call(&mut self, name: &str, at: usize) -> Tree {
        let Some(signature) = signature(name) else {
            let nearest = nearest::word(name, FUNCTIONS.iter().map(|f| f.name));
            let meant = nearest::did_you_mean(nearest);
            let what = format!("{} is not a function{meant}", quoted(name));
            return Err(self.source.mistake(at, what));
        };
        let opened = self.start;
        self.advance()?;
        let (mut call, height) = self.nested(|p| p.arguments(signature))?;
        self.close(")", opened)?;
        place_axis(signature, &mut call);
        check(signature, &call).map_err(|what| self.source.mistake(at, what))?;
        let kind = Kind::Call(Box::new(call));
        Ok((self.node(at, kind), height + 1))
    }

    fn arguments(&mut self, signature: &Signature) -> Result<(Call, usize), Mistake> {
        let mut call = Call {
            function: signature.function,
            arguments: Vec::new(),
            each: None,
            axis: None,
        };
        let mut height = 0;
        while !self.is(")") {
            let at = self.start;
            let (argument, is_axis, h) = self.argument()?;
            height = height.max(h);
            if is_axis {
                call.axis = Some(argument);
                // Nothing follows.
                self.take(",")?;
                break;
            }
            if call.each.is_some() {
                let what = "'for' repeats one argument; only axis= may follow";
                return Err(self.source.mistake(at, what));
            }
            call.arguments.push(argument);
            if self.is_word("for") {
                height = height.max(self.repeat(signature, &mut call)?);
            }
            if !self.take(",")? {
                break;
            }
        }
        Ok((call, height))
    }

    /// An argument, whether it is `axis=`, and its height.
    fn argument(&mut self) -> Result<(Node, bool, usize), Mistake> {
        let at = self.start;
        let name = match self.token {
            Token::Name(name) => name,
            _ => "",
        };
        let (argument, height) = self.expression()?;
        if name.is_empty() || !self.is("=") {
            return Ok((argument, false, height));
        }
        if name != "axis" {
            let meant = nearest::did_you_mean(nearest::word(name, ["axis"]));
            let what = format!(
                "{} is not an argument; axis= alone is given by name{meant}",
                quoted(name)
            );
            return Err(self.source.mistake(at, what));
        }
        self.advance()?;
        let (axis, height) = self.expression()?;
        Ok((axis, true, height))
    }

    /// `for` after an argument.
    fn repeat(&mut self, signature: &Signature, call: &mut Call) -> Result<usize, Mistake> {
        if !signature.repeats {
            let name = signature.name;
            return Err(self.mistake(format!("{name}: 'for' is for concat, stack, min and max")));
        }
        if call.arguments.len() > 1 {
            return Err(self.mistake("'for' repeats one argument, and this is not the only one"));
        }
        self.advance()?;
        let (each, height) = self.each(true)?;
        call.each = Some(each);
        Ok(height)
    }
}

/// As in Python, `axis` may be given by its position, and one that has no name by the name.
fn place_axis(signature: &Signature, call: &mut Call) {
    if signature.function == Function::Dim
        && call.arguments.len() == 1
        && let Some(axis) = call.axis.take()
    {
        call.arguments.push(axis);
    }
    let most = signature.arguments.1;
    if signature.has_axis && call.axis.is_none() && most != ANY && call.arguments.len() == most + 1
    {
        call.axis = call.arguments.pop();
    }
}

fn check(signature: &Signature, call: &Call) -> Result<(), String> {
    let (name, usage) = (signature.name, signature.usage);
    let (least, most) = signature.arguments;
    let n = call.arguments.len();
    let least = if call.each.is_some() { 1 } else { least };
    if n < least || n > most {
        let wanted = match (least, most) {
            (_, ANY) => format!("at least {least}"),
            _ => least.to_string(),
        };
        let plural = if wanted.ends_with(" 1") || wanted == "1" {
            ""
        } else {
            "s"
        };
        return Err(format!(
            "{name}: {n} given, takes {wanted} argument{plural}: {name}({usage})"
        ));
    }
    match call.axis.is_some() && !signature.has_axis {
        true => Err(format!("{name} has no axis: {name}({usage})")),
        false => Ok(()),
    }
}
