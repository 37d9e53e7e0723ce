//! Copies elements in memory from the order that a source has to that of the output.

use std::ops::Range;

use bytemuck::Pod;

/// A dimension of what is copied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    /// How many indexes it has.
    pub size: usize,
    /// Bytes between neighbors in the source.
    pub from: usize,
    /// Bytes between neighbors in the output.
    pub to: usize,
}

/// Copies all elements of `axes` (outermost in the output first) from `source` to `out`, which have
/// them all; an element has `element` bytes.
pub(super) fn copy(source: &[u8], out: &mut [u8], axes: &[Axis], element: usize) {
    let mut axes: Vec<Axis> = axes.iter().copied().filter(|a| a.size > 1).collect();
    // What is contiguous in both is copied as one, what is next to each other in the output in rows, and
    // the rest element by element.
    let mut unit = element;
    let inner = axes.pop_if(|inner| inner.to == element);
    let kind = match inner {
        Some(inner) if inner.from == element => {
            unit = inner.size * element;
            Kind::Runs
        }
        Some(inner) if inner.from == 0 => Kind::Same(inner.size),
        Some(inner) => {
            let nearer = (0..axes.len()).filter(|&i| (1..inner.from).contains(&axes[i].from));
            match nearer.min_by_key(|&i| (axes[i].size < MANY, axes[i].from)) {
                Some(i) => Kind::Turned(axes.remove(i), inner),
                None => Kind::Row(inner),
            }
        }
        None => Kind::Runs,
    };
    each(&axes, |from, to| {
        let (Some(source), Some(out)) = (source.get(from..), out.get_mut(to..)) else {
            return;
        };
        match kind {
            Kind::Runs => copy_run(source, out, unit),
            Kind::Same(count) => repeat(source, out, unit, count),
            Kind::Row(row) => with_width(element, source, out, ROW, row),
            Kind::Turned(columns, row) => with_width(element, source, out, columns, row),
        }
    });
}

/// Rows that share lines of the source should be this many.
const MANY: usize = 8;

/// How the elements of one row of the output lie in the source.
#[derive(Clone, Copy)]
enum Kind {
    /// Next to each other.
    Runs,
    /// They are one element, so many times.
    Same(usize),
    /// At a distance, and nothing lies between.
    Row(Axis),
    /// At a distance, with those of other rows (the first axis) between.
    Turned(Axis, Axis),
}

/// An axis that is a single row.
const ROW: Axis = Axis {
    size: 1,
    from: 0,
    to: 0,
};

/// Calls `at` with the place in the source and in the output of each index of `axes`.
fn each(axes: &[Axis], mut at: impl FnMut(usize, usize)) {
    let mut index = vec![0; axes.len()];
    let (mut from, mut to) = (0, 0);
    loop {
        at(from, to);
        let mut k = axes.len();
        loop {
            if k == 0 {
                return;
            }
            k -= 1;
            let axis = axes[k];
            index[k] += 1;
            from += axis.from;
            to += axis.to;
            if index[k] < axis.size {
                break;
            }
            index[k] = 0;
            from -= axis.from * axis.size;
            to -= axis.to * axis.size;
        }
    }
}

fn copy_run(source: &[u8], out: &mut [u8], len: usize) {
    if let (Some(source), Some(out)) = (source.get(..len), out.get_mut(..len)) {
        out.copy_from_slice(source);
    }
}

fn repeat(source: &[u8], out: &mut [u8], element: usize, count: usize) {
    let (Some(source), Some(out)) = (source.get(..element), out.get_mut(..count * element)) else {
        return;
    };
    out[..element].copy_from_slice(source);
    let mut done = element;
    while done < out.len() {
        let (from, to) = out.split_at_mut(done);
        let n = done.min(to.len());
        to[..n].copy_from_slice(&from[..n]);
        done += n;
    }
}

/// Copies `row` for each index of `columns`.
fn with_width(element: usize, source: &[u8], out: &mut [u8], columns: Axis, row: Axis) {
    match element {
        1 => turn::<u8, 8>(source, out, columns, row, turned),
        2 => turn::<u16, 4>(source, out, columns, row, turned_words),
        4 => turn::<u32, 4>(source, out, columns, row, turned),
        8 => turn::<u64, 4>(source, out, columns, row, turned),
        16 => turn::<u128, 4>(source, out, columns, row, turned),
        _ => rows(source, out, columns, row, 0..columns.size, 0, element),
    }
}

/// As [`with_width`], in blocks of `B` × `B` elements that `turned` turns in registers. All blocks of
/// `B` rows are written one after the other, so that a line of the output is written at once.
fn turn<T: Pod, const B: usize>(
    source: &[u8],
    out: &mut [u8],
    columns: Axis,
    row: Axis,
    turned: impl Fn([[T; B]; B]) -> [[T; B]; B],
) {
    let size = size_of::<T>();
    let mut column = 0;
    if columns.from == size {
        let whole = row.size / B * B;
        while column + B <= columns.size {
            for first in (0..whole).step_by(B) {
                let mut block = [[T::zeroed(); B]; B];
                for (i, line) in block.iter_mut().enumerate() {
                    let at = (first + i) * row.from + column * size;
                    if let Some(bytes) = source.get(at..at + B * size) {
                        *line = bytemuck::pod_read_unaligned(bytes);
                    }
                }
                for (j, line) in turned(block).iter().enumerate() {
                    let at = (column + j) * columns.to + first * size;
                    if let Some(bytes) = out.get_mut(at..at + B * size) {
                        bytes.copy_from_slice(bytemuck::bytes_of(line));
                    }
                }
            }
            rows(source, out, columns, row, column..column + B, whole, size);
            column += B;
        }
    }
    rows(source, out, columns, row, column..columns.size, 0, size);
}

fn turned<T: Pod, const B: usize>(block: [[T; B]; B]) -> [[T; B]; B] {
    std::array::from_fn(|j| std::array::from_fn(|i| block[i][j]))
}

/// [`turned`] for 16 bits, in 64: the compiler finds a slower way.
fn turned_words(block: [[u16; 4]; 4]) -> [[u16; 4]; 4] {
    const EVEN: u64 = 0x0000_FFFF_0000_FFFF;
    let lines: [u64; 4] = bytemuck::cast(block);
    let [mut a, mut b, mut c, mut d] = lines.map(u64::to_le);
    let exchange = |x: &mut u64, y: &mut u64, by: u32, mask: u64| {
        let differs = ((*x >> by) ^ *y) & mask;
        *x ^= differs << by;
        *y ^= differs;
    };
    exchange(&mut a, &mut c, 32, 0xFFFF_FFFF);
    exchange(&mut b, &mut d, 32, 0xFFFF_FFFF);
    exchange(&mut a, &mut b, 16, EVEN);
    exchange(&mut c, &mut d, 16, EVEN);
    bytemuck::cast([a, b, c, d].map(u64::to_le))
}

/// Copies the elements from `first` on of the rows of `wanted`, one by one.
fn rows(
    source: &[u8],
    out: &mut [u8],
    columns: Axis,
    row: Axis,
    wanted: Range<usize>,
    first: usize,
    element: usize,
) {
    match element {
        1 => rows_of::<1>(source, out, columns, row, wanted, first),
        2 => rows_of::<2>(source, out, columns, row, wanted, first),
        4 => rows_of::<4>(source, out, columns, row, wanted, first),
        8 => rows_of::<8>(source, out, columns, row, wanted, first),
        16 => rows_of::<16>(source, out, columns, row, wanted, first),
        _ => {}
    }
}

fn rows_of<const N: usize>(
    source: &[u8],
    out: &mut [u8],
    columns: Axis,
    row: Axis,
    wanted: Range<usize>,
    first: usize,
) {
    // A line of each row at a time: the lines of the source that it is from serve several rows.
    let line = (64 / N).max(MANY);
    for first in (first..row.size).step_by(line) {
        let last = row.size.min(first + line);
        for column in wanted.clone() {
            let start = column * columns.to;
            let Some(out) = out.get_mut(start + first * N..start + last * N) else {
                return;
            };
            let mut at = column * columns.from + first * row.from;
            for to in out.as_chunks_mut::<N>().0 {
                if let Some(value) = source.get(at..).and_then(<[u8]>::first_chunk::<N>) {
                    *to = *value;
                }
                at += row.from;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All elements one by one, by the definition.
    fn naive(source: &[u8], out: &mut [u8], axes: &[Axis], element: usize) {
        each(axes, |from, to| {
            out[to..to + element].copy_from_slice(&source[from..from + element]);
        });
    }

    #[test]
    fn any_order_of_axes_is_copied() {
        let source: Vec<u8> = (0..1usize << 16)
            .map(|i| (i * i / 3 + i / 7) as u8)
            .collect();
        let sizes = [1, 2, 3, 7, 8, 9, 19];
        for element in [1, 2, 4, 8, 16] {
            for (a, b) in sizes.iter().flat_map(|&a| sizes.map(|b| (a, b))) {
                let distances = [element, 0, 3 * element, 20 * element];
                for (x, y) in distances.iter().flat_map(|&x| distances.map(|y| (x, y))) {
                    let axis = |size, from, to| Axis { size, from, to };
                    let axes = [
                        axis(2, 5 * element, a * b * element),
                        axis(a, x, b * element),
                        axis(b, y, element),
                    ];
                    let mut got = vec![0; 2 * a * b * element];
                    let mut want = got.clone();
                    copy(&source, &mut got, &axes, element);
                    naive(&source, &mut want, &axes, element);
                    assert_eq!(got, want, "{element} {axes:?}");
                }
            }
        }
    }
}
