//! The language's sentences in section 3 of the contract.

mod expressions;
mod patterns;
mod places;

use super::*;

/// A tree as text: `(+ a (* b 2))`.
fn show(node: &Node) -> String {
    match &node.kind {
        Kind::Integer(n) => n.to_string(),
        Kind::Real(n) => format!("{n:?}"),
        Kind::Name(name) => name.to_string(),
        Kind::It(None) => "it".into(),
        Kind::It(Some(model)) => format!("{model}:it"),
        Kind::Config(keys) => format!("config[{}]", keys.join(" ")),
        Kind::Quoted { model, name } => {
            let model = model.as_ref().map_or(String::new(), |m| format!("{m}:"));
            format!("{model}'{}'", show_template(name))
        }
        Kind::Call(call) => {
            let mut text = format!("({}", call.function.name());
            call.arguments
                .iter()
                .for_each(|a| text += &format!(" {}", show(a)));
            if let Some(each) = &call.each {
                text += &format!(" for {}", show_each(each));
            }
            if let Some(axis) = &call.axis {
                text += &format!(" axis={}", show(axis));
            }
            text + ")"
        }
        Kind::Index(of, subscripts) => {
            let subscripts: Vec<String> = subscripts.iter().map(show_subscript).collect();
            format!("{}[{}]", show(of), subscripts.join(", "))
        }
        Kind::Negative(a) => format!("(- {})", show(a)),
        Kind::Not(a) => format!("(not {})", show(a)),
        Kind::Binary(operator, both) => {
            format!("({operator:?} {} {})", show(&both[0]), show(&both[1]))
        }
        Kind::And(both) => format!("(and {} {})", show(&both[0]), show(&both[1])),
        Kind::Or(both) => format!("(or {} {})", show(&both[0]), show(&both[1])),
        Kind::Compare(first, others) => {
            let others = others.iter().map(|(c, a)| format!(" {c:?} {}", show(a)));
            format!("({}{})", show(first), others.collect::<String>())
        }
        Kind::Mistaken => "?".into(),
    }
}

fn show_each(each: &Each) -> String {
    match &each.range {
        Some(range) => format!(
            "{} in {}..{}",
            each.variable,
            show(&range[0]),
            show(&range[1])
        ),
        None => each.variable.to_string(),
    }
}

fn show_template(template: &Template) -> String {
    let pieces = template.pieces.iter().map(|piece| match piece {
        TemplatePiece::Text(text) => text.to_string(),
        TemplatePiece::Value(node) => format!("{{{}}}", show(node)),
    });
    pieces.collect()
}

fn show_subscript(subscript: &Subscript) -> String {
    let part = |node: &Option<Node>| node.as_ref().map_or(String::new(), show);
    match subscript {
        Subscript::Index(node) => show(node),
        Subscript::Slice {
            start,
            stop,
            step: None,
            ..
        } => format!("{}:{}", part(start), part(stop)),
        Subscript::Slice {
            start, stop, step, ..
        } => format!("{}:{}:{}", part(start), part(stop), part(step)),
    }
}

fn expression(text: &str) -> Result<Node, Mistake> {
    parse_expression(&Located::plain(text, 0))
}

fn condition(text: &str) -> Result<Node, Mistake> {
    parse_condition(&Located::plain(text, 0))
}

fn pattern(text: &str) -> Result<Pattern, Mistake> {
    parse_pattern(&Located::plain(text, 0), &|_| Ok(()))
}
