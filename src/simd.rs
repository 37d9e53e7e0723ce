//! Loops compiled twice, for every machine and for machines with AVX2. The choice is made at run
//! time.
//!
//! The loops are plain Rust, which the compiler vectorizes for the enabled features. Both versions
//! do the same IEEE operations in the same order (FMA is not among the features, so there is no
//! fused multiply-add), so they give the same bits.

/// Defines a function whose body is compiled a second time for AVX2, and used if the machine has
/// it.
///
/// A function that the body calls is compiled with it only if it is `#[inline(always)]` (or generic
/// and inlined).
macro_rules! for_each_cpu {
    (
        $(#[$attribute:meta])*
        $vis:vis fn $name:ident $(<$($generic:ident: $bound:path),+>)? (
            $($arg:ident: $ty:ty),* $(,)?
        ) $(-> $answer:ty)? $body:block
    ) => {
        $(#[$attribute])*
        $vis fn $name $(<$($generic: $bound),+>)? ($($arg: $ty),*) $(-> $answer)? {
            #[inline(always)]
            fn plain $(<$($generic: $bound),+>)? ($($arg: $ty),*) $(-> $answer)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2 $(<$($generic: $bound),+>)? ($($arg: $ty),*) $(-> $answer)? {
                    plain($($arg),*)
                }
                if $crate::simd::avx2() {
                    // SAFETY: the function only requires that the machine has AVX2, which was just
                    // checked.
                    return unsafe { avx2($($arg),*) };
                }
            }
            plain($($arg),*)
        }
    };
}
pub(crate) use for_each_cpu;

/// Whether this machine has AVX2 (and no test disables it).
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn avx2() -> bool {
    #[cfg(test)]
    if PLAIN.get() {
        return false;
    }
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(test)]
thread_local! {
    static PLAIN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `f` with the plain versions, whatever the machine has.
#[cfg(test)]
pub(crate) fn plainly<R>(f: impl FnOnce() -> R) -> R {
    PLAIN.set(true);
    let result = f();
    PLAIN.set(false);
    result
}
