//! The product of two matrices of values.

use super::SharedView;

/// `a @ b`: each product is rounded to binary32, and they are added from k = 0 upwards, beginning with +0.
pub struct Product;

impl Product {
    /// `a @ b` as binary32, for `a` of `m` × `k` and `b` of `k` × `n` values (binary32, C order). `a`'s rows are
    /// read once by a reader in order. `b` is kept in memory if it is small (16 MiB). Otherwise each read takes the columns that it needs, so
    /// the smaller matrix should be `b`: `t(a @ b)` is `t(b) @ t(a)`, bit for bit. `None` if a view has another number of values.
    pub fn view(a: SharedView, b: SharedView, m: u64, k: u64, n: u64) -> Option<SharedView> {
        let _ = (a, b, m, k, n);
        None
    }
}
