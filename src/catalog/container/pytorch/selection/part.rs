//! `FILE#KEY.PATH`: the part of a checkpoint that was asked for.

use std::collections::HashSet;

use super::super::pickle::Ref;
use super::contents::Contents;

/// A way from the root to a part.
pub(super) struct Way<'p> {
    /// The containers on the way, each with the place of the next value in it.
    pub steps: Vec<(Ref, u32)>,
    /// The names of the keys.
    pub key: Vec<std::borrow::Cow<'p, str>>,
    /// Where it ends.
    pub end: Ref,
}

/// Finds the part with that path below `root`, keys matched longest first; `None` if there is none that
/// `wanted` accepts.
pub(super) fn find<'p>(
    contents: &Contents<'p>,
    root: Ref,
    path: &str,
    wanted: impl Fn(Ref) -> bool,
) -> Option<Way<'p>> {
    if path.is_empty() {
        return Some(Way {
            steps: Vec::new(),
            key: Vec::new(),
            end: root,
        });
    }
    // Places to go on from: a container, the rest of the path, and how far back the way to it leads. All
    // ways are tried, those over longer keys first.
    let mut tried = HashSet::new();
    let mut nodes: Vec<Node> = vec![Node {
        value: root,
        rest: Some(0),
        from: None,
    }];
    let mut open = vec![0];
    while let Some(index) = open.pop() {
        let Some(&Node { value, rest, .. }) = nodes.get(index) else {
            continue;
        };
        let Some(rest) = rest else {
            if wanted(value) {
                return Some(way(contents, &nodes, index));
            }
            continue;
        };
        let text = path.get(rest..).unwrap_or_default();
        if !tried.insert((value, rest)) {
            continue;
        }
        let mut matches = Vec::new();
        for (place, key, next) in contents.named(value) {
            let name = key.name();
            let Some(after) = text.strip_prefix(&*name) else {
                continue;
            };
            let end = rest + name.len();
            let rest = match after.as_bytes().first() {
                None => None,
                Some(b'.') => Some(end + 1),
                Some(_) => continue,
            };
            matches.push((name.len(), place, next, rest));
        }
        // The longest is taken from the end of the list first.
        matches.sort_by_key(|&(len, place, ..)| (len, std::cmp::Reverse(place)));
        for (_, place, next, rest) in matches {
            open.push(nodes.len());
            nodes.push(Node {
                value: next,
                rest,
                from: Some((index, place)),
            });
        }
    }
    None
}

/// A value on the way.
struct Node {
    value: Ref,
    /// Where the rest of the path begins; `None` at its end.
    rest: Option<usize>,
    /// The node before, and the place of the value in that container.
    from: Option<(usize, u32)>,
}

fn way<'p>(contents: &Contents<'p>, nodes: &[Node], mut index: usize) -> Way<'p> {
    let end = nodes.get(index).map_or(Ref(0), |node| node.value);
    let (mut steps, mut key) = (Vec::new(), Vec::new());
    while let Some((from, place)) = nodes.get(index).and_then(|node| node.from) {
        if let Some(node) = nodes.get(from) {
            steps.push((node.value, place));
            let entry = contents.entry(node.value, place);
            key.extend(entry.and_then(|e| e.key.ok()).map(|k| k.name()));
        }
        index = from;
    }
    steps.reverse();
    key.reverse();
    Way { steps, key, end }
}
