//! Who may do what: permissions that were given away (`zfs allow`), and whom limits bind.

pub use zilla_core::dsl::{Grantee, Grants, Who};
