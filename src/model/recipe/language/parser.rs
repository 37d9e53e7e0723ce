//! Expressions and conditions, by recursive descent. What the depth limit bounds is the height of the tree,
//! and with it every recursion here and over a tree.

use super::super::mistake::Mistake;
use super::lexer::{Lexer, Token, split_name};
use super::located::Located;
use super::{Each, Kind, Node, Operator, number, template};

/// Expressions are nested no deeper.
pub const MAX_DEPTH: usize = 64;

/// Strings with expressions have no more characters.
pub const MAX_LENGTH: usize = 4096;

/// Words that are not names.
pub const WORDS: &[&str] = &["and", "or", "not", "for", "in"];

/// A tree and its height.
pub(super) type Tree = Result<(Node, usize), Mistake>;

pub(super) struct Parser<'s> {
    pub source: &'s Located<'s>,
    lexer: Lexer<'s>,
    /// The next token, and its bytes.
    pub token: Token<'s>,
    pub start: usize,
    end: usize,
    /// Whether comparisons are known, and quotes are text.
    pub is_condition: bool,
    /// How deep this place is nested.
    pub nesting: usize,
}

impl<'s> Parser<'s> {
    /// A parser at a byte of a string that is nested that deep.
    pub fn new(
        source: &'s Located<'s>,
        at: usize,
        is_condition: bool,
        nesting: usize,
    ) -> Result<Parser<'s>, Mistake> {
        let mut parser = Parser {
            source,
            lexer: Lexer::new(source, at),
            token: Token::End,
            start: at,
            end: at,
            is_condition,
            nesting,
        };
        parser.advance()?;
        Ok(parser)
    }

    pub fn advance(&mut self) -> Result<(), Mistake> {
        (self.token, self.start, self.end) = self.lexer.next()?;
        Ok(())
    }

    /// A node that begins at a byte of the string.
    pub fn node(&self, at: usize, kind: Kind) -> Node {
        let at = self.source.place(at);
        Node { at, kind }
    }

    pub fn mistake(&self, what: impl Into<String>) -> Mistake {
        self.source.mistake(self.start, what)
    }

    /// The next token as messages name it.
    pub fn found(&self) -> String {
        match self.source.text.get(self.start..self.end) {
            Some("") | None => "the end".to_string(),
            Some(text) => super::super::mistake::quoted(text),
        }
    }

    pub fn is(&self, symbol: &str) -> bool {
        matches!(self.token, Token::Symbol(s) if s == symbol)
    }

    pub fn is_word(&self, word: &str) -> bool {
        self.token == Token::Name(word)
    }

    /// Takes a symbol if it comes next.
    pub fn take(&mut self, symbol: &str) -> Result<bool, Mistake> {
        let is_next = self.is(symbol);
        if is_next {
            self.advance()?;
        }
        Ok(is_next)
    }

    /// Takes the symbol that closes what was opened at byte `opened`.
    pub fn close(&mut self, symbol: &str, opened: usize) -> Result<(), Mistake> {
        if self.take(symbol)? {
            return Ok(());
        }
        if self.token == Token::End {
            let open = self.source.text.get(opened..opened + 1).unwrap_or("");
            return Err(self.source.mistake(
                opened,
                format!("'{open}' is not closed: '{symbol}' is missing"),
            ));
        }
        Err(self.unexpected(&format!("'{symbol}'")))
    }

    /// The next token is not what it should be.
    pub fn unexpected(&self, expected: &str) -> Mistake {
        if let Token::Symbol("==" | "!=" | "<" | "<=" | ">" | ">=") = self.token {
            return self.mistake("comparisons are for conditions (where)");
        }
        if let Token::Name("and" | "or" | "not") = self.token {
            return self.mistake(format!("{} is for conditions (where)", self.found()));
        }
        if self.is("=") {
            return self.mistake("'=' is not known here; 'is equal' is written '=='");
        }
        self.expected(expected)
    }

    fn expected(&self, expected: &str) -> Mistake {
        self.mistake(format!("expected {expected}, found {}", self.found()))
    }

    /// The string ends here.
    pub fn finish(&self) -> Result<(), Mistake> {
        match self.token {
            Token::End => Ok(()),
            _ if self.is(")") || self.is("]") || self.is("}") => {
                let found = self.found();
                Err(self.mistake(format!("{found} closes nothing")))
            }
            _ => Err(self.unexpected("an operator or the end")),
        }
    }

    /// Runs `parse` one level deeper.
    pub fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Parser<'s>) -> Result<T, Mistake>,
    ) -> Result<T, Mistake> {
        self.nesting += 1;
        self.check_depth(self.nesting, self.start)?;
        let parsed = parse(self);
        self.nesting -= 1;
        parsed
    }

    pub fn check_depth(&self, depth: usize, at: usize) -> Result<(), Mistake> {
        if depth <= MAX_DEPTH {
            return Ok(());
        }
        let what = format!("more than {MAX_DEPTH} operations within one another");
        Err(self.source.mistake(at, what))
    }

    /// A tree of `height`, whose operator is at byte `at`.
    pub fn tree(&self, at: usize, kind: Kind, height: usize) -> Tree {
        self.check_depth(self.nesting + height, at)?;
        Ok((self.node(at, kind), height))
    }

    /// A condition if they are known here, or an expression.
    pub fn any(&mut self) -> Tree {
        match self.is_condition {
            true => self.logical("or"),
            false => self.expression(),
        }
    }

    /// A sum.
    pub fn expression(&mut self) -> Tree {
        self.operators(&["+", "-"], |parser| {
            parser.operators(&["*", "/", "//", "%", "@"], Parser::sign)
        })
    }

    /// Operands with operators between them, grouped from the left.
    fn operators(
        &mut self,
        symbols: &[&str],
        mut operand: impl FnMut(&mut Parser<'s>) -> Tree,
    ) -> Tree {
        let (mut a, mut height) = operand(self)?;
        while let Token::Symbol(symbol) = self.token
            && symbols.contains(&symbol)
            && let Some(operator) = operator(symbol)
        {
            let at = self.start;
            self.advance()?;
            let (b, b_height) = operand(self)?;
            let kind = Kind::Binary(operator, Box::new([a, b]));
            (a, height) = self.tree(at, kind, height.max(b_height) + 1)?;
        }
        Ok((a, height))
    }

    fn sign(&mut self) -> Tree {
        let at = self.start;
        if !self.take("-")? {
            return self.item();
        }
        // The least whole number is not the negative of another one.
        if let Token::Integer(number) = self.token
            && number == i64::MIN.unsigned_abs()
        {
            self.advance()?;
            return Ok((self.node(at, Kind::Integer(i64::MIN)), 0));
        }
        let (a, height) = self.nested(Parser::item)?;
        self.tree(at, Kind::Negative(Box::new(a)), height + 1)
    }

    fn item(&mut self) -> Tree {
        let (mut a, mut height) = self.atom()?;
        while self.is("[") {
            let opened = self.start;
            let at = a.at;
            self.advance()?;
            let (subscripts, inner) = self.nested(|p| p.subscripts(opened))?;
            let kind = Kind::Index(Box::new(a), subscripts.into());
            (a, height) = self.tree(opened, kind, height.max(inner) + 1)?;
            a.at = at;
        }
        Ok((a, height))
    }

    fn atom(&mut self) -> Tree {
        let at = self.start;
        match self.token {
            Token::Integer(number) => {
                let written = self.source.text.get(self.start..self.end).unwrap_or("");
                let number =
                    i64::try_from(number).map_err(|_| self.mistake(number::large(written)))?;
                self.leaf(Kind::Integer(number))
            }
            Token::Real(number) => self.leaf(Kind::Real(number)),
            Token::Name("it") => self.leaf(Kind::It(None)),
            Token::Name(name) => self.named(name),
            Token::Model(model) => {
                self.advance()?;
                let (mut node, height) = match self.token {
                    Token::Quoted(start, end) => self.text(Some(model), start, end)?,
                    _ => self.leaf(Kind::It(Some(model.into())))?,
                };
                node.at = self.source.place(at);
                Ok((node, height))
            }
            Token::Config(keys) => {
                let keys: Vec<Box<str>> = keys.split('.').map(Box::from).collect();
                self.leaf(Kind::Config(keys.into()))
            }
            Token::Quoted(start, end) => self.text(None, start, end),
            Token::Symbol("(") => {
                self.advance()?;
                let (node, height) = self.nested(Parser::any)?;
                self.close(")", at)?;
                Ok((node, height + 1))
            }
            Token::Symbol("-") => Err(self.mistake("one '-' is enough; write -(-x) for two")),
            Token::Symbol("+") => Err(self.mistake("a number or tensor has no '+' before it")),
            _ => Err(self.unexpected("a number, a name or a tensor")),
        }
    }

    fn leaf(&mut self, kind: Kind) -> Tree {
        let node = self.node(self.start, kind);
        self.advance()?;
        Ok((node, 0))
    }

    /// What stands in quotes, at those bytes.
    fn text(&mut self, model: Option<&str>, start: usize, end: usize) -> Tree {
        let at = self.start;
        let inner = self.source.unquoted(start, end);
        let is_text = self.is_condition && model.is_none();
        if start == end && !is_text {
            return Err(self.mistake("an empty name"));
        }
        let (name, height) = template::parse(&inner, self.nesting, is_text)?;
        self.advance()?;
        let model = model.map(Box::from);
        let kind = Kind::Quoted { model, name };
        Ok((self.node(at, kind), height))
    }

    fn named(&mut self, name: &'s str) -> Tree {
        let at = self.start;
        if WORDS.contains(&name) {
            return Err(self.unexpected("a number, a name or a tensor"));
        }
        if name == "config" {
            return Err(self.mistake("a key of config.json follows: config.KEY"));
        }
        if name == "model" {
            return Err(self.mistake("the model's tensors are model:'NAME' and model:it"));
        }
        self.advance()?;
        if self.is("(") {
            return self.call(name, at);
        }
        if super::Function::of(name).is_some() {
            let what = format!("{name} is a function; write {name}(…)");
            return Err(self.source.mistake(at, what));
        }
        Ok((self.node(at, Kind::Name(name.into())), 0))
    }

    /// `VARIABLE in a..b`, of which ` in a..b` may be left out if `is_optional`.
    pub fn each(&mut self, is_optional: bool) -> Result<(Each, usize), Mistake> {
        let at = self.source.place(self.start);
        let variable = match self.token {
            Token::Name(name) if !WORDS.contains(&name) => Box::from(name),
            _ => return Err(self.expected("a variable, as in for e in 0..4")),
        };
        self.advance()?;
        if !self.is_word("in") && is_optional {
            let range = None;
            return Ok((
                Each {
                    at,
                    variable,
                    range,
                },
                0,
            ));
        }
        if !self.is_word("in") {
            return Err(self.expected("'in', as in for e in 0..4"));
        }
        self.advance()?;
        let (first, first_height) = self.expression()?;
        if !self.take("..")? {
            return Err(self.expected("'..', as in for e in 0..4"));
        }
        let (end, end_height) = self.expression()?;
        let range = Some(Box::new([first, end]));
        Ok((
            Each {
                at,
                variable,
                range,
            },
            first_height.max(end_height),
        ))
    }
}

fn operator(symbol: &str) -> Option<Operator> {
    Some(match symbol {
        "+" => Operator::Add,
        "-" => Operator::Subtract,
        "*" => Operator::Multiply,
        "/" => Operator::Divide,
        "//" => Operator::FloorDivide,
        "%" => Operator::Modulo,
        "@" => Operator::Product,
        _ => return None,
    })
}

/// Whether a name may be given to something, or why not.
pub fn check_name(name: &str) -> Result<(), String> {
    let shown = super::super::mistake::quoted(name);
    if name.is_empty() || split_name(name).0 != name {
        return Err(format!(
            "{shown} is not a name: letters, digits and '_', and no digit first"
        ));
    }
    let is_taken = ["model", "config", "it", "dtype", "ndim"].contains(&name);
    if is_taken || WORDS.contains(&name) || super::Function::of(name).is_some() {
        return Err(format!("the name {shown} is taken; choose another one"));
    }
    Ok(())
}
