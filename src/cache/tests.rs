//! The cache against a model that is obviously right.
