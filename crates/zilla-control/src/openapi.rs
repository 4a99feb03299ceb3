//! The control API described for other programs: a document of OpenAPI 3.1, made from the types
//! themselves.
//!
//! `GET /openapi.json` on the socket gives it, and `zilla api` prints it. Each operation of
//! [`crate::operations`] is a path, each request and reply a schema, so what it says is what the
//! daemon takes. A field that a request may leave out is one that the schema does not require; a
//! reply holds every field but those that say nothing.
//!
//! What versions mean: [`PROTOCOL`] changes when a request or a reply changes its meaning, and the
//! daemon refuses another. Fields, operations and values of enumerations that are added do not
//! change it; who reads a reply passes over fields that it does not know, and takes a word that it
//! does not know for a value of a later version, also where a schema lists all that there are now.
//!
//! Absent: the descriptors that some requests bring along ([`crate::handover`]), which no schema
//! can express; the descriptions say which requests have them.

use crate::error::ApiError;
use crate::operations::{Operation, PROTOCOL};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

/// Where the daemon serves it.
pub const PATH: &str = "/openapi.json";

const ABOUT: &str = "What zpool, zfs and the page ask of zillad. It listens on the Unix socket zillad.sock in its state \
                     folder, so: curl --unix-socket zillad.sock http://localhost/openapi.json. Sizes are bytes, times \
                     are seconds since 1970 unless a field's name says otherwise. Later versions may add \
                     fields, operations, and values of enumerations.";

/// The document while it is put together.
pub(crate) struct Paths {
    schemas: SchemaGenerator,
    paths: Map<String, Value>,
}

impl Paths {
    pub(crate) fn new() -> Paths {
        let settings = SchemaSettings::draft2020_12().with(|s| {
            s.definitions_path = "/components/schemas".into();
            s.meta_schema = None;
        });
        Paths { schemas: settings.into_generator(), paths: Map::new() }
    }

    /// Adds an operation. What is said of it is the comment of its request.
    pub(crate) fn add<T: Operation>(&mut self) {
        let (request, reply) = (self.schemas.subschema_for::<T>(), self.schemas.subschema_for::<T::Reply>());
        let failed = self.schemas.subschema_for::<ApiError>();
        let about = self.schemas.definitions().get(&*T::schema_name()).and_then(|s| s.get("description"));
        let about = about.cloned().unwrap_or_default();
        self.insert(T::NAME, about, request.into(), reply.into(), failed.into());
    }

    fn insert(&mut self, name: &str, about: Value, request: Value, reply: Value, failed: Value) {
        let failed = json!({
            "type": "object",
            "required": ["err"],
            "properties": { "err": failed },
        });
        let outcome = json!({ "oneOf": [
            { "type": "object", "required": ["ok"], "properties": { "ok": reply } },
            failed.clone(),
        ] });
        let envelope = json!({
            "type": "object",
            "required": ["protocol", "request"],
            "properties": {
                "protocol": { "const": PROTOCOL },
                "command": { "type": "string", "description": "The command line, for the pool's history." },
                "request": request,
            },
        });
        let response = |why: &str, schema: &Value| json!({ "description": why, "content": { "application/json": { "schema": schema } } });
        let post = json!({
            "operationId": name,
            "description": about,
            "requestBody": {
                "required": true,
                "content": { "application/json": { "schema": envelope } },
            },
            "responses": {
                "200": response("What came of it: `ok` with the reply, or `err`.", &outcome),
                "408": response("The request takes too long to arrive.", &failed),
                "413": response("The request is too long.", &failed),
                "500": response("Something in the daemon is wrong; its log says more.", &failed),
            },
        });
        self.paths.insert(format!("/v1/{name}"), json!({ "post": post }));
    }

    pub(crate) fn document(mut self) -> Value {
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "zilla",
                "version": format!("{PROTOCOL}-{}", env!("CARGO_PKG_VERSION")),
                "description": ABOUT,
                "license": { "name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT" },
            },
            "servers": [{ "url": "http://localhost", "description": "zillad.sock in the state folder" }],
            "paths": self.paths,
            "components": { "schemas": self.schemas.take_definitions(true) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::{OPERATIONS, openapi};
    use crate::types::*;
    use crate::{Envelope, Outcome};

    /// All references to schemas below a value.
    fn references<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
        match value {
            Value::Object(map) => {
                out.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|v| references(v, out));
            }
            Value::Array(all) => all.iter().for_each(|v| references(v, out)),
            _ => {}
        }
    }

    #[test]
    fn every_operation_is_there_and_every_reference_leads_somewhere() {
        let document = openapi();
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), OPERATIONS.len());
        for name in OPERATIONS {
            let post = &paths[&format!("/v1/{name}")]["post"];
            assert_eq!(post["operationId"], **name);
            assert!(
                post["description"].as_str().is_some_and(|d| !d.is_empty()),
                "{name}: its request has no comment"
            );
        }
        let mut all = Vec::new();
        references(&document, &mut all);
        assert!(all.len() > OPERATIONS.len());
        for reference in all {
            let pointer = reference.strip_prefix('#').expect("within the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    /// What the types write fits what the document says of them: names, and what is required.
    #[test]
    fn what_is_sent_has_the_fields_that_the_schema_names() {
        let document = openapi();
        let fits = |schema: &str, value: &Value| {
            let schema = &document["components"]["schemas"][schema];
            let known = schema["properties"].as_object().expect("an object's schema");
            let fields = value.as_object().expect("an object");
            let unknown: Vec<_> = fields.keys().filter(|name| !known.contains_key(*name)).collect();
            assert!(unknown.is_empty(), "{unknown:?} are not in the schema");
            for name in schema["required"].as_array().into_iter().flatten() {
                assert!(fields.contains_key(name.as_str().unwrap()), "{name} is required");
            }
        };
        fits("PoolQuery", &serde_json::to_value(PoolQuery::default()).unwrap());
        fits("DatasetCreate", &serde_json::to_value(DatasetCreate::default()).unwrap());
        let error = ApiError::new(crate::ErrorCode::NoEnt);
        fits("ApiError", &serde_json::to_value(&error).unwrap());
        let outcome = serde_json::to_value(Outcome::<()>::Err(error)).unwrap();
        assert!(outcome.get("err").is_some(), "{outcome}");
        let envelope = Envelope { protocol: PROTOCOL, command: None, request: Hello::default() };
        let envelope = serde_json::to_value(envelope).unwrap();
        assert!(envelope.get("request").is_some(), "{envelope}");
    }
}
