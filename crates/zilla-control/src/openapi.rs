//! The control API described for other programs: a document of OpenAPI 3.1.
//!
//! `GET /openapi.json` on the socket gives it, and `zilla api` prints it. Each operation of
//! [`crate::operations`] is a path, each request and reply a schema. A field that a request may
//! leave out is one that the schema does not require; a reply holds every field but those that say
//! nothing.
//!
//! The document is a file, so that neither the program carries what makes it nor a build compiles
//! that, and a change of the API is seen as one. A test makes it from the types themselves, and
//! fails where the file says something else; `ZILLA_WRITE_API=1 cargo test -p zilla-control --lib`
//! writes the file anew.
//!
//! What versions mean: [`PROTOCOL`](crate::PROTOCOL) changes when a request or a reply changes its
//! meaning, and the daemon refuses another. Fields, operations and values of enumerations that are
//! added do not change it; who reads a reply passes over fields that it does not know, and takes a
//! word that it does not know for a value of a later version, also where a schema lists all that
//! there are now.
//!
//! Absent: the descriptors that some requests bring along ([`crate::handover`]), which no schema
//! can express; the descriptions say which requests have them.

/// What the types derive for it: in a build for use, nothing.
#[cfg(test)]
pub(crate) use schemars::JsonSchema;
#[cfg(not(test))]
pub(crate) use zilla_macros::Nothing as JsonSchema;

/// Where the daemon serves it.
pub const PATH: &str = "/openapi.json";

/// The document. (A static, since a constant would be in each crate that names it.)
pub static DOCUMENT: &str = include_str!("openapi/openapi.json");

#[cfg(test)]
pub(crate) mod made;
