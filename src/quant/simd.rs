//! Loops compiled twice: for every machine, and for those with AVX2, chosen when they run.
//!
//! The loops are plain Rust, which the compiler vectorizes for what it is told the machine has; both
//! versions are the same IEEE operations in the same order (no fused multiply-add: FMA is not among
//! the features), so they give the same bits.

/// Defines a function whose body is compiled a second time for AVX2, for where the machine has it.
///
/// What the body calls is part of it only if it is `#[inline(always)]` (or generic and inlined).
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
                if $crate::quant::simd::avx2() {
                    // SAFETY: the function is safe but for the instructions it is compiled to, and
                    // this machine has just said that it has them.
                    return unsafe { avx2($($arg),*) };
                }
            }
            plain($($arg),*)
        }
    };
}
pub(crate) use for_each_cpu;

/// Whether this machine has AVX2 (and no test says to do without).
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
