//! The rules of change (`schemas/README.md`), checked: FULL compatibility in the sense of Avro's specification, and what it does not
//! ask for but a log that is kept for ever needs.

use std::collections::BTreeMap;

use apache_avro::Schema;
use apache_avro::schema_compatibility::{Compatibility, SchemaCompatibility};
use serde_json::Value;

/// What keeps `new` from following `old`; empty: nothing.
pub(crate) fn problems(old: &str, new: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let (old_schema, new_schema) = (Schema::parse_str(old).unwrap(), Schema::parse_str(new).unwrap());
    for (writer, reader, way) in [(&old_schema, &new_schema, "new reads old"), (&new_schema, &old_schema, "old reads new")] {
        match SchemaCompatibility::can_read(writer, reader) {
            Ok(Compatibility::Full) => {}
            other => problems.push(format!("{way}: {other:?}")),
        }
    }
    let (old, new) = (Types::of(old), Types::of(new));
    for (name, fields) in &old.records {
        let Some(new_fields) = new.records.get(name) else {
            problems.push(format!("record {name} is gone"));
            continue;
        };
        for (field, shape) in fields {
            match new_fields.get(field) {
                None => problems.push(format!("{name}.{field} is gone")),
                Some(new_shape) if new_shape != shape => problems.push(format!("{name}.{field} was {shape}, is {new_shape}")),
                Some(_) => {}
            }
        }
    }
    for (name, symbols) in &old.enums {
        let new_symbols = new.enums.get(name).cloned().unwrap_or_default();
        problems.extend(symbols.iter().filter(|s| !new_symbols.contains(s)).map(|s| format!("{name} lost {s}")));
    }
    for (name, symbols) in &new.enums {
        if symbols.first().map(String::as_str) != Some("UNKNOWN") || new.defaults.get(name).map(String::as_str) != Some("UNKNOWN")
        {
            problems.push(format!("{name} does not have UNKNOWN as first symbol and default"));
        }
    }
    problems
}

/// The symbols of the top record's `kind`.
pub(crate) fn kinds(schema: &str) -> Vec<String> {
    let schema: Value = serde_json::from_str(schema).unwrap();
    let kind = schema["fields"].as_array().unwrap().iter().find(|field| field["name"] == "kind").unwrap();
    kind["type"]["symbols"].as_array().unwrap().iter().map(|symbol| symbol.as_str().unwrap().to_owned()).collect()
}

/// Named types by simple name, which is unique within each of our schemas.
#[derive(Default)]
struct Types {
    /// Fields of each record with their type (named types by name) and default.
    records: BTreeMap<String, BTreeMap<String, String>>,
    enums: BTreeMap<String, Vec<String>>,
    defaults: BTreeMap<String, String>,
}

impl Types {
    fn of(schema: &str) -> Self {
        let mut types = Self::default();
        types.add(&serde_json::from_str(schema).unwrap());
        types
    }

    /// Notes the named types within `schema` and says its shape in short.
    fn add(&mut self, schema: &Value) -> String {
        match schema {
            Value::String(name) => name.clone(),
            Value::Array(branches) => branches.iter().map(|b| self.add(b)).collect::<Vec<_>>().join(" or "),
            Value::Object(object) => {
                let name = object.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
                match object["type"].as_str() {
                    Some("record") => {
                        let mut fields = BTreeMap::new();
                        for field in object["fields"].as_array().unwrap() {
                            let default = field.get("default").map_or(String::new(), |d| format!(", default {d}"));
                            let shape = self.add(&field["type"]) + &default;
                            fields.insert(field["name"].as_str().unwrap().to_owned(), shape);
                        }
                        self.records.insert(name.clone(), fields);
                        name
                    }
                    Some("enum") => {
                        let symbols = object["symbols"].as_array().unwrap();
                        self.enums.insert(name.clone(), symbols.iter().map(|s| s.as_str().unwrap().to_owned()).collect());
                        let default = object.get("default").and_then(Value::as_str).unwrap_or_default();
                        self.defaults.insert(name.clone(), default.to_owned());
                        name
                    }
                    _ => {
                        let logical = object.get("logicalType").map_or(String::new(), |l| format!(" as {l}"));
                        self.add(&object["type"]) + &logical
                    }
                }
            }
            other => other.to_string(),
        }
    }
}
