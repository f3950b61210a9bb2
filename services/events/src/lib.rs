//! The records on Kafka: Avro schemas, wire format, schema ids and topic names.
