//! Indexes and slices.

use super::super::mistake::Mistake;
use super::parser::Parser;
use super::{Node, Subscript};

impl Parser<'_> {
    /// What stands in the brackets that were opened at byte `opened`, to the closing one.
    pub(super) fn subscripts(&mut self, opened: usize) -> Result<(Vec<Subscript>, usize), Mistake> {
        let mut subscripts = Vec::new();
        let mut height = 0;
        loop {
            let (subscript, h) = self.subscript()?;
            height = height.max(h);
            subscripts.push(subscript);
            if !self.take(",")? {
                break;
            }
        }
        if self.is("..") {
            return Err(self.mistake("a slice is written start:stop"));
        }
        self.close("]", opened)?;
        Ok((subscripts, height))
    }

    fn subscript(&mut self) -> Result<(Subscript, usize), Mistake> {
        let at = self.source.place(self.start);
        let (start, mut height) = self.bound()?;
        if !self.take(":")? {
            let index = start.ok_or_else(|| self.unexpected("an index or a slice"))?;
            return Ok((Subscript::Index(index), height));
        }
        let (stop, h) = self.bound()?;
        height = height.max(h);
        let mut step = None;
        if self.take(":")? {
            let (node, h) = self.expression()?;
            height = height.max(h);
            step = Some(node);
        }
        #[rustfmt::skip]
        let slice = Subscript::Slice { at, start, stop, step };
        Ok((slice, height))
    }

    /// An end of a slice, which may be left out.
    fn bound(&mut self) -> Result<(Option<Node>, usize), Mistake> {
        if self.is(":") || self.is(",") || self.is("]") {
            return Ok((None, 0));
        }
        let (node, height) = self.expression()?;
        Ok((Some(node), height))
    }
}
