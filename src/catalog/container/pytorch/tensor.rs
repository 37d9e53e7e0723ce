//! A rebuilt tensor as a row of the catalog: checks it against its storage.
