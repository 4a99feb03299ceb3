//! Makes the document from the types, for the test that compares it with the file.

use super::DOCUMENT;
use crate::error::ApiError;
use crate::operations::{OPERATIONS, Operation, PROTOCOL, describe};
use crate::types::*;
use crate::{Envelope, Outcome};
use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

const ABOUT: &str = "What zpool, zfs and the page ask of zillad. It listens on the Unix socket zillad.sock in its state \
                     folder, so: curl --unix-socket zillad.sock http://localhost/openapi.json. Sizes are bytes, times \
                     are seconds since 1970 unless a field's name says otherwise. Later versions may add \
                     fields, operations, and values of enumerations.";

/// Where the schemas lie in the document.
const SCHEMAS: &str = "/components/schemas";
/// The schema of an outcome that is none of an operation's replies.
const REFUSAL: &str = "Refusal";

fn response(why: &str, schema: &Value) -> Value {
    json!({ "description": why, "content": { "application/json": { "schema": schema } } })
}

/// The document as it is made from the types.
fn made() -> Value {
    let mut paths = Paths::new();
    describe(&mut paths);
    paths.document()
}

/// An object of JSON with a line for each of its values.
fn lines(object: &Map<String, Value>, text_of: impl Fn(&str, &Value) -> String) -> String {
    let all: Vec<_> = object.iter().map(|(k, v)| format!("{}:{}", json!(k), text_of(k, v))).collect();
    format!("{{\n{}\n}}", all.join(",\n"))
}

/// The text of the file: a line for each operation and each schema, as short as it can be.
fn text(document: &Value) -> String {
    let whole = |_: &str, v: &Value| v.to_string();
    let inner = |name: &str, v: &Value| match v {
        Value::Object(all) if name == "schemas" => lines(all, whole),
        other => other.to_string(),
    };
    let outer = |name: &str, v: &Value| match (name, v) {
        ("paths", Value::Object(all)) => lines(all, whole),
        ("components", Value::Object(all)) => lines(all, inner),
        (_, other) => other.to_string(),
    };
    lines(document.as_object().expect("an object"), outer) + "\n"
}

/// The document while it is put together.
pub(crate) struct Paths {
    schemas: SchemaGenerator,
    paths: Map<String, Value>,
}

impl Paths {
    fn new() -> Paths {
        let settings = SchemaSettings::draft2020_12().with(|s| {
            s.definitions_path = SCHEMAS.into();
            s.meta_schema = None;
        });
        Paths { schemas: settings.into_generator(), paths: Map::new() }
    }

    /// Adds an operation. What is said of it is the comment of its request.
    pub(crate) fn add<T>(&mut self)
    where
        T: Operation<Reply: JsonSchema> + JsonSchema,
    {
        let (request, reply) = (self.schemas.subschema_for::<T>(), self.schemas.subschema_for::<T::Reply>());
        let about = self.schemas.definitions().get(&*T::schema_name()).and_then(|s| s.get("description"));
        let about = about.cloned().unwrap_or_default();
        self.insert(T::NAME, about, request.into(), reply.into());
    }

    fn insert(&mut self, name: &str, about: Value, request: Value, reply: Value) {
        let outcome = json!({ "oneOf": [
            { "type": "object", "required": ["ok"], "properties": { "ok": reply } },
            { "$ref": format!("#{SCHEMAS}/{REFUSAL}") },
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
        let failed = |name: &str| json!({ "$ref": format!("#/components/responses/{name}") });
        let post = json!({
            "operationId": name,
            "description": about,
            "requestBody": {
                "required": true,
                "content": { "application/json": { "schema": envelope } },
            },
            "responses": {
                "200": response("What came of it: `ok` with the reply, or `err`.", &outcome),
                "408": failed("Slow"),
                "413": failed("Long"),
                "500": failed("Broken"),
            },
        });
        self.paths.insert(format!("/v1/{name}"), json!({ "post": post }));
    }

    fn document(mut self) -> Value {
        let error = self.schemas.subschema_for::<ApiError>();
        let mut schemas = self.schemas.take_definitions(true);
        let failed = json!({ "type": "object", "required": ["err"], "properties": { "err": error } });
        schemas.insert(REFUSAL.into(), failed);
        let failed = json!({ "$ref": format!("#{SCHEMAS}/{REFUSAL}") });
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
            "components": {
                "schemas": schemas,
                "responses": {
                    "Slow": response("The request takes too long to arrive.", &failed),
                    "Long": response("The request is too long.", &failed),
                    "Broken": response("Something in the daemon is wrong; its log says more.", &failed),
                },
            },
        })
    }
}

/// The file says what the types do.
#[test]
fn the_document_is_that_of_the_types() {
    let now = text(&made());
    if std::env::var_os("ZILLA_WRITE_API").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/openapi/openapi.json");
        return std::fs::write(path, now).unwrap();
    }
    let differs = now.lines().zip(DOCUMENT.lines()).find(|(now, then)| now != then);
    assert_eq!(differs, None, "the API has changed: ZILLA_WRITE_API=1 writes openapi.json anew");
    assert_eq!(now.len(), DOCUMENT.len());
}

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
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
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
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
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
