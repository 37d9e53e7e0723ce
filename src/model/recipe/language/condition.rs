//! Conditions: comparisons, and what joins them.

use super::lexer::Token;
use super::parser::{Parser, Tree};
use super::{Comparison, Kind, Node};

impl Parser<'_> {
    /// `a or b`, `a and b`: any number of operands. They become a balanced tree, because which way they are grouped makes
    /// no difference, and there may be many.
    pub(super) fn logical(&mut self, word: &'static str) -> Tree {
        let (mut trees, mut places) = (Vec::new(), Vec::new());
        loop {
            trees.push(match word {
                "or" => self.logical("and")?,
                _ => self.negation()?,
            });
            if !self.is_word(word) {
                break;
            }
            places.push(self.start);
            self.advance()?;
        }
        self.balanced(word, trees, &places)
    }

    /// Operands, and between each two the place of the word.
    fn balanced(&self, word: &str, mut trees: Vec<(Node, usize)>, places: &[usize]) -> Tree {
        let middle = trees.len() / 2;
        let Some(place) = middle.checked_sub(1).and_then(|i| places.get(i)) else {
            return trees.pop().ok_or_else(|| self.unexpected("a condition"));
        };
        let right = trees.split_off(middle);
        let (a, a_height) = self.balanced(word, trees, &places[..middle - 1])?;
        let (b, b_height) = self.balanced(word, right, &places[middle..])?;
        let both = Box::new([a, b]);
        let kind = match word {
            "or" => Kind::Or(both),
            _ => Kind::And(both),
        };
        self.tree(*place, kind, a_height.max(b_height) + 1)
    }

    fn negation(&mut self) -> Tree {
        if !self.is_word("not") {
            return self.comparison();
        }
        let at = self.start;
        self.advance()?;
        let (a, height) = self.nested(Parser::negation)?;
        self.tree(at, Kind::Not(Box::new(a)), height + 1)
    }

    fn comparison(&mut self) -> Tree {
        let (first, mut height) = self.expression()?;
        let at = self.start;
        let mut others = Vec::new();
        while let Some(comparison) = comparison(self.token) {
            self.advance()?;
            let (other, h) = self.expression()?;
            height = height.max(h);
            others.push((comparison, other));
        }
        if others.is_empty() {
            return Ok((first, height));
        }
        let kind = Kind::Compare(Box::new(first), others.into());
        self.tree(at, kind, height + 1)
    }
}

fn comparison(token: Token) -> Option<Comparison> {
    let Token::Symbol(symbol) = token else {
        return None;
    };
    Some(match symbol {
        "==" => Comparison::Equal,
        "!=" => Comparison::NotEqual,
        "<" => Comparison::Less,
        "<=" => Comparison::LessOrEqual,
        ">" => Comparison::Greater,
        ">=" => Comparison::GreaterOrEqual,
        _ => return None,
    })
}
