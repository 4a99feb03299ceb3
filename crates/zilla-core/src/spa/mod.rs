//! The pool: what is imported, its transaction groups, its configuration.

pub mod txg;
