//! Names, and what is made where Python would call one.

use super::super::describe::shown;
use super::arena::{Arena, MAX_KEPT, Node, Run, Span};
use super::machine::Machine;
use super::names::{self, Meaning, UNKNOWN};
use super::payload;
use super::{Object, Ref, Wrong};

/// In a record: no state.
const NOTHING: u32 = u32::MAX;
/// How many names are remembered, and how long ones, so that a pickle that repeats one keeps it once.
/// Writers repeat few. 100 MB that repeat one of this length take 1.5 s, of twice the length 2.1 s.
const MAX_REMEMBERED: usize = 1 << 16;
const MAX_REMEMBERED_LEN: usize = 128;
/// How many arguments of a hostile call are looked through for a text.
const MAX_ARGUMENTS: usize = 64;

impl Arena {
    /// The text of a name.
    pub fn name(&self, place: u16, span: Span) -> &str {
        names::at(place).map_or_else(|| self.text(span), |known| &known.name)
    }

    /// The text of a value that is a name.
    pub fn name_of(&self, value: Ref) -> Option<&str> {
        match self.node(value) {
            Node::Name(place, span) => Some(self.name(place, span)),
            _ => None,
        }
    }

    /// The object whose words are at a place.
    pub fn object(&self, at: u32) -> Object<'_> {
        let [name, arguments, state, at, len, room] = self.words(at);
        Object {
            name: self.name_of(Ref(name)).unwrap_or_default(),
            arguments: Ref(arguments),
            contents: self.run(Run::from_words([at, len, room])),
            state: (state != NOTHING).then_some(Ref(state)),
        }
    }

    /// A value, for a message.
    pub fn describe(&self, value: Ref) -> String {
        match self.node(value) {
            Node::None => "None".into(),
            Node::Bool(true) => "True".into(),
            Node::Bool(false) => "False".into(),
            Node::Int(n) => n.to_string(),
            Node::BigInt => "a big integer".into(),
            Node::Float(v) => format!("the float {v}"),
            Node::Text(span) => format!("the text '{}'", shown(self.text(span))),
            Node::Bytes(_) | Node::Encoded => "bytes".into(),
            Node::Skipped(length, _) => format!("a string of {length} bytes"),
            Node::Tuple(_) => "a tuple".into(),
            Node::List(_) => "a list".into(),
            Node::Set(_) => "a set".into(),
            Node::Mapping(_) => "a dict".into(),
            Node::Name(place, span) => shown(self.name(place, span)),
            Node::Object(at) => format!("an object of the class {}", shown(self.object(at).name)),
            Node::Storage(_) => "a storage".into(),
            Node::Tensor(_) | Node::LeftOut(_) | Node::Malformed(_) => "a tensor".into(),
            Node::Complex => "a complex number".into(),
        }
    }
}

impl Machine<'_, '_> {
    /// The name `module.name`.
    pub(super) fn global(&mut self, module: &str, name: &str) -> Result<Ref, Wrong> {
        let mut full = std::mem::take(&mut self.full);
        let dot = join(&mut full, module, name);
        let value = self.global_of(&mut full, dot);
        self.full = full;
        value
    }

    /// The name `full`, whose module ends at `dot`.
    fn global_of(&mut self, full: &mut String, dot: usize) -> Result<Ref, Wrong> {
        let length = full.len();
        // What is remembered has the place of the dot behind it: `os` has an `f.g`, `os.f` another `g`.
        let key = char::from_u32(dot as u32).filter(|_| length <= MAX_REMEMBERED_LEN);
        if let Some(key) = key {
            full.push(key);
            if let Some(known) = self.names.get(full.as_str()) {
                return Ok(*known);
            }
        }
        let name = full.get(..length).unwrap_or_default();
        let hostile = payload::is_one(name, dot);
        if length as u64 > MAX_KEPT {
            if hostile {
                let value = self.arena.add(Node::None)?;
                self.payloads.named(value, name, self.at);
            }
            return Err(Wrong::Damaged(format!(
                "has a name of {length} bytes, more than the {MAX_KEPT} that stfs keeps"
            )));
        }
        let node = match names::find(name) {
            Some(place) => Node::Name(place, Span::default()),
            None => Node::Name(UNKNOWN, self.arena.keep_text(name)?),
        };
        let value = self.arena.add(node)?;
        if hostile {
            self.payloads.named(value, name, self.at);
        }
        if key.is_some() && self.names.len() < MAX_REMEMBERED {
            self.names.insert(full.as_str().into(), value);
        }
        Ok(value)
    }

    /// STACK_GLOBAL: a name of two texts.
    pub(super) fn stack_global(&mut self, module: Ref, name: Ref) -> Result<Ref, Wrong> {
        let text = |part: Ref| match self.arena.node(part) {
            Node::Text(span) => Some((self.arena.text(span), true)),
            Node::Skipped(_, head) => Some((self.arena.text(head), false)),
            _ => None,
        };
        let (Some((module_text, whole)), Some((name_text, whole_name))) =
            (text(module), text(name))
        else {
            let [module, name] = [module, name].map(|part| self.arena.describe(part));
            return Err(Wrong::Damaged(format!(
                "names {module} of {name}, not a text of a text"
            )));
        };
        let mut full = std::mem::take(&mut self.full);
        let dot = join(&mut full, module_text, name_text);
        let value = self.global_of(&mut full, dot);
        self.full = full;
        match whole && whole_name {
            true => value,
            false => Err(Wrong::Damaged(format!(
                "has a name of more than {MAX_KEPT} bytes, the most that stfs keeps"
            ))),
        }
    }

    /// Notes the first call of a hostile name.
    pub(super) fn note_call(&mut self, callable: Ref, arguments: Run) {
        if !self.payloads.awaits_call(callable) {
            return;
        }
        let arguments = self.arena.run(arguments).iter().take(MAX_ARGUMENTS);
        let text = arguments
            .map(|argument| self.arena.node(*argument))
            .find_map(|argument| match argument {
                Node::Text(span) | Node::Skipped(_, span) => Some(self.arena.text(span)),
                _ => None,
            });
        self.payloads.called(callable, text, self.at);
    }

    /// What a call makes.
    pub(super) fn call(&mut self, callable: Ref, arguments: Ref) -> Result<Ref, Wrong> {
        let items = match self.arena.node(arguments) {
            Node::Tuple(run) => run,
            Node::Object(_) => Run::default(),
            _ => {
                let what = self.arena.describe(arguments);
                return Err(Wrong::Damaged(format!("calls with {what}, not a tuple")));
            }
        };
        let place = match self.arena.node(callable) {
            Node::Name(place, _) => place,
            Node::Object(_) => UNKNOWN,
            _ => {
                let what = self.arena.describe(callable);
                return Err(Wrong::Damaged(format!("calls {what}, not a function")));
            }
        };
        self.note_call(callable, items);
        match names::at(place) {
            Some(known) => self.apply(known.meaning, callable, arguments, items),
            None if self.rebuilds(callable) => self.unknown_rebuild(callable),
            None => self.object(callable, arguments),
        }
    }

    /// What a function of the table makes.
    fn apply(
        &mut self,
        meaning: Meaning,
        callable: Ref,
        arguments: Ref,
        items: Run,
    ) -> Result<Ref, Wrong> {
        let first = self.argument(items, 0);
        let node = first.map(|first| self.arena.node(first));
        let node = match meaning {
            Meaning::Mapping(place) => match self.mapping(self.argument(items, place))? {
                Some(run) => Node::Mapping(run),
                None => return self.object(callable, arguments),
            },
            Meaning::Set | Meaning::List | Meaning::Tuple => {
                let run = match node {
                    None => Run::default(),
                    Some(Node::Tuple(run) | Node::List(run) | Node::Set(run)) => {
                        self.arena.copied(run, 0)?
                    }
                    _ => return self.object(callable, arguments),
                };
                match meaning {
                    Meaning::Set => Node::Set(run),
                    Meaning::List => Node::List(run),
                    _ => Node::Tuple(run),
                }
            }
            Meaning::Bytes | Meaning::Encode => {
                return self.encode(first, self.argument(items, 1));
            }
            Meaning::Complex => Node::Complex,
            Meaning::FromType => return self.typed(items),
            Meaning::Construct => return self.construct(items, callable, arguments),
            Meaning::StorageClass(_) | Meaning::Dtype(_) | Meaning::Inert => {
                return self.object(callable, arguments);
            }
            Meaning::Tensor(kind) => return self.tensor(kind, items),
        };
        Ok(self.arena.add(node)?)
    }

    /// The pairs of a mapping that is made of `argument`; `None` if it is not pairs.
    fn mapping(&mut self, argument: Option<Ref>) -> Result<Option<Run>, Wrong> {
        let Some(argument) = argument else {
            return Ok(Some(Run::default()));
        };
        Ok(match self.arena.node(argument) {
            Node::Mapping(run) => Some(self.arena.copied(run, 0)?),
            Node::None => Some(Run::default()),
            Node::List(run) | Node::Tuple(run) | Node::Set(run) => self.arena.pairs(run)?,
            _ => None,
        })
    }

    /// Bytes of a text in an encoding. Python 3 writes bytes so in protocols 0 to 2.
    fn encode(&mut self, value: Option<Ref>, encoding: Option<Ref>) -> Result<Ref, Wrong> {
        let text = match value.map(|value| (value, self.arena.node(value))) {
            None => return Ok(self.arena.add(Node::Bytes(Span::default()))?),
            Some((value, Node::Bytes(_) | Node::Skipped(..))) => return Ok(value),
            Some((_, Node::Text(text))) => text,
            Some(_) => return Ok(self.arena.add(Node::Encoded)?),
        };
        let encoding = match encoding.map(|encoding| self.arena.node(encoding)) {
            None => "utf-8",
            Some(Node::Text(encoding)) => self.arena.text(encoding),
            Some(_) => "",
        };
        let bytes = match encoding {
            "latin1" | "latin-1" => self.arena.encode(text, Some('\u{ff}'))?,
            "ascii" => self.arena.encode(text, Some('\u{7f}'))?,
            "utf-8" | "utf8" => self.arena.encode(text, None)?,
            _ => None,
        };
        Ok(self.arena.add(bytes.map_or(Node::Encoded, Node::Bytes))?)
    }

    /// `copyreg`'s functions, which make an object of the class that is their first argument.
    fn construct(&mut self, items: Run, callable: Ref, arguments: Ref) -> Result<Ref, Wrong> {
        let class = self.argument(items, 0);
        let Some((class, Node::Name(place, _))) = class.map(|c| (c, self.arena.node(c))) else {
            return self.object(callable, arguments);
        };
        self.note_call(class, items);
        match names::at(place).map(|known| known.meaning) {
            Some(Meaning::Mapping(_)) => Ok(self.arena.add(Node::Mapping(Run::default()))?),
            _ => {
                // `__newobj__` passes the rest on; for `_reconstructor` it is the base class and its value.
                let rest = match self.arena.name_of(callable) {
                    Some("copyreg.__newobj__") => self.arena.copied(items, 1)?,
                    _ => Run::default(),
                };
                let arguments = self.arena.add(Node::Tuple(rest))?;
                self.object(class, arguments)
            }
        }
    }

    /// An inert object.
    pub(super) fn object(&mut self, callable: Ref, arguments: Ref) -> Result<Ref, Wrong> {
        // What an object makes when it is called has the object's own name.
        let name = match self.arena.node(callable) {
            Node::Object(at) => self.arena.words::<1>(at)[0],
            _ => callable.0,
        };
        let at = self.arena.record([name, arguments.0, NOTHING, 0, 0, 0])?;
        Ok(self.arena.add(Node::Object(at))?)
    }

    /// BUILD: the state of an object. Anything else is as its writer made it.
    pub(super) fn build(&mut self, value: Ref, state: Ref) {
        if let Node::Object(at) = self.arena.node(value) {
            let [name, arguments, _] = self.arena.words(at);
            self.arena.set_words(at, [name, arguments, state.0]);
        }
    }
}

/// Puts `module.name` into `full`, by the name that Python 3 has for the module. Returns where the dot is.
fn join(full: &mut String, module: &str, name: &str) -> usize {
    full.clear();
    full.push_str(names::module(module));
    let dot = full.len();
    full.push('.');
    full.push_str(name);
    dot
}
