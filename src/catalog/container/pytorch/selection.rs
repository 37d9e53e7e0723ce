//! Which of a checkpoint's values are the model, and what its tensors are called.
