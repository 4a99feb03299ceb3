//! A harness for the built commands: private daemons, pools in image files, mounted trees, and
//! OpenZFS's `zdb` as judge.
//!
//! Nothing here knows the engine. A test makes a [`World`] (a state folder of its own, so that
//! tests run side by side), gives it pools ([`Pool`]), works on the mounted tree with the host's
//! own programs, and asks whether every file is what it was ([`manifest`]) and whether OpenZFS
//! agrees ([`zdb_clean`]). A world that is dropped leaves no daemon and no mount.
//!
//! What a machine may lack (FUSE, `zdb`, root) a test asks for with [`can`]: missing, the test says
//! so and is passed over, except where `CI` is set: then it fails.

pub mod manifest;
pub mod needs;
pub mod page;
pub mod pool;
pub mod random;
mod shared;
pub mod tree;
pub mod world;

pub use needs::{Need, can};
pub use pool::{Kind, Pool, scrub, zdb_clean, zdb_clean_with};
pub use random::Random;
pub use shared::Shared;
pub use world::{Done, World};
