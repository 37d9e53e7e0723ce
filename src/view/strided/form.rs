//! The normal form of a strided layout: as few dimensions as there can be, with distances in bytes.

use super::Layout;

/// A dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dim {
    /// How many indexes it has: at least 2.
    pub size: u64,
    /// Bytes between neighbors in the source; 0 if all are the same.
    pub from: u64,
    /// Bytes between neighbors in the output.
    pub to: u64,
}

/// A layout without dimensions of size 1, in which no two neighboring dimensions are as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Form {
    /// Bytes of an element.
    pub element: u64,
    /// Outermost first.
    pub dims: Box<[Dim]>,
    /// Bytes of the output.
    pub len: u64,
}

/// A part of the output: some indexes of one dimension with all inner ones, which is one range of the
/// output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// First byte in the source.
    pub from: u64,
    /// First byte in the output.
    pub to: u64,
    /// How many indexes of each dimension.
    pub sizes: Box<[u64]>,
    /// Its bytes in the output.
    pub len: u64,
}

impl Form {
    pub fn of(layout: &Layout) -> Form {
        let element = u64::from(layout.element);
        let mut dims: Vec<Dim> = Vec::new();
        let mut to = element;
        for (&size, &stride) in layout.shape.iter().zip(&*layout.strides).rev() {
            let from = stride.saturating_mul(element);
            match dims.last_mut() {
                _ if size == 1 => {}
                Some(inner) if inner.from.checked_mul(inner.size) == Some(from) => {
                    inner.size = inner.size.saturating_mul(size);
                }
                _ => dims.push(Dim { size, from, to }),
            }
            to = to.saturating_mul(size);
        }
        if layout.shape.contains(&0) {
            (dims, to) = (Vec::new(), 0);
        }
        dims.reverse();
        Form {
            element,
            dims: dims.into(),
            len: to,
        }
    }

    /// Bytes of the output that are contiguous in the source, too.
    pub fn run(&self) -> u64 {
        match self.dims.last() {
            None => self.len,
            Some(inner) if inner.from == self.element => inner.size * self.element,
            Some(_) => self.element,
        }
    }

    /// Where byte `at` of the output is in the source.
    pub fn place(&self, at: u64) -> u64 {
        let of_dim = |dim: &Dim| at / dim.to % dim.size * dim.from;
        self.dims.iter().map(of_dim).sum::<u64>() + at % self.element
    }

    /// The sizes of all dimensions.
    pub fn sizes(&self) -> Box<[u64]> {
        self.dims.iter().map(|dim| dim.size).collect()
    }

    /// Bytes of the source from the first to behind the last byte that a part of those sizes needs.
    pub fn span(&self, sizes: &[u64]) -> u64 {
        let of_dim = |(dim, size): (&Dim, &u64)| (size - 1) * dim.from;
        self.dims.iter().zip(sizes).map(of_dim).sum::<u64>() + self.element
    }

    /// The parts that make up a range of the output. The range begins and ends at whole elements.
    pub fn parts(&self, start: u64, end: u64) -> impl Iterator<Item = Part> + '_ {
        let mut at = start;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let part = self.part(at, end);
                at += part.len;
                part
            })
        })
    }

    /// The largest part that begins at `at` and ends at or before `end`.
    fn part(&self, at: u64, end: u64) -> Part {
        let fits = |dim: &Dim| at.is_multiple_of(dim.to) && end - at >= dim.to;
        let outermost = self.dims.iter().position(fits);
        let mut sizes: Box<[u64]> = vec![1; self.dims.len()].into();
        let mut len = self.element;
        if let Some(k) = outermost {
            let dim = self.dims[k];
            let index = at / dim.to % dim.size;
            sizes[k] = ((end - at) / dim.to).min(dim.size - index);
            len = sizes[k] * dim.to;
            for (size, dim) in sizes.iter_mut().zip(&self.dims).skip(k + 1) {
                *size = dim.size;
            }
        }
        Part {
            from: self.place(at),
            to: at,
            sizes,
            len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Swap;
    use super::*;

    fn form(element: u32, shape: &[u64], strides: &[u64]) -> Form {
        Form::of(&Layout {
            element,
            shape: shape.into(),
            strides: strides.into(),
            swap: Swap::Nothing,
        })
    }

    fn dims(form: &Form) -> Vec<(u64, u64, u64)> {
        form.dims.iter().map(|d| (d.size, d.from, d.to)).collect()
    }

    #[test]
    fn dimensions_of_one_go_and_neighbors_merge() {
        // Contiguous, whatever the strides of dimensions of size 1 are.
        let whole = form(4, &[3, 1, 5], &[5, 77, 1]);
        assert_eq!((dims(&whole), whole.run()), (vec![(15, 4, 4)], 60));
        // A scalar, and one element in four dimensions.
        assert_eq!(dims(&form(2, &[], &[])), []);
        assert_eq!(form(2, &[1, 1, 1, 1], &[9, 9, 9, 9]).len, 2);
        // Nothing at all, also beside sizes whose product overflows.
        let none = form(8, &[1 << 62, 0, 1 << 62], &[1, 1, 1]);
        assert_eq!((dims(&none), none.len, none.run()), (vec![], 0, 0));
        // channels_last: [N, C, H, W] whose storage is [N, H, W, C].
        let last = form(4, &[2, 3, 5, 7], &[105, 1, 21, 3]);
        assert_eq!(dims(&last), [(2, 420, 420), (3, 4, 140), (35, 12, 4)]);
        // A bias, expanded twice.
        let bias = form(2, &[6, 4, 8], &[0, 0, 1]);
        assert_eq!(
            (dims(&bias), bias.run()),
            (vec![(24, 0, 16), (8, 2, 2)], 16)
        );
        // One element, 2^40 times.
        let one = form(4, &[1 << 20, 1 << 20], &[0, 0]);
        assert_eq!(dims(&one), [(1 << 40, 0, 4)]);
        assert_eq!((one.len, one.span(&one.sizes())), (1 << 42, 4));
    }

    #[test]
    fn parts_cover_a_range_and_know_their_place() {
        let form = form(2, &[3, 4, 5], &[1, 60, 12]);
        for start in 0..60 {
            for end in start..=60 {
                let mut at = 2 * start;
                for part in form.parts(2 * start, 2 * end) {
                    assert_eq!(part.to, at);
                    let (i, j, k) = (at / 40, at / 10 % 4, at / 2 % 5);
                    assert_eq!(part.from, 2 * (i + 60 * j + 12 * k));
                    assert_eq!(part.len, 2 * part.sizes.iter().product::<u64>());
                    at += part.len;
                }
                assert_eq!(at, 2 * end);
                assert!(form.parts(2 * start, 2 * end).count() <= 5);
            }
        }
    }
}
