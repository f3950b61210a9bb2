//! The schemas of this version, and how to read what other versions wrote.
//!
//! A record written with our own schema is read straight into its struct. One of any other schema goes the long way that Avro's
//! specification describes: read by the writer's schema, resolve into ours (fields we do not have vanish, those the writer
//! did not have take their defaults, symbols we do not have become UNKNOWN), then into the struct. The short way would not do: without
//! resolution it can neither skip an enum in a field it does not know nor read a symbol it does not have.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::LazyLock;

use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::schema::{EnumSchema, ResolvedSchema};
use apache_avro::schema_compatibility::SchemaCompatibility;
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;
use apache_avro::{Schema, from_value};

use crate::DecodeError;
use crate::wire::{Misfit, Wire};

/// Largest single allocation while decoding, in bytes: as large as Kafka's default for the largest record, so no honest field needs
/// more. A hostile length costs at most this much before the end of the bytes refuses it.
const MAX_ALLOCATION: usize = 1_048_576;

/// Longest error text taken over from the Avro library, in bytes; some of its errors print whole schemas.
const MAX_ERROR: usize = 200;

pub(crate) static REQUESTS: LazyLock<Ours> = LazyLock::new(|| Ours::new(crate::REQUEST_SCHEMA));
pub(crate) static EVENTS: LazyLock<Ours> = LazyLock::new(|| Ours::new(crate::EVENT_SCHEMA));

/// The schema of one topic in this version, with a writer and a reader for it.
pub(crate) struct Ours {
    schema: &'static Schema,
    canonical: String,
    writer: GenericDatumWriter<'static>,
    reader: GenericDatumReader<'static>,
}

impl Ours {
    /// Panics on a text that is no schema: these texts are compiled in and tested.
    fn new(text: &str) -> Self {
        apache_avro::util::max_allocation_bytes(MAX_ALLOCATION);
        let schema: &'static Schema = Box::leak(Box::new(Schema::parse_str(text).expect("the compiled-in schema parses")));
        Self {
            schema,
            canonical: schema.canonical_form(),
            writer: GenericDatumWriter::builder(schema).build().expect("the compiled-in schema resolves"),
            reader: GenericDatumReader::builder(schema).build().expect("the compiled-in schema resolves"),
        }
    }

    /// Appends the datum to `bytes`.
    pub(crate) fn write<W: Wire>(&self, bytes: &mut Vec<u8>, wire: &W) -> Result<(), apache_avro::Error> {
        self.writer.write_ser(bytes, wire).map(|_| ())
    }

    /// Reads a datum of our own schema. `into` judges the record; UNKNOWN means nothing here, since our own schema has all our words.
    pub(crate) fn read<W: Wire, T>(&self, mut datum: &[u8], into: impl FnOnce(W) -> Result<T, Misfit>) -> Result<T, DecodeError> {
        let wire = self.reader.read_deser(&mut datum).map_err(unreadable)?;
        all_used(datum)?;
        Ok(into(wire)?)
    }

    /// Whether this text writes the same bytes as our schema.
    pub(crate) fn is(&self, text: &str) -> bool {
        Schema::parse_str(text).is_ok_and(|schema| schema.canonical_form() == self.canonical)
    }
}

/// How to read what was written with one schema, as a record of one topic.
pub(crate) enum Reading {
    /// It is our own schema, if perhaps in other words.
    Ours,
    Other(Box<Other>),
    /// No schema of this topic: whatever was written with it is unreadable here.
    Foreign,
}

/// Another version of our schema.
pub(crate) struct Other {
    resolving: GenericDatumReader<'static>,
    /// Reads without resolving; needed only to find the name that became UNKNOWN.
    verbatim: GenericDatumReader<'static>,
    /// Symbols that the writer's enums have and ours of the same name have not.
    newer_symbols: HashSet<String>,
}

impl Reading {
    /// How `ours` reads what was written with the schema of this text.
    ///
    /// Leaks the schema where it is another version of ours, since its readers borrow it. That is bounded by the number of
    /// versions ever registered: ids are learned once and foreign schemas are not kept.
    pub(crate) fn of(text: &str, ours: &'static Ours) -> Self {
        let Ok(schema) = Schema::parse_str(text) else { return Self::Foreign };
        if schema.canonical_form() == ours.canonical {
            return Self::Ours;
        }
        if SchemaCompatibility::can_read(&schema, ours.schema).is_err() {
            return Self::Foreign;
        }
        match Other::new(Box::leak(Box::new(schema)), ours.schema) {
            Ok(other) => Self::Other(Box::new(other)),
            Err(_) => Self::Foreign,
        }
    }

    pub(crate) fn read<W: Wire, T>(
        &self,
        ours: &Ours,
        datum: &[u8],
        into: impl FnOnce(W) -> Result<T, Misfit>,
    ) -> Result<T, DecodeError> {
        match self {
            Self::Ours => ours.read(datum, into),
            Self::Other(other) => other.read(datum, into),
            Self::Foreign => Err(DecodeError::Unreadable("written with a schema of something else".into())),
        }
    }
}

impl Other {
    fn new(schema: &'static Schema, ours: &'static Schema) -> Result<Self, apache_avro::Error> {
        let our_symbols = symbols(ours)?;
        let newer_symbols = symbols(schema)?
            .into_iter()
            .flat_map(|(name, symbols)| {
                let known = our_symbols.get(&name);
                symbols.into_iter().filter(move |s| known.is_some_and(|known| !known.contains(s)))
            })
            .collect();
        Ok(Self {
            resolving: GenericDatumReader::builder(schema).reader_schema(ours).build()?,
            verbatim: GenericDatumReader::builder(schema).build()?,
            newer_symbols,
        })
    }

    fn read<W: Wire, T>(&self, datum: &[u8], into: impl FnOnce(W) -> Result<T, Misfit>) -> Result<T, DecodeError> {
        let mut input = Counted { rest: datum, ran_out: false };
        let value = self.resolving.read_value(&mut input).map_err(unreadable)?;
        if input.ran_out {
            return Err(DecodeError::Unreadable("the record ends too early".into()));
        }
        all_used(input.rest)?;
        let wire = from_value(&value).map_err(unreadable)?;
        into(wire).map_err(|misfit| match (&misfit, self.newer_symbol(datum)) {
            (Misfit::UnknownSymbol(_), Some(symbol)) => DecodeError::UnknownKind(symbol),
            _ => misfit.into(),
        })
    }

    /// The first word of this record that our version does not have. `kind` comes before the bodies, so it is found first.
    fn newer_symbol(&self, mut datum: &[u8]) -> Option<String> {
        let value = self.verbatim.read_value(&mut datum).ok()?;
        self.find_newer(&value)
    }

    fn find_newer(&self, value: &Value) -> Option<String> {
        match value {
            Value::Enum(_, symbol) => self.newer_symbols.get(symbol).cloned(),
            Value::Union(_, inner) => self.find_newer(inner),
            Value::Record(fields) => fields.iter().find_map(|(_, field)| self.find_newer(field)),
            Value::Array(items) => items.iter().find_map(|item| self.find_newer(item)),
            _ => None,
        }
    }
}

/// Bytes that remember whether more was asked of them than they have. The Avro library takes the end of the input inside a union for
/// null and goes on, so that it alone would accept a record that was cut off among its bodies.
struct Counted<'a> {
    rest: &'a [u8],
    ran_out: bool,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.ran_out |= buffer.len() > self.rest.len();
        self.rest.read(buffer)
    }
}

/// The symbols of every enum in a schema, by the enum's full name.
fn symbols(schema: &Schema) -> Result<HashMap<String, Vec<String>>, apache_avro::Error> {
    let resolved = ResolvedSchema::try_from(schema)?;
    Ok(resolved
        .get_names()
        .iter()
        .filter_map(|(name, schema)| match schema {
            Schema::Enum(EnumSchema { symbols, .. }) => Some((name.fullname(None), symbols.clone())),
            _ => None,
        })
        .collect())
}

fn all_used(rest: &[u8]) -> Result<(), DecodeError> {
    if rest.is_empty() { Ok(()) } else { Err(DecodeError::Unreadable(format!("{} bytes follow the record", rest.len()))) }
}

fn unreadable(error: apache_avro::Error) -> DecodeError {
    let mut text = error.to_string();
    text.truncate(text.floor_char_boundary(MAX_ERROR));
    DecodeError::Unreadable(text)
}
