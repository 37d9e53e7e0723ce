//! Natural order: runs of digits compare as numbers, so that layer 2 comes before layer 10.

use std::cmp::Ordering;

/// Compares names, with runs of digits in numeric order. Names that differ only in leading zeros
/// compare as text, so the order is total.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (a.as_bytes(), b.as_bytes());
    loop {
        match (x.first(), y.first()) {
            (None, None) => return a.cmp(b),
            (None, _) => return Ordering::Less,
            (_, None) => return Ordering::Greater,
            (Some(p), Some(q)) if p.is_ascii_digit() && q.is_ascii_digit() => {
                let (m, n) = (digits(x), digits(y));
                let (u, v) = (strip_zeros(&x[..m]), strip_zeros(&y[..n]));
                match u.len().cmp(&v.len()).then_with(|| u.cmp(v)) {
                    Ordering::Equal => (x, y) = (&x[m..], &y[n..]),
                    other => return other,
                }
            }
            (Some(p), Some(q)) => match p.cmp(q) {
                Ordering::Equal => (x, y) = (&x[1..], &y[1..]),
                other => return other,
            },
        }
    }
}

fn digits(s: &[u8]) -> usize {
    s.iter().take_while(|c| c.is_ascii_digit()).count()
}

fn strip_zeros(s: &[u8]) -> &[u8] {
    &s[s.iter().take_while(|&&c| c == b'0').count()..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_as_numbers() {
        let mut names = [
            "l.10.w",
            "l.2.w",
            "l.2",
            "a",
            "l.02.w",
            "l.99999999999999999999999.w",
        ];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(
            names,
            [
                "a",
                "l.2",
                "l.02.w",
                "l.2.w",
                "l.10.w",
                "l.99999999999999999999999.w"
            ]
        );
    }
}
