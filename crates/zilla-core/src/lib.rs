//! zilla's engine: OpenZFS's on-disk format behind an asynchronous core. See ARCHITECTURE.md for the map.

pub mod arc;
pub mod dmu;
pub mod dsl;
pub mod error;
pub mod metaslab;
pub mod scan;
pub mod spa;
pub mod types;
pub mod vdev;
pub mod zap;
pub mod zil;
pub mod zio;
pub mod zpl;
