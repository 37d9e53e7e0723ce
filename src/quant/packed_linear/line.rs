//! What the two packings have in common once a panel is turned: each output is a run of codes.

/// The codes of one output over a block of inputs.
pub(super) trait Line: Copy {
    /// What holds one code.
    type Holder: Copy;

    /// What holds the codes of the inputs from `first` on, a multiple of 8; as many as `room` has
    /// bytes, which is for those that must be unpacked first.
    fn holders<'a>(self, first: usize, room: &'a mut [u8]) -> &'a [Self::Holder]
    where
        Self: 'a;

    /// The code.
    fn code(self, holder: Self::Holder) -> i32;
}
