//! The common interface of both packings once a panel is transposed: each output is a run of codes.

/// The codes of one output over a block of inputs.
pub(super) trait Line: Copy {
    /// The unit that holds one code.
    type Holder: Copy;

    /// The units that hold the codes of the inputs from `first` on (a multiple of 8), as many as
    /// `room` has bytes. Packings that unpack codes first do so into `room`.
    fn holders<'a>(self, first: usize, room: &'a mut [u8]) -> &'a [Self::Holder]
    where
        Self: 'a;

    /// The code in a unit.
    fn code(self, holder: Self::Holder) -> i32;
}
