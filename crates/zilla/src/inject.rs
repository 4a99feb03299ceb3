//! Errors on purpose, to see how a program, or a pool's redundancy, copes with them: `zinject`.
//!
//! Handlers ([`injections`]) belong to a pool by its name, and go with it.

pub use zilla_core::inject::{
    Copies, DataPlace, Failure, Fault, Frequency, Handler, Injections, IoType, Place, Region, injections,
};
